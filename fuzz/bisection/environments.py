"""Environments: install versions of torch into virtual environments, by pip with the user's configuration.

interpreter = install_torch("2.15.0", Path("bisection"), say=print)
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz.errors import InstallError, InterpreterError
from fuzz.interpreters import Interpreter, dependencies, find_interpreter, run_process
from fuzz.safe_text import one_line

# A CUDA build of torch 2.15 with its dependencies takes 5 GB on disk, the CPU build 1 GB.
MOST_BYTES = 6 * 10**9
INSTALL_SECONDS = 3600.0
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+!_-]{0,60}")


def environment_folder(version: str, folder: Path) -> Path:
    """The folder in which a version of torch is installed."""
    return folder / f"torch-{version}"


def install_torch(
    version: str, folder: Path, *, say: Callable[[str], None], pip_arguments: Sequence[str] = ()
) -> Interpreter:
    """The interpreter of an environment with a version of torch, which is made if it does not exist.

    The environment also gets the dependencies of aotfuzz. `say` gets what will be downloaded, before that
    begins. pip reads its own configuration and environment variables. `pip_arguments` come last, such as
    `["--index-url", "https://download.pytorch.org/whl/cpu"]`.

    Raises:
        InstallError: the version is invalid, there is no room, or pip fails. Nothing is left of the
            environment.
    """
    if not _VERSION.fullmatch(version):
        raise InstallError(f"{version!r} is no version of torch; name one such as 2.15.0")
    place = environment_folder(version, folder)
    python = place / "bin" / "python"
    if python.exists():
        try:
            return find_interpreter(python)
        except InterpreterError as error:
            raise InstallError(f"{place} is there and does not work, remove it: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    say(
        f"torch {version}: installing into {place}; a CPU build takes 1 GB, one for CUDA 5 GB, "
        f"{free / 1e9:.0f} GB are free"
    )
    if free < MOST_BYTES:
        raise InstallError(f"{folder} has {free / 1e9:.1f} GB free; torch may take {MOST_BYTES / 1e9:.0f} GB")
    needs = [str(requirement) for requirement in dependencies()]
    commands = (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", f"torch=={version}", *needs, *pip_arguments],
    )
    try:
        for command in commands:
            ran = run_process(command, limit=INSTALL_SECONDS)
            if ran.status != 0:
                raise InstallError(
                    f"torch {version} cannot be installed: {_error_of_pip(ran.stdout + ran.stderr)}"
                )
        return find_interpreter(python)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _error_of_pip(text: str) -> str:
    """The lines of pip's output that say what was wrong, and which constraint was the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    requested = [f"{line};" for line in lines if line.startswith("The user requested")]
    return one_line(" ".join([*requested, *(errors or lines[-1:])])) or "pip said nothing"
