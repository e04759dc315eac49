"""What a campaign runs, and with which versions: the part of it that is known before the first case.

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

# How many programs the fingerprint of the generator looks at.
_SAMPLE = 16


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one reduction may take: programs run, and, where time bounds the campaign, seconds of workers.

    Seconds would make the buckets of a campaign that is bounded by cases depend on how busy its machine is.
    """

    evaluations: int = 250
    seconds: float = 60.0
    hang_limit: float = 10.0


DEFAULT_BUDGET = Budget()


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to run. `seconds` and `cases` (per target) bound it together; one of them must be given.

    `limit` is the seconds that one case may take; `memory` the bytes of data of one worker. `cluster` is ""
    for this machine alone, else the address of a Dask scheduler or `local:N` (see
    `fuzz.campaign.workers.cluster`); `jobs` are then the workers of each node, 0 for one for each of its
    cores. `clauses` are those that are judged of what each target promises; there are none where all are.
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
    """The configuration that `to_json` gave."""
    budget = Budget(**data["budget"])
    clauses = tuple(data.get("clauses", ()))  # earlier campaigns had none
    return Configuration(**{**data, "targets": tuple(data["targets"]), "budget": budget, "clauses": clauses})


def campaign_versions() -> dict[str, str]:
    """What a campaign's results depend on besides its configuration, in words for a report."""
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
    """A digest of the first programs: a campaign goes on only where the generator still makes the same."""
    from fuzz.campaign.workers.handlers import program
    from fuzz.program.decode import to_json as program_to_json

    made = [
        program_to_json(program(configuration.seed, index, configuration.profile, configuration.device))
        for index in range(_SAMPLE)
    ]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def _installed() -> str:
    """The version of the package; "" where it is used without being installed."""
    try:
        return metadata.version("aotfuzz")
    except metadata.PackageNotFoundError:
        return ""


def _checkout_commit() -> str:
    """The commit that this code is a checkout of; "" for an installed package or without git."""
    here = Path(__file__).parent
    if not any((parent / ".git").exists() for parent in here.parents[:2]):
        return ""
    command = ["git", "-C", str(here), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
