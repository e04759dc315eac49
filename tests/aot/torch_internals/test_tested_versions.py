"""The tested versions of torch: one table, which the packaging agrees with, and a warning for a newer one."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from aot.torch_internals import inventory
from aot.torch_internals.tested_versions import NEWEST, OLDEST, TESTED, untested_version_message

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("version", ["2.16.0.dev20261127", "2.16.0.dev20261127+cpu", "3.0.0a0+git1234567"])
def test_a_newer_torch_is_told_of_with_what_to_do(version: str) -> None:
    message = untested_version_message(version)
    assert message is not None and message.startswith(f"torch {version} is newer")
    assert ", ".join(TESTED) in message and "`aotfuzz doctor`" in message


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.12.1", "2.15.0", "2.15.1+cpu", "2.15.0.dev20260901"])
def test_a_tested_torch_and_one_between_two_of_them_are_not(version: str) -> None:
    assert untested_version_message(version) is None


IMPORT = """
import torch
torch.__version__ = torch.torch_version.TorchVersion({version!r})
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import aot, aot.torch_internals, fuzz, fuzz.targets.builtin_targets
    for _ in range(2):
        aot.aot_function(lambda x: x * 2, aot.nop)(torch.ones(2))
print([str(one.message) for one in caught if issubclass(one.category, aot.UntestedTorchWarning)])
"""


@pytest.mark.parametrize(("version", "count"), [("2.99.0.dev20300101+cpu", 1), (f"{NEWEST}.0", 0)])
def test_a_process_warns_once(version: str, count: int) -> None:
    command = [sys.executable, "-c", IMPORT.format(version=version)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count("is newer than what aotfuzz is tested with") == count


def test_the_installed_torch_is_tested() -> None:
    """The suite runs where it says that it was run (a nightly build is allowed to be newer)."""
    assert inventory.minor_version(str(torch.__version__)) in TESTED or untested_version_message(
        str(torch.__version__)
    )


def test_the_package_takes_every_torch_from_the_oldest_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch_needed,) = (
        one for text in project["dependencies"] if (one := Requirement(text)).name == torch.__name__
    )
    assert str(torch_needed.specifier) == f">={OLDEST}"


def constraint() -> Requirement:
    """The one line of the constraints, for torch."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if not line.startswith("#"))
    return Requirement(line)


def test_the_constraint_is_a_tested_torch_that_the_package_takes() -> None:
    torch_wanted = constraint()
    assert torch_wanted.name == "torch"
    version = re.fullmatch(r"==(\d+\.\d+)\.\d+", str(torch_wanted.specifier))
    assert version is not None and version[1] in TESTED


def test_the_commands_of_the_readme_install_with_the_constraint() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python3 -m venv .*pip install .*$", readme, re.MULTILINE)
    assert len(commands) == 2
    assert all("pip install -c constraints.txt " in command for command in commands)


def test_tox_has_the_tested_versions_and_the_nightly_workflow_the_oldest() -> None:
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\s+torch(\d+): torch==(\d+\.\d+)\.\*$", tox, re.MULTILINE)) == sorted(
        (version.replace(".", ""), version) for version in TESTED
    )
    workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    assert f"OLDEST: torch=={OLDEST}.*\n" in workflow
