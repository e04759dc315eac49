"""Every operator and module of torch's own test databases under targets, judged by the oracles.

Counts samples by what became of them. With `--list`, also everything that is not equal, with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import Table

if TYPE_CHECKING:
    from bench.compiler.opinfo.sweep import Result

_REASON = 100  # characters of a reason in a table


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--target", action="append", help="as in `aotfuzz run`; default aot and torch-aot-function"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="operators and modules of such names")
    parser.add_argument("--variant", action="append", help="see bench/compiler/opinfo/cases.py; default all")
    parser.add_argument("--samples", type=int, metavar="N", help="the first N samples of each; default all")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes")
    parser.add_argument("--list", action="store_true", help="also list everything that is not equal")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append each result as a line of JSON")


def measure(options: argparse.Namespace) -> Sequence[Table]:
    """Run the cases; progress goes to the standard error."""
    # Loading the databases takes seconds, which other commands need not pay for.
    from bench.compiler.opinfo.cases import MODULES, OPERATORS, variants
    from bench.compiler.opinfo.sweep import sweep
    from fuzz.targets.catalog import usable_targets

    targets = [one.name for one in usable_targets(options.target or ["aot", "torch-aot-function"])]
    work = [
        (name, variant)
        for name in (*OPERATORS, *MODULES)
        if re.search(options.only, name)
        for variant in variants(name)
        if not options.variant or variant in options.variant
    ]
    results: list[Result] = []
    start = time.perf_counter()
    for done, some in enumerate(sweep(work, targets, samples=options.samples, jobs=options.jobs), 1):
        results += some
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(result)) + "\n" for result in some)
        if done % 100 == 0 or done == len(work):
            seconds = time.perf_counter() - start
            print(f"{done} of {len(work)} done, {seconds:.0f} s", file=sys.stderr, flush=True)
    tables = [_summary(results)]
    return [*tables, _listing(results)] if options.list else tables


def _summary(results: Sequence[Result]) -> Table:
    from bench.compiler.opinfo.sweep import WORDS

    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.variant, result.target), []).append(result)
    rows: list[tuple[str | float | int | None, ...]] = []
    for (variant, target), group in sorted(groups.items()):
        words = Counter(result.word for result in group)
        names = {result.name for result in group}
        equal = len(names - {result.name for result in group if result.word != "equal"})
        rows.append((variant, target, *(words[word] for word in WORDS), f"{equal} of {len(names)}"))
    return Table(
        "Samples by what became of them, and operators or modules all of whose samples are equal",
        ("variant", "target", *WORDS, "all equal"),
        tuple(rows),
    )


def _listing(results: Iterable[Result]) -> Table:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        if result.word != "equal":
            # Reasons that differ in numbers alone are one.
            reason = re.sub(r"\d+", "#", result.reason)[:_REASON]
            key = (result.target, result.word, result.name, result.variant, reason)
            groups.setdefault(key, []).append(result)
    return Table(
        "What is not equal",
        ("target", "word", "name", "variant", "samples", "first", "its reason"),
        tuple((*k[:4], len(g), g[0].index, g[0].reason[:_REASON]) for k, g in sorted(groups.items())),
    )
