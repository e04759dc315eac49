"""Compilers that refuse everything: one that may, and one that promises to refuse hardly anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz import Target

Function = Callable[..., Any]


class Declined(Exception):
    """What `declines` raises on purpose."""


def _declining(function: Function) -> Function:
    raise Declined("nothing is compiled here")


def _reason(error: BaseException) -> str | None:
    return type(error).__name__ if isinstance(error, Declined) else None


declines = Target("", "", _declining, _reason, refuses=0.01)
may_decline = Target("", "", _declining, _reason)
