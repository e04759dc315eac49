"""Versions of torch that are installed: what is said before, what is kept, what is left when it fails."""

from __future__ import annotations

import os
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from fuzz import interpreters
from fuzz.bisection import environments
from fuzz.bisection.environments import install_torch
from fuzz.errors import InstallError


def wheel(folder: Path, version: str) -> None:
    """A wheel of a torch that has a version and nothing else."""
    information = f"torch-{version}.dist-info"
    files = {
        "torch.py": f"__version__ = {version!r}\n",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture(autouse=True)
def pip_without_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may be configured to take some versions of torch only."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)


def local(folder: Path) -> list[str]:
    return ["--no-index", "--find-links", str(folder)]


def test_a_version_is_installed_once_with_a_word_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "dependencies", lambda: ())
    monkeypatch.setattr(interpreters, "dependencies", lambda: ())
    wheel(tmp_path, "9.9.0")
    said: list[str] = []
    out = tmp_path / "out"
    found = install_torch("9.9.0", out, say=said.append, pip_arguments=local(tmp_path))
    assert found.torch == "9.9.0"
    assert found.python == out / "torch-9.9.0" / "bin" / "python"
    (line,) = said
    assert "installing into" in line
    assert "GB are free" in line
    assert install_torch("9.9.0", out, say=said.append) == found
    assert len(said) == 1


def test_what_pip_says_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"torch 9\.9\.1 cannot be installed: .*torch==9\.9\.1"):
        install_torch("9.9.1", tmp_path, say=lambda _text: None, pip_arguments=local(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_constraint_that_forbids_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "dependencies", lambda: ())
    wheel(tmp_path, "9.9.0")
    constraint = tmp_path / "constraints.txt"
    constraint.write_text("torch<9")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraint))
    with pytest.raises(InstallError, match=r"The user requested \(constraint\) torch<9"):
        install_torch("9.9.0", tmp_path / "out", say=lambda _text: None, pip_arguments=local(tmp_path))


@pytest.mark.parametrize("version", ["", "--help", "newest", "../2.15.0", "2.15.0 --pre"])
def test_what_is_no_version_is_refused(version: str, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="is no version of torch"):
        install_torch(version, tmp_path, say=lambda _text: None)


def test_without_room_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda _place: usage(10**10, 9 * 10**9, 10**9))
    with pytest.raises(InstallError, match=r"has 1\.0 GB free; torch may take 6 GB"):
        install_torch("2.15.0", tmp_path, say=lambda _text: None)


def test_an_environment_that_does_not_work_is_named(tmp_path: Path) -> None:
    python = tmp_path / "torch-2.15.0" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(InstallError, match="is there and does not work, remove it"):
        install_torch("2.15.0", tmp_path, say=lambda _text: None)
