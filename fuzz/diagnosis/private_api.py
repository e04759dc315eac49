"""Torch's private API: what of it is missing here, or has another signature than where it was tested.

A process of its own finds out, which runs `aot/torch_internals/inventory.py` as a file: it imports much of
torch, and aot may be what cannot be imported.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.diagnosis.environment import SECONDS


@dataclass(frozen=True, slots=True)
class PrivateApi:
    """The private names of torch that this project uses, compared with the tested versions.

    Attributes:
        tested: the versions that were tested, as "2.15".
        baselines: those that the installed one was compared with.
        names: how many names there are.
        changes: what is missing or has changed: `name`, `before`, `after` (None: missing), `users`.
        error: why it is not known; "" if it is.
    """

    tested: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    names: int = 0
    changes: tuple[Mapping[str, Any], ...] = ()
    error: str = ""


def inventory_file() -> Path:
    """The module of aot that makes the inventory; it is found without importing aot."""
    spec = importlib.util.find_spec("aot")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("torch_internals") / "inventory.py"


def compare_private_api() -> PrivateApi:
    """Compare what the sources use with what the installed torch has."""
    command = [sys.executable, "-P", str(inventory_file()), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return PrivateApi(error=f"no answer in {SECONDS:.0f} s")
    try:
        data = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines()
        return PrivateApi(error=lines[-1] if lines else f"exit status {done.returncode}")
    return PrivateApi(
        tuple(data["tested"]), tuple(data["compared_with"]), data["names"], tuple(data["changes"])
    )


def change_text(change: Mapping[str, Any]) -> str:
    """One change in words.

    >>> change_text({"name": "torch._C._f", "before": "()", "after": None, "users": ["aot/a.py: g"]})
    'missing torch._C._f (used in aot/a.py: g)'
    """
    users = ", ".join(change["users"])
    if change["after"] is None:
        return f"missing {change['name']} (used in {users})"
    return (
        f"changed signature {change['name']} from {change['before']} to {change['after']} (used in {users})"
    )
