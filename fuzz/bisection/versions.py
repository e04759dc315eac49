"""Versions: run a trial under several versions of torch, to find where it goes wrong and right again.

history = try_versions(Script(Path("wrong.py")), interpreters, limit=60)
history.first_wrong, history.last_right, history.mended_in   # "2.13.0", "2.11.0", "2.15.0"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from fuzz.bisection.trial import Outcome, Trial, Verdict
from fuzz.interpreters import Interpreter


@dataclass(frozen=True, slots=True)
class VersionOutcome:
    """The outcome of a trial under one interpreter."""

    torch: str
    python: Path
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class History:
    """Outcomes of one trial, from the oldest torch to the newest."""

    outcomes: tuple[VersionOutcome, ...]

    @property
    def first_wrong(self) -> str | None:
        """The oldest torch that is wrong."""
        return next((at.torch for at in self.outcomes if at.outcome.verdict is Verdict.WRONG), None)

    @property
    def last_right(self) -> str | None:
        """The newest right torch before the first wrong one; of all, if none is wrong."""
        right = None
        for at in self.outcomes:
            if at.outcome.verdict is Verdict.WRONG:
                break
            right = at.torch if at.outcome.verdict is Verdict.RIGHT else right
        return right

    @property
    def mended_in(self) -> str | None:
        """The oldest right torch after the last wrong one; None if none is wrong."""
        mended = None
        for at in self.outcomes:
            if at.outcome.verdict is Verdict.WRONG:
                mended = None
            elif at.outcome.verdict is Verdict.RIGHT and self.first_wrong is not None and mended is None:
                mended = at.torch
        return mended if self.first_wrong is not None and mended != self.last_right else None

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "versions": [
                {
                    "torch": at.torch,
                    "python": str(at.python),
                    "verdict": str(at.outcome.verdict),
                    "said": at.outcome.said,
                }
                for at in self.outcomes
            ],
            "first_wrong": self.first_wrong,
            "last_right": self.last_right,
            "mended_in": self.mended_in,
        }


def try_versions(
    trial: Trial,
    interpreters: Sequence[Interpreter],
    *,
    limit: float,
    report: Callable[[VersionOutcome], None] = lambda _outcome: None,
) -> History:
    """Run a trial under each interpreter, the oldest torch first. `report` gets each outcome.

    All are tried, because a version in the middle may be wrong although both ends are right.
    """
    found = []
    for interpreter in sort_by_torch(interpreters):
        at = VersionOutcome(interpreter.torch, interpreter.python, trial.run(interpreter, limit=limit))
        report(at)
        found.append(at)
    return History(tuple(found))


def sort_by_torch(interpreters: Sequence[Interpreter]) -> list[Interpreter]:
    """Interpreters from the oldest torch to the newest."""
    return sorted(interpreters, key=lambda interpreter: Version(interpreter.torch))
