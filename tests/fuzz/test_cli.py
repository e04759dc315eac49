"""The command line: exit statuses, JSON keys, and errors that name what is wrong."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_programs import DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND, RETURN_VIEW, SINE, call
from test_corpus import CASE, HOSTILE

import fuzz
from fuzz import corpus
from fuzz.campaign import devices
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.export import lines
from fuzz.campaign.store import Store
from fuzz.cli import main
from fuzz.corpus import Origin
from fuzz.ir import on_device

HERE = Path(__file__).parent
KEYS = {
    "cases",
    "poisoned",
    "poisons",
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


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from fuzz.cli import main\n"
        "HEAVY = ('torch', 'numpy', 'hypothesis', 'rich', 'tabulate', 'jinja2', 'sqlite3')\n"
        "try: main(['run', '--help'])\n"
        "finally: print([name for name in HEAVY if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
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


def test_a_reader_who_leaves_changes_nothing() -> None:
    command = [sys.executable, "-m", "fuzz.cli", "run", "--target", "eager", "--cases", "5", "--out", "found"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        complaints = process.stderr.read()
    assert process.returncode == 0, complaints
    assert b"Traceback" not in complaints
    assert (Path("found") / "report.html").is_file()


def test_a_full_disk_ends_a_run_with_words_and_an_intact_file() -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "from fuzz.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = ["run", "--target", "bad_targets:drops_mutation", "--cases", "4000", "--out", "found"]
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 2
    assert "found cannot be written any more" in done.stdout
    assert "Traceback" not in done.stderr
    database = sqlite3.connect(Path("found") / "campaign.sqlite")
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    assert database.execute("select count(*) from results").fetchone()[0] > 0


def _started(name: str, cases: int, workers: int, hash_seed: int) -> subprocess.Popen[bytes]:
    """A campaign in a process of its own."""
    targets = ("--target", "bad_targets:drops_mutation", "--target", "torch-aot-function")
    command = [sys.executable, "-m", "fuzz.cli", "run", *targets, "--cases", str(cases), "--out", name]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{HERE}:{HERE.parents[1]}",
        "PYTHONHASHSEED": str(hash_seed),
    }
    return subprocess.Popen(
        [*command, "--jobs", str(workers)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )


def _exported(name: str) -> list[str]:
    """A campaign as it is exported, without what is measured."""
    with Store.read(Path(name)) as store:
        objects = [json.loads(line) for line in lines(store)]
    kinds = ("case", "example", "trait", "pair")
    return sorted(json.dumps(_unmeasured(item)) for item in objects if item["kind"] in kinds)


def _unmeasured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmeasured(item) for key, item in value.items() if key not in ("seconds", "at")}
    return [_unmeasured(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "cases", [6, pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])]
)
def test_the_same_seed_gives_the_same_whatever_the_hashes_and_the_number_of_workers(cases: int) -> None:
    started = [_started(name, cases, number, number) for number, name in ((1, "one"), (2, "two"))]
    complaints = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [1, 1], complaints
    one, two = _exported("one"), _exported("two")
    assert one == two
    assert sum('"kind": "example"' in line for line in one) > 3


def test_ctrl_c_ends_a_run_with_its_report_and_resume_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--target", "eager", "--cases", "60", "--jobs", "1", "--out", "found", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "fuzz.cli", *command], stdout=subprocess.PIPE, env=environment
    )
    file = Path("found") / "campaign.sqlite"
    while not (file.exists() and _cases(file)):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 0
    first = json.loads(out)
    assert (Path("found") / "report.html").is_file()
    assert first["interrupted"] is (first["cases"] < 60)
    assert main(["resume", "found", "--cases", "80", "--json"]) == 0
    data = _json(capsys)
    assert (data["cases"], data["interrupted"]) == (80, False)
    assert _cases(file) == 80


def _cases(file: Path) -> int:
    try:
        found = sqlite3.connect(f"file:{file}?mode=ro", uri=True).execute("select count(*) from results")
        return int(found.fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_resume_refuses_what_it_would_mix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.create(Path("found"), Configuration(targets=("eager",), cases=5)).close()
    with monkeypatch.context() as patch:
        patch.setattr("fuzz.commands.campaigns.versions", lambda: {"torch": "1.0"})
        assert main(["resume", "found"]) == 2
    assert "aotfuzz diff" in capsys.readouterr().err
    monkeypatch.setattr("fuzz.commands.campaigns.fingerprint", lambda configuration: "other")
    assert main(["resume", "found"]) == 2
    assert "another version of the generator" in capsys.readouterr().err


KNOWN = """format = 1
[[issue]]
title = "writes are lost"
targets = ["bad_targets:drops_mutation", "eager"]
signature = "*"
case = "a.json"
"""


def test_known_issues_are_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    program = replace(SINE, statements=DOUBLE_IN_PLACE.statements, returns=DOUBLE_IN_PLACE.returns)
    _record("corpus/a.json", program=program, bucket="input-data/arg elements/in-place/a")
    Path("corpus/known.toml").write_text(KNOWN.replace(', "eager"', ""))
    run = ["run", "--target", "bad_targets:drops_mutation", "--cases", "10", "--json", "--out"]
    assert main([*run, "one"]) == 0
    data = _json(capsys)
    assert data["findings"] > 0 and data["new"] == 0
    assert {bucket["known"] for bucket in data["buckets"]} == {"writes are lost"}
    assert [issue["state"] for issue in data["known"]] == ["reproduces"]
    assert main([*run, "two", "--known", "none"]) == 1
    capsys.readouterr()
    # The same case on a target that keeps writes: the issue is gone.
    Path("corpus/known.toml").write_text(KNOWN)
    assert main(["run", "--target", "eager", "--cases", "3", "--json"]) == 3
    assert [issue["state"] for issue in _json(capsys)["known"]] == ["gone"]
    assert main(["report", "one", "--json"]) == 0
    assert _json(capsys)["new"] == 0


def test_report_diff_and_export_read_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    for name, target in (("one", "eager"), ("two", "bad_targets:copies_alias")):
        main(["run", "--target", target, "--cases", "12", "--out", name, "--json"])
    capsys.readouterr()
    assert main(["report", "two", "--out", "page.html"]) == 0
    assert "aliasing/" in capsys.readouterr().out
    assert "<h2>Summary</h2>" in Path("page.html").read_text()
    assert main(["diff", "one", "one"]) == 0
    capsys.readouterr()
    assert main(["diff", "one", "two", "--json"]) == 1
    data = _json(capsys)
    assert data["only_after"] and not data["only_before"]
    assert main(["diff", "two", "one"]) == 1
    assert "Only in the first" in capsys.readouterr().out
    assert main(["export", "two", "--out", "two.jsonl"]) == 0
    objects = [json.loads(line) for line in Path("two.jsonl").read_text().splitlines()]
    assert sum(item["kind"] == "case" for item in objects) == 12
    for command in (["report", "none"], ["diff", "one", "none"], ["export", "none"], ["resume", "none"]):
        assert main(command) == 2
        assert "none holds no campaign" in capsys.readouterr().err


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


@pytest.mark.parametrize("device", ["cuda", "cpu,cuda", "both"])
def test_cuda_without_a_device_is_said(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["run", "--target", "eager", "--device", device]) == 2
    assert "sees no CUDA device" in capsys.readouterr().err


def test_an_unknown_device_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "--target", "eager", "--device", "tpu"])
    assert left.value.code == 2
    assert "none of cpu, cuda and cpu,cuda" in capsys.readouterr().err


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


def test_replay_where_other_versions_of_torch_differ_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    _record("a.json", program=SINE, expected={"eager": "differs"}, versions={"eager": "<2"})
    assert main(["replay", "a.json", "--json"]) == 0
    (row,) = _json(capsys)["results"]
    assert (row["outcome"], row["expected"], row["as_expected"]) == ("agree", None, True)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("without_gpu")
def test_what_needs_another_device_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    _record("corpus/there.json", program=on_device(SINE, "cuda"), expected={"eager": "differs"})
    _record("corpus/both.json", program=on_device(SINE, "both"), expected={"eager": "agrees"})
    _record("corpus/here.json", program=SINE, expected={"eager": "agrees"})
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
    file = _record("there.json", program=on_device(SINE, "cuda"), expected={"eager": "agrees"})
    before = file.read_bytes()
    assert main([*command.split(), "there.json"]) == status
    assert "device cuda" in capsys.readouterr().err
    assert file.read_bytes() == before and not Path("new").exists()


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


def test_a_file_cannot_make_the_terminal_do_anything(capsys: pytest.CaptureFixture[str]) -> None:
    _record("a.json", note="\x1b[2Jgone\x9b1mover")
    assert main(["show", "a.json"]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2Jgone\\x9b1mover" in out
    assert not any(letter in out for letter in "\x1b\x9b")


def test_a_corpus_file_cannot_make_a_module_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil_module.py").write_text("open('imported', 'w')\ndef f(function): return function\n")
    _record("a.json", program=SINE, expected={"evil_module:f": "agrees", "eager": "agrees"})
    assert main(["replay", "a.json", "--json"]) == 0
    assert [row["target"] for row in _json(capsys)["results"]] == ["eager"]
    assert not Path("imported").exists()


def test_replay_says_which_targets_are_to_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        _record(f"a folder/{name}.json", program=SINE, expected={"bad_targets:good": "agrees"})
    assert main(["replay", "a folder"]) == 2
    command = "aotfuzz replay 'a folder' --target bad_targets:good"
    assert capsys.readouterr().err.endswith(f"name it: {command}\n")
    assert main(["replay", "a folder", "--target", "bad_targets:good"]) == 0
    assert "2 replayed, 0 not as expected, 0 unreadable\n" in capsys.readouterr().err
    _record(
        "a folder/c.json", program=SINE, expected={"eager": "agrees", "bad_targets:wrong_by_one": "differs"}
    )
    assert main(["replay", "a folder", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (
        f"1 replayed, 0 not as expected, 0 unreadable, 3 not run on targets that are not given: {command}"
        in err
    )
    files = ["a folder/a.json", "a folder/b.json"]
    expected = {"bad_targets:good": files, "bad_targets:wrong_by_one": ["a folder/c.json"]}
    assert json.loads(out)["not_run"] == expected


def test_a_case_that_is_not_run_is_not_added(capsys: pytest.CaptureFixture[str]) -> None:
    _record("new/a.json", program=SINE, expected={"bad_targets:good": "agrees"})
    assert main(["corpus", "add", "new"]) == 2
    assert "a.json: not added" in (said := capsys.readouterr().err) and "--target bad_targets:good" in said
    assert not Path("corpus").exists()
    assert main(["corpus", "add", "new", "--target", "bad_targets:good"]) == 0


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
    assert [line.split()[0] for line in lines][:6] == [
        "aot",
        "aot-min-cut",
        "aot-recompute",
        "aot-rng",
        "aot-dynamic",
        "aot-compile",
    ]
    assert main(["targets", "--json"]) == 0
    assert {row["name"] for row in _json(capsys)["targets"]} >= {"aot", "torch-inductor"}


def test_corpus_add_takes_what_is_new_and_still_so(capsys: pytest.CaptureFixture[str]) -> None:
    _record("new/lost.json", **STOCK, expected={"torch-aot-function": "differs"})
    _record("new/again.json", **STOCK, expected={"torch-aot-function": "differs"}, note="the same bucket")
    _record("new/fine.json", program=SINE, bucket="values/out/sin/a", expected={"eager": "differs"})
    assert main(["corpus", "add", "new", "--target", "eager", "--issue", "7", "--note", "lost"]) == 1
    out, err = capsys.readouterr()
    assert "fine.json: not added: on eager it gives agree" in err
    (file,) = Path("corpus").glob("*.json")
    case = corpus.read(file)
    assert case.expected == {"torch-aot-function": "differs", "eager": "agrees"}
    assert (case.issue, case.note in ("lost", "the same bucket")) == (7, True)
    assert "is there already" in out
    Path("new/fine.json").unlink()
    assert main(["corpus", "add", "new"]) == 0
    assert len(list(Path("corpus").glob("*.json"))) == 1


def test_corpus_add_takes_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    target = "bad_targets:copies_alias"
    main(["run", "--target", target, "--cases", "10", "--out", "found"])
    assert main(["corpus", "add", "found", "--target", target]) == 0
    files = list(Path("corpus").glob("*.json"))
    assert files
    assert corpus.read(files[0]).expected == {target: "differs"}
    assert main(["corpus", "check"]) == 0
    assert main(["corpus", "list", "--json"]) == 0
    capsys.readouterr()


def test_corpus_check_names_what_is_wrong_and_fixes_form(capsys: pytest.CaptureFixture[str]) -> None:
    file = _record("corpus/a.json", expected={"torch-aot-eager": "differs"})
    _record("corpus/b.json", bucket="values/out/expand/a", expected={"torch-aot-eager": "differs"})
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
        _record(f"corpus/{name}.json", issue=issue)
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
    file = _record(
        "corpus/a.json",
        **{**STOCK, "program": padded},
        expected={"torch-aot-function": "differs", "eager": "agrees"},
    )
    assert main(["corpus", "minimize"]) == 0
    case = corpus.read(file)
    assert (len(case.program.statements), case.bucket) == (2, STOCK["bucket"])
    assert main(["corpus", "minimize", str(file)]) == 0
    assert "cannot be made smaller" in capsys.readouterr().out


def test_public_names_are_there_when_they_are_used() -> None:
    for name in fuzz.__all__:
        assert getattr(fuzz, name) is not None
    with pytest.raises(AttributeError, match="no_such"):
        _ = fuzz.no_such


@pytest.mark.parametrize(("cores", "gpus", "workers"), [(2, 1, 2), (16, 1, 8), (64, 2, 16), (4, 0, 1)])
def test_a_gpu_has_so_many_workers(
    cores: int, gpus: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(devices, "gpus", lambda _: tuple(map(str, range(gpus))))
    assert devices.workers("cuda") == devices.workers("both") == workers
    assert devices.workers() == cores
