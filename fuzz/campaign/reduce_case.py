"""Reduce case: make one corpus case smaller on a target, for `aotfuzz reduce`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuzz.campaign.devices import gpu_names, require_device, workers
from fuzz.campaign.investigate import Runner, investigate, serve_pool_during
from fuzz.campaign.records import Example, RunOutcome, Suspect
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.corpus import buckets, case_file
from fuzz.corpus.case_file import Case


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of a reduction.

    `case` is the smaller case, or None if the case does not differ. `said` is one sentence about it.
    `as_recorded` says if it still is the difference that its file records.
    """

    case: Case | None
    said: str
    as_recorded: bool


def reduce_case(case: Case, target: str, *, limit: float = 60.0) -> Reduced:
    """Run a case on a target and, if it differs, reduce it to a smaller one with the same difference.

    Two programs run at once: the one that decides, and the one that comes next if the first does not differ.

    Raises:
        DeviceError: the case is for a device that is not here.
    """
    import torch

    device = case.program.scenario.device
    require_device(device)
    at_once = min(2, workers(device))
    with Pool(handlers.HANDLER, jobs=at_once, warm=[target], gpus=gpu_names(device)) as pool:
        runner = Runner(pool, limit)
        found = serve_pool_during(pool, lambda: _investigate(case, target, runner, at_once > 1))
    if isinstance(found, RunOutcome):
        return Reduced(None, f"does not differ on {target}: {found.outcome}. {found.reason}".rstrip(), False)
    program = found.program
    smaller = replace(
        case,
        program=program,
        bucket=found.bucket,
        clause=buckets.primary_finding(found.seen.findings).clause,
        torch=torch.__version__.split("+")[0],
        origin=replace(case.origin, target=target),
        expected={**case.expected, target: case_file.DIFFERS},
        findings=found.seen.findings,
    )
    said = (
        f"{len(case.program.statements)} -> {len(program.statements)} statements "
        f"in {found.evaluations} evaluations: {found.bucket}"
    )
    return Reduced(smaller, said, found.bucket == case.bucket)


def _investigate(case: Case, target: str, runner: Runner, ahead: bool) -> Example | RunOutcome:
    seen = runner.run(case.program, target)
    if not seen.signature:
        return seen
    suspect = Suspect(target, case.origin.case, case.program, seen)
    return investigate(suspect, runner, ahead=ahead)
