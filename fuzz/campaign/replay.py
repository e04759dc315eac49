"""Corpus cases run again: each on the targets it has an expectation for, or on those that were asked for.

A case runs in a worker, so that one which segfaults or hangs costs itself only. Whether the outcome is as
expected is decided here: a case that "differs" must show a finding of its recorded bucket, and one that
"agrees" must agree. A case on a target that its file says nothing about may do anything but differ, and what
it says of other versions of torch only, anything. One for a device that is not here is left out.
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

# The outcome of a case on a device that this machine does not have.
LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One case on one target; of `outcome` LEFT_OUT if it cannot be run here.

    `bucket` is "" unless it differs; `expected` is None where the file says nothing of this target, or
    not with this version of torch.
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
        """As plain data."""
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
    """Each case on `targets`, or on the shipped ones among those of its own file, in that order.

    A target that is written package.module:function runs only when it is asked for by name: a corpus file
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

    `watch` is told after each run how many there have been.
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
    """Hold what was seen against what the file expects of this target."""
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
