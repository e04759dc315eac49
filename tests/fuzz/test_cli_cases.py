"""The command line on recorded cases: replay, reduce, show, repro, and the corpus."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.cli import main
from fuzz.corpus import case_file
from fuzz.corpus.case_file import Origin
from fuzz.ir.nodes import on_device
from tests.fuzz.corpus.test_corpus import HOSTILE
from tests.support.fuzz.cli_cases import KNOWN, printed_json, record_case
from tests.support.fuzz.small_programs import (
    DOUBLE_IN_PLACE,
    LOST_THROUGH_EXPAND,
    RETURN_VIEW,
    SINE,
    call,
)

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


STOCK = {
    "program": LOST_THROUGH_EXPAND,
    "bucket": "input-data/arg elements/expand + in-place/a",
    "origin": Origin("torch-aot-function", 0, 1, "mixed"),
}


def test_replay_as_recorded_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("corpus/a.json", **STOCK, expected={"torch-aot-function": "differs", "eager": "agrees"})
    record_case("corpus/b.json", program=SINE, expected={"eager": "agrees"})
    assert main(["replay", "--json"]) == 0
    data = printed_json(capsys)
    assert (data["cases"], data["findings"], data["agree"], data["unexpected"]) == (2, 1, 2, 0)
    finding = next(row for row in data["results"] if row["outcome"] == "finding")
    assert finding["same_bucket"] and finding["as_expected"]
    assert finding["bucket"] == STOCK["bucket"]


def test_replay_says_what_it_will_do_and_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_case("a.json", program=SINE, expected={"eager": "agrees"})
    record_case("b.json", program=SINE, expected={"eager": "agrees"})
    monkeypatch.setattr("fuzz.campaign.progress.LINE_SECONDS", 0.0)
    assert main(["replay", "a.json", "b.json", "--target", "eager", "--jobs", "1"]) == 0
    err = capsys.readouterr().err
    assert "Replaying 2 cases on eager: 2 runs, 1 at once (--jobs)" in err
    assert "\n1 of 2 runs\n2 of 2 runs\n" in err


def test_replay_of_what_no_longer_differs_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("a.json", program=SINE, expected={"eager": "differs"})
    assert main(["replay", "a.json"]) == 1
    assert "NO" in capsys.readouterr().out


def test_replay_where_other_versions_of_torch_differ_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("a.json", program=SINE, expected={"eager": "differs"}, versions={"eager": "<2"})
    assert main(["replay", "a.json", "--json"]) == 0
    (row,) = printed_json(capsys)["results"]
    assert (row["outcome"], row["expected"], row["as_expected"]) == ("agree", None, True)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("without_gpu")
def test_what_needs_another_device_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("corpus/there.json", program=on_device(SINE, "cuda"), expected={"eager": "differs"})
    record_case("corpus/both.json", program=on_device(SINE, "both"), expected={"eager": "agrees"})
    record_case("corpus/here.json", program=SINE, expected={"eager": "agrees"})
    assert main(["replay", "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert [row["outcome"] for row in data["results"]] == ["left out", "agree", "left out"]
    assert (data["left_out"], data["agree"], data["unexpected"]) == (2, 1, 0)
    assert "1 replayed, 0 not as expected, 0 unreadable, 2 left out: their device is not here" in err


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    ("command", "status"),
    [("corpus add --corpus new", 1), ("reduce --target eager", 2), ("corpus minimize", 2)],
)
def test_what_needs_another_device_is_not_changed(
    command: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = record_case("there.json", program=on_device(SINE, "cuda"), expected={"eager": "agrees"})
    before = file.read_bytes()
    assert main([*command.split(), "there.json"]) == status
    assert "device cuda" in capsys.readouterr().err
    assert file.read_bytes() == before and not Path("new").exists()


def test_replay_of_another_bucket_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    record_case(
        "a.json", **{**STOCK, "bucket": "values/out elements/t/a"}, expected={"torch-aot-function": "differs"}
    )
    assert main(["replay", "a.json", "--json"]) == 1
    (row,) = printed_json(capsys)["results"]
    assert (row["outcome"], row["same_bucket"]) == ("finding", False)


def test_replay_on_a_target_without_expectation(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("a.json", program=RETURN_VIEW)
    record_case("b.json", program=DOUBLE_IN_PLACE)
    assert (
        main(["replay", "a.json", "b.json", "--target", "tests.fuzz.bad_targets:copies_alias", "--json"]) == 1
    )
    assert [row["outcome"] for row in printed_json(capsys)["results"]] == ["finding", "agree"]


def test_replay_survives_a_crash(capsys: pytest.CaptureFixture[str]) -> None:
    exponential = replace(SINE, statements=(call("exp", "a0", to="v0"),))
    record_case("a.json", program=exponential)
    record_case("b.json", program=SINE)
    assert (
        main(["replay", "a.json", "b.json", "--target", "tests.fuzz.bad_targets:crashes_on_exp", "--json"])
        == 1
    )
    crashed, fine = printed_json(capsys)["results"]
    assert crashed["bucket"].startswith("errors/call: crash")
    assert fine["outcome"] == "agree"


def test_replay_reads_the_good_files_among_bad_ones(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("truncated", "unknown operator", "absurd shape", "another format")
    for kind in kinds:
        Path(f"{kind}.json").write_text(HOSTILE[kind][0])
    record_case("good.json", program=SINE, expected={"eager": "agrees"})
    assert main(["replay", ".", "--json"]) == 2
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert [row["outcome"] for row in data["results"]] == ["agree"]
    assert len(data["errors"]) == len(kinds)
    for kind in kinds:
        assert f"{kind}.json: {HOSTILE[kind][1]}" in err


def test_a_file_cannot_make_the_terminal_do_anything(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("a.json", note="\x1b[2Jgone\x9b1mover")
    assert main(["show", "a.json"]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2Jgone\\x9b1mover" in out
    assert not any(letter in out for letter in "\x1b\x9b")


def test_a_corpus_file_cannot_make_a_module_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil_module.py").write_text("open('imported', 'w')\ndef f(function): return function\n")
    record_case("a.json", program=SINE, expected={"evil_module:f": "agrees", "eager": "agrees"})
    assert main(["replay", "a.json", "--json"]) == 0
    assert [row["target"] for row in printed_json(capsys)["results"]] == ["eager"]
    assert not Path("imported").exists()


def test_replay_says_which_targets_are_to_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        record_case(f"a folder/{name}.json", program=SINE, expected={"tests.fuzz.bad_targets:good": "agrees"})
    assert main(["replay", "a folder"]) == 2
    command = "aotfuzz replay 'a folder' --target tests.fuzz.bad_targets:good"
    assert capsys.readouterr().err.endswith(f"name it: {command}\n")
    assert main(["replay", "a folder", "--target", "tests.fuzz.bad_targets:good"]) == 0
    assert "2 replayed, 0 not as expected, 0 unreadable\n" in capsys.readouterr().err
    record_case(
        "a folder/c.json",
        program=SINE,
        expected={"eager": "agrees", "tests.fuzz.bad_targets:wrong_by_one": "differs"},
    )
    assert main(["replay", "a folder", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (
        f"1 replayed, 0 not as expected, 0 unreadable, 3 not run on targets that are not given: {command}"
        in err
    )
    files = ["a folder/a.json", "a folder/b.json"]
    expected = {
        "tests.fuzz.bad_targets:good": files,
        "tests.fuzz.bad_targets:wrong_by_one": ["a folder/c.json"],
    }
    assert json.loads(out)["not_run"] == expected


def test_a_case_that_is_not_run_is_not_added(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("new/a.json", program=SINE, expected={"tests.fuzz.bad_targets:good": "agrees"})
    assert main(["corpus", "add", "new"]) == 2
    assert (
        "a.json: not added" in (said := capsys.readouterr().err)
        and "--target tests.fuzz.bad_targets:good" in said
    )
    assert not Path("corpus").exists()
    assert main(["corpus", "add", "new", "--target", "tests.fuzz.bad_targets:good"]) == 0


def test_reduce_prints_a_smaller_case(capsys: pytest.CaptureFixture[str]) -> None:
    padded = replace(
        LOST_THROUGH_EXPAND,
        statements=(call("sin", "a0", to="v7"), *LOST_THROUGH_EXPAND.statements, call("cos", "v7", to="v8")),
    )
    file = record_case("a.json", **{**STOCK, "program": padded}, expected={"torch-aot-function": "differs"})
    assert main(["reduce", str(file), "--target", "torch-aot-function"]) == 0
    out, err = capsys.readouterr()
    Path("reduced.json").write_text(out)
    reduced = case_file.read(Path("reduced.json"))
    assert len(reduced.program.statements) == 2
    assert reduced.bucket == STOCK["bucket"]
    assert "4 -> 2 statements" in err
    assert main(["reduce", str(file), "--target", "torch-aot-function", "--out", "again.json"]) == 0
    assert case_file.read(Path("again.json")) == reduced


def test_reduce_of_what_agrees_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    file = record_case("a.json", program=SINE)
    assert main(["reduce", str(file), "--target", "eager"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not differ on eager: agree" in err


def test_show_prints_source_arguments_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(record_case("a.json"))]) == 0
    out = capsys.readouterr().out
    for words in ("a0.mul_(2.0)", "storage 0 (float32)", "input-data", "2.0", "197448", "seed 0, case 17"):
        assert words in out


def test_repro_prints_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(record_case("a.json"))
    assert main(["repro", file]) == 0
    text = capsys.readouterr().out
    assert 'torch.compile(f, backend="aot_eager")' in text
    assert main(["repro", file, "--target", "aot"]) == 0
    assert "import aot" in capsys.readouterr().out
    compile(text, "repro.py", "exec")


def test_targets_lists_what_can_be_tested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][:6] == [
        "aot",
        "aot-min-cut",
        "aot-recompute",
        "aot-rng",
        "aot-dynamic",
        "aot-compile",
    ]
    assert main(["targets", "--json"]) == 0
    assert {row["name"] for row in printed_json(capsys)["targets"]} >= {"aot", "torch-inductor"}


def test_corpus_add_takes_what_is_new_and_still_so(capsys: pytest.CaptureFixture[str]) -> None:
    record_case("new/lost.json", **STOCK, expected={"torch-aot-function": "differs"})
    record_case("new/again.json", **STOCK, expected={"torch-aot-function": "differs"}, note="the same bucket")
    record_case("new/fine.json", program=SINE, bucket="values/out/sin/a", expected={"eager": "differs"})
    assert main(["corpus", "add", "new", "--target", "eager", "--issue", "7", "--note", "lost"]) == 1
    out, err = capsys.readouterr()
    assert "fine.json: not added: on eager it gives agree" in err
    (file,) = Path("corpus").glob("*.json")
    case = case_file.read(file)
    assert case.expected == {"torch-aot-function": "differs", "eager": "agrees"}
    assert (case.issue, case.note in ("lost", "the same bucket")) == (7, True)
    assert "is there already" in out
    Path("new/fine.json").unlink()
    assert main(["corpus", "add", "new"]) == 0
    assert len(list(Path("corpus").glob("*.json"))) == 1


def test_corpus_add_takes_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    target = "tests.fuzz.bad_targets:copies_alias"
    main(["run", "--target", target, "--cases", "10", "--out", "found"])
    assert main(["corpus", "add", "found", "--target", target]) == 0
    files = list(Path("corpus").glob("*.json"))
    assert files
    assert case_file.read(files[0]).expected == {target: "differs"}
    assert main(["corpus", "check"]) == 0
    assert main(["corpus", "list", "--json"]) == 0
    capsys.readouterr()


def test_corpus_check_names_what_is_wrong_and_fixes_form(capsys: pytest.CaptureFixture[str]) -> None:
    file = record_case("corpus/a.json", expected={"torch-aot-eager": "differs"})
    record_case("corpus/b.json", bucket="values/out/expand/a", expected={"torch-aot-eager": "differs"})
    Path("corpus/c.json").write_text("{")
    Path("corpus/known.toml").write_text(KNOWN.replace("a.json", "absent.json"))
    file.write_text(file.read_text().replace("\n", "\n\n", 1))
    assert main(["corpus", "check", "--fix"]) == 1
    out = capsys.readouterr().out
    assert "a.json: rewritten" in out
    assert "b.json: has the clause input-data and a bucket of another" in out
    assert "b.json: its bucket does not end in what its program has" in out
    assert "c.json: at line 1" in out
    assert "names absent.json, which is not there" in out
    assert "a.json: is not in today's form" not in out


def test_corpus_prune_keeps_the_best_of_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    for name, issue in (("a", None), ("b", 5), ("c", None)):
        record_case(f"corpus/{name}.json", issue=issue)
    assert main(["corpus", "prune", "--dry-run"]) == 0
    assert len(list(Path("corpus").iterdir())) == 3
    assert main(["corpus", "prune"]) == 0
    assert [file.name for file in Path("corpus").iterdir()] == ["b.json"]
    assert "c.json: removed, b.json has the same bucket" in capsys.readouterr().out


def test_corpus_minimize_reduces_where_the_files_are(capsys: pytest.CaptureFixture[str]) -> None:
    padded = replace(
        LOST_THROUGH_EXPAND,
        statements=(call("sin", "a0", to="v7"), *LOST_THROUGH_EXPAND.statements),
    )
    file = record_case(
        "corpus/a.json",
        **{**STOCK, "program": padded},
        expected={"torch-aot-function": "differs", "eager": "agrees"},
    )
    assert main(["corpus", "minimize"]) == 0
    case = case_file.read(file)
    assert (len(case.program.statements), case.bucket) == (2, STOCK["bucket"])
    assert main(["corpus", "minimize", str(file)]) == 0
    assert "cannot be made smaller" in capsys.readouterr().out
