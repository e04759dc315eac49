"""Mutants of `aot` by mutmut: how many of what anybody may mistype the fuzzer finds, without a test of ours.

A sample of the mutants that mutmut makes of some modules. Each is made like a fault of
`bench.fuzzer.seeded_bugs`, in a process of its own that imports `aot` with it, where the first programs of a
stream run until one is a finding, or too many have been refused. A mutant is *killed* by that, or where `aot`
cannot be imported with it; *survives* if it was reached; or is reached by no program. Of those that survive
some are equivalent, which nobody can tell but by reading them.

mutmut (BSD-3-Clause) is not among the extras: pip install mutmut.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from bench.fuzzer.seeded_bugs import Fault
from bench.fuzzer.workers import Ran, Stretch, WorkerError, Workers
from bench.report import Table

MODULES = (
    "specialize.call",
    "tensors.views",
    "guards.opaque_state",
    "tensors.geometry",
    "capture.memory.storage",
    "capture.autograd.segments",
    "capture.recorder.mutations",
    "analysis.*",
    "partition.*",
    "runtime.codegen.wrapper",
    "runtime.saved_values",
)
"""Of `aot`, where most is decided that a caller sees. (A star stands for all modules of a package.)"""
_SECONDS = 30.0  # of CPU time for each mutant
_ROOT = Path(__file__).parents[2]
_IMPORT = "import"  # takes a clause's place where `aot` cannot be imported
_TARGETS = {  # where another than `aot` comes by
    "aot.partition.costs": "aot-min-cut",
    "aot.partition.knapsack": "aot-recompute",
    "aot.partition.min_cut": "aot-min-cut",
    "aot.partition.max_flow": "aot-min-cut",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a mutant: the clause that is broken, "" for none, and how many programs reached it."""

    mutant: Fault
    clause: str
    reached: int


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--mutants", type=int, default=300, help="of all there are (default: 300)")
    parser.add_argument("--programs", type=int, default=100, help="for each mutant (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the programs (default: 0)")
    parser.add_argument("--module", action="append", help=f"of aot (default: {', '.join(MODULES)})")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default: 1)")


def measure(options: argparse.Namespace) -> list[Table]:
    """Make the mutants, and run programs against each."""
    if importlib.util.find_spec("mutmut") is None:
        raise SystemExit("aotfuzz bench: mutmut is not installed; install it: pip install mutmut")
    parsed = [_Parsed(path) for name in options.module or MODULES for path in _paths(name)]
    every = [(one, number) for one in parsed for number in range(one.count)]
    places = random.Random(options.seed).sample(range(len(every)), min(options.mutants, len(every)))
    chosen = [one.mutant(number) for one, number in map(every.__getitem__, sorted(places))]
    stretch = Stretch(options.seed, 0, options.programs, _SECONDS)
    with Workers(options.jobs) as workers:
        jobs = [workers.run(one, one.target, [stretch]) for one in chosen]
        judged = [_judged(one, job) for one, job in zip(chosen, jobs, strict=True)]
    return [_scores(judged, len(every)), _clauses(judged), _survivors(judged)]


def _judged(mutant: Fault, job: Future[list[Ran]]) -> Judged:
    try:
        (ran,) = job.result()
    except WorkerError:
        return Judged(mutant, _IMPORT, 0)
    return Judged(mutant, ran.found[0].clause if ran.found else "", ran.reached)


def _paths(name: str) -> list[Path]:
    place = name.replace(".", "/") + ".py"
    found = sorted((_ROOT / "aot").glob(place))
    if not found:
        raise SystemExit(f"aotfuzz bench: aot has no module {name}")
    return found


class _Parsed:
    """A module of `aot`, and the `count` mutants that there are of it."""

    def __init__(self, path: Path) -> None:
        from mutmut.mutation.file_mutation import create_mutations

        self._module = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        self._source = path.read_text(encoding="utf-8")
        self._tree, every, _, _ = create_mutations(str(path), self._source)
        # As mutmut has it: those outside of functions are made while a module is imported.
        self._mutations = [one for one in every if one.contained_by_top_level_function is not None]
        self.count = len(self._mutations)

    def mutant(self, number: int) -> Fault:
        """One of them."""
        one = self._mutations[number]
        mutated = self._tree.deep_replace(one.original_node, one.mutated_node).code
        line, find, replace = difference(self._source, mutated)
        return Fault(
            name=f"{self._module}:{line} ({number})",
            stage="",
            module=self._module,
            find=find,
            replace=replace,
            clauses=(),
            wrong="",
            target=_TARGETS.get(self._module, "aot"),
        )


def difference(before: str, after: str) -> tuple[int, str, str]:
    """In which line two texts begin to differ, counted from 1; the lines that differ there, and as many of
    those that follow as it takes to find them once; and what stands there instead."""
    ours, theirs = before.splitlines(keepends=True), after.splitlines(keepends=True)
    first = _alike(ours, theirs)
    last = _alike(ours[first:][::-1], theirs[first:][::-1])
    while before.count("".join(ours[first : len(ours) - last])) != 1:
        last -= 1
    return first + 1, "".join(ours[first : len(ours) - last]), "".join(theirs[first : len(theirs) - last])


def _alike(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many lines are the same before the first that is not."""
    pairs = zip(ours, theirs, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _scores(judged: Sequence[Judged], every: int) -> Table:
    rows: list[tuple[str | int | float, ...]] = []
    modules = list(dict.fromkeys(one.mutant.module for one in judged))
    for name, some in [
        *((name, [one for one in judged if one.mutant.module == name]) for name in modules),
        ("all", list(judged)),
    ]:
        killed = sum(bool(one.clause) for one in some)
        hidden = sum(not one.clause and not one.reached for one in some)
        live = len(some) - killed - hidden
        rows.append((name, len(some), killed, live, hidden, 100 * killed / len(some)))
    heads = ("module", "mutants", "killed", "survive", "not reached", "killed, %")
    return Table(f"a sample of {every} mutants", heads, tuple(rows))


def _clauses(judged: Sequence[Judged]) -> Table:
    counts = Counter(one.clause for one in judged if one.clause)
    return Table("what kills them", ("clause", "mutants"), tuple(counts.most_common()))


def _survivors(judged: Sequence[Judged]) -> Table:
    rows = [
        (one.mutant.name, one.reached, _short(one.mutant.find), _short(one.mutant.replace))
        for one in judged
        if not one.clause
    ]
    return Table("what survives", ("mutant", "programs reach it", "there", "instead"), tuple(rows))


def _short(text: str) -> str:
    return text.strip().split("\n")[0]
