"""Forked trial: run a script once in a fork of this process, which has loaded torch, and see how it ends.

A fork starts in a tenth of a second; a new interpreter takes three. The script may crash, hang or change
torch, because the next run starts from the same process.
Invariant: nothing here imports more than the standard library and torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# As for `git bisect run`: 0 is right, this status proves nothing, any other is wrong.
CANNOT_SAY = 125
TIMEOUT = "timeout"
_RAISED = 70
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Ending:
    """How a script ended.

    Attributes:
        kind: distinguishes wrong endings: "exit 1", "raises ValueError", "signal 11", "timeout".
        said: the last lines that it printed, or its exception.
    """

    kind: str
    said: str = ""

    @property
    def is_right(self) -> bool:
        return self.kind == "exit 0"

    @property
    def is_timeout(self) -> bool:
        return self.kind == TIMEOUT

    @property
    def is_wrong(self) -> bool:
        return not self.is_right and self.kind != f"exit {CANNOT_SAY}"


def run_forked(
    script: Path, arguments: Sequence[str], folder: Path, limit: float, prepare: Callable[[], None]
) -> Ending:
    """Run a script as `python script arguments` would, in a fork that `prepare` has prepared.

    Output goes to a file in `folder`. A run of more than `limit` seconds is killed with its children.
    """
    output, exception = folder / "output.txt", folder / "exception.json"
    exception.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_in_child(script, arguments, output, exception, prepare)
    status = _wait_for(child, limit)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    said = output.read_text(encoding="utf-8", errors="replace")[-2000:] if output.exists() else ""
    if status is None:
        return Ending(TIMEOUT, said)
    if os.WIFSIGNALED(status):
        return Ending(f"signal {os.WTERMSIG(status)}", said)
    if exception.exists():
        raised = json.loads(exception.read_text(encoding="utf-8"))
        return Ending(f"raises {raised['type']}", raised["text"])
    return Ending(f"exit {os.WEXITSTATUS(status)}", said)


def _wait_for(child: int, limit: float) -> int | None:
    """The wait status of a process; None if it was killed because it took too long.

    Raises:
        SystemExit: the parent of this process is gone, so nobody waits for an answer.
    """
    parent = os.getppid()
    end = time.monotonic() + limit
    while time.monotonic() < end and os.getppid() == parent:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)  # it may not have a process group of its own yet
    os.waitpid(child, 0)
    if os.getppid() != parent:
        raise SystemExit("the process that asked for this run is gone")
    return None


def _run_in_child(
    script: Path, arguments: Sequence[str], output: Path, exception: Path, prepare: Callable[[], None]
) -> None:
    """Run the script in the fork. This never returns, and runs no exit hook of the parent."""
    status = _RAISED
    try:
        os.setpgid(0, 0)
        stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number in (1, 2):
            os.dup2(stream, number)
        sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", errors="replace", buffering=1)
        prepare()
        status = _run_script(script, arguments)
    except BaseException as error:
        root = _root_of(error)
        text = "".join(traceback.format_exception_only(error)).strip()
        exception.write_text(
            json.dumps({"type": type(root).__name__, "text": text[-2000:]}), encoding="utf-8"
        )
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status)


def _run_script(script: Path, arguments: Sequence[str]) -> int:
    """Run a script as the main program, and return its exit status."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leave:
        if leave.code is None:
            return 0
        if isinstance(leave.code, int):
            return leave.code & 0xFF
        print(leave.code)
        return 1
    return 0


def _root_of(error: BaseException) -> BaseException:
    """The exception that torch's compiler has wrapped in others."""
    passed = {id(error)}
    while True:
        inner = getattr(error, "inner_exception", None) or error.__cause__
        if not isinstance(inner, BaseException) or id(inner) in passed:
            return error
        passed.add(id(inner))
        error = inner
