"""The thirteen points of a report: each is met by a good report, and each fails where its part is spoilt."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.bisection.ablation import BACKENDS
from fuzz.bisection.layers import BACKEND_LAYERS
from fuzz.corpus import buckets, case_file
from fuzz.corpus.case_file import Case
from fuzz.repro.issue import Evidence, issue_text, reproducer_for
from fuzz.repro.issue_checks import CHECKS, check_issue
from fuzz.repro.script import main_finding
from fuzz.targets.adapters import ADAPTED
from fuzz.targets.builtin_targets import SHIPPED
from tests.support.fuzz.small_programs import LOST_THROUGH_EXPAND

ROOT = Path(__file__).parents[3]
LEAST = {"torch-dynamo": "eager", "torch-inductor": "inductor"}


def _report(case: Case, target: str) -> str:
    """The report that runs give in which each backend from the target's own on differs."""
    finding = main_finding(case)
    made = reproducer_for(case.program, target, finding, BACKENDS)
    least = LEAST.get(target, "aot_eager")
    differs = BACKENDS[BACKENDS.index(least) :]
    verdicts = {name: "differs" if name in differs else "agrees" for name in BACKENDS}
    errors = (0.0, 1.0) if made.reference else None
    evidence = Evidence("AssertionError: x", 2, 2, verdicts, errors, *BACKEND_LAYERS[least])
    return issue_text(case, finding, made, evidence)


def _problems(text: str) -> dict[str, str]:
    return {point.check.name: point.problem for point in check_issue(text) if point.problem}


@pytest.fixture(scope="module")
def good() -> str:
    return _report(case_file.read(ROOT / "corpus" / "expanded-write-lost.json"), "torch-aot-eager")


def test_a_good_report_meets_all_points(good: str) -> None:
    assert len(CHECKS) == 13
    assert _problems(good) == {}


@pytest.mark.parametrize(
    ("point", "old", "new"),
    [
        ("title", r"(?m)^Title: .*$", "Title: [AOTAutograd] wrong"),
        ("title", r"(?m)^Title: .*$", ""),
        ("minimal", "import torch\n", "import torch\nimport gc\n"),
        ("minimal", "def f", "".join(f"x{i} = {i}\n" for i in range(50)) + "def f"),
        ("minimal", "def f", "def f f"),
        ("torch alone", "import torch\n", "import torch\nimport fuzz\n"),
        ("torch alone", "import torch\n", "import functools\n"),
        ("asserts", r"torch\.testing\.assert_close", "print"),
        ("default tolerances", r"assert_close\(target, eager", "assert_close(target, eager, rtol=1, atol=1"),
        ("float64 reference", r"off by at most 0", "off by at most 2"),
        ("float64 reference", "Float64 reference:.*", "Float64 reference: none."),
        ("deterministic", "2 of 2 runs", "1 of 2 runs"),
        ("deterministic", "def f", "torch.rand(2)\n\n\ndef f"),
        ("versions", "Python version:", "Snake:"),
        ("versions", "AssertionError: x", "AssertionError: /home/somebody/x.py"),
        ("ablation", r"\| `inductor` .*\n", ""),
        ("ablation", "module: pt2-dispatcher", "module: inductor"),
        ("both sides", "Expected:", "Wanted:"),
        ("no ties", r"return a0\n\n\neager", "return a0.argmax()\n\n\neager"),
        ("realistic", "How realistic it is:", "Well:"),
        ("duplicates", "Duplicates:", "Copies:"),
    ],
)
def test_a_report_that_lacks_something_fails_there(good: str, point: str, old: str, new: str) -> None:
    spoilt = re.sub(old, lambda _: new, good, count=0 if point == "duplicates" else 1)
    assert spoilt != good
    assert point in _problems(spoilt)


def test_an_empty_report_fails_everywhere_it_can() -> None:
    assert set(_problems("")) == {check.name for check in CHECKS} - {"default tolerances", "no ties"}


def test_what_is_left_of_a_dropout_that_is_off_draws_nothing(good: str) -> None:
    line = "torch.nn.functional.dropout(torch.ones(2), 0.5, {})\n\n\ndef f"
    assert "deterministic" in _problems(good.replace("def f", line.format(True), 1))
    assert "deterministic" not in _problems(good.replace("def f", line.format(False), 1))


def test_the_reports_of_recorded_cases_meet_what_no_run_decides() -> None:
    """Evidence is invented here; the nightly test runs all of them."""
    tried = 0
    for file in sorted((ROOT / "corpus").glob("*.json")):
        case = case_file.read(file)
        target = case.origin.target
        if case.program.scenario.device != "cpu":
            continue  # of these one was never reduced, and torch 2.11 alone shows it
        if case.findings and target.startswith("torch-") and target in SHIPPED:
            tried += 1
            assert _problems(_report(case, target)) == {}, file.name
    assert tried > 80


def _foreign_report(case: Case, target: str, differs: tuple[str, ...] = ()) -> str:
    """The report of a compiler that is not torch's, in which these backends of torch differ as well."""
    finding = main_finding(case)
    made = reproducer_for(case.program, target, finding, BACKENDS)
    verdicts = {name: "differs" if name in differs else "agrees" for name in BACKENDS}
    errors = (0.0, 1.0) if made.reference else None
    return issue_text(case, finding, made, Evidence("AssertionError: x", 2, 2, verdicts, errors, "", ""))


@pytest.mark.parametrize("target", [*ADAPTED, "tests.fuzz.bad_targets:copies_alias"])
def test_a_report_of_another_compiler_names_it_in_place_of_labels(target: str) -> None:
    case = replace(case_file.read(ROOT / "corpus" / "expanded-write-lost.json"), note="a write is lost")
    text = _foreign_report(case, target)
    assert f"Title: [{target}] a write is lost" in text and "\nCompiler: " in text
    assert "Labels:" not in text and "pt2" not in text
    assert not _problems(text).keys() & {"torch alone", "ablation", "asserts"}
    assert "ablation" in _problems(_foreign_report(case, target, ("inductor",)))


def test_what_another_compiler_needs_is_no_unused_import_and_nothing_else_may_be_imported() -> None:
    case = replace(case_file.read(ROOT / "corpus" / "expanded-write-lost.json"), note="a write is lost")
    text = _foreign_report(case, "openvino")
    assert "import openvino.torch" in text and _problems(text) == {}
    assert "torch alone" in _problems(text.replace("import torch\n", "import torch\nimport tvm\n", 1))


def test_a_campaigns_note_is_no_title() -> None:
    case = case_file.read(ROOT / "corpus" / "expanded-write-lost.json")
    text = _foreign_report(replace(case, note=main_finding(case).message), "openvino")
    title = text.partition("\n")[0]
    assert "in eager" not in title and "a write" in title


def test_a_crash_is_reported_by_an_assertion_on_the_status() -> None:
    death = buckets.death("crash", "killed by SIGFPE", "")
    made = reproducer_for(LOST_THROUGH_EXPAND, "torch-inductor", death, BACKENDS)
    assert "assert status == 0" in made.text and "sys.exit(0 if" not in made.text
    assert "import sys" in made.text
    assert set(made.by_backend) == set(BACKENDS)


def test_the_documentation_lists_the_points() -> None:
    text = (ROOT / "docs" / "how-to" / "upstream.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\| \d+ \| ([\w ]+) \|", text) == [check.name for check in CHECKS]
