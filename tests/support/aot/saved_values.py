"""Functions whose compiles are kept on disk and taken from there at once: what answers was never traced.

`aot_function` keeps nothing, as a Python function has no key; here it is given one of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aot
from aot.cache.entry import CacheEntry
from aot.cache.key import Key
from aot.cache.store import Store
from aot.frontends.function import CompiledFunction, Specialization


class Kept(CompiledFunction):
    """A function that is compiled, kept, and read again.

    Attributes:
        read: how many of its specializations were read.
    """

    def __init__(self, function: Callable[..., Any], folder: Path, **options: Any) -> None:
        partition = options.get("partition_fn", aot.default_partition)
        keep = options.get("keep_inference_input_mutations", False)
        super().__init__(function, aot.nop, aot.nop, aot.nop, partition, {}, 0, keep, False)
        self.read = 0
        self._folder = Store(folder, 1 << 30)
        self._now: str | None = None

    def _module_cache_entry(self, casts: Any, spec: Any, inference: bool, symbols: Any) -> CacheEntry | None:
        if casts.arguments.metas or self._now is None:
            return None
        views = frozenset(i for i, tensor in enumerate(casts.arguments.tensors) if tensor._is_view())
        return CacheEntry(self._folder, Key(self._now, frozenset()), views, None)

    def _specialize(self, *call: Any) -> Specialization:
        name = f"{self.__name__} {id(self)} {len(self._specializations)}"
        self._now = hashlib.sha256(name.encode()).hexdigest()
        try:
            traced = super()._specialize(*call)
            if not (self._folder.path / f"{self._now}.aot").exists():
                return traced  # it is of a kind that is not kept
            self.read += 1
            return super()._specialize(*call)
        finally:
            self._now = None
