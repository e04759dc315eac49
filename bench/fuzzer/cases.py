"""Cases that measure the fuzzer: programs by stream and number, what is said of them, and a process to run
them in that may die.

A *stream* is a seed: the programs that the generator makes of it, with the profiles in turn. A *method* is
which programs these are, and who judges them: what is measured is the fuzzer, and others beside it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fuzz.choices import SeededChoices
from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.execute.garbage import sweep_garbage
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES, Profile
from fuzz.operators import Kind
from fuzz.program.decode import Program
from fuzz.targets.target import Target

SECONDS = 30  # on the wall, after which a case that has not ended is one that hangs
REFUSALS = "refusals"  # takes a clause's place where too many programs are refused
_PROFILES = tuple(PROFILES[name] for name in PROFILES["mixed"].mixture)
OURS = "aotfuzz"
# What writes, changes metadata, or hands tensors to code that may.
_HARD = (Kind.IN_PLACE, Kind.METADATA, Kind.SCATTER, Kind.RANDOM, Kind.NORMALIZATION, Kind.FUNCTION)
_PLAIN = replace(
    PROFILES["mixed"],
    name="plain",
    mixture=(),
    kinds=tuple((kind, weight) for kind, weight in PROFILES["mixed"].kinds if kind not in _HARD),
    share=0.0,
    same=0.0,
    strided=0.0,
    hidden=0.0,
    reinterpreted=0.0,
    wrapped=0.0,
    apart=0.0,
    conjugated=0.0,
    negated=0.0,
    inferred=0.0,
    autocast=0.0,
    flat=0.0,
    windows=0.0,
    passed=0.0,
    steps=0.0,
    filled=0.0,
    motif=0.0,
)


@dataclass(frozen=True, slots=True)
class Method:
    """A way to look for faults.

    Attributes:
        name: what it is called.
        profiles: of its programs, in turn.
        oracle: the judge's name in `bench.fuzzer.published_oracles.PUBLISHED`; "" for this project's.
    """

    name: str
    profiles: tuple[Profile, ...] = _PROFILES
    oracle: str = ""


METHODS = MappingProxyType(
    {
        one.name: one
        for one in (
            Method(OURS),
            Method("sums", oracle="sums"),
            Method("allclose", oracle="allclose"),
            Method("same", oracle="same"),
            Method("plain", profiles=(_PLAIN,)),
        )
    }
)
"""The fuzzer; its programs with the oracles that others have published; and its oracle with programs that
neither write nor share memory nor change metadata."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding: case `index` of stream `seed`; or that with it more have been refused than may be."""

    seed: int
    index: int
    clause: str
    signature: str


@dataclass(frozen=True, slots=True)
class Judged:
    """What is said of a case: its outcome ("agree", "finding", ...), with a finding's clause and signature or
    the reason; and whether the process is as it was."""

    outcome: str
    clause: str = ""
    signature: str = ""
    reason: str = ""
    intact: bool = True


def program(seed: int, index: int, method: str = OURS) -> Program:
    """Case `index` of a stream."""
    profiles = METHODS[method].profiles
    return generate(SeededChoices(seed, index), profiles[index % len(profiles)])


def judged(given: Program, target: Target, method: str = OURS) -> Judged:
    """Run a case and judge it, for so many seconds at most, or SIGALRM ends the process."""
    oracle = METHODS[method].oracle
    signal.alarm(SECONDS)
    try:
        if oracle:
            from bench.fuzzer.published_oracles import (  # torch's minifier takes a while to import
                PUBLISHED,
                notices,
            )

            if notices(PUBLISHED[oracle], given, target):
                return Judged("finding", oracle, oracle, oracle, intact=False)
            return Judged("agree")
        result = execute(given, target)
        if result.intact:
            sweep_garbage()
    finally:
        signal.alarm(0)
    if result.outcome != "finding":
        return Judged(result.outcome, reason=result.reason, intact=result.intact)
    clause, signature = buckets.primary_finding(result.findings).clause, buckets.signature(result.findings)
    return Judged("finding", clause, signature, result.reason, result.intact)


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
