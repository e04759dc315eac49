"""Replay: run corpus cases again, on the targets that they have an expectation for or on others.

In: cases and targets. Out: `Replayed` for each pair. A case runs in a worker, so that one which segfaults or
hangs costs only itself. Whether the outcome is as expected is decided here. A case that "differs" must show a
finding of its recorded bucket, and one that "agrees" must agree. If its file says nothing of a target,
anything is expected except a difference. If the file speaks of other versions of torch only, anything is
expected. A case for a device that is not here is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzz.campaign.devices import gpu_names, has
from fuzz.campaign.investigate import run_of_event
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Job
from fuzz.corpus import buckets
from fuzz.corpus.case_file import AGREES, DIFFERS, Case
from fuzz.targets.builtin_targets import SHIPPED

# The outcome of a case for a device that this machine does not have.
LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One case on one target. Its `outcome` is LEFT_OUT if it cannot run here.

    `bucket` is "" unless it differs. `expected` is None if the file says nothing of this target, or nothing
    for this version of torch.
    """

    file: Path
    target: str
    outcome: str
    bucket: str
    reason: str
    expected: str | None
    same_bucket: bool
    as_expected: bool

    def to_json(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "file": str(self.file),
            "target": self.target,
            "outcome": self.outcome,
            "bucket": self.bucket or None,
            "reason": self.reason,
            "expected": self.expected,
            "same_bucket": self.same_bucket,
            "as_expected": self.as_expected,
        }


def planned_runs(
    cases: Iterable[tuple[Path, Case]], targets: Sequence[str] = ()
) -> list[tuple[Path, Case, str]]:
    """Each case with each target, of `targets` or else the shipped ones in its own file, in that order.

    A target with a name like package.module:function runs only if `targets` has it, because a corpus file
    must not be able to import a module.
    """
    return [
        (file, case, name)
        for file, case in cases
        for name in (targets or [name for name in case.expected if name in SHIPPED])
    ]


def replay(
    cases: Iterable[tuple[Path, Case]],
    targets: Sequence[str] = (),
    *,
    jobs_at_once: int = 1,
    limit: float = 60.0,
    watch: Callable[[int], None] = lambda done: None,
) -> list[Replayed]:
    """Run cases on targets as `planned_runs` says, and judge them, in that order.

    `watch` gets the number of finished runs after each run.
    """
    work = planned_runs(cases, targets)
    found: dict[int, Replayed] = {}
    devices = {case.program.scenario.device for _, case, _ in work}
    here = {device for device in devices if has(device)}
    for place, (file, case, name) in enumerate(work):
        device = case.program.scenario.device
        if device not in here:
            expected = case.state(name, torch.__version__)
            reason = f"needs device {device}"
            found[place] = Replayed(file, name, LEFT_OUT, "", reason, expected, False, True)
    with Pool(
        handlers.HANDLER,
        jobs=jobs_at_once,
        warm=[name for _, _, name in work],
        gpus=gpu_names("cpu" if here <= {"cpu"} else "cuda"),
    ) as pool:
        queue = [
            Job((handlers.program_item(case.program, name),), limit, tag=place)
            for place, (_, case, name) in enumerate(work)
            if place not in found
        ]
        for event in pool.run(queue):
            file, case, name = work[event.job.tag]
            found[event.job.tag] = judge(file, case, name, run_of_event(event))
            watch(len(found))
    return [found[place] for place in sorted(found)]


def judge(file: Path, case: Case, target: str, seen: RunOutcome) -> Replayed:
    """Compare an outcome with what the file expects of this target."""
    bucket = buckets.bucket(seen.findings, case.program) if seen.outcome == "finding" else ""
    same = bucket == case.bucket
    expected = case.state(target, torch.__version__)
    match expected:
        case state if state == DIFFERS:
            as_expected = same
        case state if state == AGREES:
            as_expected = seen.outcome == "agree"
        case _:
            as_expected = seen.outcome != "finding" or target in case.expected
    return Replayed(file, target, seen.outcome, bucket, seen.reason, expected, same, as_expected)
