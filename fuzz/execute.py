"""One case: a program run eagerly and under a target, each on fresh arguments, and what the judge says.

What runs is the text that `fuzz.source.render` prints. Eager and the target start from the same seed; the
float64 reference and the second eager run that tells noise from a difference are only run when the judge asks
for them. Nothing of a case is left behind for the next one: `observe` puts modes, defaults and random state
back, and the target drops what it compiled.

    result = execute(program, find("torch-aot-eager"))
    result.outcome          # "agree", "poisoned", "finding" or "refused"
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fuzz import corpus
from fuzz.program import Program
from fuzz.source import load, upcast
from fuzz.targets import Target
from oracles import Arguments, Finding, Observation, Outcome, Refusal, judge, observe


class Escape(Exception):
    """A target raised SystemExit, KeyboardInterrupt or the like, which is no way to end a call."""


Word = Literal["agree", "poisoned", "finding", "refused"]
SEED = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case: plain data, the same on every run save for `seconds`.

    `reason` is the refusal's name for "refused", why the case proves nothing for "poisoned", the first
    finding's message for "finding". `seconds` is the wall time of the case.
    """

    outcome: Word
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain data, for a worker's pipe."""
        return {
            "outcome": self.outcome,
            "findings": [corpus.finding_to_json(finding) for finding in self.findings],
            "reason": self.reason,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """The result that `to_json` gave."""
        findings = tuple(corpus.finding_from_json(finding) for finding in data["findings"])
        return cls(data["outcome"], findings, data["reason"], data["seconds"])


def execute(program: Program, target: Target) -> Result:
    """Run one case. Whatever the target raises is a finding or a refusal, never an exception from here."""
    start = time.perf_counter()
    lacking = target.lacking(program)
    if lacking is not None:
        return Result("refused", reason=f"lacks {lacking}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = _execute(program, target)
    finally:
        target.reset()
    return Result(result.outcome, result.findings, result.reason, time.perf_counter() - start)


def _execute(program: Program, target: Target) -> Result:
    loaded = load(program)
    eager = _observe(program, loaded.f, loaded.make)
    compiled = _lazily(target, loaded.f)
    seen = _observe(program, compiled, loaded.make, target.refusal)

    twin = upcast(program)

    def reference() -> Observation:
        assert twin is not None
        exact = load(twin)
        return _observe(program, exact.f, exact.make)

    def control() -> Observation:
        return _observe(program, loaded.f, loaded.make)

    verdict = judge(eager, seen, reference if twin else None, control)
    if seen.refused is not None and verdict.outcome is not Outcome.FINDING:
        return Result("refused", reason=seen.refused)
    words: dict[str, Word] = {"agree": "agree", "poisoned": "poisoned", "finding": "finding"}
    return Result(words[str(verdict.outcome)], verdict.findings, verdict.reason)


def _observe(
    program: Program,
    function: Callable[..., Any],
    make: Callable[[], Any],
    refusal: Refusal | None = None,
) -> Observation:
    scenario = program.scenario

    def arguments() -> Arguments:
        args, leaves, tensors = make()
        return Arguments(args, leaves, tensors)

    return observe(
        function,
        arguments,
        seed=SEED,
        grad=scenario.grad,
        inference=scenario.inference,
        differentiate=scenario.differentiate,
        refusal=refusal,
    )


def _lazily(target: Target, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, so that an exception of the compiler is observed like one of the call."""
    compiled: list[Callable[..., Any]] = []

    def call(*args: Any) -> Any:
        try:
            if not compiled:
                compiled.append(target.compile(function))
            return compiled[0](*args)
        except Exception:
            raise
        except BaseException as error:
            raise Escape(f"{type(error).__name__}: {error}") from error

    return call
