"""Corpus files: what is written is read again, what is damaged or hostile is refused with file and place."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz.campaign.replay import replay
from fuzz.cli import main
from fuzz.corpus import buckets
from fuzz.corpus.case_file import MAX_BYTES, Case, Origin, case_files, case_slug, case_text, read, write_case
from fuzz.corpus.collection import Collection
from fuzz.errors import CorpusError
from fuzz.execute.case import execute
from fuzz.ir import renames
from fuzz.operators import OPERATORS
from fuzz.program.decode import FORMAT
from fuzz.targets.catalog import find_target
from oracles import Finding
from tests.support.fuzz.small_programs import (
    DOUBLE_IN_PLACE,
    DUPLICATE,
    LOST_THROUGH_EXPAND,
    TWO_MUTATED_ALIASES,
)

CASE = Case(
    program=DOUBLE_IN_PLACE,
    bucket="input-data/arg elements/in-place/a",
    clause="input-data",
    torch="2.13.0",
    origin=Origin("torch-aot-eager", 0, 17, "mixed"),
    expected={"torch-aot-eager": "differs", "aot": "agrees"},
    findings=(Finding("input-data", "arg[0]", "2.0", "1.0", "arg[0]: 2.0 in eager, 1.0 in the target"),),
    note="a write is lost",
    issue=197448,
)


def test_an_operator_that_was_renamed_is_read_by_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = case_text(replace(CASE, program=LOST_THROUGH_EXPAND, bucket="values/out/expand + in-place/a"))
    (tmp_path / "old.json").write_text(old.replace("expand", "broaden"))
    with pytest.raises(CorpusError, match="broaden"):
        read(tmp_path / "old.json")
    monkeypatch.setattr(renames, "RENAMED", {"broaden": "expand"})
    case = read(tmp_path / "old.json")
    assert case.program == LOST_THROUGH_EXPAND
    assert case.bucket == "values/out/expand + in-place/a"
    assert renames.bucket("a/b/2 broaden@no_grad + sum/c") == "a/b/2 expand@no_grad + sum/c"


def test_renames_lead_to_operators_that_exist() -> None:
    assert set(renames.RENAMED.values()) <= set(OPERATORS)
    assert not set(renames.RENAMED) & set(OPERATORS)


def test_fields_of_other_tools_are_kept(tmp_path: Path) -> None:
    case = replace(CASE, extra={"x-triaged-by": "somebody"})
    write_case(tmp_path / "case.json", case)
    assert read(tmp_path / "case.json") == case


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(CorpusError, match="no regular file"):
        read(tmp_path / "pipe.json")


def test_a_hundred_megabytes_are_refused_without_reading_them(tmp_path: Path) -> None:
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(100 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(CorpusError, match="larger than"):
            read(tmp_path / "huge.json")
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 150_000 + "1" + "}" * 150_000,
        "[" + "[0]," * 200_000 + "0]",
        '{"format": 1, "program": ' + "[" * 400_000 + "]" * 400_000 + "}",
    ],
)
def test_a_hostile_document_costs_little_memory(text: str, tmp_path: Path) -> None:
    (tmp_path / "hostile.json").write_text(text)
    tracemalloc.start()
    try:
        with pytest.raises(CorpusError):
            read(tmp_path / "hostile.json")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("program", [DOUBLE_IN_PLACE, DUPLICATE, TWO_MUTATED_ALIASES])
def test_what_is_written_is_read_again(program: Any, tmp_path: Path) -> None:
    case = replace(CASE, program=program)
    write_case(tmp_path / "case.json", case)
    assert read(tmp_path / "case.json") == case
    write_case(tmp_path / "case.json", replace(case, issue=None))
    assert read(tmp_path / "case.json").issue is None
    write_case(tmp_path / "case.json", replace(case, versions={"aot": ">=2.12"}))
    assert read(tmp_path / "case.json").versions == {"aot": ">=2.12"}
    assert [file.name for file in tmp_path.iterdir()] == ["case.json"]


def test_a_file_is_for_people_too() -> None:
    text = case_text(CASE)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 170
    assert any('"def f(a0):"' in line for line in lines)
    assert any("mul_number_" in line and "attributes" in line for line in lines), "a statement is one line"
    assert list(json.loads(text))[:3] == ["format", "bucket", "clause"]


def _changed(change: Callable[[dict[str, Any]], Any]) -> str:
    data = json.loads(case_text(CASE))
    change(data)
    return json.dumps(data)


def test_what_is_expected_on_some_versions_of_torch_is_not_on_others() -> None:
    case = replace(CASE, versions={"torch-aot-eager": ">=2.12"})
    assert case.state("torch-aot-eager", "2.11.0+cu130") is None
    assert case.state("torch-aot-eager", "2.13.0+cpu") == "differs"
    assert case.state("aot", "2.11.0") == "agrees"


HOSTILE = {
    "empty": ("", "at line 1, column 1"),
    "truncated": (case_text(CASE)[:700], "at line "),
    "not an object": ("[1, 2]", "not an object"),
    "another format": (
        _changed(lambda data: data.update(format=FORMAT + 1)),
        f"at format: found format version {FORMAT + 1}",
    ),
    "a format that is no version": (_changed(lambda data: data.update(format=True)), "at format"),
    "unknown operator": (
        _changed(lambda data: data["program"]["statements"][0].update(operator="os.system")),
        "at program.statements[0]",
    ),
    "absurd shape": (
        _changed(lambda data: data["program"]["storages"][0].update(size=[10**6, 10**6])),
        "at program.storages[0].size",
    ),
    "absurd number": (case_text(CASE).replace('"seed": 1', '"seed": 1' + "0" * 5000), "not JSON"),
    "endless texts of others": (
        _changed(lambda data: data.update({f"x-{i}": "" for i in range(100)})),
        "fields x-... than allowed",
    ),
    "unknown field": (_changed(lambda data: data.update(run="rm -rf")), "unknown field 'run'"),
    "missing field": (_changed(lambda data: data.pop("program")), "'program' is missing"),
    "unknown state": (_changed(lambda data: data["expected"].update(aot="maybe")), "at expected.aot"),
    "target that is none": (_changed(lambda data: data["expected"].update({"a b": "agrees"})), "at expected"),
    "range that is none": (_changed(lambda data: data.update(versions={"aot": "new"})), "at versions.aot"),
    "range of no target": (_changed(lambda data: data.update(versions={"a": ">=2"})), "at versions: nothing"),
    "ranges that are none": (_changed(lambda data: data.update(versions=">=2")), "at versions: expected an"),
    "no expectation": (_changed(lambda data: data.update(expected={})), "at expected"),
    "unknown clause": (_changed(lambda data: data["findings"][0].update(clause="luck")), "at findings[0]"),
    "issue that is no number": (_changed(lambda data: data.update(issue="197448")), "at issue"),
    "endless text": (_changed(lambda data: data.update(note="x" * 5000)), "at note"),
    "deep": ("[" * 50_000 + "]" * 50_000, "nested too deeply"),
    "not a number": ('{"format": NaN}', "NaN is not a JSON number"),
    "huge": (" " * (MAX_BYTES + 1), "larger than"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_or_hostile_file_is_refused_with_its_place(kind: str, tmp_path: Path) -> None:
    text, complaint = HOSTILE[kind]
    file = tmp_path / "case.json"
    file.write_text(text)
    with pytest.raises(CorpusError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert complaint in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CorpusError, match=r"at byte 7: not UTF-8"):
        read(tmp_path / "case.json")


@pytest.mark.parametrize("path", ["absent.json", "."])
def test_what_cannot_be_opened_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="cannot be read"):
        read(tmp_path / path)


def test_source_in_a_file_is_never_run(tmp_path: Path) -> None:
    data = json.loads(case_text(CASE))
    data["source"] = [f"open({str(tmp_path / 'ran')!r}, 'w')"]
    (tmp_path / "case.json").write_text(json.dumps(data))
    assert read(tmp_path / "case.json") == CASE
    assert not (tmp_path / "ran").exists()


def test_files_are_found_in_folders_in_order(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "deep/c.json", "note.txt", ".hidden.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = [str(file.relative_to(tmp_path)) for file in case_files([tmp_path, tmp_path / "no.json"])]
    assert found == ["a.json", "b.json", "deep/c.json", "no.json"]


def test_slugs_are_file_names_and_differ() -> None:
    long = "values/out/" + " + ".join(f"operator_{number}" for number in range(30))
    names = {case_slug(long, "t"), case_slug(long + "x", "t"), case_slug("a/b: c", "pkg.mod:f")}
    assert len(names) == 3
    assert all(len(name) <= 100 and name.replace("-", "").replace("_", "").isalnum() for name in names)


RECORDED = [
    (file.name, target, state)
    for file in case_files([Path(__file__).parents[3] / "corpus"])
    for target, state in read(file).expected.items()
]


# What Inductor computes wrongly depends on how wide the vectors of the CPU are: these were recorded
# with AVX512.
BY_VECTORS = {
    ("inductor-gelu-rounding.json", "aot-inductor"),
    ("inductor-put-into-itself.json", "torch-inductor"),  # pytorch/pytorch#156786
}


def _on_its_device(name: str, target: str, state: str) -> Any:
    device = read(Path(__file__).parents[3] / "corpus" / name).program.scenario.device
    return pytest.param(name, target, state, marks=() if device == "cpu" else pytest.mark.cuda)


def test_there_are_recorded_cases() -> None:
    assert (
        len({name for name, target, state in RECORDED if (target, state) == ("torch-aot-eager", "differs")})
        >= 3
    )
    assert {target for _, target, _ in RECORDED} >= {"aot", "torch-aot-eager"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "target", "state"), [_on_its_device(*one) for one in RECORDED])
def test_a_recorded_case_still_does_what_its_file_says(name: str, target: str, state: str) -> None:
    file = Path(__file__).parents[3] / "corpus" / name
    case = read(file)
    elsewhere = case.state(target, torch.__version__) is None
    # It breaks torch in the process that it runs in, or may where it was not recorded.
    if case.bucket.startswith("errors/after the call") or elsewhere:
        (row,) = replay([(file, case)], [target], jobs_at_once=1)
        assert row.as_expected and row.outcome in ("agree", "finding"), row
        assert elsewhere or row.bucket == (case.bucket if state == "differs" else ""), row
        return
    compiler = find_target(target)
    compiler.prepare()
    result = execute(case.program, compiler)
    if (name, target) in BY_VECTORS and torch.backends.cpu.get_cpu_capability() != "AVX512":
        assert result.outcome in ("agree", "finding"), result
    elif state == "agrees":
        assert result.outcome == "agree", result
    else:
        assert result.outcome == "finding", f"{target} no longer differs: {result}"
        assert buckets.bucket(result.findings, case.program) == case.bucket


def test_the_corpus_of_this_repository_is_in_order() -> None:
    collection = Collection.load(Path(__file__).parents[3] / "corpus")
    assert collection.problems() == []
    assert len(collection.cases) >= 12


def test_the_page_of_what_was_found_is_that_of_the_corpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    assert main(["corpus", "list", "--markdown"]) == 0
    table = capsys.readouterr().out
    page = (root / "docs" / "measurements" / "found.md").read_text(encoding="utf-8")
    _, mark, printed = page.partition("<!-- aotfuzz corpus list --markdown -->\n\n")
    assert mark and printed == table
    cases = {file.name: read(file) for file in case_files([root / "corpus"])}
    live = {name for name, case in cases.items() if "differs" in case.expected.values()}
    assert set(re.findall(r"\(\.\./\.\./corpus/(.*?)\)", printed)) == live
