"""Power of the fuzzer: which faults in `aot` it finds, in how many programs, and how often it cries wolf.

Streams of generated programs search for all faults of `bench.fuzzer.seeded_bugs` at once
(`bench.fuzzer.group_testing`); a detection is a program that is a finding with one fault alone. It is
repeated in a process that has imported `aot` with the fault in it. For a fault it is told in how many streams
its lines were *reached* (the statement that has them ran), in how many it was *triggered* (it was detected,
or `aot` made another graph, wrapper or guard of a program, of a few that were looked at), and in how many it
was *detected*. What a fault in code that runs later does otherwise shows only in what is detected. A
finding's *clause* is that of the contract, or *refusals* where the target refuses more programs than it may
(`Target.refuses`).

With `--kernels` the faults are Inductor's, and found by `torch-inductor` (`bench.fuzzer.kernel_detection`).

Time is CPU time, as other things may run on a machine: `--minutes 10 --jobs 2` is 20 minutes of it, the same
for each stream. A program that fails without a fault is a false alarm, or a fault that nobody has made.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.fuzzer.cases import METHODS, OURS, REFUSALS, SECONDS, Seen
from bench.fuzzer.group_testing import Outcome, Track
from bench.fuzzer.seeded_bugs import FAULTS, Fault
from bench.fuzzer.workers import Smaller, Stretch, Workers
from bench.report import Table
from fuzz.campaign.devices import workers as cores

STEPS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)  # cases
OFTEN = 0.8  # of the streams: a fault that is found so often counts as detected
_EVALUATIONS = 200
_RESAMPLES = 10_000
_PER = 10_000

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault, what each stream has shown of it, and those of its detections that could not be repeated."""

    fault: Fault
    tracks: tuple[Track, ...]
    unconfirmed: tuple[Seen, ...] = ()

    @property
    def found(self) -> list[Track]:
        """The streams that detected it."""
        return [track for track in self.tracks if track.found is not None]


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU time of each job (default: 10)")
    parser.add_argument("--streams", type=int, default=10, help="which share the time (default: 10)")
    parser.add_argument(
        "--cases", type=int, default=STEPS[-1], help=f"of a stream and target at most (default: {STEPS[-1]})"
    )
    parser.add_argument(
        "--fault", action="append", choices=[f.name for f in FAULTS], help="only this one (default: all)"
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=OURS,
        help="whose programs and judge: this project's, its programs with an oracle that others have "
        "published (sums, allclose, same), or its oracle with plain programs (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=cores(), help="worker processes")
    parser.add_argument(
        "--kernels",
        type=float,
        metavar="S",
        help="look for faults of Inductor instead (bench.fuzzer.kernel_faults), each for S s of CPU time",
    )
    parser.add_argument("--profile", default="mixed", help="of programs with --kernels (default: mixed)")
    parser.add_argument(
        "--reduce", type=int, default=0, help="findings of each fault to reduce afterwards (default: 0)"
    )


def measure(options: argparse.Namespace) -> list[Table]:
    """Run all streams, repeat what they detected, then reduce."""
    if options.kernels:
        from bench.fuzzer.kernel_detection import measure_kernels  # which imports Inductor

        return measure_kernels(options.profile, 0, options.kernels)
    faults = [f for f in FAULTS if options.fault is None or f.name in options.fault]
    if options.reduce and options.method != OURS:
        raise SystemExit(f"aotfuzz bench: --reduce needs --method {OURS}: others have no findings to keep")
    seconds = options.minutes * 60 * options.jobs / options.streams
    with Workers(options.jobs) as workers:
        jobs = [
            workers.search(seed, faults, seconds, options.cases, options.method)
            for seed in range(options.streams)
        ]
        outcomes = [job.result() for job in jobs]
        trials = _confirmed(workers, faults, outcomes, options.method)
        reduced = _reduce(workers, trials, options.reduce)
    return [
        _faults(trials),
        _overall(trials, outcomes),
        _survival(trials),
        _alarms(outcomes),
        *([_buckets(trials, reduced)] if options.reduce else []),
    ]


def _confirmed(
    workers: Workers, faults: Sequence[Fault], outcomes: Sequence[Outcome], method: str
) -> list[Trial]:
    """What the streams have shown of each fault, without what does not show where the fault is imported."""
    jobs = []
    for number, fault in enumerate(faults):
        tracks = tuple(outcome.tracks[number] for outcome in outcomes)
        seen = [track.found for track in tracks if track.found is not None]
        stretches = [Stretch(one.seed, one.index, one.index + 1, SECONDS, method=method) for one in seen]
        jobs.append((fault, tracks, workers.run(fault, fault.target, stretches)))
    trials = []
    for fault, tracks, job in jobs:
        answers = iter(job.result())
        kept, lost = [], []
        for track in tracks:
            if track.found is not None:
                ran = next(answers)
                if not (ran.refused if track.found.clause == REFUSALS else ran.found):
                    lost.append(track.found)
                    track = replace(track, found=None)
            kept.append(track)
        trials.append(Trial(fault, tuple(kept), tuple(lost)))
    return trials


def _reduce(workers: Workers, trials: Sequence[Trial], count: int) -> dict[str, list[Smaller]]:
    """The detections of each fault by the first streams, reduced."""
    jobs = {}
    for trial in trials:
        seen = [track.found for track in trial.found if track.found is not None]
        seen = [one for one in seen if one.clause != REFUSALS][:count]
        if seen:
            jobs[trial.fault.name] = workers.reduce(trial.fault, trial.fault.target, seen, _EVALUATIONS)
    return {name: job.result() for name, job in jobs.items()}


# ---- tables


def _faults(trials: Sequence[Trial]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for trial in trials:
        seen = [track.found for track in trial.tracks if track.found is not None]
        clauses = Counter(one.clause for one in seen)
        ran = sum(track.cases for track in trial.tracks)
        rows.append(
            (
                trial.fault.stage,
                trial.fault.name,
                sum(track.reached > 0 for track in trial.tracks),
                100 * sum(track.reached for track in trial.tracks) / ran if ran else None,
                sum(track.triggered for track in trial.tracks),
                len(seen),
                statistics.median(track.cases for track in trial.found) if seen else None,
                statistics.median(track.seconds for track in trial.found) if seen else None,
                max(track.cases for track in trial.tracks),
                ", ".join(f"{clause} {n}" for clause, n in clauses.most_common()),
                len({one.signature for one in seen}),
            )
        )
    heads = (
        "stage",
        "fault",
        "reached",
        "% of cases reach",
        "triggered",
        "detected",
        "median cases",
        "median CPU s",
        "most cases",
        "clauses",
        "signatures",
    )
    streams_each = len(trials[0].tracks)
    return Table(f"each fault, {streams_each} streams of programs", heads, tuple(rows))


def _overall(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> Table:
    often = [t for t in trials if len(t.found) >= math.ceil(OFTEN * len(t.tracks))]
    ever = [t for t in trials if t.found]
    open_ones = [track for t in trials for track in t.tracks if track.found is None]
    unconfirmed = [seen for t in trials for seen in t.unconfirmed]
    rows: list[tuple[Cell, ...]] = [
        ("faults", len(trials)),
        ("reached in any stream", sum(any(track.reached for track in t.tracks) for t in trials)),
        ("triggered in any stream", sum(any(track.triggered for track in t.tracks) for t in trials)),
        (f"detected in {OFTEN:.0%} of the streams, %", 100 * len(often) / max(len(trials), 1)),
        ("detected in any stream, %", 100 * len(ever) / max(len(trials), 1)),
        ("detections that could not be repeated", len(unconfirmed)),
        ("programs of a stream", _median(sum(one.cases.values()) for one in outcomes)),
        (
            "runs for each program",
            sum(o.runs for o in outcomes) / sum(sum(o.cases.values()) for o in outcomes),
        ),
        ("CPU s of a stream", statistics.median(one.seconds for one in outcomes)),
    ]
    for unit, of in (("CPU s", "seconds"), ("cases", "cases")):
        longest = [getattr(track, of) for t in trials for track in t.tracks]
        # As far as every stream has come that has found nothing: nothing is known beyond.
        horizon = min((getattr(track, of) for track in open_ones), default=max(longest, default=0))
        means = [statistics.fmean(min(getattr(track, of), horizon) for track in t.tracks) for t in trials]
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
    tracks = [track for trial in trials for track in trial.tracks]
    hidden = [track.cases for track in tracks if track.found is None]
    horizon = min(hidden, default=max((track.cases for track in tracks), default=0))
    steps = sorted({*(n for n in STEPS if n <= horizon), horizon})
    rows = [
        (n, 100 * sum(one.found is None or one.cases > n for one in tracks) / max(len(tracks), 1))
        for n in steps
    ]
    return Table("streams that have found nothing", ("after cases", "%"), tuple(rows))


def _alarms(outcomes: Sequence[Outcome]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    for target in dict.fromkeys(target for outcome in outcomes for target in outcome.cases):
        cases = sum(outcome.cases[target] for outcome in outcomes)
        found = [seen for outcome in outcomes for where, seen in outcome.alarms if where == target]
        rows.append((target, cases, len(found), _PER * len(found) / cases if cases else None))
        notes += [f"{target}: stream {s.seed}, case {s.index}: {s.signature}" for s in found]
    heads = ("target", "cases", "false alarms", f"for {_PER} cases")
    return Table("without a fault", heads, tuple(rows), tuple(notes))


def _buckets(trials: Sequence[Trial], reduced: dict[str, list[Smaller]]) -> Table:
    owners: dict[str, set[str]] = defaultdict(set)
    rows: list[tuple[Cell, ...]] = []
    for trial in trials:
        name = trial.fault.name
        ours = [one for one in reduced.get(name, ()) if one.bucket is not None]
        for one in ours:
            assert one.bucket is not None
            owners[one.bucket].add(name)
        if ours:
            rows.append(
                (
                    name,
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
