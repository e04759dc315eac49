"""The caller's frame: the line of the user's that a warning of a front end is about."""

from __future__ import annotations

import sys
from types import FrameType

from aot.graph.node_origins import LIBRARIES


def level_of_caller() -> int:
    """The `stacklevel` of a warning, given where this is called, for the innermost frame of the user's.

    >>> level_of_caller()    # of a user's own
    1
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level
