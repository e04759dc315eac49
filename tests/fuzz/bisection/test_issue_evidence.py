"""A case as a report: what is run for it, and what the endings of the runs say."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from fuzz.bisection.ablation import BACKENDS, least_layer, run_scripts
from fuzz.bisection.forked_trial import Ending
from fuzz.bisection.issue_evidence import evidence_scripts, prepare_report, read_evidence, report_case
from fuzz.cli import main
from fuzz.corpus import case_file
from fuzz.errors import NoDifference
from fuzz.ir.nodes import Program
from fuzz.repro.issue import clean_output
from fuzz.repro.issue_checks import check_issue
from fuzz.repro.realism import PATTERNS, called_functions, describe_realism
from fuzz.targets.builtin_targets import SHIPPED

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "corpus"
UNFOLD = CORPUS / "torch-aot-eager-input-data-arg-elements-in-place-unfold-a.json"
RIGHT, WRONG = Ending("exit 0"), Ending("raises AssertionError", "AssertionError: /a/b/c.py differs")


def test_scripts_run_apart_from_each_other() -> None:
    texts = [
        "import sys\nsys.exit(3)",
        "assert False, 'x'",
        "import os\nos.abort()",
        "print(len(__file__) > 0)",
    ]
    kinds = [ending.kind for ending in run_scripts(texts, limit=30)]
    assert kinds == ["exit 3", "raises AssertionError", "signal 6", "exit 0"]


@pytest.mark.parametrize(
    ("wrong", "label"),
    [
        (BACKENDS, "module: dynamo"),
        (BACKENDS[1:], "module: pt2-dispatcher"),
        (BACKENDS[2:], "module: pt2-dispatcher"),
        (BACKENDS[3:], "module: inductor"),
        ((), ""),
    ],
)
def test_the_label_is_that_of_the_least_backend_that_differs(wrong: tuple[str, ...], label: str) -> None:
    assert least_layer({name: WRONG if name in wrong else RIGHT for name in BACKENDS})[1] == label


def test_another_exception_is_another_difference() -> None:
    endings = dict.fromkeys(BACKENDS, Ending("raises ImportError"))
    assert least_layer(endings) == ("", "")


def test_evidence_is_what_the_runs_gave() -> None:
    case = case_file.read(UNFOLD)
    _, made = prepare_report(case, "torch-aot-eager")
    assert len(evidence_scripts(made)) == 2 + len(BACKENDS) + 1
    reference = Ending("exit 0", "something\naotfuzz-errors: 0.0 1.125")
    evidence = read_evidence(made, [WRONG, RIGHT, RIGHT, WRONG, WRONG, Ending("raises OSError"), reference])
    assert (evidence.failed, evidence.runs) == (1, 2)
    assert evidence.errors == (0.0, 1.125)
    assert evidence.layer == "AOTAutograd"
    assert evidence.verdicts["inductor"] == "ends otherwise: raises OSError"
    with pytest.raises(NoDifference, match="does not fail"):
        read_evidence(made, [RIGHT] * 6 + [reference])


def test_a_report_tells_nothing_of_the_machine() -> None:
    assert clean_output("V0101 10:00:00 x\nFile /home/me/lib/torch/x.py, line 3") == "File x.py, line 3"


def test_a_program_is_as_realistic_as_its_patterns() -> None:
    contrived = [pattern for pattern in PATTERNS if pattern.is_contrived]
    assert 0 < len(contrived) < len(PATTERNS) / 2
    said = describe_realism(case_file.read(UNFOLD).program)
    assert "`Tensor.unfold`" in said and "in place" in said and "contrived" not in said
    odd = case_file.read(CORPUS / f"{_named('first-elements-in-place-a-wrapped-twice')}.json").program
    assert "contrived" in describe_realism(odd)
    assert called_functions("def f(a):\n    return View.apply(a).mul(2)") == ["View.apply", "Tensor.mul"]


def _named(part: str) -> str:
    return next(file.stem for file in CORPUS.glob("*.json") if part in file.stem)


def test_each_pattern_of_the_table_can_apply() -> None:
    programs: list[Program] = [case_file.read(file).program for file in sorted(CORPUS.glob("*.json"))]
    applying = [pattern for pattern in PATTERNS if any(pattern.applies(program) for program in programs)]
    assert len(applying) > len(PATTERNS) * 0.8


def test_the_command_asks_for_a_report_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", str(UNFOLD), "--check"]) == 2
    assert "--format issue" in capsys.readouterr().err


def test_a_case_that_torch_does_right_has_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    file = CORPUS / "part-and-wrapper-returned.json"
    assert main(["repro", str(file), "--format", "issue"]) == 2
    assert "nothing to report" in capsys.readouterr().err


def _reported() -> list[tuple[Path, str]]:
    """The recorded cases that a target of torch's shows on this machine's torch."""
    version = importlib.metadata.version("torch")
    found = []
    for file in sorted(CORPUS.glob("*.json")):
        case = case_file.read(file)
        names = [case.origin.target, *case.expected]
        stock = [name for name in names if name in SHIPPED and name.startswith("torch-")]
        wrong = [name for name in stock if case.state(name, version) == case_file.DIFFERS]
        if wrong and case.program.scenario.device == "cpu":
            found.append((file, wrong[0]))
    return found


# Cases that are no reports, and why.
NO_REPORT = {
    "inductor-put-into-itself": "what Inductor computes depends on how wide the vectors of the CPU are",
    "inductor-hardsigmoid-double": "eager is off, and by less than the default tolerance",
    "unused-draw-dropped": "with fallback_random torch keeps a draw that nobody uses",
}


@pytest.mark.nightly
@pytest.mark.parametrize(("file", "target"), _reported(), ids=lambda value: str(value)[-60:])
def test_the_report_of_a_recorded_case_meets_all_points(file: Path, target: str) -> None:
    try:
        text = report_case(case_file.read(file), target)
    except NoDifference:
        assert file.stem in NO_REPORT
        return
    assert file.stem not in NO_REPORT or file.stem == "inductor-put-into-itself"
    assert {point.check.name: point.problem for point in check_issue(text) if point.problem} == {}


@pytest.mark.nightly
def test_the_documentation_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", str(UNFOLD), "--format", "issue"]) == 0
    printed = capsys.readouterr().out.partition("### Versions")[0]
    page = (ROOT / "docs" / "how-to" / "upstream.md").read_text(encoding="utf-8")
    shown = page.partition("````markdown\n")[2]
    assert shown.partition("### Versions")[0] == printed
