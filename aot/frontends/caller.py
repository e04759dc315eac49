"""The caller's frame: the line of the user's that a warning of a front end is about."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from torch import nn

from aot import config

_LIBRARIES = tuple(f"{folder}/" for folder in (Path(nn.__file__).parents[1], Path(config.__file__).parent))


def level_of_caller() -> int:
    """The `stacklevel` of a warning, given where this is called, for the innermost frame of the user's.

    >>> level_of_caller()    # of a user's own
    1
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level
