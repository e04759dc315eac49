"""Between two cases in a process that runs many: garbage is collected, and the rest is not looked at again.

A case asks Python's collector for whole collections, several at times: to tell a cycle of garbage from memory
that something holds (`oracles/observation/leaks.py`), and to have what a failed compiler left do its harm at
a known point (`fuzz/execute/call.py`). Each would look at all that the process holds: the target's modules,
caches that grow from case to case, garbage of the case before. None of that says anything about the case at
hand.
"""

from __future__ import annotations

import gc


def sweep_garbage() -> None:
    """Collect what a case has left, and have later collections pass over all that is there then.

    For a process that is there to run cases. A cycle that becomes garbage later, out of something that was
    kept from one case to another, stays in memory.
    """
    gc.collect()
    gc.freeze()
