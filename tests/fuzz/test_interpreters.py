"""Other interpreters: found with their torch, refused with a reason, and given this aotfuzz alone."""

from __future__ import annotations

import sys
import time
import venv
from pathlib import Path

import pytest
import torch

from fuzz import interpreters
from fuzz.errors import InterpreterError
from fuzz.interpreters import Interpreter, find_interpreter

ROOT = Path(__file__).parents[2]
FAKE = "9.9.0+fake"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without any package."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, symlinks=True)
    return place / "bin" / "python"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a torch of another version and nothing else."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "torch.py").write_text(f"__version__ = {FAKE!r}\n")
    return place / "bin" / "python"


def test_this_interpreter_has_this_torch() -> None:
    found = find_interpreter(Path(sys.executable))
    assert found.torch == torch.__version__
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_the_environment_is_found_by_the_place_of_a_link(bare: Path) -> None:
    assert bare.is_symlink()
    assert find_interpreter(bare, torch_only=True) == Interpreter(
        bare, ".".join(map(str, sys.version_info[:3])), FAKE
    )


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/nowhere/python", "/nowhere/python is no program that can be run"),
        ("/bin/true", "/bin/true ended with status 0 when asked for its torch"),
    ],
)
def test_what_is_no_python_is_refused(python: str, said: str) -> None:
    with pytest.raises(InterpreterError, match=said):
        find_interpreter(Path(python))


def test_one_without_torch_is_refused(empty: Path) -> None:
    with pytest.raises(InterpreterError, match="has no torch that works: ModuleNotFoundError"):
        find_interpreter(empty)


def test_one_without_dependencies_is_refused_with_the_command_that_installs_them(bare: Path) -> None:
    with pytest.raises(InterpreterError, match=rf"{bare} -m pip install .*numpy"):
        find_interpreter(bare)


def test_it_runs_our_source_and_its_own_torch(bare: Path) -> None:
    code = "import fuzz, torch; print(fuzz.__file__); print(torch.__version__)"
    ran = find_interpreter(bare, torch_only=True).run(["-c", code], limit=60)
    source, version = ran.stdout.splitlines()
    assert Path(source).resolve() == ROOT / "fuzz" / "__init__.py"
    assert version == FAKE


def test_it_knows_our_backends(bare: Path) -> None:
    names = "importlib.metadata.entry_points(group='torch_dynamo_backends').names"
    code = f"import importlib.metadata; print(*{names})"
    ran = find_interpreter(bare, torch_only=True).run(["-c", code], limit=60)
    assert {"aotfuzz", "aotfuzz_inductor"} <= set(ran.stdout.split())


def test_a_path_among_the_changes_comes_first(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "fuzz.py").write_text("")
    ran = find_interpreter(bare, torch_only=True).run(
        ["-c", "import fuzz; print(fuzz.__file__)"],
        limit=60,
        folder=Path(sys.prefix),
        changes={"PYTHONPATH": str(tmp_path)},
    )
    assert ran.stdout.strip() == str(tmp_path / "fuzz.py")


def test_a_process_past_its_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(alive)!r}).touch()"
    code = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    )
    ran = interpreters.run_process([sys.executable, "-c", code], limit=1)
    assert ran.status is None
    time.sleep(3)
    assert not alive.exists()


def test_last_words_are_the_last_line() -> None:
    assert interpreters.Ran(1, "out\n", "trace\nValueError: \x1b[1mno\n\n").last_words == (
        r"ValueError: \x1b[1mno"
    )
    assert interpreters.Ran(1, "", "").last_words == ""
