"""Versions of torch: which ones this library is tested with, and a warning for one that is newer.

What these versions have of private API is in ``private_api.json`` (`inventory`).
"""

from __future__ import annotations

import warnings

import torch
from packaging.version import Version

from aot.errors import UntestedTorchWarning

__all__ = ["NEWEST", "OLDEST", "TESTED", "untested_version_message", "warn_if_untested"]

TESTED = ("2.11", "2.13", "2.14", "2.15")
"""The versions, without their last number, in order. `pyproject.toml` asks for the first or a newer one."""

OLDEST, NEWEST = TESTED[0], TESTED[-1]


def untested_version_message(version: str) -> str | None:
    """What to say of a torch that is newer than what was tested, a nightly build included; None of others.

    Example:
        >>> untested_version_message("2.15.1+cpu") is None
        True
    """
    if Version(version).release[:2] <= Version(NEWEST).release[:2]:
        return None
    return (
        f"torch {version} is newer than what aotfuzz is tested with ({', '.join(TESTED)}). "
        "Run `aotfuzz doctor` to see what of torch's private API has changed."
    )


def warn_if_untested() -> None:
    """Warn of a torch that is newer than what was tested. The package calls this when it is imported."""
    message = untested_version_message(str(torch.__version__))
    if message is not None:
        warnings.warn(message, UntestedTorchWarning, stacklevel=2)
