"""Files of strangers: whatever text stands in one is data for every command, and for scripts made of it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz import cli
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.store import Row, Store
from fuzz.choices import SeededChoices
from fuzz.cli import main
from fuzz.corpus import case_file
from fuzz.corpus.case_file import Origin
from fuzz.errors import CorpusError, TargetError
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.patterns import matches
from fuzz.program.decode import Dict, Literal, Program, Ref
from fuzz.repro import script as repro_script
from oracles import Finding
from tests.fuzz.corpus.test_corpus import CASE
from tests.support.fuzz.small_programs import (
    CUBE_TWICE,
    DOUBLE_IN_PLACE,
    DUPLICATE,
    SINE,
    SINE_OF_ANOTHER_SIZE,
    call,
    program,
)

RUN = "open('CANARY', 'w')"
HOSTILE = {
    "expression": f"torch:compile(f, backend='eager') if {RUN} else torch.compile",
    "import": "stranger:go",
    "quotes": f"'\"; {RUN} #",
    "three quotes": f"'''\n{RUN}\n'''",
    "three double quotes": f'"""\n{RUN}\n"""',
    "lines": f"\n{RUN}\n\r{RUN}\r\x0c\x0b\x1c\x85\u2028{RUN}",
    "encoding": f"coding: unicode_escape \\x0a{RUN}\\x0a#",
    "encoding of bytes": f"coding: utf-7 +AAo-{RUN}+AAo-",
    "shell": "$(touch CANARY) `touch CANARY`; touch CANARY & touch CANARY | touch CANARY > CANARY",
    "terminal": "\x1b]0;title\x07\x1b[2J\x9b2J\u202e\u2066\x08\x7f\0",
    "page": "<script>alert(1)</script><img src=x onerror=alert(1)> | [a](javascript:a) ]( |",
    "half": "\ud800",
    "other half": "a\udfff",
    "format": "{0.__class__} %s %(a)s {f!r} {",
    "long": "x" * 3999,
    "digits": "9" * 3999,
    "brackets": "(" * 1999 + ")" * 1999,
    "path": "../../../../tmp/CANARY",
    "a call that is not there": "call 999: values: out",
    "no call": "call 0: values: out",
    "a clause of calls": "call 1: repeat: out",
    "a clause that is none": "call 1: luck: out",
    "nothing": "",
}


@pytest.fixture(autouse=True)
def in_a_folder_with_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    parser = cli._command_line_parser()  # making one takes longer than most commands
    monkeypatch.setattr(cli, "_command_line_parser", lambda: parser)
    Path("stranger.py").write_text(f"{RUN}\ndef go(function): return function\n")


def _files() -> dict[str, dict[str, Any]]:
    """Files that have, between them, each kind of field with a text in it."""
    seen = Finding("errors", "call", "no exception", "RuntimeError: no", "the call raises")
    base = replace(
        CASE,
        origin=Origin("eager", 0, 1, "mixed"),
        expected={"eager": "agrees"},
        versions={"eager": ">=2.11"},
        extra={"x-from": "somebody"},
    )
    made = program(
        call("to_copy", "a0", to="v0", dtype="float64"),
        returns=Dict((("k", Ref("v0")), ("l", Literal("text")))),
    )
    generated = generate(SeededChoices(5, 3), PROFILES["scenarios"])
    kinds: list[tuple[Program, Finding]] = [
        (made, seen),
        (CUBE_TWICE, replace(seen, clause="double-backward", path="double backward from out")),
        (SINE_OF_ANOTHER_SIZE, replace(seen, clause="repeat", path="call 2: values: out")),
        (DUPLICATE, replace(seen, target="crash, killed by SIGSEGV")),
        (DOUBLE_IN_PLACE, replace(seen, clause="lifetime", path="memory")),
        (generated, replace(seen, clause="gradients", path="grad of arg[0]")),
    ]
    cases = [replace(base, program=one, findings=(finding,)) for one, finding in kinds]
    cases.append(replace(base, program=SINE))  # a file with a note for a finding
    cases[-1] = replace(cases[-1], findings=())
    return {f"{i}": json.loads(case_file.case_text(case)) for i, case in enumerate(cases)}


def _texts(data: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], bool]]:
    """The places of all texts, and of all names of fields (then the second is true)."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*place, key), True
            yield from _texts(value, (*place, key))
    elif isinstance(data, list):
        for i, item in enumerate(data):
            yield from _texts(item, (*place, i))
    elif isinstance(data, str):
        yield place, False


