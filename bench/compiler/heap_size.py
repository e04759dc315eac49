"""Compile time in processes with many objects: two operations, ours beside stock's, nothing frozen.

Each kind of process is one of its own, which holds the objects in a global of the function's module, as a
notebook does. The function does not name it. CPU time of the first call, for training with its backward; both
sides in turn, in one process. Stock is `functorch.compile`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import functorch.compile as stock
import torch
from torch import Tensor, nn

import aot
from bench.report import Table
from bench.timing import Cells, Spread, against, cells, columns, interleaved

TARGET = 0.6
COUNTS = (0, 300_000, 2_000_000)
DATA: Any = None  # the objects; the walk from `two_operations` comes to this module's globals

KINDS: dict[str, Callable[[int], Any]] = {
    "tuples": lambda count: [(i,) for i in range(count)],
    "objects": lambda count: [object() for _ in range(count)],
    "ints and lists": lambda count: {i: [i] for i in range(count // 2)},
}


def two_operations(x: Tensor) -> Tensor:
    return x.sin() * 2


class TwoOperations(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return two_operations(x)


def _torch_compiled(backend: str) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(two_operations, backend=backend)


Compile = Callable[[], Callable[[Tensor], Tensor]]
DOORS: dict[str, dict[str, Compile]] = {
    "function": {
        "aot": lambda: aot.aot_function(two_operations, aot.nop),
        "stock": lambda: stock.aot_function(two_operations, stock.nop, stock.nop),
    },
    "module": {
        "aot": lambda: aot.aot_module(TwoOperations(), aot.nop),
        "stock": lambda: stock.aot_module(TwoOperations(), stock.nop, stock.nop),
    },
    "torch.compile": {
        "aot": lambda: _torch_compiled("aotfuzz"),
        "stock": lambda: _torch_compiled("aot_eager"),
    },
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--rounds", type=int, default=9, help="compiles of each (default: 9)")
    parser.add_argument("--count", type=int, nargs="*", default=COUNTS, help="how many more objects")
    parser.add_argument("--kind", choices=list(KINDS), nargs="*", default=["tuples"], help="what they are")
    parser.add_argument("--door", choices=list(DOORS), nargs="*", default=["function"], help="front doors")


def measure(options: argparse.Namespace) -> list[Table]:
    """Start a process for each kind and number of objects."""
    rows: list[Cells] = []
    kinds = [(kind, count) for count in options.count for kind in options.kind if count]
    for kind, count in [*([("", 0)] if 0 in options.count else []), *kinds]:
        call = (
            "from bench.compiler.heap_size import report; "
            f"report({kind!r}, {count}, {options.rounds}, {options.door})"
        )
        found = subprocess.run([sys.executable, "-c", call], check=True, stdout=subprocess.PIPE, text=True)
        for door, mode, ours, theirs in json.loads(found.stdout):
            mine, other = Spread(tuple(ours)), Spread(tuple(theirs))
            process = f"{count:,} more {kind}" if count else "plain"
            ratio = against(mine.ratio(other), TARGET)
            rows.append((process, door, mode, *cells(mine, 1e-3), *cells(other, 1e-3), *ratio))
    heads = ("process", "front door", "call", *columns("aot", "stock"), "ratio", "at most", "met")
    return [Table("compiling two operations, ms of CPU time, nothing frozen", heads, tuple(rows))]


def report(kind: str, count: int, rounds: int, doors: list[str]) -> None:
    """Measure in this process, and print JSON: front door, kind of call, seconds of either side."""
    global DATA
    torch.set_num_threads(1)
    DATA = KINDS[kind](count) if count else None
    rows = []
    for door in doors:
        for mode, training in (("inference", False), ("training", True)):
            sides = {side: partial(_time, one, training) for side, one in DOORS[door].items()}
            for side in sides.values():
                side()  # what is needed once in a process
            spreads = interleaved(sides, rounds)
            rows.append((door, mode, spreads["aot"].times, spreads["stock"].times))
    print(json.dumps(rows))


def _time(compiler: Compile, training: bool) -> float:
    compiled = compiler()
    x = torch.ones(3, requires_grad=training)
    start = time.process_time()
    result = compiled(x)
    if training:
        result.sum().backward()  # type: ignore[no-untyped-call]
    return time.process_time() - start
