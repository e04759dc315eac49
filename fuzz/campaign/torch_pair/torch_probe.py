"""Interpreters: what one has of all that a campaign needs, asked of itself in a process of its own.

    interpreter = find_interpreter("old/bin/python")
    interpreter.torch                                   # "2.13.0+cpu"
    fingerprint = require_campaign(interpreter, folder, configuration)

Invariant: what an interpreter says is read as JSON; no code of it runs in this process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from fuzz.campaign.configuration import Configuration, to_json
from fuzz.campaign.torch_pair.source_copy import environment_of_copy
from fuzz.errors import InterpreterError
from fuzz.safe_text import shell_command

OLDEST_PYTHON = (3, 11)
# What aotfuzz imports besides torch: the packages, and the versions that pyproject.toml asks for.
DEPENDENCIES = {
    "hypothesis": ">=6.100",
    "numpy": ">=1.26",
    "tabulate": ">=0.9",
    "rich": ">=13",
    "jinja2": ">=3.1",
    "packaging": ">=23",
}
# An import of torch from a cold disk takes a minute.
_PATIENCE = 300.0
_MARK = "aotfuzz-answer: "
# It runs under any Python 3, so that an old one can say that it is old.
_LOOK = """
import json, sys
sys.path[:] = [place for place in sys.path if place]  # a folder named torch here is none that is installed
names = sys.argv[1:]
found = {"python": list(sys.version_info[:3]), "versions": {}}
try:
    from importlib import metadata
    for name in names:
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
print("aotfuzz-answer: " + json.dumps(found))
"""
_TRY = """
import json, sys
from fuzz.campaign import driver
from fuzz.campaign.configuration import from_json, generator_fingerprint
from fuzz.campaign.devices import require_device
from fuzz.errors import FuzzError
from fuzz.targets.catalog import usable_targets
configuration = from_json(json.loads(sys.argv[1]))
try:
    require_device(configuration.device)
    usable_targets(list(configuration.targets))
    found = {"generator": generator_fingerprint(configuration)}
except FuzzError as error:
    found = {"error": str(error)}
print("aotfuzz-answer: " + json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter with a torch: `python` is its file; `version` and `torch` are versions."""

    python: Path
    version: str
    torch: str


def find_interpreter(name: str) -> Interpreter:
    """The interpreter of that path or name, once it has imported its torch and has what aotfuzz imports.

    Raises:
        InterpreterError: there is none, it is too old, or it lacks torch or another package.
    """
    path = _interpreter_path(name)
    found = _ask_interpreter(path, [str(path), "-c", _LOOK, *DEPENDENCIES], dict(os.environ))
    version = ".".join(str(part) for part in found["python"])
    if tuple(found["python"][:2]) < OLDEST_PYTHON:
        oldest = ".".join(str(part) for part in OLDEST_PYTHON)
        raise InterpreterError(f"{path} is Python {version}, and aotfuzz needs {oldest} or newer")
    if "torch" not in found:
        raise InterpreterError(
            f"{path} cannot import torch ({found['error']}); install the torch that is to be compared there"
        )
    lacking = _lacking_packages(found["versions"])
    if lacking:
        install = shell_command(str(path), "-m", "pip", "install", *lacking)
        raise InterpreterError(
            f"{path} has torch {found['torch']}, and lacks {', '.join(lacking)}, which aotfuzz imports; "
            f"{install} installs them and leaves torch as it is"
        )
    return Interpreter(path, version, found["torch"])


def require_campaign(interpreter: Interpreter, source: Path, configuration: Configuration) -> str:
    """Make sure that an interpreter can run a campaign with the aotfuzz in the folder `source`.

    Its answer is the fingerprint of its generator: two that are equal make the same programs.

    Raises:
        InterpreterError: it cannot import this aotfuzz, or a target cannot run there.
    """
    command = [str(interpreter.python), "-P", "-c", _TRY, json.dumps(to_json(configuration))]
    found = _ask_interpreter(interpreter.python, command, environment_of_copy(source))
    if "error" in found:
        raise InterpreterError(f"{interpreter.python} (torch {interpreter.torch}): {found['error']}")
    return str(found["generator"])


def _interpreter_path(name: str) -> Path:
    """The file, not what a link leads to: a virtual environment is known by where its link lies."""
    found = shutil.which(name)
    if found is None:
        hint = f"; did you mean {name}/bin/python?" if (Path(name) / "bin" / "python").exists() else ""
        raise InterpreterError(f"no interpreter at {name}{hint}")
    return Path(found).absolute()


def _lacking_packages(versions: Mapping[str, str]) -> list[str]:
    """The requirements that installed versions do not meet."""
    return [
        f"{name}{wanted}"
        for name, wanted in DEPENDENCIES.items()
        if name not in versions or not _is_met(versions[name], wanted)
    ]


def _is_met(version: str, wanted: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:  # of a package that was built by hand: it is there
        return True


def _ask_interpreter(path: Path, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """What a command prints after the mark, as JSON."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
            env=environment,
        )
    except OSError as error:
        raise InterpreterError(f"{path} cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise InterpreterError(f"{path} has not answered for {_PATIENCE:.0f} s") from error
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return found
    said = (done.stderr.strip().splitlines() or [f"it exited with {done.returncode}"])[-1]
    raise InterpreterError(f"{path} cannot run aotfuzz: {said}")
