"""JUnit XML and SARIF of a campaign: well formed whatever a target printed; known issues are no failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import Example, RunOutcome, Suspect
from fuzz.campaign.store import Row, Store
from fuzz.campaign.summary import Summary, summarize, write_files
from fuzz.cli import main
from fuzz.corpus.known_issues import Issue, IssueStatus
from fuzz.report.ci_formats import junit_text, sarif_text
from oracles import CLAUSES, Finding
from tests.support.fuzz.small_programs import LOST_THROUGH_EXPAND

SAID = "\x1b[2J\x00 ]]> <b> \ud800 é"
TARGET = "torch-aot-eager"
ACTION = Path(__file__).parents[3] / ".github/actions/aotfuzz"


def _campaign(folder: Path, *, buckets: int, trouble: str = "") -> Summary:
    with Store.create(folder, Configuration(targets=(TARGET,), cases=5)) as store:
        for index in range(5):
            finding = Finding("values", "out", "1.0", "2.0", f"out: 1.0 in eager, {SAID} in the target")
            seen = RunOutcome("agree", "", (), "agree", 0.1)
            if index < buckets:
                seen = RunOutcome("finding", f"values/out {index}", (finding,), "it", 0.1)
                suspect = Suspect(TARGET, index, LOST_THROUGH_EXPAND, seen)
                name = f"values/out {index}/expand/a"
                example = Example(suspect, LOST_THROUGH_EXPAND, seen, name, "# script", "shown", 3, ())
                store.keep(example)
            store.add(Row(TARGET, index, seen, index / 4))
        store.commit(10.0)
        known = Issue("a known one", (TARGET,), upstream=197448, signature="values/out 1")
        store.set("known", [IssueStatus(known, TARGET, "reproduces", "shown").to_json()], 10.0)
        store.set("troubles", [trouble] if trouble else [], 10.0)
        write_files(store, summarize(store).buckets)
        return summarize(store)


def test_junit_has_a_test_for_each_bucket(tmp_path: Path) -> None:
    summary = _campaign(tmp_path / "found", buckets=3)
    root = ElementTree.fromstring(junit_text(summary))
    counts = {"tests": "4", "failures": "2", "errors": "0"}
    (suite,) = root.findall("testsuite")
    for element in (root, suite):
        assert {name: element.get(name) for name in counts} == counts
    assert (root.get("skipped"), suite.get("skipped")) == (None, "1")
    assert suite.get("name") == TARGET and len(suite.get("timestamp", "")) == len("2026-01-01T00:00:00")
    tests = {test.get("name"): test for test in suite}
    assert tests["values/out 1/expand/a"].find("skipped") is not None
    failure = tests["values/out 0/expand/a"].find("failure")
    assert failure is not None and failure.get("type") == "values" and failure.text is not None
    assert r"\x1b[2J\x00 ]]> <b> \ud800 é" in failure.get("message", "")
    assert "a0.expand" in failure.text and "script: " in failure.text


def test_junit_says_what_troubles_the_fuzzer_had(tmp_path: Path) -> None:
    summary = _campaign(tmp_path / "found", buckets=0, trouble=SAID)
    root = ElementTree.fromstring(junit_text(summary))
    assert (root.get("errors"), root.get("failures")) == ("1", "0")
    assert not json.loads(sarif_text(summary))["runs"][0]["invocations"][0]["executionSuccessful"]


def test_sarif_has_a_result_for_each_bucket(tmp_path: Path) -> None:
    data = json.loads(sarif_text(_campaign(tmp_path / "a b", buckets=3)))
    assert data["version"] == "2.1.0"
    (run,) = data["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(CLAUSES)
    assert len(run["results"]) == 3
    assert len({result["partialFingerprints"]["aotfuzzBucket/v1"] for result in run["results"]}) == 3
    for result in run["results"]:
        assert CLAUSES[result["ruleIndex"]] == result["ruleId"] == "values"
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.endswith(".py") and " " not in uri and "a%20b" in uri
        assert result["occurrenceCount"] >= 1 and result["message"]["text"].isprintable()
    (known,) = [result for result in run["results"] if "suppressions" in result]
    assert known["suppressions"] == [{"kind": "external", "justification": "a known one"}]


def test_the_command_line_writes_them_and_diff_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _campaign(Path("base"), buckets=1)
    _campaign(Path("head"), buckets=3)
    formats = ["--junit", "junit.xml", "--sarif", "found.sarif"]
    assert main(["report", "head", *formats]) == 0
    assert ElementTree.parse("junit.xml").getroot().get("tests") == "4"
    assert len(json.loads(Path("found.sarif").read_text())["runs"][0]["results"]) == 3
    assert main(["diff", "base", "head", *formats]) == 1
    assert ElementTree.parse("junit.xml").getroot().get("tests") == "3"
    assert len(json.loads(Path("found.sarif").read_text())["runs"][0]["results"]) == 2
    assert main(["report", "head", "--junit", "absent/junit.xml"]) == 2
    assert "cannot write absent/junit.xml" in capsys.readouterr().err


AOTFUZZ = """#!/usr/bin/env bash
echo "$PWD $*" >> "$CALLS"
case $1 in
    run) echo '{"cases": 7}'; exit "${RUN_STATUS:-1}";;
    diff) exit 1;;
esac
"""


@pytest.mark.parametrize(("status", "ends"), [("1", 1), ("0", 1), ("2", 2)])
def test_the_action_runs_the_same_programs_on_base_and_head(status: str, ends: int, tmp_path: Path) -> None:
    work, tools = tmp_path / "work", tmp_path / "tools"
    work.mkdir()
    tools.mkdir()
    (tools / "aotfuzz").write_text(AOTFUZZ)
    (tools / "aotfuzz").chmod(0o755)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "base"]):
        subprocess.run(["git", *author, *command], cwd=work, check=True)
    inputs = {"TARGET": "mine:compile", "BASE": "HEAD", "INSTALL": "pwd >> $CALLS", "SECONDS_ON_BASE": "9"}
    inputs |= {"SEED": "3", "PROFILE": "mixed", "OUT": "out", "CALLS": str(tmp_path / "calls")}
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", ACTION / "compare.sh"],
        cwd=work,
        env={**os.environ, **inputs, "PATH": path, "RUN_STATUS": status},
        check=False,
        capture_output=True,
    )
    assert run.returncode == ends, run.stderr
    base, *calls = (tmp_path / "calls").read_text().splitlines()
    common = "run --target mine:compile --seed 3 --profile mixed --known none --out"
    expected = [f"{base} {common} {work}/out/base --json --seconds 9"]
    if ends == 1:
        expected += [f"{work}", f"{work} {common} {work}/out/head --json --cases 7"]
        expected += [f"{work} report {work}/out/head", f"{work} diff {work}/out/base {work}/out/head"]
        calls[-1] = calls[-1].partition(" --junit ")[0]
    assert calls == expected and base != str(work)
    assert not Path(base).exists()
    text = (ACTION / "action.yml").read_text()
    assert all(f"        {name}: ${{{{ inputs." in text for name in inputs if name != "CALLS")
