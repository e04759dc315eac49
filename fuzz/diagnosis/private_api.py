"""Private API: which names of torch's private API are missing here, or differ from the tested versions.

A separate process runs `aot/torch_internals/inventory.py` as a file, because it imports much of torch, and
aot may not be importable.
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
        tested: the tested versions, such as "2.15".
        baselines: the versions with which the installed one was compared.
        names: the number of names.
        changes: what is missing or has changed: `name`, `before`, `after` (None: missing), `users`.
        error: why it is not known, or "".
    """

    tested: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    names: int = 0
    changes: tuple[Mapping[str, Any], ...] = ()
    error: str = ""


def inventory_file() -> Path:
    """The file of the module of aot that makes the inventory, found without importing aot."""
    spec = importlib.util.find_spec("aot")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("torch_internals") / "inventory.py"


def compare_private_api() -> PrivateApi:
    """Compare the private names in the sources with the installed torch."""
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
