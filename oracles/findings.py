"""Findings and verdicts: what the oracles report, in plain strings that are equal on every run.

Invariant: no text holds an address or a live object, so findings of two runs can be compared and stored.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

CLAUSES: tuple[str, ...] = (
    "errors",
    "structure",
    "values",
    "strides",
    "identity",
    "aliasing",
    "input-data",
    "input-metadata",
    "versions",
    "autograd-metadata",
    "gradients",
    "double-backward",
    "randomness",
    "ambient",
    "lifetime",
    "once",
    "repeat",
    "threads",
    "refusals",
)
"""The contract's clauses that are observed, in the order of a report.

`errors` and `structure` come first because everything after them is read in their light.
"""


class Outcome(StrEnum):
    """The three outcomes of a case."""

    AGREE = "agree"
    """The target did what eager did."""
    POISONED = "poisoned"
    """The case proves nothing: eager is unstable or is noise, or the target refused the program."""
    FINDING = "finding"
    """The target broke the contract."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken clause at one place.

    `clause` is one of `CLAUSES`; `path` names the value, such as `out[0]['k']`, `arg[1]` or
    `grad of arg[0]`; `eager` and `target` are the two sides; `message` says it as one sentence.
    Everything is a plain string without addresses, so that findings of two runs can be compared,
    counted and stored as JSON.

    Raises `ValueError` for a clause that is not in `CLAUSES`.

        Finding("strides", "out[0]", "(1, 2)", "(2, 1)", "out[0] has strides (1, 2) in eager ...")
    """

    clause: str
    path: str
    eager: str
    target: str
    message: str

    def __post_init__(self) -> None:
        if self.clause not in CLAUSES:
            raise ValueError(f"{self.clause!r} is no clause of the contract; known are {', '.join(CLAUSES)}")

    def __str__(self) -> str:
        return f"{self.clause}: {self.message}"


def is_judged(finding: Finding, clauses: Container[str]) -> bool:
    """Whether a finding belongs to these clauses.

    An error that a backward raises belongs to `errors` and to `gradients`: both must be judged.

    >>> is_judged(Finding("errors", "backward from out", "a", "b", "c"), ("errors",))
    False
    """
    of_backward = finding.clause == "errors" and finding.path.startswith("backward")
    return finding.clause in clauses and not (of_backward and "gradients" not in clauses)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one case.

    Attributes:
        outcome: agree, poisoned or finding.
        findings: the findings; empty unless the outcome is a finding.
        reason: one line: the first finding's message, or why the case is inconclusive, or how two runs
            agree that are not equal bit for bit.
    """

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str = ""
