"""Throughput of fuzzing: differential cases per second and core, and where the time goes.

Programs of ten statements, made and judged in this process as a campaign's worker does it, with every oracle.
CPU time; of a part that contains another, what is left without that. And what the generator alone makes, of
each profile as it is.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fuzz.execute.call
import fuzz.execute.case
import fuzz.generate
import oracles
from bench.report import Table
from fuzz.choices import SeededChoices
from fuzz.execute.garbage import sweep_garbage
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES, Profile
from fuzz.program.decode import Program
from fuzz.program.printer import load
from fuzz.targets.catalog import usable_targets
from fuzz.targets.target import Function, Target

TARGET = 150.0  # cases for each second
PROGRAMS = 5000.0  # programs for each second
GENERATE = "generate"
LOAD = "load"
EAGER = "eager, observed"
FIRST = "target: compile and first call"
LATER = "target: the rest, observed"
JUDGE = "judge"
AGAIN = "eager, once more and in float64"
GARBAGE = "garbage"
ELSE = "anything else"
PARTS = (GENERATE, LOAD, EAGER, FIRST, LATER, JUDGE, AGAIN, GARBAGE, ELSE)


class Clock:
    """CPU seconds of each part, without those of the parts that it contains."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = 0.0

    @property
    def inside(self) -> str | None:
        """The part that runs now."""
        return self._stack[-1] if self._stack else None

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs inside belongs to this part."""
        self._turn()
        self._stack.append(name)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def collecting(self, phase: str, _information: dict[str, int]) -> None:
        """For `gc.callbacks`: a collection is a part, whatever it interrupts."""
        self._turn()
        if phase == "start":
            self._stack.append(GARBAGE)
        else:
            self._stack.pop()

    def _turn(self) -> None:
        now = time.process_time()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


def _timed(clock: Clock, target: Target) -> Target:
    """The target, its first call belonging to the compilation."""

    def compile_function(function: Function) -> Function:
        compiled = target.compile(function)
        first = True

        def call(*arguments: Any) -> Any:
            nonlocal first
            if not first:
                return compiled(*arguments)
            first = False
            with clock.part(FIRST):
                return compiled(*arguments)

        return call

    return replace(target, compile=compile_function)


@contextmanager
def _watched(clock: Clock) -> Iterator[None]:
    """What a case is made of belongs to the clock's parts."""

    def observing(*arguments: Any, **options: Any) -> Any:
        part = AGAIN if clock.inside == JUDGE else EAGER if options.get("refusal") is None else LATER
        with clock.part(part):
            return oracles.observe(*arguments, **options)

    def judging(*arguments: Any, **options: Any) -> Any:
        with clock.part(JUDGE):
            return oracles.judge(*arguments, **options)

    def loading(program: Program) -> Any:
        with clock.part(LOAD):
            return load(program)

    with (
        patch.object(fuzz.execute.call, "observe", observing),
        patch.object(fuzz.execute.call, "judge", judging),
        patch.object(fuzz.execute.case, "load", loading),
    ):
        gc.callbacks.append(clock.collecting)
        try:
            yield
        finally:
            gc.callbacks.remove(clock.collecting)


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--cases", type=int, default=300, help="programs for each target (default: 300)")
    parser.add_argument(
        "--programs", type=int, default=3000, help="for the generator alone, of each profile (default: 3000)"
    )
    parser.add_argument("--statements", type=int, default=10, help="of each program (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--target", action="append", help="default: aot, and torch-aot-function and eager beside it"
    )


def measure(options: argparse.Namespace) -> list[Table]:
    """Run every case on each target, in turn."""
    targets = usable_targets(options.target or ["aot", "torch-aot-function", "eager"])
    profiles = _profiles(options.statements)
    clocks = {target.name: Clock() for target in targets}
    outcomes: dict[str, Counter[str]] = {target.name: Counter() for target in targets}
    for target in targets:  # what is needed once in a process
        _case(Clock(), target, profiles[0], options.seed, options.cases)
    try:
        for index in range(options.cases):
            profile = profiles[index % len(profiles)]
            for target in targets:
                outcomes[target.name][_case(clocks[target.name], target, profile, options.seed, index)] += 1
    finally:
        gc.unfreeze()
    rates, parts = [], []
    for name, clock in clocks.items():
        total = sum(clock.seconds.values())
        rate = options.cases / total
        words = tuple(outcomes[name][word] for word in ("agree", "poisoned", "refused", "finding"))
        goal = (TARGET, "yes" if rate >= TARGET else "no") if name == "aot" else (None, None)
        rates.append((name, rate, *goal, *words))
        parts.append((name, *(clock.seconds[part] * 1e3 / options.cases for part in PARTS)))
    heads = ("target", "cases", "at least", "met", "agree", "poisoned", "refused", "finding")
    title = f"cases per second and core, programs of {options.statements} statements"
    return [
        Table(title, heads, tuple(rates)),
        Table("where the time goes, ms for each case", ("target", *PARTS), tuple(parts)),
        _generated(options.programs, options.seed),
    ]


def _generated(count: int, seed: int) -> Table:
    """How fast the generator is, which may be compiled (`AOTFUZZ_COMPILE=1 pip install`)."""
    compiled = "compiled" if Path(fuzz.generate.__file__).suffix != ".py" else "not compiled"
    rows = []
    for name, profile in PROFILES.items():
        for index in range(count // 10):  # what is needed once
            generate(SeededChoices(seed + 1, index), profile)
        start = time.process_time()
        statements = sum(
            len(generate(SeededChoices(seed, index), profile).statements) for index in range(count)
        )
        rate = count / (time.process_time() - start)
        rows.append((name, rate, PROGRAMS, "yes" if rate >= PROGRAMS else "no", statements / count))
    heads = ("profile", "programs", "at least", "met", "statements of each")
    return Table(f"programs per second and core, generator {compiled}", heads, tuple(rows))


def _profiles(statements: int) -> tuple[Profile, ...]:
    """Those that campaigns mix, with programs of that many statements."""
    mixed = PROFILES["mixed"].mixture
    return tuple(replace(PROFILES[name], statements=(statements, statements)) for name in mixed)


def _case(clock: Clock, target: Target, profile: Profile, seed: int, index: int) -> str:
    """One case; its outcome."""
    with _watched(clock), clock.part(ELSE):
        with clock.part(GENERATE):
            program = generate(SeededChoices(seed, index), profile)
        outcome = fuzz.execute.case.execute(program, _timed(clock, target)).outcome
        sweep_garbage()
        return outcome
