"""The command line of comparisons: what is asked wrongly is said before anything runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.store import Store
from fuzz.campaign.torch_pair.folder import Request, write_request
from fuzz.cli import main
from fuzz.interpreters import dependencies
from tests.support.fuzz.interpreters import write_script

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--python", sys.executable, "--target", "eager"],
            "--python twice, before and after; it was given 1",
        ),
        (["--python", "a", "--python", "b", "--python", "c", "--target", "eager"], "given 3 times"),
        (["--python", "absent", "--python", "absent", "--target", "eager"], "no interpreter at absent"),
        (["--python", "a", "--python", "b", "--target", "eager", "--profile", "x"], "no profile named 'x'"),
    ],
)
def test_a_wrong_comparison_exits_with_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments, "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert complaint in err and out == ""
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--python", "a", "--python", "b"], "--target"),
        (["--target", "eager"], "--python"),
        (["--python", "a", "--python", "b", "--target", "eager", "--cases", "0"], "less than 1"),
    ],
)
def test_wrong_usage_of_compare_exits_with_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["compare", *arguments])
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["resume", "out", "--seconds", "5"], "holds a comparison, which is bounded by cases"),
        (["resume", "out", "--known", "known.toml"], "no issue is known"),
        (["resume", "out"], "no interpreter at absent/python"),
        (["report", "out"], "before holds no campaign"),
    ],
)
def test_a_comparison_that_cannot_go_on_says_why(
    command: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    request = Request(("absent/python", "absent/python"), Configuration(("eager",), cases=3), {})
    write_request(Path("out"), request)
    assert main(command) == 2
    assert complaint in capsys.readouterr().err


def test_a_comparison_does_not_go_on_with_another_torch(capsys: pytest.CaptureFixture[str]) -> None:
    versions = {needed.name: "999" for needed in dependencies()}
    answer = {"python": [3, 12, 1], "versions": versions, "torch": "9.9"}
    python = write_script(Path("python").absolute(), f"echo 'aotfuzz-answer: {json.dumps(answer)}'")
    configuration = Configuration(("eager",), cases=3)
    Store.create(Path("out") / "before", configuration).close()
    write_request(Path("out"), Request((str(python), str(python)), configuration, {}))
    assert main(["resume", "out"]) == 2
    err = capsys.readouterr().err
    assert "out/before was run with torch" in err and "now has 9.9; run a comparison of its own" in err
