"""Run the cases under targets, in worker processes, and count what came of them.

A *word* says what became of one case under one target: `equal`, `finding` (it differs from eager), `raises`
(it raises where eager does not), `refused` (on purpose, before anything was changed), `poisoned` (it proves
nothing: eager differs from itself), `crashed` (the process died or was stopped).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from bench.compiler.opinfo.cases import Case, cases
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death, Job
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target
from oracles import Observation, Outcome, judge, observe

WORDS = ("equal", "finding", "raises", "refused", "poisoned", "crashed")
LIMIT = 900.0


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case; `index` is None when a worker died over a whole operator."""

    name: str
    variant: str
    index: int | None
    target: str
    word: str
    reason: str


def run_case(case: Case, target: Target, eager: Observation | None = None) -> Result:
    """Judge one case; `eager` is what `look` saw, where that is known already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = eager or look(case)
        word, reason = _judge(case, target, seen)
    return Result(case.name, case.variant, case.index, target.name, word, reason)


def look(case: Case) -> Observation:
    """The case in eager."""
    return observe(case.function, case.make, grad=case.grad)


def _judge(case: Case, target: Target, eager: Observation) -> tuple[str, str]:
    def compiled(*args: Any) -> Any:
        return target.compile(case.function)(*args)  # here, so that an exception of the compiler is observed

    try:
        seen = observe(compiled, case.make, grad=case.grad, refusal=target.refusal)
    finally:
        target.reset()
    verdict = judge(
        eager,
        seen,
        lambda: observe(case.function, case.double, grad=case.grad),
        lambda: look(case),
    )
    if seen.raised is not None and seen.refused is None and eager.raised is None:
        return "raises", f"{seen.raised.type}: {seen.raised.message}"
    if verdict.outcome is Outcome.FINDING:
        return "finding", verdict.reason
    if seen.refused is not None:
        # The message is worth more than the reason's name, and a backward's refusal has none.
        said = seen.raised.message if seen.raised is not None else "in the backward"
        return "refused", f"{seen.refused}: {said}"
    return ("equal" if verdict.outcome is Outcome.AGREE else "poisoned"), verdict.reason


def handle(item: dict[str, Any]) -> list[dict[str, Any]]:
    """A worker's side: all cases of one operator or module in one variant, under all targets."""
    targets = [find_target(name) for name in item["targets"]]
    for target in targets:
        target.prepare()
    results = []
    for case in islice(cases(item["name"], item["variant"]), item["samples"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eager = look(case)
        results += [asdict(run_case(case, target, eager)) for target in targets]
    return results


def sweep(
    work: Sequence[tuple[str, str]], targets: Sequence[str], *, samples: int | None = None, jobs: int = 1
) -> Iterator[list[Result]]:
    """The results of each (name, variant) in the order in which they are done.

    `samples` is how many samples of each are used; None is all of them.
    """
    items = [
        {"name": name, "variant": variant, "targets": list(targets), "samples": samples}
        for name, variant in work
    ]
    with Pool("bench.compiler.opinfo.sweep:handle", jobs=jobs, recycle=20, warm=targets) as pool:
        for event in pool.run([Job((item,), LIMIT) for item in items]):
            item = event.job.items[0]
            if isinstance(event, Answer):
                yield [Result(**result) for result in event.value]
                continue
            why = f"{event.kind}: {event.cause}" if isinstance(event, Death) else event.text
            yield [Result(item["name"], item["variant"], None, target, "crashed", why) for target in targets]
