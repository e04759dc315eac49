"""Trial: one run of a corpus case or a script under an interpreter: right, wrong, or neither.

outcome = Script(Path("wrong.py")).run(interpreter, limit=60)
outcome.verdict is Verdict.WRONG
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from fuzz.bisection.forked_trial import CANNOT_SAY
from fuzz.interpreters import Interpreter


class Verdict(StrEnum):
    """The verdict of a run on a version."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "cannot say"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of one run, and what was seen."""

    verdict: Verdict
    said: str = ""


class Trial(Protocol):
    """A case or a script that is bisected."""

    @property
    def name(self) -> str:
        """Its name for people."""

    def run(
        self,
        interpreter: Interpreter,
        *,
        limit: float,
        folder: Path | None = None,
        changes: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run it once, in a folder and with changes to the environment, for at most `limit` seconds."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Python script with arguments, whose exit status is the verdict."""

    file: Path
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.file)

    def run(
        self,
        interpreter: Interpreter,
        *,
        limit: float,
        folder: Path | None = None,
        changes: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Right if it ends with 0, unknown with 125 or past the limit, wrong otherwise."""
        words = [str(self.file.absolute()), *self.arguments]
        ran = interpreter.run(words, limit=limit, folder=folder, changes=changes)
        if ran.status is None:
            return Outcome(Verdict.UNKNOWN, f"it takes more than {limit:g} s")
        said = f"status {ran.status}" + (f": {ran.last_words}" if ran.last_words else "")
        if ran.status in (0, CANNOT_SAY):
            return Outcome(Verdict.RIGHT if ran.status == 0 else Verdict.UNKNOWN, said)
        return Outcome(Verdict.WRONG, said)


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """A corpus file on a target. It is wrong if it shows the recorded bucket."""

    file: Path
    target: str

    @property
    def name(self) -> str:
        return f"{self.file} on {self.target}"

    def run(
        self,
        interpreter: Interpreter,
        *,
        limit: float,
        folder: Path | None = None,
        changes: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Wrong if it differs as recorded, right if it agrees, unknown for all else."""
        options = ("--target", self.target, "--jobs", "1", "--json")
        words = ("-P", "-m", "fuzz.cli", "replay", str(self.file.absolute()), *options)
        ran = interpreter.run(words, limit=limit, folder=folder, changes=changes)
        if ran.status is None:
            return Outcome(Verdict.UNKNOWN, f"it takes more than {limit:g} s")
        try:
            (row,) = json.loads(ran.stdout.splitlines()[-1])["results"]
        except (ValueError, LookupError, TypeError):
            return Outcome(Verdict.UNKNOWN, f"replay ended with status {ran.status}: {ran.last_words}")
        return case_outcome(row)


def case_outcome(row: Mapping[str, Any]) -> Outcome:
    """The verdict of a row of `aotfuzz replay --json`."""
    said = row["bucket"] or " ".join(dict.fromkeys(filter(None, (row["outcome"], row["reason"]))))
    if row["outcome"] == "agree":
        return Outcome(Verdict.RIGHT, said)
    if row["outcome"] == "finding" and row["same_bucket"]:
        return Outcome(Verdict.WRONG, said)
    return Outcome(Verdict.UNKNOWN, said)
