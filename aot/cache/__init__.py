"""Compiles of front ends' graphs, kept on disk for other processes.

What is kept is all that capture, differentiation and partitioning find out (`Lowered`), as data; what
compilers make of graphs is not. `python -m aot.cache` tells what is there.
Invariant: what was read is data, and nothing of it is executed but operators of a table.

Example:
    >>> with aot.config.patch(cache=tmp_path):
    ...     graph = torch.fx.symbolic_trace(torch.sin)
    ...     aot.aot_module_simplified(graph, [torch.ones(2)], aot.nop)(torch.ones(2))
    ...     aot.cache.stats().entries
    tensor([0.8415, 0.8415])
    1
"""

from __future__ import annotations

import os
from pathlib import Path

from aot import config
from aot.cache.entry import CacheEntry, entry_of
from aot.cache.key import Options, Places
from aot.cache.store import Stats, Store

__all__ = [
    "CacheEntry",
    "Options",
    "Places",
    "Stats",
    "Store",
    "clear",
    "configured_store",
    "entry_of",
    "stats",
]

_VARIABLE = "AOTFUZZ_CACHE_DIR"


def configured_store() -> Store | None:
    """The cache by the settings of now, if there is to be one."""
    settings = config.settings()
    where = settings.cache
    if where is None or where is True:
        named = os.environ.get(_VARIABLE)
        path = Path(named) if named else _usual() if where else None
    else:
        path = Path(where) if where else None
    return None if path is None else Store(path, settings.cache_limit)


def stats() -> Stats:
    """What is in the cache: that of the settings, or else the usual one.

    Example:
        >>> with aot.config.patch(cache=tmp_path):
        ...     aot.cache.stats().hits
        0
    """
    return (configured_store() or Store(_usual(), 0)).stats()


def clear() -> int:
    """Empty the same one; how many entries there were.

    Example:
        >>> with aot.config.patch(cache=tmp_path):
        ...     aot.cache.clear()
        0
    """
    return (configured_store() or Store(_usual(), 0)).clear()


def _usual() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotfuzz"
