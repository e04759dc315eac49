"""Power of the fuzzer: which faults in `aot` it finds, in how many programs, and how often it cries wolf.

Each fault of `bench.faults` is made in a process of its own, by an import hook, and streams of generated
programs run against it until the first finding. For a fault it is told in how many streams its lines were
*reached* (the statement that has them ran) and in how many it was *detected*; whether it also made a
difference that nobody saw cannot be told from here. A finding's *clause* is that of the contract, or
*refusals* where the target refuses more programs than it may (`Target.refuses`).

Time is CPU time, as other things may run on a machine: `--minutes 10 --jobs 2` is 20 minutes of it.
Streams run in rounds of 30, 100, 300, 1000, ... programs, so that time goes to the faults that are still
hidden; all that take part in a round get the same time. Streams against `aot` without a fault run along, and
never stop: what they find is a false alarm, or a fault that nobody has made.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.faults import FAULTS, Fault
from bench.report import Table
from bench.streams import REFUSALS, Ran, Seen, Smaller, Stretch, Workers
from fuzz.campaign.configuration import workers as cores

ROUNDS = (30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
OFTEN = 0.8  # of the streams: a fault that is found so often counts as detected
_LEAST_SECONDS = 0.1  # for each stream, or a round is not worth while
_EVALUATIONS = 200
_RESAMPLES = 10_000
_PER = 10_000

Cell = str | float | int | None


@dataclass(slots=True)
class Track:
    """A stream so far: cases before `cases` have run, `reached` of them ran the fault's lines."""

    seed: int
    cases: int = 0
    reached: int = 0
    refused: int = 0
    seconds: float = 0.0
    found: list[Seen] = field(default_factory=list)

    def add(self, ran: Ran) -> None:
        self.cases = ran.until
        self.reached += ran.reached
        self.refused += ran.refused
        self.seconds += ran.seconds
        self.found += ran.found


@dataclass(slots=True)
class Trial:
    """A fault, or none, on a target, and its streams."""

    fault: Fault | None
    target: str
    tracks: list[Track]

    @property
    def name(self) -> str:
        return f"no fault, {self.target}" if self.fault is None else self.fault.name

    def open(self, limit: int) -> list[Track]:
        """The streams that go on, up to `limit` cases."""
        return [t for t in self.tracks if t.cases < limit and (self.fault is None or not t.found)]

    @property
    def detected(self) -> int:
        """In how many streams."""
        return sum(bool(track.found) for track in self.tracks)


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU time of each job (default: 10)")
    parser.add_argument("--streams", type=int, default=10, help="for each fault (default: 10)")
    parser.add_argument(
        "--cases", type=int, default=ROUNDS[-1], help=f"of each stream at most (default: {ROUNDS[-1]})"
    )
    parser.add_argument(
        "--fault", action="append", choices=[f.name for f in FAULTS], help="only this one (default: all)"
    )
    parser.add_argument("--jobs", type=int, default=cores(), help="worker processes")
    parser.add_argument(
        "--reduce", type=int, default=0, help="findings of each fault to reduce afterwards (default: 0)"
    )


def measure(options: argparse.Namespace) -> list[Table]:
    """Run all streams in rounds, then reduce."""
    faults = [f for f in FAULTS if options.fault is None or f.name in options.fault]
    trials = [
        Trial(fault, target, [Track(seed) for seed in range(options.streams)])
        for fault, target in (
            *((None, target) for target in dict.fromkeys(f.target for f in faults)),
            *((fault, fault.target) for fault in faults),
        )
    ]
    with Workers(options.jobs) as workers:
        _run(workers, trials, options)
        reduced = _reduce(workers, trials, options.reduce)
    return [
        _faults(trials),
        _overall(trials),
        _survival(trials),
        _alarms(trials),
        *([_buckets(trials, reduced)] if options.reduce else []),
    ]


def _run(workers: Workers, trials: Sequence[Trial], options: argparse.Namespace) -> None:
    tracks = [track for trial in trials for track in trial.tracks]
    budget = options.minutes * 60 * options.jobs
    for cap in ROUNDS:
        limit = min(cap, options.cases)
        going = [(trial, trial.open(limit)) for trial in trials]
        count = sum(len(ours) for _, ours in going)
        left = budget - sum(track.seconds for track in tracks)
        seconds = left / max(count, 1)
        if not count or seconds < _LEAST_SECONDS:
            continue
        jobs = [
            (ours, workers.run(trial.fault, trial.target, stretches))
            for trial, ours in going
            if (stretches := [_stretch(trial, track, limit, seconds) for track in ours])
        ]
        for ours, job in jobs:
            for track, ran in zip(ours, job.result(), strict=True):
                track.add(ran)


def _stretch(trial: Trial, track: Track, limit: int, seconds: float) -> Stretch:
    return Stretch(track.seed, track.cases, limit, seconds, trial.fault is None, track.refused)


def _reduce(workers: Workers, trials: Sequence[Trial], count: int) -> dict[str, list[Smaller]]:
    """The first findings of each fault's first streams, reduced."""
    jobs = {}
    for trial in trials:
        found = [track.found[0] for track in trial.tracks if track.found]
        found = [seen for seen in found if seen.clause != REFUSALS][:count]
        if trial.fault is not None and found:
            jobs[trial.name] = workers.reduce(trial.fault, trial.target, found, _EVALUATIONS)
    return {name: job.result() for name, job in jobs.items()}


# ---- tables


