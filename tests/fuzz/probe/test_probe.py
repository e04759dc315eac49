"""A probe asks for one thing at a time, its file is data that a campaign reads, its table fits a screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fuzz.cli import main
from fuzz.commands import target_probes
from fuzz.commands.output import FINDINGS
from fuzz.commands.target_probes import _write_scripts
from fuzz.errors import CapabilityFileError, ConfigurationError
from fuzz.features.traits import TRAITS, traits
from fuzz.generate.limits import Limits
from fuzz.operators import OPERATORS
from fuzz.probe.ask import STATES, Answer, lacked_traits, probe_target
from fuzz.probe.capability_file import capability_text, read_lacked_traits
from fuzz.probe.probe_table import HEIGHT, WIDTH, probe_table
from fuzz.probe.questions import (
    Question,
    dtype_questions,
    feature_questions,
    operator_questions,
    size_questions,
)
from fuzz.program.decode import check

MODULE = """
import os
import time

import torch
from fuzz import Target


class Refused(Exception):
    pass


def compile(function):
    def call(*args):
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        dtypes = {one.dtype for one in tensors}
        if torch.complex128 in dtypes:
            raise Refused("complex numbers\\nare hard")
        if torch.int8 in dtypes:
            raise ValueError("int8?")
        if torch.uint8 in dtypes:
            os._exit(3)
        if torch.int16 in dtypes:
            time.sleep(60)
        result = function(*args)
        return result + 1 if torch.bfloat16 in dtypes else result

    return call


def refusal(error):
    return "no such dtype" if isinstance(error, Refused) else None


def nothing(function):
    def call(*args):
        raise Refused("never")

    return call


target = Target("picky", "", compile, refusal, lacks=("dtype: float64",))
empty = Target("empty", "", nothing, refusal)
"""


@pytest.fixture(autouse=True)
def somebodys_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picky_backend.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_each_question_has_its_trait_and_is_a_valid_program() -> None:
    questions = [*dtype_questions(), *size_questions(["float32"]), *operator_questions()]
    assert {one.trait for one in questions} >= {f"operator: {name}" for name in ("add", "sin_", "resize_")}
    assert len({one.trait for one in questions}) > 0.95 * len(OPERATORS)
    for question in questions:
        assert question.trait in traits(question.program), question.trait
        assert question.trait not in question.needs
        check(question.program)


@pytest.mark.nightly  # a program for each of some 900 rows
def test_an_operator_is_asked_for_on_a_copy_and_within_limits() -> None:
    by_trait = {one.trait: one for one in operator_questions()}
    assert "data: argument" not in by_trait["operator: sin_"].needs
    limits = Limits.of(("rank: 1", "complex"))
    assert all("rank: 1" not in one.needs for one in operator_questions(limits))


def test_features_are_asked_for_by_the_plainest_program_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fuzz.probe.questions._PROGRAMS", 30)
    found = {one.trait: one for one in feature_questions(Limits.of(("in-place", "complex")))}
    assert not any(trait.startswith("data: ") for one in found.values() for trait in traits(one.program))
    assert {"argument: view", "view: taken", "output: argument"} <= set(found)
    assert all(one.program.statements for one in found.values())
    assert len(found["output: argument"].needs) < 16


def ask(target: str, monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    monkeypatch.setattr("fuzz.probe.ask.operator_questions", lambda limits: [])
    monkeypatch.setattr("fuzz.probe.ask.feature_questions", lambda limits: [])
    return probe_target(target, limit=2.0)


def test_a_crash_and_a_hang_are_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = ask("picky_backend:target", monkeypatch)
    states = {one.trait: one.state for one in answers}
    assert states["dtype: float64"] == states["dtype: float32"] == "supported"  # whatever it says it lacks
    assert states["dtype: complex128"] == "refused"
    assert (states["dtype: int8"], states["dtype: bfloat16"]) == ("raises", "wrong")
    assert (states["dtype: uint8"], states["dtype: int16"]) == ("crash", "hang")
    messages = {one.trait: one.message for one in answers}
    assert messages["dtype: complex128"] == r"no such dtype: picky_backend.Refused: complex numbers\nare hard"
    assert messages["dtype: int8"].startswith("ValueError")
    assert lacked_traits(answers) == tuple(
        f"dtype: {name}" for name in ("complex128", "int16", "int8", "uint8")
    )
    folder = _write_scripts(tmp_path / "scripts", answers)
    assert folder is not None and len(list(folder.iterdir())) == 3
    done = subprocess.run(
        [sys.executable, folder / "dtype-bfloat16.py"],
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1


def test_a_target_that_takes_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"takes no tensor of any dtype.*never"):
        ask("picky_backend:empty", monkeypatch)


def test_the_command_writes_a_file_and_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(What would be asked is asked elsewhere.) The folder is made before minutes are spent."""
    file = tmp_path / "deep" / "mine.toml"

    def asked(*_: object, **__: object) -> list[Answer]:
        assert file.parent.is_dir()
        return ANSWERS

    monkeypatch.setattr(target_probes, "probe_target", asked)
    assert main(["probe", "--target", "eager", "--out", str(file), "--json"]) == FINDINGS
    assert "operator: sin_" in read_lacked_traits(file)
    shown = json.loads(capsys.readouterr().out)
    assert [row["trait"] for row in shown["answers"]] == [answer.trait for answer in ANSWERS]
    (tmp_path / "taken").touch()
    assert main(["probe", "--target", "eager", "--out", str(tmp_path / "taken" / "mine.toml")]) not in (
        0,
        FINDINGS,
    )


