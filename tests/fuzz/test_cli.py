"""The command line: exit statuses, JSON keys, and errors that name what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_programs import DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND, RETURN_VIEW, SINE, call
from test_corpus import CASE, HOSTILE

from fuzz import corpus
from fuzz.cli import main
from fuzz.corpus import Origin

HERE = Path(__file__).parent
KEYS = {
    "cases",
    "poisoned",
    "refused",
    "refusals",
    "findings",
    "buckets",
    "cases_per_second",
    "crashes",
    "timeouts",
}
BUCKET_KEYS = {
    "bucket",
    "target",
    "clause",
    "count",
    "statements",
    "first_case",
    "first_seconds",
    "repro",
    "corpus_file",
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1, "with --json stdout holds one line"
    data = json.loads(lines[0])
    assert isinstance(data, dict)
    return data


def _record(name: str, **changes: Any) -> Path:
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    corpus.write(file, replace(CASE, **changes))
    return file


STOCK = {
    "program": LOST_THROUGH_EXPAND,
    "bucket": "input-data/arg elements/expand + in-place/a",
    "origin": Origin("torch-aot-function", 0, 1, "mixed"),
}


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from fuzz.cli import main\n"
        "try: main(['run', '--help'])\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"
    assert "--target" in done.stdout


def test_a_run_without_findings_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--target", "eager", "--cases", "30", "--jobs", "1", "--json"]) == 0
    data = _json(capsys)
    assert data.keys() >= KEYS
    assert (data["cases"], data["findings"], data["buckets"]) == (30, 0, [])
    assert data["cases_per_second"] > 0


def test_a_run_with_findings_exits_with_1_and_says_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "run",
        "--target",
        "bad_targets:drops_mutation",
        "--target",
        "eager",
        "--cases",
        "25",
        "--seed",
        "7",
    ]
    assert main([*command, "--out", "found", "--json"]) == 1
    data = _json(capsys)
    assert data["cases"] == 50
    assert data["targets"]["eager"]["findings"] == 0
    assert data["findings"] == sum(bucket["count"] for bucket in data["buckets"]) > 0
    for bucket in data["buckets"]:
        assert bucket.keys() >= BUCKET_KEYS
        assert Path(bucket["repro"]).is_file()
        assert corpus.read(Path(bucket["corpus_file"])).program.statements or bucket["statements"] == 0
    assert (Path("found") / "campaign.sqlite").is_file()


def test_a_run_for_people_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--target", "bad_targets:copies_alias", "--cases", "15", "--jobs", "2"]) == 1
    out, err = capsys.readouterr()
    assert "proved something" in out
    assert "aliasing/" in out
    assert "def f(" in out
    assert "Results go to campaigns/" in err
    assert len(list(Path("campaigns").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run"], "--target"),
        (["run", "--target", "eager", "--cases", "0"], "less than 1"),
        (["run", "--target", "eager", "--seconds", "-1"], "not a positive number"),
        (["run", "--target", "eager", "--cases", "5", "--seconds", "5"], "not allowed with"),
        (["run", "--target", "eager", "--seed", "x"], "--seed"),
        (["run", "--target", "eager", "--device", "tpu"], "--device"),
        (["nonsense"], "nonsense"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--target", "no-such"], "no target named 'no-such'"),
        (["run", "--target", "eager", "--profile", "no-such"], "no profile named 'no-such'; there are"),
        (["run", "--target", "eager", "--out", "file/out"], "cannot write a campaign to file/out"),
        (["replay", "--target", "no-such"], "no target named 'no-such'"),
        (["replay"], "corpus: cannot be read"),
        (["reduce", "absent.json", "--target", "eager"], "absent.json: cannot be read"),
        (["show", "absent.json"], "absent.json: cannot be read"),
        (["repro", "absent.json"], "absent.json: cannot be read"),
    ],
)
def test_a_wrong_set_up_exits_with_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert complaint in err
    assert "Traceback" not in err
    assert out == ""


def test_cuda_without_a_device_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["run", "--target", "eager", "--device", "cuda"]) == 2
    assert "sees no CUDA device" in capsys.readouterr().err


def test_replay_as_recorded_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    _record("corpus/a.json", **STOCK, expected={"torch-aot-function": "differs", "eager": "agrees"})
    _record("corpus/b.json", program=SINE, expected={"eager": "agrees"})
    assert main(["replay", "--json"]) == 0
    data = _json(capsys)
    assert (data["cases"], data["findings"], data["agree"], data["unexpected"]) == (2, 1, 2, 0)
    finding = next(row for row in data["results"] if row["outcome"] == "finding")
    assert finding["same_bucket"] and finding["as_expected"]
    assert finding["bucket"] == STOCK["bucket"]


def test_replay_of_what_no_longer_differs_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    _record("a.json", program=SINE, expected={"eager": "differs"})
    assert main(["replay", "a.json"]) == 1
    assert "NO" in capsys.readouterr().out


def test_replay_of_another_bucket_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    _record(
        "a.json", **{**STOCK, "bucket": "values/out elements/t/a"}, expected={"torch-aot-function": "differs"}
    )
    assert main(["replay", "a.json", "--json"]) == 1
    (row,) = _json(capsys)["results"]
    assert (row["outcome"], row["same_bucket"]) == ("finding", False)


def test_replay_on_a_target_without_expectation(capsys: pytest.CaptureFixture[str]) -> None:
    _record("a.json", program=RETURN_VIEW)
    _record("b.json", program=DOUBLE_IN_PLACE)
    assert main(["replay", "a.json", "b.json", "--target", "bad_targets:copies_alias", "--json"]) == 1
    assert [row["outcome"] for row in _json(capsys)["results"]] == ["finding", "agree"]


def test_replay_survives_a_crash(capsys: pytest.CaptureFixture[str]) -> None:
    exponential = replace(SINE, statements=(call("exp", "a0", to="v0"),))
    _record("a.json", program=exponential)
    _record("b.json", program=SINE)
    assert main(["replay", "a.json", "b.json", "--target", "bad_targets:crashes_on_exp", "--json"]) == 1
    crashed, fine = _json(capsys)["results"]
    assert crashed["bucket"].startswith("errors/call: crash")
    assert fine["outcome"] == "agree"


def test_replay_reads_the_good_files_among_bad_ones(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("truncated", "unknown operator", "absurd shape", "another format")
    for kind in kinds:
        Path(f"{kind}.json").write_text(HOSTILE[kind][0])
    _record("good.json", program=SINE, expected={"eager": "agrees"})
    assert main(["replay", ".", "--json"]) == 2
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert [row["outcome"] for row in data["results"]] == ["agree"]
    assert len(data["errors"]) == len(kinds)
    for kind in kinds:
        assert f"{kind}.json: {HOSTILE[kind][1]}" in err


def test_a_corpus_file_cannot_make_a_module_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil_module.py").write_text("open('imported', 'w')\ndef f(function): return function\n")
    _record("a.json", program=SINE, expected={"evil_module:f": "agrees", "eager": "agrees"})
    assert main(["replay", "a.json", "--json"]) == 0
    assert [row["target"] for row in _json(capsys)["results"]] == ["eager"]
    assert not Path("imported").exists()


def test_reduce_prints_a_smaller_case(capsys: pytest.CaptureFixture[str]) -> None:
    padded = replace(
        LOST_THROUGH_EXPAND,
        statements=(call("sin", "a0", to="v7"), *LOST_THROUGH_EXPAND.statements, call("cos", "v7", to="v8")),
    )
    file = _record("a.json", **{**STOCK, "program": padded}, expected={"torch-aot-function": "differs"})
    assert main(["reduce", str(file), "--target", "torch-aot-function"]) == 0
    out, err = capsys.readouterr()
    Path("reduced.json").write_text(out)
    reduced = corpus.read(Path("reduced.json"))
    assert len(reduced.program.statements) == 2
    assert reduced.bucket == STOCK["bucket"]
    assert "4 -> 2 statements" in err
    assert main(["reduce", str(file), "--target", "torch-aot-function", "--out", "again.json"]) == 0
    assert corpus.read(Path("again.json")) == reduced


def test_reduce_of_what_agrees_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    file = _record("a.json", program=SINE)
    assert main(["reduce", str(file), "--target", "eager"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not differ on eager: agree" in err


def test_show_prints_source_arguments_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(_record("a.json"))]) == 0
    out = capsys.readouterr().out
    for words in ("a0.mul_(2.0)", "storage 0 (float32)", "input-data", "2.0", "197448", "seed 0, case 17"):
        assert words in out


def test_repro_prints_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(_record("a.json"))
    assert main(["repro", file]) == 0
    text = capsys.readouterr().out
    assert 'torch.compile(f, backend="aot_eager")' in text
    assert main(["repro", file, "--target", "aot"]) == 0
    assert "import aot" in capsys.readouterr().out
    compile(text, "repro.py", "exec")


def test_targets_lists_what_can_be_tested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][:4] == [
        "aot",
        "aot-min-cut",
        "aot-recompute",
        "torch-aot-function",
    ]
    assert main(["targets", "--json"]) == 0
    assert {row["name"] for row in _json(capsys)["targets"]} >= {"aot", "torch-inductor"}