def _with_faults(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.fault is not None]


def _faults(trials: Sequence[Trial]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for trial in _with_faults(trials):
        assert trial.fault is not None
        found = [track for track in trial.tracks if track.found]
        clauses = Counter(track.found[0].clause for track in found)
        ran = sum(track.cases for track in trial.tracks)
        rows.append(
            (
                trial.fault.stage,
                trial.name,
                sum(track.reached > 0 for track in trial.tracks),
                100 * sum(track.reached for track in trial.tracks) / ran if ran else None,
                len(found),
                statistics.median(track.cases for track in found) if found else None,
                statistics.median(track.seconds for track in found) if found else None,
                max(track.cases for track in trial.tracks),
                ", ".join(f"{clause} {n}" for clause, n in clauses.most_common()),
                len({track.found[0].signature for track in found}),
            )
        )
    heads = (
        "stage",
        "fault",
        "reached",
        "% of cases reach",
        "detected",
        "median cases",
        "median CPU s",
        "most cases",
        "clauses",
        "signatures",
    )
    streams_each = len(trials[0].tracks)
    return Table(f"each fault, {streams_each} streams of programs", heads, tuple(rows))


def _overall(trials: Sequence[Trial]) -> Table:
    faults = _with_faults(trials)
    often = [t for t in faults if t.detected >= math.ceil(OFTEN * len(t.tracks))]
    ever = [t for t in faults if t.detected]
    open_ones = [track for t in faults for track in t.tracks if not track.found]
    rows: list[tuple[Cell, ...]] = [
        ("faults", len(faults)),
        (f"detected in {OFTEN:.0%} of the streams, %", 100 * len(often) / max(len(faults), 1)),
        ("detected in any stream, %", 100 * len(ever) / max(len(faults), 1)),
    ]
    for unit, of in (("CPU s", "seconds"), ("cases", "cases")):
        longest = [getattr(track, of) for t in faults for track in t.tracks]
        # As far as every stream has come that has found nothing: nothing is known beyond.
        horizon = min((getattr(track, of) for track in open_ones), default=max(longest, default=0))
        means = [statistics.fmean(min(getattr(track, of), horizon) for track in t.tracks) for t in faults]
        low, high = _interval(means)
        rows.append((f"mean time to detection within {horizon:.1f} {unit}", statistics.fmean(means)))
        rows.append((f"its 95 % interval, {unit}", f"{low:.2f} to {high:.2f}"))
    notes = ("the interval: bootstrap over faults", "a stream that finds nothing counts with all of the time")
    return Table("overall", ("", "value"), tuple(rows), notes)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean, by resampling."""
    sample = np.asarray(values)
    drawn = np.random.default_rng(0).choice(sample, (_RESAMPLES, len(sample)))
    low, high = np.quantile(drawn.mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def _survival(trials: Sequence[Trial]) -> Table:
    """The share of streams that have found nothing after so many cases; only as far as all have come."""
    tracks = [track for trial in _with_faults(trials) for track in trial.tracks]
    horizon = min((t.cases for t in tracks if not t.found), default=max((t.cases for t in tracks), default=0))
    steps = sorted({*(n for n in (1, 3, 10, *ROUNDS) if n <= horizon), horizon})
    rows = [(n, 100 * sum(not t.found or t.cases > n for t in tracks) / max(len(tracks), 1)) for n in steps]
    return Table("streams that have found nothing", ("after cases", "%"), tuple(rows))


def _alarms(trials: Sequence[Trial]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    for trial in trials:
        if trial.fault is None:
            cases = sum(track.cases for track in trial.tracks)
            found = [seen for track in trial.tracks for seen in track.found]
            rows.append((trial.target, cases, len(found), _PER * len(found) / cases if cases else None))
            notes += [f"{trial.target}: stream {s.seed}, case {s.index}: {s.signature}" for s in found]
    heads = ("target", "cases", "false alarms", f"for {_PER} cases")
    return Table("without a fault", heads, tuple(rows), tuple(notes))


def _buckets(trials: Sequence[Trial], reduced: dict[str, list[Smaller]]) -> Table:
    owners: dict[str, set[str]] = defaultdict(set)
    rows: list[tuple[Cell, ...]] = []
    for trial in _with_faults(trials):
        ours = [one for one in reduced.get(trial.name, ()) if one.bucket is not None]
        for one in ours:
            assert one.bucket is not None
            owners[one.bucket].add(trial.name)
        if ours:
            rows.append(
                (
                    trial.name,
                    _median(one.before for one in ours),
                    _median(one.after for one in ours),
                    _median(one.evaluations for one in ours),
                    len({one.bucket for one in ours}),
                    ours[0].bucket,
                )
            )
    every = list(itertools.chain.from_iterable(reduced.values()))
    done = [one for one in every if one.after is not None]
    shared = sum(len(faults) for faults in owners.values()) / max(len(owners), 1)
    single = sum(row[4] == 1 for row in rows)
    notes = (
        f"{len(done)} of {len(every)} findings reduced, to {_median(one.after for one in done)} statements "
        f"(median), {_median(one.evaluations for one in done)} evaluations (median)",
        f"one bucket: {100 * single / max(len(rows), 1):.0f} % of the faults",
        f"{shared:.2f} faults for each bucket",
    )
    heads = ("fault", "statements", "reduced", "evaluations", "buckets", "the first")
    return Table("findings reduced, medians for each fault", heads, tuple(rows), notes)


def _median(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
