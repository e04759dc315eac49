"""Repro scripts: alone they show their difference and exit with 1, and with 0 once it is gone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzz.campaign import repro_trial
from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.program.decode import Program
from fuzz.repro import script as repro_script
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.catalog import find_target
from oracles import CLAUSES, Finding
from tests.fuzz import bad_targets
from tests.support.fuzz.outcomes import exit_status
from tests.support.fuzz.small_programs import (
    CUBE_TWICE,
    DOUBLE_IN_PLACE,
    DUPLICATE,
    EXPONENTIAL,
    LOST_THROUGH_EXPAND,
    REQUIRED_AFTER_A_VIEW,
    RETURN_VIEW,
    SINE,
    SINE_OF_ANOTHER_SIZE,
    SQUARE_AND_THEN_IN_TWO_THREADS,
    SQUARE_IN_TWO_THREADS,
    SQUARE_OF_ANOTHER_SIZE,
    SQUARE_OF_LEAF,
    TWO_MUTATED_ALIASES,
)

HERE = Path(__file__).parents[1]


def _run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "repro.py"
    file.write_text(text)
    return subprocess.run([sys.executable, file], cwd=folder, capture_output=True, text=True, check=False)


def _found(program: Program, name: str) -> Finding:
    target = find_target(name)
    target.prepare()
    return buckets.primary_finding(execute(program, target).findings)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("program", "name", "shown"),
    [
        (LOST_THROUGH_EXPAND, "torch-aot-function", ("eager:  tensor([0.])", "target: tensor([2.7500])")),
        (LOST_THROUGH_EXPAND, "torch-aot-eager", ("eager:  tensor([0.])", "target: tensor([2.7500])")),
        (TWO_MUTATED_ALIASES, "torch-aot-function", ("eager:  no exception", "target: AssertionError")),
    ],
)
def test_a_script_shows_a_difference_of_stock_torch_with_torch_alone(
    program: Program, name: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    text = repro_script.repro_script(program, name, _found(program, name))
    assert not {"aot", "fuzz", "oracles"} & _imported(text)
    done = _run(text, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    for words in shown:
        assert words in done.stdout


def _imported(text: str) -> set[str]:
    lines = [line.split() for line in text.splitlines() if line.startswith(("import ", "from "))]
    return {words[1].split(".")[0] for words in lines}


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (DOUBLE_IN_PLACE, "drops_mutation"),
        (RETURN_VIEW, "copies_alias"),
        (DUPLICATE, "doubles_duplicate"),
        (SINE, "leaves"),
        (SINE, "cannot_compile"),
        (SQUARE_OF_LEAF, "loses_requires_grad"),
        (RETURN_VIEW, "loses_strides"),
        (SINE, "draws"),
        (SINE, "leaks_grad_mode"),
        (SINE, "returns_a_list"),
        (SINE, "wrong_by_one"),
        (DOUBLE_IN_PLACE, "hides_the_version"),
        (SINE, "unsqueezes_the_argument"),
        (SQUARE_OF_LEAF, "fails_in_backward"),
        (SQUARE_OF_LEAF, "fails_after_a_write"),
        (SQUARE_OF_LEAF, "keeps_an_argument"),
        (CUBE_TWICE, "keeps_an_argument"),
        (CUBE_TWICE, "differentiates_once"),
        (CUBE_TWICE, "fails_in_backward"),
        (CUBE_TWICE, "doubles_gradients"),
        (SQUARE_OF_LEAF, "overwrites_gradients"),
        (CUBE_TWICE, "overwrites_gradients"),
        (REQUIRED_AFTER_A_VIEW, "takes_views_late"),
        (SINE_OF_ANOTHER_SIZE, "remembers_the_size"),
        (SQUARE_IN_TWO_THREADS, "detaches_in_company"),
        (SQUARE_AND_THEN_IN_TWO_THREADS, "detaches_in_company"),
        (DOUBLE_IN_PLACE, "refuses_late"),
        (SQUARE_OF_LEAF, "refuses_and_hooks"),
        (SINE_OF_ANOTHER_SIZE, "refuses_another_size_late"),
    ],
)
def test_a_script_shows_each_kind_of_fault(
    program: Program, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"tests.fuzz.bad_targets:{fault}"
    assert exit_status(repro_script.repro_script(program, name, _found(program, name))) == 1
    assert "eager: " in capsys.readouterr().out


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize(
    "program",
    [
        DOUBLE_IN_PLACE,
        RETURN_VIEW,
        DUPLICATE,
        SQUARE_OF_LEAF,
        CUBE_TWICE,
        SINE_OF_ANOTHER_SIZE,
        REQUIRED_AFTER_A_VIEW,
    ],
)
def test_a_script_says_when_the_difference_is_gone(program: Program, clause: str) -> None:
    for path in ("call", "later backward from out"):
        finding = Finding(clause, path, "1", "2", "it was seen once")
        assert exit_status(repro_script.repro_script(program, "eager", finding)) == 0


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_target_has_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = find_target(name)
    reason = target.available()
    if reason is not None:
        pytest.skip(reason)
    target.prepare()
    # (Inductor's strict numerics have other sines than eager on a CPU: docs/measurements/found.md.)
    programs = (SQUARE_OF_LEAF, SQUARE_OF_ANOTHER_SIZE if target.exact else SINE_OF_ANOTHER_SIZE)
    for program in programs:
        clause = "repeat" if program.later else "values"
        text = repro_script.repro_script(
            program, name, Finding(clause, "call 2: values: out", "1", "2", "it was seen once")
        )
        assert exit_status(text) == 0, capsys.readouterr().out
    target.reset()


@pytest.mark.parametrize("fault", ["wrong_when_ready", "fails_when_ready"])
def test_a_script_makes_its_target_ready(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_targets, "_ready", [])
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    (tmp_path / "tests" / "fuzz" / "bad_targets.py").write_text((HERE / "bad_targets.py").read_text())
    finding = _found(SINE, f"tests.fuzz.bad_targets:{fault}")
    text = repro_script.repro_script(SINE, f"tests.fuzz.bad_targets:{fault}", finding)
    environment = f"import sys; sys.path.insert(0, {str(HERE.parents[1])!r})\n"
    done = _run(environment + text, tmp_path)
    assert done.returncode == 1, done
    assert "not made ready" not in done.stdout
    assert "cannot do that" in done.stdout or "-0." in done.stdout
    bad_targets._ready.clear()
    assert repro_trial.is_difference_shown_by_repro(finding, repro_trial.run_repro(text))
    bad_targets._ready.clear()
    unready = text.replace(f"tests.fuzz.bad_targets.{fault}.prepare()", "pass")
    assert unready != text
    assert not repro_trial.is_difference_shown_by_repro(finding, repro_trial.run_repro(unready))


def test_a_target_that_cannot_be_used_shows_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(1)")
    (tmp_path / "fails_at_import.py").write_text("raise RuntimeError('no')")
    finding = Finding("errors", "call", "no exception", "RuntimeError: no", "")
    for name in (
        "tests.fuzz.bad_targets:cannot_be_ready",
        "exits_at_import:f",
        "fails_at_import:f",
        "tests.fuzz.bad_targets:absent",
    ):
        text = repro_script.repro_script(SINE, name, finding)
        assert exit_status(text) == 2
        assert "cannot be used" in capsys.readouterr().out
        assert not repro_trial.is_difference_shown_by_repro(finding, repro_trial.run_repro(text))


@pytest.mark.parametrize(
    ("recorded", "told", "shown"),
    [
        ("RuntimeError: size 3 of 'x' is wrong", "RuntimeError: size 4 of 'y' is wrong\nand more", True),
        ("somewhere.Refused: cannot do that", "Refused: cannot do that", True),
        ("fuzz.call.Escape: SystemExit: 0", "SystemExit: 0", True),
        ("RuntimeError: cannot do that", "RuntimeError: it was not made ready", False),
        ("RuntimeError: cannot do that", "NameError: cannot do that", False),
        ("no exception", "RuntimeError: cannot do that", False),
        ("crash, killed by SIGSEGV", "crash, killed by SIGSEGV", True),
        ("crash, killed by SIGSEGV", "crash, exited with status 1", False),
        ("timeout", "timeout", True),
    ],
)
def test_a_script_shows_the_exception_that_was_recorded(recorded: str, told: str, shown: bool) -> None:
    finding = Finding("errors", "call", "no exception", recorded, "")
    assert (
        repro_trial.is_difference_shown_by_repro(finding, {"status": 1, "ends": [["no exception", told]]})
        is shown
    )
    assert not repro_trial.is_difference_shown_by_repro(
        finding, {"status": 0, "ends": [["no exception", told]]}
    )
    later = replace(finding, clause="repeat", path="call 2: errors: call")
    assert (
        repro_trial.is_difference_shown_by_repro(later, {"status": 1, "ends": [["no exception", told]]})
        is shown
    )


def test_a_script_carries_what_inductor_is_prepared_with() -> None:
    text = repro_script.repro_script(SINE, "torch-inductor", Finding("values", "out", "", "", ""))
    for name in ("deterministic", "fx_graph_cache"):
        assert f"torch._inductor.config.{name} = " in text


def test_a_script_counts_how_often_the_function_runs(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("once", "call", "1", "2", "")
    assert exit_status(repro_script.repro_script(SINE, "tests.fuzz.bad_targets:runs_twice", finding)) == 1
    assert "target: 2" in capsys.readouterr().out


def test_a_script_of_a_leak_counts_what_each_call_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: len(bad_targets.kept))
    finding = Finding("lifetime", "memory", "0", "1", "bytes that the allocator has not got back")
    assert exit_status(repro_script.repro_script(SINE, "tests.fuzz.bad_targets:leaks", finding)) == 1
    assert exit_status(repro_script.repro_script(SINE, "tests.fuzz.bad_targets:good", finding)) == 0


def test_a_script_of_a_crash_survives_it(tmp_path: Path) -> None:
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    (tmp_path / "tests" / "fuzz" / "bad_targets.py").write_text((HERE / "bad_targets.py").read_text())
    finding = buckets.death("crash", "killed by SIGABRT", "")
    bad = _run(
        repro_script.repro_script(EXPONENTIAL, "tests.fuzz.bad_targets:crashes_on_exp", finding), tmp_path
    )
    assert bad.returncode == 1
    assert "exit status -6" in bad.stdout
    good = _run(repro_script.repro_script(SINE, "tests.fuzz.bad_targets:crashes_on_exp", finding), tmp_path)
    assert good.returncode == 0


def test_words_of_a_message_are_no_import_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    message = f"the call: no exception in eager, {'x' * 70} import torch\nimport torch\n in the target"
    text = repro_script.repro_script(
        SINE, "eager", Finding("errors", "call", "no exception", "E: x", message)
    )
    assert text.count("\nimport torch\n") == 1
    assert exit_status(text) == 0
