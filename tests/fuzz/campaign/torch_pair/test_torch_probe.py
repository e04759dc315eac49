"""Interpreters that cannot run a campaign say why, and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from fuzz.campaign.configuration import Configuration, generator_fingerprint
from fuzz.campaign.torch_pair.source_copy import environment_of_copy, write_source_copy
from fuzz.campaign.torch_pair.torch_probe import (
    DEPENDENCIES,
    OLDEST_PYTHON,
    find_interpreter,
    require_campaign,
)
from fuzz.errors import InterpreterError, StoreError
from tests.support.fuzz.interpreters import write_script

ROOT = Path(__file__).parents[4]
VERSIONS = dict.fromkeys(DEPENDENCIES, "999")


def _saying(file: Path, **found: object) -> str:
    answer = json.dumps({"python": [3, 12, 1], "versions": VERSIONS, **found})
    return str(write_script(file, f"echo 'noise of an import'\necho 'aotfuzz-answer: {answer}'"))


def test_dependencies_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {(one := Requirement(text)).name: str(one.specifier) for text in project["dependencies"]}
    del wanted["torch"]
    assert wanted == DEPENDENCIES
    assert project["requires-python"] == f">={OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]}"


def test_an_interpreter_tells_its_versions() -> None:
    found = find_interpreter(sys.executable)
    assert found.torch == torch.__version__
    assert found.python == Path(sys.executable), "the link, not the file that it leads to"
    assert found.version == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"error": "ModuleNotFoundError: No module named 'torch'"}, "cannot import torch .*No module named"),
        ({"error": "OSError: libcudart.so"}, "cannot import torch .*libcudart"),
        ({"torch": "2.15.0", "python": [3, 10, 2]}, "is Python 3.10.2, and aotfuzz needs 3.11"),
        (
            {"torch": "2.15.0", "versions": {**VERSIONS, "rich": "12.0"}},
            r"lacks rich>=13, which.* -m pip install 'rich>=13' installs",
        ),
        (
            {"torch": "2.15.0", "versions": {}},
            "torch 2.15.0, and lacks hypothesis>=6.100, numpy>=1.26, tabulate",
        ),
    ],
)
def test_what_an_interpreter_lacks_is_said(found: dict[str, object], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match=complaint):
        find_interpreter(_saying(tmp_path / "python", **found))


def test_an_interpreter_that_has_all_is_taken(tmp_path: Path) -> None:
    assert find_interpreter(_saying(tmp_path / "python", torch="2.99.0a0+git")).torch == "2.99.0a0+git"


def test_what_is_no_interpreter_is_said(tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match=r"no interpreter at .*absent"):
        find_interpreter(str(tmp_path / "absent"))
    write_script(tmp_path / "venv" / "bin" / "python", "exit 0")
    with pytest.raises(InterpreterError, match=r"did you mean .*venv/bin/python"):
        find_interpreter(str(tmp_path / "venv"))
    with pytest.raises(InterpreterError, match="cannot run aotfuzz: Illegal instruction"):
        find_interpreter(str(write_script(tmp_path / "broken", "echo Illegal instruction >&2; exit 3")))
    with pytest.raises(InterpreterError, match="cannot run aotfuzz: it exited with 0"):
        find_interpreter(str(write_script(tmp_path / "silent", "exit 0")))


def test_a_folder_of_a_checkout_of_torch_is_not_taken_for_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = 'of the folder'")
    monkeypatch.chdir(tmp_path)
    assert find_interpreter(sys.executable).torch == torch.__version__


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "source"
    write_source_copy(folder)
    return folder


def test_a_copy_is_what_another_interpreter_imports(source: Path, tmp_path: Path) -> None:
    code = "import fuzz, aot, oracles; print(fuzz.__file__, aot.__file__, oracles.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment_of_copy(source),
        cwd=tmp_path,
    )
    assert done.stdout.split() == [str(source / name / "__init__.py") for name in ("fuzz", "aot", "oracles")]
    assert not list(source.rglob("*.so")) and (source / "fuzz" / "report" / "page.html.jinja").is_file()


def test_a_copy_replaces_what_is_there(source: Path, tmp_path: Path) -> None:
    stale = tmp_path / "source" / "fuzz" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    write_source_copy(tmp_path / "source")
    assert not stale.exists() and (tmp_path / "source" / "fuzz" / "cli.py").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*choose another with --out"):
        write_source_copy(tmp_path / "file" / "source")


def test_an_interpreter_makes_the_same_programs_with_a_copy(source: Path) -> None:
    configuration = Configuration(targets=("eager",), cases=1)
    here = find_interpreter(sys.executable)
    assert require_campaign(here, source, configuration) == generator_fingerprint(configuration)


def test_a_target_that_an_interpreter_lacks_is_said(source: Path) -> None:
    here = find_interpreter(sys.executable)
    with pytest.raises(
        InterpreterError, match=f"torch {torch.__version__}.*no target named 'no-such'".replace("+", r"\+")
    ):
        require_campaign(here, source, Configuration(targets=("no-such",), cases=1))