def _changed(data: Any, place: tuple[str | int, ...], is_name: bool, text: str) -> Any:
    if not place:
        return text
    copy = json.loads(json.dumps(data))
    inside = copy
    for step in place[:-1]:
        inside = inside[step]
    if is_name:
        inside[text] = inside.pop(place[-1])
    else:
        inside[place[-1]] = text
    return copy


def _mutants(text: str) -> dict[str, Any]:
    """Each file with one text or name changed, of each kind of place once."""
    found: dict[str, Any] = {}
    kinds: set[tuple[object, ...]] = set()
    for name, data in _files().items():
        for place, is_name in _texts(data):
            kind = (*("*" if type(step) is int else step for step in place), is_name)
            # (What a finding's texts are used for depends on its clause.)
            kind = (*kind, name) if place[0] == "findings" else kind
            if kind not in kinds:
                kinds.add(kind)
                found[f"{name}-{len(kinds)}.json"] = _changed(data, place, is_name, text)
    return found


def _ran(*arguments: str | Path) -> int:
    """The exit status of a command. What it raises fails the test."""
    status = main([str(argument) for argument in arguments])
    assert status in (0, 1, 2)
    assert not Path("CANARY").exists(), arguments
    return status


def _harmless(text: str) -> None:
    assert all(character.isprintable() or character in "\n\t" for character in text)
    text.encode()


