"""Cases that measure the fuzzer: programs by stream and number, and a process to run them in that may die.

A *stream* is a seed: the programs that the generator makes of it, with the profiles in turn.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuzz import buckets
from fuzz.choices import Random
from fuzz.generate import generate
from fuzz.profiles import PROFILES
from fuzz.program import Program

SECONDS = 30  # on the wall, after which a case that has not ended is one that hangs
REFUSALS = "refusals"  # takes a clause's place where too many programs are refused
_PROFILES = tuple(PROFILES[name] for name in PROFILES["mixed"].mixture)


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding: case `index` of stream `seed`; or that with it more have been refused than may be."""

    seed: int
    index: int
    clause: str
    signature: str


def program(seed: int, index: int) -> Program:
    """Case `index` of a stream."""
    return generate(Random(seed, index), _PROFILES[index % len(_PROFILES)])


def of_death(seed: int, index: int, died: str) -> Seen:
    """The finding of a case that has taken its process down: by a signal, or by the last line of a trace."""
    hangs = died == signal.SIGALRM.name
    finding = buckets.death("timeout" if hangs else "crash", died.splitlines()[-1], "")
    return Seen(seed, index, finding.clause, buckets.signature((finding,)))


def forked(work: Callable[[Any], Any], given: Any = None) -> tuple[Any, str, float]:
    """Do something with what is given, in a forked process: what comes of it (plain data), or None and how it
    died; and its CPU time in seconds."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            answer = _answer(work, given)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(answer).encode())
            status = 0
        finally:
            os._exit(status)  # without the exit hooks of whatever was under test
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    died, seconds = ended(pid)
    if died:
        return None, died, seconds
    answer = json.loads(said)
    return answer["value"], answer["failure"], seconds


def ended(pid: int) -> tuple[str, float]:
    """Wait for the end of a process: how it died, if it did, and its CPU time in seconds."""
    _, status, usage = os.wait4(pid, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name, seconds
    return (f"exit status {os.waitstatus_to_exitcode(status)}" if status else ""), seconds


def _answer(work: Callable[[Any], Any], given: Any) -> dict[str, Any]:
    settle()
    try:
        return {"value": work(given), "failure": ""}
    except BaseException:
        return {"value": None, "failure": traceback.format_exc()}


def settle() -> None:
    """Let a process that has just been forked leave no core files, and end at an alarm."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
