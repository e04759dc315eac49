"""`aotfuzz bisect` and `aotfuzz corpus date`: requests that are refused, and one of each that is answered."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.cli import main

CORPUS = Path(__file__).parents[2] / "corpus"
CASE = CORPUS / "scalar-write-lost.json"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text("import sys, backend; sys.exit(backend.wrong)")
    return file


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["none.py"], "none.py is neither a corpus file nor a script"),
        (["none.json"], "none.json: cannot be read"),
        ([str(CASE), "--script-args", "a"], "--script-args is for a script"),
        (["SCRIPT", "--target", "aot"], "--target is for a corpus file"),
        (["SCRIPT", "--git", ".", "--good", "a"], "--git REPO needs --good A, --bad B and --build COMMAND"),
        (["SCRIPT", "--build", "make"], "--git REPO needs --good A, --bad B and --build COMMAND"),
        (["SCRIPT", "--python", "/nowhere/python"], "no interpreter at /nowhere/python"),
        (["SCRIPT", "--torch", "newest"], "'newest' is no version of torch"),
    ],
)
def test_requests_that_do_not_fit_are_refused(
    options: list[str], said: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(script) if word == "SCRIPT" else word for word in options]
    assert main(["bisect", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_a_file_must_not_have_its_target_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(CASE.read_text())
    data["origin"]["target"] = "evil:run"
    file = tmp_path / "case.json"
    file.write_text(json.dumps(data))
    assert main(["bisect", str(file)]) == 2
    assert "name it with --target" in capsys.readouterr().err


def test_commits_are_bisected(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for number, wrong in enumerate((0, 0, 1)):
        (repository / "backend.py").write_text(f"wrong = {wrong}  # {number}")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", f"Commit {number}"], check=True)
    ends = ["--git", str(repository), "--good", "HEAD~2", "--bad", "HEAD"]
    assert main(["bisect", str(script), *ends, "--build", "true", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])["commits"]
    assert [commit["subject"] for commit in found["first_wrong"]] == ["Commit 2"]
    assert found["before"]["subject"] == "Commit 1"
    assert "first wrong: " in captured.err


@pytest.mark.nightly
def test_a_case_is_bisected_over_interpreters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The interpreter is this one, so that nothing depends on what else is installed."""
    options = ["--python", sys.executable, "--out", str(tmp_path), "--json"]
    status = main(["bisect", str(CORPUS / "unbind-base-lost.json"), *options])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (version,) = found["history"]["versions"]
    assert version["verdict"] == "wrong"
    assert (status, found["blame"]["layer"], found["blame"]["label"]) == (
        0,
        "AOTAutograd",
        "module: pt2-dispatcher",
    )
    assert (found["blame"]["right"], found["blame"]["wrong"]) == (None, None), "there is no Dynamo below it"


@pytest.mark.nightly
def test_a_corpus_is_dated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    file = Path(shutil.copy(CORPUS / "unbind-base-lost.json", folder))
    assert main(["corpus", "date", "--corpus", str(folder), "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["cases"][str(file)]
    written = json.loads(file.read_text())
    assert (told["dated"], told["layer"]) == (written["dated"], written["layer"])
    assert written["layer"] == "AOTAutograd"
    assert set(written["dated"]["torch-aot-eager"].values()) == {"differs"}
    assert main(["corpus", "check", "--corpus", str(folder)]) == 0
