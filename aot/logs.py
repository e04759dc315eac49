"""The loggers, at level DEBUG: `aot.traced`, `aot.effects`, `aot.joint` and `aot.plan`, which print what a
stage hands to the next one; `aot.graphs`, `aot.wrapper`, `aot.guards` and `aot.cache`.

The environment variable ``AOT_LOGS``, such as ``AOT_LOGS=graphs,guards``, turns them on when `aot` is
imported, and has them write to stderr.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable

GRAPHS = logging.getLogger("aot.graphs")  # each graph that is handed to a compiler
TRACED = logging.getLogger("aot.traced")  # what the run of the function has left
EFFECTS = logging.getLogger("aot.effects")  # what it did to arguments, and what its outputs are
JOINT = logging.getLogger("aot.joint")  # forward and backward, before they are partitioned
PLAN = logging.getLogger("aot.plan")  # what a call does besides running graphs
WRAPPER = logging.getLogger("aot.wrapper")  # the generated code around graphs
GUARDS = logging.getLogger("aot.guards")  # what a specialization rests on, and why there is another one
CACHE = logging.getLogger("aot.cache")  # what is found on disk, and what is not kept there

_LOGGERS = {
    logger.name.removeprefix("aot."): logger
    for logger in (TRACED, EFFECTS, JOINT, PLAN, GRAPHS, WRAPPER, GUARDS, CACHE)
}


def log(logger: logging.Logger, title: str, text: Callable[[], str]) -> None:
    """Log a text, which is made only if somebody listens."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s\n%s", title, text().strip())


def turn_on(names: str) -> None:
    """Let loggers write to stderr: names, or ``all``, with commas between them."""
    for name in filter(None, names.split(",")):
        if name != "all" and name not in _LOGGERS:
            known = ", ".join(_LOGGERS)
            warnings.warn(f"AOT_LOGS={names}: there is no {name!r}; there are all, {known}", stacklevel=2)
        for logger in _LOGGERS.values() if name == "all" else filter(None, [_LOGGERS.get(name)]):
            logger.setLevel(logging.DEBUG)
            logger.addHandler(logging.StreamHandler())
            logger.propagate = False


turn_on(os.environ.get("AOT_LOGS", ""))
