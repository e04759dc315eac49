"""Eager case: run a program in eager only, and compare it with the eager of another process.

In: a program. Out: one observation for each call. Or a `Result` that compares them with the observations of
another eager: "agree" is within the error policy of `oracles`, "finding" is a difference.

    seen = observe_eager(program)               # in a process with one torch
    judge_eager(program, seen).outcome          # in a process with another: "agree", "poisoned" or "finding"
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fuzz.execute.call import (
    CallSpec,
    Result,
    baseline_reruns,
    eager_itself,
    in_one_thread,
    run_and_observe,
)
from fuzz.execute.case import load_calls
from fuzz.ir.nodes import BOTH, DEVICES, on_device
from fuzz.program.decode import Program
from fuzz.targets.target import Function
from oracles import Finding, Observation, Outcome, judge


def observe_eager(program: Program) -> tuple[Observation, ...]:
    """The observation of each call of a program, which eager makes in one thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(run_and_observe(call, function) for function, call in _calls_of_program(program))


def judge_eager(program: Program, others: Sequence[Observation]) -> Result:
    """Judge another eager's observations of a program's calls by those of this process.

    In a finding, `eager` is this process's side, and `target` is the other one's.

    Raises:
        ValueError: `others` has not one observation for each call.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worst = Result("agree", reason="agree")
        for number, ((function, call), other) in enumerate(
            zip(_calls_of_program(program), others, strict=True)
        ):
            seen = run_and_observe(call, function)
            reruns = baseline_reruns(call, eager_itself, function, drew=seen.drew)
            verdict = judge(seen, other, *reruns)
            if verdict.outcome is Outcome.FINDING:
                findings = tuple(_finding_of_call(finding, number) for finding in verdict.findings)
                return Result("finding", findings, str(findings[0]))
            if verdict.outcome is Outcome.POISONED:
                worst = Result("poisoned", reason=verdict.reason)
    return worst


def _calls_of_program(program: Program) -> Iterator[tuple[Function, CallSpec]]:
    """Each call on each device of a program. Calls of one function share its state."""
    devices = DEVICES if program.scenario.device == BOTH else (program.scenario.device,)
    for device in devices:
        function, calls = load_calls(on_device(program, device))
        for call in calls:
            yield function, in_one_thread(call)


def _finding_of_call(finding: Finding, number: int) -> Finding:
    """The finding with the number of its call, unless that is the first."""
    return replace(finding, message=f"in call {number + 1}, {finding.message}") if number else finding
