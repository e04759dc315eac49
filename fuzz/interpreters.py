"""Interpreters: other Python interpreters, each with its own torch, that run this aotfuzz.

Such an interpreter imports the packages `aot`, `oracles` and `fuzz` from a copy of them, and everything else
from its own environment. It needs torch and, unless only torch is used, the dependencies of aotfuzz.

    interpreter = find_interpreter("venv-2.15/bin/python")
    interpreter.torch  # "2.15.0+cpu"
    interpreter.run(["-m", "fuzz.cli", "replay", "corpus", "--json"], limit=600)

Invariant: answers of an interpreter are read as JSON; none of its code runs in this process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from fuzz.errors import InterpreterError
from fuzz.safe_text import one_line, shell_command

NAME = "aotfuzz"
PACKAGES = ("aot", "fuzz", "oracles")
OLDEST_PYTHON = (3, 11)
# An import of torch from a cold disk takes a minute.
ANSWER_SECONDS = 300.0
# An answer's line begins with it, because torch or its imports may print other lines.
ANSWER_MARK = "aotfuzz-answer: "

# It runs under any Python 3, so that an old one can report its version.
_PROBE = """
import json, sys
sys.path[:] = [place for place in sys.path if place]  # a folder named torch here is none that is installed
found = {"python": list(sys.version_info[:3]), "versions": {}}
try:
    from importlib import metadata
    for name in sys.argv[1:]:
        try:
            found["versions"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
except ImportError:
    pass
try:
    import torch
    found["torch"] = str(torch.__version__)
except BaseException as error:
    found["error"] = type(error).__name__ + ": " + str(error)
print("\\n" + "aotfuzz-answer: " + json.dumps(found))
"""
# Compiled modules belong to one version of Python, and the Python files do the same.
_LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "*.pyd")
# The files that `importlib.metadata` reads: for the version, and for registered targets.
_METADATA = (("METADATA", "METADATA"), ("PKG-INFO", "METADATA"), ("entry_points.txt", "entry_points.txt"))


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a process: its exit status, None if it exceeded its limit, and its output."""

    status: int | None
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """The last line that it printed, to stderr if there is any."""
        lines = [line for line in f"{self.stdout}\n{self.stderr}".splitlines() if line.strip()]
        return one_line(lines[-1].strip()) if lines else ""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter: its file, its version, and the version of its torch."""

    python: Path
    version: str
    torch: str

    def run(
        self,
        arguments: Sequence[str | Path],
        *,
        limit: float,
        folder: Path | None = None,
        changes: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run the interpreter with command-line arguments in a folder, for at most `limit` seconds.

        It imports this aotfuzz. A PYTHONPATH in `changes` to the environment comes before that. At the limit
        the process is killed with the processes that it started.

        Raises:
            InterpreterError: there is no room for the copy of aotfuzz that it imports.
        """
        environment = environment_with_source(_temporary_source(), changes)
        return run_process([self.python, *arguments], limit=limit, folder=folder, environment=environment)


def find_interpreter(name: str | Path, *, torch_only: bool = False) -> Interpreter:
    """Find an interpreter by its path, or its name on PATH, and import its torch.

    With `torch_only`, neither its version nor the dependencies of aotfuzz are checked.

    Raises:
        InterpreterError: there is none, it cannot import torch, is older than `OLDEST_PYTHON`, or lacks
            dependencies of aotfuzz or has them too old.

    >>> find_interpreter(sys.executable).torch == importlib.metadata.version("torch")
    True
    """
    path = _interpreter_path(name)
    needs = () if torch_only else dependencies()
    code = ["-c", _PROBE, *(requirement.name for requirement in needs)]
    found = ask_interpreter(
        path, code, failure="cannot be asked for its torch", environment=_inherited_environment()
    )
    version = ".".join(str(part) for part in found["python"])
    if not torch_only and tuple(found["python"][:2]) < OLDEST_PYTHON:
        oldest = ".".join(str(part) for part in OLDEST_PYTHON)
        raise InterpreterError(f"{path} is Python {version}, and aotfuzz needs {oldest} or newer")
    if "torch" not in found:
        raise InterpreterError(
            f"{path} cannot import torch ({one_line(found['error'])}); install the torch of your choice there"
        )
    torch = str(found["torch"])
    lacking = [str(needed) for needed in needs if not _is_met(needed, found["versions"].get(needed.name))]
    if lacking:
        install = shell_command(path, "-m", "pip", "install", *lacking)
        raise InterpreterError(
            f"{path} has torch {torch}, and lacks {', '.join(lacking)}, which aotfuzz imports; "
            f"{install} installs them and leaves torch as it is"
        )
    return Interpreter(path, version, torch)


def _interpreter_path(name: str | Path) -> Path:
    """The file, without following links: the place of its link identifies a virtual environment."""
    found = shutil.which(name)
    if found is None:
        hint = f"; did you mean {name}/bin/python?" if (Path(name) / "bin" / "python").exists() else ""
        raise InterpreterError(f"no interpreter at {name}{hint}")
    return Path(found).absolute()


def _is_met(needed: Requirement, version: str | None) -> bool:
    if version is None:
        return False
    try:
        return needed.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:  # a package that was built by hand may have such a version
        return True


def dependencies() -> tuple[Requirement, ...]:
    """The dependencies of aotfuzz besides torch, without extras; none if it is not installed."""
    try:
        texts = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    found = [Requirement(text) for text in texts]
    needed = [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]
    return tuple(Requirement(f"{one.name}{one.specifier}") for one in needed if one.name != "torch")


def ask_interpreter(
    python: Path, arguments: Sequence[str], *, failure: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON object that an interpreter prints after `ANSWER_MARK`, run with these arguments.

    Raises:
        InterpreterError: it prints none; `failure` says what it cannot do then.
    """
    try:
        ran = run_process([python, *arguments], limit=ANSWER_SECONDS, environment=environment)
    except OSError as error:
        raise InterpreterError(f"{python} cannot be run: {error.strerror or error}") from error
    if ran.status is None:
        raise InterpreterError(f"{python} has not answered for {ANSWER_SECONDS:.0f} s")
    for line in reversed(ran.stdout.splitlines()):
        if line.startswith(ANSWER_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER_MARK))
            return answer
    raise InterpreterError(f"{python} {failure}: {ran.last_words or f'it exited with {ran.status}'}")


def run_process(
    command: Sequence[str | Path],
    *,
    limit: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Run a command, by default in this process's environment; at the limit its process group is killed."""
    with subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=folder,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            return Ran(None, stdout, stderr)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Ran(process.returncode, stdout, stderr)


def write_source_copy(folder: Path) -> None:
    """Write this aotfuzz to a folder, in place of what is there, for any interpreter to import.

    The folder that aotfuzz is installed in cannot be handed over, because it often holds a torch as well. A
    copy also stays the same while a checkout is edited. It holds the Python files, and the entry points, so
    that `torch.compile(backend="aotfuzz")` works there.

    Raises:
        OSError: the folder cannot be written.
    """
    if folder.exists():
        shutil.rmtree(folder)
    for name in PACKAGES:
        shutil.copytree(_package_folder(name), folder / name, ignore=_LEFT_BEHIND)
    _write_metadata(folder)


def environment_with_source(source: Path, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that imports aotfuzz from a folder of `write_source_copy`.

    A PYTHONPATH among the changes comes before that folder, and the inherited one comes after.
    """
    changes = changes or {}
    inherited = _inherited_environment()
    places = (changes.get("PYTHONPATH"), str(source.resolve()), inherited.get("PYTHONPATH"))
    return {**inherited, **changes, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def _inherited_environment() -> dict[str, str]:
    """This process's environment without PYTHONHOME, which is of its own interpreter."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}


def _temporary_source() -> Path:
    return Path(_temporary_copy().name, "source")


@cache
def _temporary_copy() -> TemporaryDirectory[str]:
    """A folder with a copy of this aotfuzz, which is removed when this process ends."""
    try:
        folder = TemporaryDirectory(prefix="aotfuzz-source-")
        write_source_copy(Path(folder.name, "source"))
    except OSError as error:
        raise InterpreterError(
            f"cannot write a copy of aotfuzz for temporary use: {error}; name another folder with TMPDIR"
        ) from error
    return folder


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, f"aotfuzz runs without its package {name}"
    return Path(spec.origin).parent


def _write_metadata(folder: Path) -> None:
    """Write what an installed aotfuzz says of itself; nothing where this one is not installed."""
    try:
        installed = importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        return
    place = folder / f"{NAME}-{installed.version}.dist-info"
    place.mkdir()
    for name, written in _METADATA:
        text = installed.read_text(name)
        if text is not None:
            (place / written).write_text(text, encoding="utf-8")
