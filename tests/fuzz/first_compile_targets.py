"""Compilers that only the first compile of a process shows to be wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


compiled_before: list[None] = []


def fails_at_first(function: Function) -> Function:
    """The first compile of a process fails."""
    if not compiled_before:
        compiled_before.append(None)
        raise AttributeError("module is not imported yet")
    return function


def sets_up_slowly(function: Function) -> Function:
    """Its first call sets something up, in which two threads disturb each other."""

    def compiled(*args: Any) -> Any:
        if "done" not in set_up:
            if "begun" in set_up:
                raise AssertionError("duplicate name")
            set_up["begun"] = True
            time.sleep(0.5)
            set_up["done"] = True
        return function(*args)

    return compiled


set_up: dict[str, bool] = {}


def segfaults_always(function: Function) -> Function:
    """Takes the process down."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return function


def hangs_always(function: Function) -> Function:
    """Never returns."""
    time.sleep(600)
    return function
