"""Cache: compiles of front ends' graphs on disk, for other processes.

In: a front end's graph and a call. Out: a `Lowered`, which is the result of capture, differentiation and
partitioning, as data. The code that compilers make of graphs is not stored. `python -m aot.cache` shows the
cache.

Modules in reading order:

- `entry`: the place of one compile; `key`: a digest of everything that the compile depends on.
- `store`: a folder of entries; `private_files`, `seal`: files that only their user can write.
- `codec`, `graph_codec`, `operator_table`, `json_decoder`: plans and graphs as data, and back.
- `validation`: whether the parts of what was read belong together.
- `source_digest`, `bytecode_interpreter`, `library_purity`: what the Python of a custom operator depends on.

Invariant: what was read is data. Nothing of it is executed except operators of a table.

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
    """The cache that the present settings name; None if they turn it off.

    The setting `cache` is a folder, True, None or False. With True and None the environment variable
    ``AOTFUZZ_CACHE_DIR`` names the folder. Without it, True means the usual folder, and None no cache.
    """
    settings = config.settings()
    where = settings.cache
    if where is None or where is True:
        named = os.environ.get(_VARIABLE)
        path = Path(named) if named else _usual() if where else None
    else:
        path = Path(where) if where else None
    return None if path is None else Store(path, settings.cache_limit)


def stats() -> Stats:
    """Statistics of the cache that the settings name, or else of the usual one.

    Example:
        >>> with aot.config.patch(cache=tmp_path):
        ...     aot.cache.stats().hits
        0
    """
    return (configured_store() or Store(_usual(), 0)).stats()


def clear() -> int:
    """Empty the cache of `stats`, and return how many entries there were.

    Example:
        >>> with aot.config.patch(cache=tmp_path):
        ...     aot.cache.clear()
        0
    """
    return (configured_store() or Store(_usual(), 0)).clear()


def _usual() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotfuzz"
