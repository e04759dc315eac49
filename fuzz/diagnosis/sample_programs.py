"""Sample programs: run some programs of each profile on a target, and count which agree with eager."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fuzz.campaign.devices import workers
from fuzz.campaign.investigate import run_of_event
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Event, Failure, Job
from fuzz.generate.profiles import PROFILES

CASES = 8  # of each profile; all together take less than half a minute on two free cores
SEED = 2  # its first programs agree under each tested torch
LIMIT = 20.0  # seconds for one program
SECONDS = 30.0  # no more programs start after it


@dataclass(frozen=True, slots=True)
class Sample:
    """The results of the programs of one profile.

    Attributes:
        outcomes: how many programs agree, are refused, are findings, or prove nothing ("poisoned").
        problems: for each finding, the program's number in the seed, and the difference.
    """

    outcomes: Mapping[str, int]
    problems: tuple[str, ...] = ()


def run_sample_programs(
    target: str = "aot", cases: int = CASES, *, seconds: float = SECONDS
) -> dict[str, Sample]:
    """Run the first programs of `SEED` of each profile, in one pool of workers.

    Args:
        target: the name of the target.
        cases: how many programs of each profile.
        seconds: no more programs start after this time, but at least one of each profile runs.

    Raises:
        PoolError: no worker can be started.
    """
    outcomes: dict[str, Counter[str]] = {profile: Counter() for profile in PROFILES}
    problems: dict[str, list[str]] = {profile: [] for profile in PROFILES}
    end = time.monotonic() + seconds
    with Pool(handlers.HANDLER, jobs=workers(), warm=[target]) as pool:
        for index in range(cases):
            if index and time.monotonic() > end:
                break
            items = {profile: handlers.case_item(SEED, index, profile, "cpu", target) for profile in PROFILES}
            for event in pool.run([Job((item,), LIMIT, tag=profile) for profile, item in items.items()]):
                profile = event.job.tag
                outcome, reason = _outcome(event)
                outcomes[profile][outcome] += 1
                if outcome == "finding":
                    problems[profile].append(f"program {index}: {reason}")
    return {profile: Sample(dict(outcomes[profile]), tuple(problems[profile])) for profile in PROFILES}


def _outcome(event: Event) -> tuple[str, str]:
    """The outcome of a program, and the reason. An error of the fuzzer itself counts as a finding."""
    if isinstance(event, Failure):
        return "finding", event.text.strip().splitlines()[-1]
    seen = run_of_event(event)
    return seen.outcome, seen.reason
