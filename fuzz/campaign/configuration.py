"""Configuration: what a campaign runs, and with which versions. It is known before the first case.

configuration = Configuration(targets=("aot",), seed=1, cases=5000)
from_json(to_json(configuration)) == configuration
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

# The number of programs in the fingerprint of the generator.
_SAMPLE = 16


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one reduction: programs that run, and worker seconds if time bounds the campaign.

    With a limit in seconds, buckets depend on how busy the machine is. So a campaign that is bounded by cases
    has none.
    """

    evaluations: int = 250
    seconds: float = 60.0
    hang_limit: float = 10.0


DEFAULT_BUDGET = Budget()


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a campaign runs.

    `seconds` and `cases` (for each target) bound it together; at least one of them must be given. `limit` is
    the time limit of a case in seconds, `memory` the limit of a worker's data in bytes. `cluster` is "" for
    this machine, else the address of a Dask scheduler or `local:N` (see `fuzz.campaign.workers.cluster`).
    Then `jobs` is the number of workers of each node, 0 for one for each core. `clauses` are judged of those
    that a target promises; empty means all.
    """

    targets: tuple[str, ...]
    seed: int = 0
    profile: str = "mixed"
    device: str = "cpu"
    jobs: int = 1
    seconds: float | None = None
    cases: int | None = None
    limit: float = 30.0
    memory: int = 4 << 30
    budget: Budget = DEFAULT_BUDGET
    cluster: str = ""
    clauses: tuple[str, ...] = ()


def to_json(configuration: Configuration) -> dict[str, Any]:
    """A configuration as plain data."""
    return asdict(configuration)


def from_json(data: Mapping[str, Any]) -> Configuration:
    """The inverse of `to_json`."""
    budget = Budget(**data["budget"])
    clauses = tuple(data.get("clauses", ()))  # campaigns of earlier versions have none
    return Configuration(**{**data, "targets": tuple(data["targets"]), "budget": budget, "clauses": clauses})


def campaign_versions() -> dict[str, str]:
    """The versions on which a campaign's results depend besides its configuration, as text."""
    import torch

    found = {
        "aotfuzz": _installed(),
        "commit": _checkout_commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    return {name: value for name, value in found.items() if value}


def generator_fingerprint(configuration: Configuration) -> str:
    """A digest of the first programs.

    A campaign is continued only if the generator still makes the same ones.
    """
    from fuzz.campaign.workers.handlers import program
    from fuzz.program.decode import to_json as program_to_json

    made = [
        program_to_json(program(configuration.seed, index, configuration.profile, configuration.device))
        for index in range(_SAMPLE)
    ]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def _installed() -> str:
    """The version of the package; "" if it is not installed."""
    try:
        return metadata.version("aotfuzz")
    except metadata.PackageNotFoundError:
        return ""


def _checkout_commit() -> str:
    """The commit of this checkout; "" for an installed package or without git."""
    here = Path(__file__).parent
    if not any((parent / ".git").exists() for parent in here.parents[:2]):
        return ""
    command = ["git", "-C", str(here), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
