"""The command line: runs and reports, exit statuses, JSON keys, and errors that name what is wrong."""

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

import fuzz
from fuzz.campaign import devices
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.export import lines
from fuzz.campaign.store import Store
from fuzz.cli import main
from fuzz.corpus import case_file
from tests.support.fuzz.cli_cases import HERE, KNOWN, printed_json, record_case
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, SINE

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

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
    data = printed_json(capsys)
    assert data.keys() >= KEYS
    assert (data["cases"], data["findings"], data["buckets"]) == (30, 0, [])
    assert data["cases_per_second"] > 0


def test_a_run_with_findings_exits_with_1_and_says_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "run",
        "--target",
        "tests.fuzz.bad_targets:drops_mutation",
        "--target",
        "eager",
        "--cases",
        "25",
        "--seed",
        "7",
    ]
    assert main([*command, "--out", "found", "--json"]) == 1
    data = printed_json(capsys)
    assert data["cases"] == 50
    assert data["targets"]["eager"]["findings"] == 0
    assert data["findings"] == sum(bucket["count"] for bucket in data["buckets"]) > 0
    for bucket in data["buckets"]:
        assert bucket.keys() >= BUCKET_KEYS
        assert Path(bucket["repro"]).is_file()
        assert case_file.read(Path(bucket["corpus_file"])).program.statements or bucket["statements"] == 0
    assert (Path("found") / "campaign.sqlite").is_file()


def test_a_run_for_people_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["run", "--target", "tests.fuzz.bad_targets:copies_alias", "--cases", "15", "--jobs", "2"]) == 1
    )
    out, err = capsys.readouterr()
    assert "proved something" in out
    assert "aliasing/" in out
    assert "def f(" in out
    assert "Results go to campaigns/" in err
    assert len(list(Path("campaigns").iterdir())) == 1


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_full_disk_ends_a_run_with_words_and_an_intact_file() -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "from fuzz.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [
        "run",
        "--target",
        "tests.fuzz.bad_targets:drops_mutation",
        "--cases",
        "4000",
        "--out",
        "found",
    ]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
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
    targets = ("--target", "tests.fuzz.bad_targets:drops_mutation", "--target", "torch-aot-function")
    command = [sys.executable, "-m", "fuzz.cli", "run", *targets, "--cases", str(cases), "--out", name]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
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
    assert sum('"kind": "example"' in line for line in one) >= 3


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
    data = printed_json(capsys)
    assert (data["cases"], data["interrupted"]) == (80, False)
    assert _cases(file) == 80


def test_a_second_ctrl_c_ends_it_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fuzz.campaign.driver.Campaign.run", interrupted)
    assert main(["run", "--target", "eager", "--cases", "1", "--out", "found"]) == 130
    assert "interrupted; what a campaign has stored is intact" in capsys.readouterr().err


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
        patch.setattr("fuzz.commands.campaigns.campaign_versions", lambda: {"torch": "1.0"})
        assert main(["resume", "found"]) == 2
    assert "aotfuzz diff" in capsys.readouterr().err
    monkeypatch.setattr("fuzz.commands.campaigns.generator_fingerprint", lambda configuration: "other")
    assert main(["resume", "found"]) == 2
    assert "another version of the generator" in capsys.readouterr().err


def test_known_issues_are_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    program = replace(SINE, statements=DOUBLE_IN_PLACE.statements, returns=DOUBLE_IN_PLACE.returns)
    record_case("corpus/a.json", program=program, bucket="input-data/arg elements/in-place/a")
    Path("corpus/known.toml").write_text(KNOWN.replace(', "eager"', ""))
    run = ["run", "--target", "tests.fuzz.bad_targets:drops_mutation", "--cases", "10", "--json", "--out"]
    assert main([*run, "one"]) == 0
    data = printed_json(capsys)
    assert data["findings"] > 0 and data["new"] == 0
    assert {bucket["known"] for bucket in data["buckets"]} == {"writes are lost"}
    assert [issue["state"] for issue in data["known"]] == ["reproduces"]
    assert main([*run, "two", "--known", "none"]) == 1
    capsys.readouterr()
    # The same case on a target that keeps writes: the issue is gone.
    Path("corpus/known.toml").write_text(KNOWN)
    assert main(["run", "--target", "eager", "--cases", "3", "--json"]) == 3
    assert [issue["state"] for issue in printed_json(capsys)["known"]] == ["gone"]
    assert main(["report", "one", "--json"]) == 0
    assert printed_json(capsys)["new"] == 0


def test_report_diff_and_export_read_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    for name, target in (("one", "eager"), ("two", "tests.fuzz.bad_targets:copies_alias")):
        main(["run", "--target", target, "--cases", "12", "--out", name, "--json"])
    capsys.readouterr()
    assert main(["report", "two", "--out", "page.html"]) == 0
    assert "aliasing/" in capsys.readouterr().out
    assert "<h2>Summary</h2>" in Path("page.html").read_text()
    assert main(["diff", "one", "one"]) == 0
    capsys.readouterr()
    assert main(["diff", "one", "two", "--json"]) == 1
    data = printed_json(capsys)
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
    monkeypatch.setattr(devices, "gpu_names", lambda _: tuple(map(str, range(gpus))))
    assert devices.workers("cuda") == devices.workers("both") == workers
    assert devices.workers() == cores