def test_each_text_of_a_file_is_walked() -> None:
    places = {
        ".".join("*" if type(step) is int else str(step) for step in place)
        for data in _files().values()
        for place, is_name in _texts(data)
        if not is_name
    }
    assert places >= {
        *("bucket", "clause", "note", "torch", "origin.target", "origin.profile", "expected.eager"),
        *("versions.eager", "x-from", "source.*", "program.statements.*.operator", "program.scenario.device"),
        *(f"findings.*.{name}" for name in ("clause", "path", "eager", "target", "message")),
        *("program.statements.*.operands.*", "program.statements.*.results.*", "program.storages.*.dtype"),
        *(
            "program.statements.*.attributes.dtype",
            "program.returns.dict.*.*",
            "program.returns.dict.*.*.lit",
        ),
        *("program.arguments.*.kind", "program.parameters.*.ref", "program.scenario.steps.*.backward"),
    }
    assert len(places) > 30


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_of_a_file_runs_or_is_lost_in_a_traceback(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("cases")
    folder.mkdir()
    case_file.write_case(folder / "zz-good.json", replace(CASE, program=SINE, expected={"eager": "agrees"}))
    read = []
    for name, data in _mutants(HOSTILE[kind]).items():
        file = folder / name
        file.write_text(json.dumps(data))
        capsys.readouterr()
        try:
            case = case_file.read(file)
        except CorpusError as error:
            assert str(error).startswith(f"{file}: ")
            assert _ran("show", file) == _ran("repro", file) == 2
            out, err = capsys.readouterr()
            assert out == "" and err.count(str(file)) == 2
        else:
            read.append(file)
            _ran("show", file)
            status = _ran("repro", file)
            out, err = capsys.readouterr()
            assert status == 0 or (status, str(file) in err) == (2, True)
            if status == 0:
                _runs_nothing(out[out.index("# Exits with") :])
            _runs_nothing(repro_script.repro_script(case.program, "eager", repro_script.main_finding(case)))
        _harmless(out + err)
    assert read or "half" in kind
    _as_a_folder(folder, len(read) + 1, capsys)


def _runs_nothing(script: str) -> None:
    """Run a script as Python runs a file: its first lines may name an encoding."""
    with suppress(SystemExit):
        exec(compile(script.encode(), "repro.py", "exec"), {"__name__": "__main__", "__file__": os.devnull})
    assert not Path("CANARY").exists(), script


def _as_a_folder(folder: Path, readable: int, capsys: pytest.CaptureFixture[str]) -> None:
    """All commands that take a folder treat the files in it that can be read."""
    files = len(list(folder.iterdir()))
    expected = 2 if files > readable else 0
    for command in (["list"], ["list", "--json"], ["list", "--markdown"], ["prune", "--dry-run"]):
        capsys.readouterr()
        assert _ran("corpus", *command, "--corpus", folder) == expected
        out, err = capsys.readouterr()
        _harmless(out + err)
        if command == ["list"]:
            assert "zz-good.json" in out and len(out.splitlines()) == readable + 2
        if command == ["list", "--json"]:
            assert len(json.loads(out)["cases"]) == readable
        if command == ["list", "--markdown"]:
            assert "<script" not in out and "<img" not in out and "](javascript" not in out
    assert _ran("corpus", "check", "--fix", "--corpus", folder) == 1  # some have the bucket of others
    out, err = capsys.readouterr()
    assert f"{readable} cases" in err
    _harmless(out + err)
    assert all(line.startswith(f"{folder}/") for line in out.splitlines())


@pytest.mark.parametrize("kind", ["expression", "import", "lines", "terminal", "page", "long"])
def test_no_text_of_a_file_runs_in_a_worker(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that run the program: each field that may hold the text has it, all at once."""
    folder = Path("cases")
    folder.mkdir()
    (data,) = [data for name, data in _files().items() if name == "4"]
    for place, is_name in list(_texts(data)):
        changed = _changed(data, place, is_name, HOSTILE[kind])
        (folder / "a.json").write_text(json.dumps(changed))
        with suppress(CorpusError):
            case_file.read(folder / "a.json")
            data = changed
    (folder / "a.json").write_text(json.dumps(data))
    assert case_file.read(folder / "a.json").note == HOSTILE[kind]
    case_file.write_case(folder / "good.json", replace(CASE, program=SINE, expected={"eager": "agrees"}))
    assert _ran("replay", folder, "--json") == 0
    assert [row["outcome"] for row in json.loads(capsys.readouterr().out)["results"]] == ["agree", "agree"]
    assert _ran("reduce", folder / "a.json", "--target", "eager") == 1
    assert _ran("corpus", "add", folder, "--corpus", "kept") == 0
    assert _ran("corpus", "minimize", "--corpus", folder, "--target", "eager") == 1
    out, err = capsys.readouterr()
    assert "good.json: does not differ on eager" in err
    _harmless(out + err)
    assert len(list(Path("kept").iterdir())) == 2


def test_a_case_is_not_added_over_another_one() -> None:
    one, other = (replace(CASE, expected={"eager": "agrees"}, bucket=bucket) for bucket in ("a/b", "a-b"))
    Path("new").mkdir()
    case_file.write_case(Path("new/1.json"), replace(one, program=SINE))
    case_file.write_case(Path("new/2.json"), replace(other, program=DUPLICATE))
    assert _ran("corpus", "add", "new", "--corpus", "kept") == 0
    assert {case_file.read(file).bucket for file in Path("kept").iterdir()} == {"a/b", "a-b"}


def test_a_text_of_json_is_a_text_in_a_script(tmp_path: Path) -> None:
    text = "\U0001f600\u202e'\"\\\n"
    made = program(returns=Dict(((text, Literal(text)),)))
    case_file.write_case(tmp_path / "a.json", replace(CASE, program=made))
    assert case_file.read(tmp_path / "a.json").program == made
    space: dict[str, Any] = {}
    script = repro_script.repro_script(made, "eager", Finding("values", "out", "", "", text))
    with pytest.raises(SystemExit):
        exec(compile(script.encode(), "repro.py", "exec"), space)
    assert space["f"](None) == {text: text}
    _harmless(script)


@pytest.mark.parametrize("name", ["a b:c", "a:b()", "a:b;c", "a", "import:x", "a.class:b", "a:b\n", ""])
def test_a_script_imports_no_expression(name: str) -> None:
    with pytest.raises(TargetError, match="not of the form"):
        repro_script.compiler_named(name)


def test_a_module_may_have_the_name_of_something_in_a_script(tmp_path: Path) -> None:
    Path("look.py").write_text("def make(function): return lambda *args: function(*args) + 1\n")
    script = repro_script.repro_script(SINE, "look:make", Finding("values", "out", "", "", ""))
    with pytest.raises(SystemExit) as left:
        exec(compile(script, "repro.py", "exec"), {"__name__": "__main__"})
    assert left.value.code == 1


def test_a_name_of_a_file_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("cases")
    folder.mkdir()
    for name in (b"a\nb.json", b"\xff.json", b"\x1b[2J.json", b"$(touch CANARY).json", b"<script>|.json"):
        Path(os.fsdecode(b"cases/" + name)).write_text("{")
    case_file.write_case(folder / "good.json", replace(CASE, program=SINE, expected={"eager": "agrees"}))
    for command in (["corpus", "list", "--corpus"], ["corpus", "check", "--corpus"], ["replay"]):
        assert _ran(*command, folder) == (1 if "check" in command else 2)
        out, err = capsys.readouterr()
        _harmless(out + err)
        assert "good.json" in out or "6 cases" in err or "1 cases" in err


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_campaign_of_a_stranger_is_data(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = HOSTILE[kind]
    with Store.create(Path("found"), Configuration(targets=("eager",), cases=2)) as store:
        finding = Finding("errors", "call", "no exception", "RuntimeError: no", "the call raises")
        for index in range(2):
            seen = RunOutcome("finding", "errors/call: x", (finding,), "x", 0.1)
            store.add(Row("eager", index, seen, 0.1))
        store.commit(1.0)
    with sqlite3.connect("found/campaign.sqlite") as database:
        rows = database.execute("select key, value from campaign").fetchall()
        (record,) = database.execute("select record from findings where case_index = 0").fetchone()
    changes = [
        (
            "update campaign set value = ? where key = ?",
            _changed(json.loads(value), place, is_name, text),
            key,
        )
        for key, value in rows
        for place, is_name in _texts(json.loads(value))
    ]
    changes += [
        ("update findings set record = ? where case_index = ?", _changed(json.loads(record), *at, text), 0)
        for at in _texts(json.loads(record))
    ]
    for change, value, where in changes:
        with sqlite3.connect("found/campaign.sqlite") as database:
            database.execute(change, (json.dumps(value), where))
        capsys.readouterr()
        for command in (["report", "found"], ["diff", "found", "found"], ["export", "found"]):
            if _ran(*command) == 2:
                assert "found holds no campaign" in capsys.readouterr().err
        _harmless("".join(capsys.readouterr()))
        page = Path("found/report.html")
        if page.exists():
            assert page.read_text().count("<script") == 1 and "<img" not in page.read_text(), "its own alone"
            page.unlink()
        with sqlite3.connect("found/campaign.sqlite") as database:
            database.executemany("update campaign set value = ? where key = ?", [(v, k) for k, v in rows])
            database.execute("update findings set record = ? where case_index = 0", (record,))


def test_a_campaign_of_a_stranger_runs_no_expression(capsys: pytest.CaptureFixture[str]) -> None:
    Store.create(Path("found"), Configuration(targets=(HOSTILE["expression"],), cases=2)).close()
    assert _ran("resume", "found") == 2
    assert "is not of the form package.module:function" in capsys.readouterr().err


def test_a_pattern_takes_no_long_time() -> None:
    assert not matches("*a" * 250 + "b", "a" * 4000)
    assert (
        matches("a*b*a", "a__b_a") and not matches("ab*ba", "aba") and matches("*", "") and matches("a", "a")
    )
