"""Garbage: collect garbage between two cases of a process, and exempt the rest from later collections.

A case needs several full collections: to tell a cycle of garbage from memory that something holds
(`oracles/observation/leaks.py`), and to let garbage of a failed compiler do its harm at a known point
(`fuzz/execute/call.py`). Each would look at all objects of the process: the target's modules, caches that
grow from case to case, garbage of the case before. They have nothing to do with the present case.
"""

from __future__ import annotations

import gc


def sweep_garbage() -> None:
    """Collect the garbage of a case, and let later collections skip all objects that exist then.

    It is for a process that only runs cases. If objects that survived a case become a cycle of garbage later,
    they stay in memory.
    """
    gc.collect()
    gc.freeze()
