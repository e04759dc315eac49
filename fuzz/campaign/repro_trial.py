"""Repro trial: run a repro script, and decide if it shows the difference that it is about.

A script exits with 1 for any difference. A script that raises may have met another exception than the
campaign did, as of a compiler that was not made ready, or of a module that the script lacks. So the ends of
both sides are compared with what was recorded.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from typing import Any

from fuzz.campaign.workers.process import exit_cause
from fuzz.campaign.workers.scratch import scratch_folder
from fuzz.corpus import buckets
from oracles import Finding
from oracles.object_names import encodable
from oracles.observation.gradients import gist

BROKEN = 70
# The type that `fuzz.execute.call` gives to an exception that may not end a call.
_ESCAPE = "fuzz.call.Escape: "
_RETURNED = "no exception"
_IN_A_CALL = re.compile(r"call \d+: errors: ")


def run_repro(text: str) -> dict[str, Any]:
    """Execute a repro script as `python repro.py` would.

    The answer has `status`, the exit status, or BROKEN if the script raised. `ends` has how eager and the
    target ended, in pairs, if the difference is about that.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    status = 0
    with (
        tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8", dir=scratch_folder()) as file,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        file.write(text)
        file.flush()
        space["__file__"] = file.name
        try:
            exec(compile(text, file.name, "exec"), space)
        except SystemExit as leave:
            status = int(leave.code) if isinstance(leave.code, int) else 0 if leave.code is None else 1
        except BaseException:  # a target may raise anything
            status = BROKEN
    return {"status": status, "ends": list(_repro_endings(space)) if status == 1 else []}


def _repro_endings(space: dict[str, Any]) -> list[list[str]]:
    """How both sides ended, if the script has recorded that."""
    status = space.get("status")
    if status is not None:  # the exit status of the process that the target ran in
        return [[_RETURNED, f"crash, {exit_cause(status)}" if isinstance(status, int) else "timeout"]]
    eager, target, keys = (space.get(name) for name in ("eager", "target", "differences"))
    if isinstance(eager, str) and isinstance(target, str):
        return [[encodable(eager), encodable(target)]]
    if not (isinstance(eager, dict) and isinstance(target, dict) and isinstance(keys, list)):
        return []
    pairs = [[side.get(key, _RETURNED) for side in (eager, target)] for key in keys]
    return [
        [encodable(text) for text in pair] for pair in pairs if all(isinstance(text, str) for text in pair)
    ]


def is_difference_shown_by_repro(finding: Finding, answer: Any) -> bool:
    """Whether the answer of a script shows the difference that it is about."""
    if answer["status"] != 1:
        return False
    if finding.clause != "errors" and not _IN_A_CALL.match(finding.path):
        return True
    wanted = [_end(text) for text in (finding.eager, finding.target)]
    return any(all(map(_alike, wanted, map(_end, pair))) for pair in answer["ends"])


def _end(text: str) -> list[str]:
    """How a side ended, in words that are the same on every run: the exception's class and the first words of
    its message.
    """
    kind, _, message = text.removeprefix(_ESCAPE).partition(": ")
    return [kind.rpartition(".")[2], *buckets.words_of(gist(message))]


def _alike(wanted: list[str], found: list[str]) -> bool:
    """Whether one end begins like the other, because recorded messages have a limited length."""
    return all(one == other for one, other in zip(wanted, found, strict=False)) and bool(wanted) == bool(
        found
    )
