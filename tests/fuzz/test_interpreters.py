"""Other interpreters: found with their torch, refused with a reason, and given this aotfuzz alone."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from fuzz import interpreters
from fuzz.errors import InterpreterError
from fuzz.interpreters import (
    OLDEST_PYTHON,
    Interpreter,
    dependencies,
    environment_with_source,
    find_interpreter,
    write_source_copy,
)
from tests.support.fuzz.interpreters import write_script

ROOT = Path(__file__).parents[2]
FAKE = "9.9.0+fake"
VERSIONS = {needed.name: "999" for needed in dependencies()}


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


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "source"
    write_source_copy(folder)
    return folder


def saying(file: Path, **found: object) -> Path:
    """An interpreter that gives this answer between what its torch prints."""
    answer = json.dumps({"python": [3, 12, 1], "versions": VERSIONS, **found})
    return write_script(file, f"echo an import; echo 'aotfuzz-answer: {answer}'; echo its end")


def test_dependencies_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]
    assert {*dependencies()} == {needed for needed in wanted if needed.name != "torch"}
    assert len(dependencies()) == len(wanted) - 1
    assert project["requires-python"] == f">={OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]}"


def test_dependencies_leave_out_extras_and_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "torch>=2",
        "numpy>=1.26 ; python_version > '3'",
        "old ; python_version < '3'",
        "ruff; extra == 'd'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: texts)
    assert [str(needed) for needed in dependencies()] == ["numpy>=1.26"]


def test_this_interpreter_has_this_torch() -> None:
    found = find_interpreter(sys.executable)
    assert found.torch == torch.__version__
    assert found.python == Path(sys.executable), "the link, not the file that it leads to"
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_the_environment_is_found_by_the_place_of_a_link(bare: Path) -> None:
    assert bare.is_symlink()
    assert find_interpreter(bare, torch_only=True) == Interpreter(
        bare, ".".join(map(str, sys.version_info[:3])), FAKE
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo Illegal instruction >&2; exit 3", "cannot be asked for its torch: Illegal instruction"),
        ("exit 0", "cannot be asked for its torch: it exited with 0"),
    ],
)
def test_what_is_no_python_is_refused(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match=said):
        find_interpreter(write_script(tmp_path / "python", line))


def test_a_file_of_another_machine_is_refused(tmp_path: Path) -> None:
    foreign = write_script(tmp_path / "python", "")
    foreign.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(InterpreterError, match=r"python cannot be run: Exec format error"):
        find_interpreter(foreign)


def test_one_that_never_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "ANSWER_SECONDS", 0.2)
    with pytest.raises(InterpreterError, match="has not answered for"):
        find_interpreter(write_script(tmp_path / "python", "sleep 60"))


def test_a_path_without_an_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match=r"no interpreter at .*absent$"):
        find_interpreter(tmp_path / "absent")
    write_script(tmp_path / "venv" / "bin" / "python", "exit 0")
    with pytest.raises(InterpreterError, match=r"did you mean .*venv/bin/python"):
        find_interpreter(tmp_path / "venv")


def test_one_without_torch_is_refused(empty: Path) -> None:
    with pytest.raises(InterpreterError, match=r"cannot import torch .*No module named 'torch'"):
        find_interpreter(empty)


def test_one_without_dependencies_is_refused_with_the_command_that_installs_them(bare: Path) -> None:
    with pytest.raises(InterpreterError, match=rf"{bare} -m pip install .*numpy"):
        find_interpreter(bare)


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"error": "OSError: libcudart.so"}, "cannot import torch .*libcudart"),
        ({"torch": "2.15.0", "python": [3, 10, 2]}, r"is Python 3\.10\.2, and aotfuzz needs 3\.11 or newer"),
        (
            {"torch": "2.15.0", "versions": {**VERSIONS, "rich": "12.0"}},
            r"has torch 2\.15\.0, and lacks rich>=13, which.* -m pip install 'rich>=13' installs",
        ),
    ],
)
def test_what_one_lacks_is_said(found: dict[str, object], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match=complaint):
        find_interpreter(saying(tmp_path / "python", **found))


def test_one_that_has_all_is_taken(tmp_path: Path) -> None:
    versions = {**VERSIONS, "rich": "of our own"}
    found = find_interpreter(saying(tmp_path / "python", torch="2.99.0a0+git", versions=versions))
    assert (found.torch, found.version) == ("2.99.0a0+git", "3.12.1")


def test_with_torch_only_an_old_python_will_do(tmp_path: Path) -> None:
    python = saying(tmp_path / "python", torch="2.0.0", python=[3, 9, 1], versions={})
    assert find_interpreter(python, torch_only=True).version == "3.9.1"


def test_what_torch_prints_is_no_answer(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = "import sys; sys.stdout.write('no end of a line'); __version__ = 'loud'\n"
    (tmp_path / "torch.py").write_text(noise)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert find_interpreter(bare, torch_only=True).torch == "loud"


def test_a_folder_of_a_checkout_of_torch_is_not_taken_for_torch(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = 'of the folder'")
    monkeypatch.chdir(tmp_path)
    assert find_interpreter(bare, torch_only=True).torch == FAKE


def test_it_runs_our_source_and_its_own_torch(bare: Path, tmp_path: Path) -> None:
    code = "import fuzz, torch; print(fuzz.__file__); print(torch.__version__)"
    ran = find_interpreter(bare, torch_only=True).run(["-c", code], limit=60, folder=tmp_path)
    file, version = ran.stdout.splitlines()
    assert Path(file).read_bytes() == (ROOT / "fuzz" / "__init__.py").read_bytes()
    assert not Path(file).is_relative_to(ROOT)
    assert version == FAKE


def test_the_copy_of_a_process_is_gone_with_it(bare: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from fuzz.interpreters import Interpreter
bare = Interpreter(Path(sys.argv[1]), "3", "9")
for _ in range(2):
    print(bare.run(["-c", "import fuzz; print(fuzz.__file__)"], limit=60, folder=Path(sys.argv[2])).stdout)
"""
    command = [sys.executable, "-c", code, str(bare), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    first, second = map(Path, done.stdout.split())
    assert first == second
    assert first.parts[-3:] == ("source", "fuzz", "__init__.py")
    assert not first.parents[2].exists()


def test_without_room_for_the_copy_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "_temporary_copy", interpreters._temporary_copy.__wrapped__)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(InterpreterError, match=r"cannot write a copy of aotfuzz .* TMPDIR"):
        Interpreter(Path(sys.executable), "3", "2").run(["-c", ""], limit=60)


def test_a_copy_is_what_another_interpreter_imports(source: Path, tmp_path: Path) -> None:
    code = "import fuzz, aot, oracles; print(fuzz.__file__, aot.__file__, oracles.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment_with_source(source),
        cwd=tmp_path,
    )
    assert done.stdout.split() == [str(source / name / "__init__.py") for name in ("fuzz", "aot", "oracles")]
    assert not list(source.rglob("*.so")) and (source / "fuzz" / "report" / "page.html.jinja").is_file()


def test_a_copy_replaces_what_is_there(tmp_path: Path) -> None:
    stale = tmp_path / "source" / "fuzz" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    write_source_copy(tmp_path / "source")
    assert not stale.exists() and (tmp_path / "source" / "fuzz" / "cli.py").is_file()


def test_the_environment_names_the_source_between_the_changes_and_what_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    monkeypatch.setenv("PYTHONHOME", "/home")
    found = environment_with_source(tmp_path, {"PYTHONPATH": "/change", "ADDED": "1"})
    assert found["PYTHONPATH"].split(":") == ["/change", str(tmp_path), "/inherited"]
    assert found["ADDED"] == "1" and "PYTHONHOME" not in found


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