ANSWERS = [
    Answer("operator: add", "supported"),
    Answer("dtype: complex64", "refused", 'no: "complex"'),
    Answer("operator: sin_", "crash", "killed by SIGSEGV", "import torch"),
    Answer("argument: empty", "wrong", "values: out"),
]


def test_a_file_has_the_same_text_whatever_the_order_and_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = capability_text("mine", "2.13.0", ANSWERS, file)
    assert text == capability_text("mine", "2.13.0", ANSWERS[::-1], file)
    file.write_text(text)
    assert tomllib.loads(text)["dtype"] == {"complex64": "refused"}
    assert '"complex64" = "refused"  # no: "complex"' in text.splitlines()
    assert all(f"#   {state}" in text for state in STATES)
    assert read_lacked_traits(file) == ("dtype: complex64", "operator: sin_")
    file.write_text(
        text.replace('"sin_" = "crash"', '"sin_" = "supported"').replace(
            '"empty" = "wrong"', '"empty" = "refused"'
        )
    )
    assert read_lacked_traits(file) == ("argument: empty", "dtype: complex64")


def test_a_file_with_all_traits_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(capability_text("mine", "2", [Answer(trait, "refused") for trait in TRAITS], file))
    assert read_lacked_traits(file) == TRAITS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at format: not a capability file of format 1"),
        ("format = true", "at format: not a capability file"),
        ("format = 1\ntarget = 3", "at target: not a text"),
        ('format = 1\n[dtypes]\n"float32" = "refused"', "at dtypes: no group of traits.*dtype"),
        (
            'format = 1\n[dtype]\n"float31" = "refused"',
            r"at dtype.float31: no such trait \('dtype: float\d\d' is one",
        ),
        ('format = 1\n[dtype]\n"float32" = "no"', "at dtype.float32: 'no' says nothing.*refused"),
        ('format = 1\n[dtype]\n"float32" = ["refused"]', "says nothing of a trait"),
        ("format = 1\n[dtype", "not TOML"),
        ("x = " + "[" * 5000, "not TOML|nested too deeply"),
        ("#" * (2 << 20), "larger than"),
    ],
)
def test_a_file_that_says_something_else_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(CapabilityFileError, match=said):
        read_lacked_traits(file)
    with pytest.raises(CapabilityFileError, match="cannot be read"):
        read_lacked_traits(tmp_path / "other.toml")


def test_the_text_of_an_exception_stays_in_its_comment(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    hostile = 'x\n[operator]\n"add" = "refused" # \x7f \udc80'
    file.write_text(capability_text("a\nb", "2", [Answer("dtype: bool", "refused", hostile)], file))
    assert read_lacked_traits(file) == ("dtype: bool",)


def test_the_table_fits_a_screen_and_puts_the_worst_first() -> None:
    many = [
        Answer(trait, "refused", f"reason {i % 90}x{'abcdefghij'[i % 10] * 20}")
        for i, trait in enumerate(TRAITS)
    ]
    text = probe_table([*many[:400], *ANSWERS[1:3]])
    lines = text.splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    worst = next(i for i, line in enumerate(lines) if line.startswith("crash"))
    assert all(not line.startswith("refused") for line in lines[:worst])
    assert "operator: sin_" in lines[worst]
    assert len(probe_table(many, everything=True).splitlines()) > len(TRAITS)
    assert "All of it is supported" in probe_table(ANSWERS[:1])


def test_a_campaign_draws_what_a_file_lets_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(capability_text("eager", "2", [Answer("rank: 2", "refused"), ANSWERS[1]], file))
    command = ["run", "--target", "eager", "--cases", "20", "--seed", "1", "--json", "--jobs", "1"]
    assert main([*command, "--capabilities", str(file), "--out", str(tmp_path / "found")]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["profile"] == "mixed{dtype: complex64,rank: 2}"
    assert main([*command, "--capabilities", "absent.toml"]) == 2


def test_an_answer_is_unclear_where_a_plainer_question_has_the_blame() -> None:
    from fuzz.probe.ask import _blamed

    [one, *_] = dtype_questions()
    plain = Question("dtype: bool", one.program, frozenset({"device: cpu"}))
    other = Question("operator: add", one.program, frozenset({"device: cpu", "dtype: bool"}))
    found = {plain.trait: Answer(plain.trait, "refused"), other.trait: Answer(other.trait, "refused")}
    blamed = _blamed(other, found[other.trait], found, [plain, other])
    assert (blamed.state, "'dtype: bool'" in blamed.message) == ("unclear", True)
    assert _blamed(plain, found[plain.trait], found, [plain, other]).state == "refused"
