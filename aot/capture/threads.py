"""Threads that a function starts, or gives work to: they may not compute with tensors of the trace.

The recorder sees the operations of its own thread alone, and a kernel that ran on a tensor without memory
would crash. So what the function hands to another thread runs there under a mode that refuses such tensors,
and the trace is refused when the function has returned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from aot import torch_internals as internals
from aot.errors import UnsupportedOperation


class Threads:
    """What happens in other threads during one trace."""

    def __init__(self) -> None:
        self.refusal: UnsupportedOperation | None = None

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, to be called in another thread."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _Elsewhere(self):
                return function(*args, **kwargs)

        return run

    def check(self, cause: BaseException | None = None) -> None:
        """Refuse the trace if another thread has computed with its tensors.

        Raises:
            UnsupportedOperation: one has.
        """
        if self.refusal is not None:
            raise self.refusal from cause


class _Elsewhere(internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, threads: Threads) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._threads = threads

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves, _ = internals.tree_flatten((args, kwargs))
        if any(internals.is_memoryless(leaf) for leaf in leaves):
            refusal = UnsupportedOperation(
                f"a thread that the function uses runs {func} on one of its tensors; compute in the thread "
                f"that calls the function"
            )
            self._threads.refusal = refusal
            raise refusal
        return func(*args, **(kwargs or {}))
