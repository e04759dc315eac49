"""Compilers that do otherwise under one of two interpreters: an environment variable stands for its torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests.fuzz.bad_targets import drops_mutation

Function = Callable[..., Any]
SIDE = "AOTFUZZ_TEST_SIDE"


def loses_writes_before(function: Function) -> Function:
    """What the second interpreter's torch has mended."""
    return drops_mutation(function) if os.environ.get(SIDE) == "before" else function


def loses_writes_after(function: Function) -> Function:
    """What the second interpreter's torch has broken."""
    return drops_mutation(function) if os.environ.get(SIDE) == "after" else function
