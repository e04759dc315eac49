"""Programs that others have collected, under targets and in eager: a training step of each, judged.

`--graphnet DIR` takes folders of GraphNet samples (PaddlePaddle/GraphNet: graphs that Dynamo has captured of
real models), `--paritybench DIR` modules of ParityBench (jansel/pytorch-jit-paritybench: classes of projects
on GitHub, in evaluation mode unless `--training`). Their code is run: each program in a process of its own,
which may take `--seconds` for each target and `--memory` GB.

A step calls the program and takes the gradients of its results for all that requires grad. It is compared
with eager's by the oracles: results, gradients, arguments, buffers, strides, aliasing and random state. The
compile time is the CPU time of a first step less that of eager's. What eager does not run, or does otherwise
each time, is not counted. A package that is not installed is replaced by mocks.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean, median

from bench.compiler.programs import graphnet, paritybench
from bench.compiler.programs.trial import EAGER_WORDS, NOT_RUN, WORDS, Result, Work, run_all
from bench.report import Table
from bench.timing import Cells

TARGETS = ("aot", "aot-compile", "torch-aot-eager")
_STOCK = "torch-"  # begins the names of torch's own compilers
_REASON = 160  # characters of a reason in a table


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--graphnet", type=Path, metavar="DIR", help="folder of samples of GraphNet")
    which.add_argument("--paritybench", type=Path, metavar="DIR", help="folder of modules of ParityBench")
    parser.add_argument("--samples", type=int, metavar="N", help="as many as this (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="by which they are drawn (default: 0)")
    parser.add_argument("--only", metavar="NAME", action="append", help="only this program")
    parser.add_argument(
        "--target", action="append", help=f"as in `aotfuzz run`; default {', '.join(TARGETS)}"
    )
    parser.add_argument("--training", action="store_true", help="modules of ParityBench in training mode")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes")
    parser.add_argument("--seconds", type=float, default=120.0, help="of a target (default: 120)")
    parser.add_argument("--memory", type=float, default=8.0, help="GB of a process (default: 8)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="append results as JSON; what is there is not run again"
    )


def measure(options: argparse.Namespace) -> list[Table]:
    """Run the programs; progress goes to the standard error."""
    from fuzz.targets.catalog import usable_targets

    targets = [one.name for one in usable_targets(options.target or list(TARGETS))]
    collection = graphnet if options.graphnet else paritybench
    folder = (options.graphnet or options.paritybench).resolve()
    names = options.only or draw_sample(collection.names(folder), options.samples, options.seed)
    done = _read_results(options.out, names, targets)
    work = [
        Work(collection.__name__, str(folder), name, options.seed, options.training)
        for name in names
        if name not in done
    ]
    results = [result for some in done.values() for result in some]
    memory = int(options.memory * (1 << 30))
    for count, some in enumerate(run_all(work, targets, options.jobs, options.seconds, memory), 1):
        results += some
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(result)) + "\n" for result in some)
        if count % 20 == 0 or count == len(work):
            print(f"{count} of {len(work)} done", file=sys.stderr, flush=True)
    where = f"{'GraphNet' if options.graphnet else 'ParityBench'}, seed {options.seed}"
    return [
        summarize(results, targets, f"{where}: programs by what became of a training step"),
        compare_compile_times(results, targets),
        _list_differences(results),
        _count_reasons(results),
    ]


def draw_sample(names: Sequence[str], samples: int | None, seed: int) -> list[str]:
    """So many of the names, in an order of which each beginning is a sample as well."""
    ordered = sorted(names)
    count = len(ordered) if samples is None else min(samples, len(ordered))
    return random.Random(seed).sample(ordered, count)


def summarize(results: Iterable[Result], targets: Sequence[str], title: str) -> Table:
    """How many programs came to what, under each target; shares are of those that eager runs."""
    rows: list[Cells] = []
    for target in targets:
        words = Counter(result.word for result in results if result.target == target)
        run = sum(words[word] for word in WORDS)
        share = 100 * words["as eager"] / run if run else None
        rows.append((target, run, *(words[word] for word in WORDS), share))
    return Table(title, ("target", "run", *WORDS, "as eager, %"), tuple(rows))


def compare_compile_times(results: Iterable[Result], targets: Sequence[str]) -> Table:
    """Compile times, and their ratios to torch's own where both sides are as in eager."""
    seconds: dict[str, dict[str, float]] = {target: {} for target in targets}
    for result in results:
        if result.word in EAGER_WORDS and result.target in seconds:
            seconds[result.target][result.name] = result.seconds
    stock = [target for target in targets if target.startswith(_STOCK)]
    rows: list[Cells] = []
    for target in targets:
        own = seconds[target]
        ratios: list[float | None] = []
        for other in stock:
            both = [own[name] / seconds[other][name] for name in own if name in seconds[other]]
            ratios.append(geometric_mean(both) if both else None)
        rows.append((target, median(own.values()) if own else None, *ratios))
    return Table(
        "Compile time of a step, s of CPU time, and its ratio (geometric mean)",
        ("target", "median", *(f"to {other}" for other in stock)),
        tuple(rows),
    )


def _list_differences(results: Iterable[Result]) -> Table:
    rows = [
        (one.name, one.target, one.word, one.reason[:_REASON])
        for one in results
        if one.word not in ("as eager", NOT_RUN)
    ]
    return Table("What is not as in eager", ("program", "target", "outcome", "why"), tuple(sorted(rows)))


def _count_reasons(results: Iterable[Result]) -> Table:
    reasons = {one.name: one.reason.partition(":")[0] for one in results if one.word == NOT_RUN}
    return Table("Why others were not run", ("why", "count"), tuple(Counter(reasons.values()).most_common()))


def _read_results(file: Path | None, names: Iterable[str], targets: Sequence[str]) -> dict[str, list[Result]]:
    """The programs of which a file has a result for each target."""
    if file is None or not file.exists():
        return {}
    found: dict[str, dict[str, Result]] = {name: {} for name in names}
    for line in file.read_text(encoding="utf-8").splitlines():
        result = Result(**json.loads(line))
        if result.name in found:
            found[result.name][result.target] = result
    return {
        name: [some[target] for target in targets]
        for name, some in found.items()
        if all(target in some for target in targets)
    }
