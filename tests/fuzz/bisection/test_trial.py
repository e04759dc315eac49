"""One run: what an exit status and a row of a replay say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.bisection.trial import Outcome, RecordedCase, Script, Verdict, case_outcome
from fuzz.interpreters import Interpreter

HERE = Interpreter(Path(sys.executable), "3", "2")


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        ("", Verdict.RIGHT, "status 0"),
        ("import sys; print('odd'); sys.exit(1)", Verdict.WRONG, "status 1: odd"),
        ("raise ValueError('no')", Verdict.WRONG, "status 1: ValueError: no"),
        ("import os; os.abort()", Verdict.WRONG, "status -6"),
        ("import sys; sys.exit(125)", Verdict.UNKNOWN, "status 125"),
        ("import time; time.sleep(60)", Verdict.UNKNOWN, "it takes more than 3 s"),
    ],
)
def test_the_exit_status_of_a_script_tells(text: str, verdict: Verdict, said: str, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(text)
    outcome = Script(file).run(HERE, limit=3)
    assert outcome.verdict is verdict
    assert outcome.said.startswith(said)


def test_a_script_gets_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import sys; sys.exit(int(sys.argv[1]))")
    assert Script(file, ("0",)).run(HERE, limit=60).verdict is Verdict.RIGHT
    assert Script(file, ("7",)).run(HERE, limit=60).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("outcome", "bucket", "same", "verdict", "said"),
    [
        ("agree", None, False, Verdict.RIGHT, "agree"),
        ("finding", "values/out/a", True, Verdict.WRONG, "values/out/a"),
        ("finding", "strides/out/a", False, Verdict.UNKNOWN, "strides/out/a"),
        ("refused", None, False, Verdict.UNKNOWN, "refused because"),
    ],
)
def test_only_what_is_recorded_is_wrong(
    outcome: str, bucket: str | None, same: bool, verdict: Verdict, said: str
) -> None:
    reason = outcome if outcome != "refused" else "because"
    row = {"outcome": outcome, "bucket": bucket, "same_bucket": same, "reason": reason}
    assert case_outcome(row) == Outcome(verdict, said)


def test_a_case_that_cannot_be_replayed_says_nothing(tmp_path: Path) -> None:
    outcome = RecordedCase(tmp_path / "none.json", "eager").run(HERE, limit=120)
    assert outcome.verdict is Verdict.UNKNOWN
    assert "replay ended with status 2" in outcome.said


def test_a_case_is_replayed_by_nothing_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "fuzz.py").write_text("raise SystemExit(77)")
    outcome = RecordedCase(tmp_path / "none.json", "eager").run(HERE, limit=120, folder=tmp_path)
    assert "replay ended with status 2" in outcome.said
