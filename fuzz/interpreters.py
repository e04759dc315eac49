"""Other Python interpreters, each with a torch of its own, that run this aotfuzz.

Such an interpreter gets the packages `aot`, `oracles` and `fuzz` by its import path and everything else from
its own environment. It needs torch and, unless only torch is asked for, the dependencies of aotfuzz.

    interpreter = find_interpreter(Path("venv-2.15/bin/python"))
    interpreter.torch  # "2.15.0+cpu"
    interpreter.run(["-m", "fuzz.cli", "replay", "corpus", "--json"], limit=600)
"""

from __future__ import annotations

import importlib.metadata
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

from packaging.requirements import Requirement

from fuzz.errors import InterpreterError
from fuzz.safe_text import one_line

NAME = "aotfuzz"
PACKAGES = ("aot", "oracles", "fuzz")
PROBE_SECONDS = 300.0

# What an interpreter says of itself. The last line of stdout is JSON; torch may print before it.
_PROBE = """
import importlib.util, json, platform, sys
missing = [name for name in sys.argv[1:] if not importlib.util.find_spec(name)]
told = {"python": platform.python_version(), "missing": missing}
try:
    import torch
    told["torch"] = torch.__version__
except Exception as error:
    told["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a process: its exit status, None if it ran past its limit, and what it printed."""

    status: int | None
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """The last line that it printed, to stderr if there is one."""
        lines = [line for line in f"{self.stdout}\n{self.stderr}".splitlines() if line.strip()]
        return one_line(lines[-1].strip()) if lines else ""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter: its file, its version and that of its torch."""

    python: Path
    version: str
    torch: str

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment in which it finds this aotfuzz; a PYTHONPATH among the changes comes before."""
        return _environment(changes or {})

    def run(
        self,
        arguments: Sequence[str | Path],
        *,
        limit: float,
        folder: Path | None = None,
        changes: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run it with command-line arguments in a folder, for at most `limit` seconds.

        At the limit the process is killed together with the processes that it started.
        """
        return run_process([self.python, *arguments], limit=limit, folder=folder, changes=changes)


def find_interpreter(python: Path, *, torch_only: bool = False) -> Interpreter:
    """The interpreter behind a file or a name on PATH, asked for its versions.

    Raises:
        InterpreterError: it does not run, has no torch that can be imported, or lacks dependencies of aotfuzz
            (not looked at with `torch_only`).

    >>> find_interpreter(Path(sys.executable)).torch == importlib.metadata.version("torch")
    True
    """
    # The file as named, not what a link leads to: a virtual environment is found by the link's place.
    found = shutil.which(str(python))
    if found is None:
        raise InterpreterError(f"{python} is no program that can be run; name a Python interpreter")
    file = Path(os.path.abspath(found))
    needs = () if torch_only else tuple(requirement.name for requirement in dependencies())
    ran = run_process([file, "-c", _PROBE, *needs], limit=PROBE_SECONDS)
    try:
        told = json.loads(ran.stdout.splitlines()[-1])
        version, missing = str(told["python"]), [str(name) for name in told["missing"]]
    except (ValueError, LookupError, TypeError) as error:
        ended = "did not end" if ran.status is None else f"ended with status {ran.status}"
        raise InterpreterError(f"{python} {ended} when asked for its torch: {ran.last_words}") from error
    if "torch" not in told:
        raise InterpreterError(f"{python} has no torch that works: {one_line(str(told.get('error')))}")
    if missing:
        install = f"{python} -m pip install {' '.join(missing)}"
        raise InterpreterError(
            f"{python} (torch {told['torch']}) lacks what aotfuzz needs beside torch: {install}"
        )
    return Interpreter(file, version, str(told["torch"]))


def dependencies() -> tuple[Requirement, ...]:
    """What aotfuzz depends on besides torch, without extras; nothing where it is not installed."""
    try:
        texts = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    requirements = [Requirement(text) for text in texts]
    return tuple(
        requirement
        for requirement in requirements
        if requirement.name != "torch"
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    )


def run_process(
    command: Sequence[str | Path],
    *,
    limit: float,
    folder: Path | None = None,
    changes: Mapping[str, str] | None = None,
) -> Ran:
    """Run a command that finds this aotfuzz; at the limit its whole process group is killed."""
    with subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=folder,
        env=_environment(changes or {}),
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


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    path = (changes.get("PYTHONPATH"), str(_source_folder()), os.environ.get("PYTHONPATH"))
    return {**os.environ, **changes, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _source_folder() -> Path:
    """A folder with this aotfuzz and nothing else: beside an installed one lies a torch."""
    return Path(_sources().name)


@cache
def _sources() -> TemporaryDirectory[str]:
    """The folder, which is removed when this process ends.

    It names the entry points too, so that `torch.compile(backend="aotfuzz")` works there.
    """
    folder = TemporaryDirectory(prefix="aotfuzz-source-")
    root = Path(__file__).parents[1]
    for package in PACKAGES:
        (Path(folder.name) / package).symlink_to(root / package, target_is_directory=True)
    try:
        distribution = importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        return folder
    information = Path(folder.name) / f"{NAME}-{distribution.version}.dist-info"
    information.mkdir()
    for file in ("METADATA", "entry_points.txt"):
        text = distribution.read_text(file) or distribution.read_text(
            "PKG-INFO" if file == "METADATA" else file
        )
        (information / file).write_text(text or "", encoding="utf-8")
    return folder
