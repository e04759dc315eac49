"""Over versions: the first wrong, the last right, the one that mended it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fuzz.bisection.trial import Outcome, Verdict
from fuzz.bisection.versions import VersionOutcome, try_versions
from fuzz.interpreters import Interpreter


@dataclass(frozen=True)
class Recorded:
    """A trial whose verdicts are given: a letter for each version, right, wrong or unknown."""

    verdicts: Mapping[str, str]
    name: str = "recorded"

    def run(self, interpreter: Interpreter, *, limit: float, **_options: object) -> Outcome:
        words = {"r": Verdict.RIGHT, "w": Verdict.WRONG, "?": Verdict.UNKNOWN}
        return Outcome(words[self.verdicts[interpreter.torch]], f"{limit:g}")


VERSIONS = ("2.9.0", "2.11.0", "2.13.0+cpu", "2.15.0.dev20261101")


@pytest.mark.parametrize(
    ("letters", "last_right", "first_wrong", "mended_in"),
    [
        ("rrww", "2.11.0", "2.13.0+cpu", None),
        ("rwwr", "2.9.0", "2.11.0", "2.15.0.dev20261101"),
        ("wwrr", None, "2.9.0", "2.13.0+cpu"),
        ("r?w?", "2.9.0", "2.13.0+cpu", None),
        ("rwrw", "2.9.0", "2.11.0", None),
        ("rrrr", "2.15.0.dev20261101", None, None),
        ("wwww", None, "2.9.0", None),
        ("????", None, None, None),
    ],
)
def test_history(
    letters: str, last_right: str | None, first_wrong: str | None, mended_in: str | None
) -> None:
    trial = Recorded(dict(zip(VERSIONS, letters, strict=True)))
    # In any order: they are sorted as versions, not as texts.
    given = [Interpreter(Path(torch), "3.11", torch) for torch in (VERSIONS[2], *VERSIONS[:2], VERSIONS[3])]
    reported: list[VersionOutcome] = []
    history = try_versions(trial, given, limit=9, report=reported.append)
    assert [at.torch for at in history.outcomes] == list(VERSIONS)
    assert tuple(reported) == history.outcomes
    assert (history.last_right, history.first_wrong, history.mended_in) == (
        last_right,
        first_wrong,
        mended_in,
    )
    assert history.to_json()["first_wrong"] == first_wrong
