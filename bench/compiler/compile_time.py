"""Compile time: forward and first backward, ours beside stock's, and how it grows.

The time of a first call and its backward, less that of a second one, which compiles nothing: CPU time, graphs
run as they are. Stock is `functorch.compile.aot_function`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import functorch.compile as stock
import torch
from torch import Tensor, nn
from torch.nn import functional

import aot
from bench.compiler.models import Model, resnet, transformer
from bench.report import Table
from bench.timing import Cells, Spread, against, cells, columns, first_line, interleaved

SIDE = 8  # of the square matrices that chains and small programs compute with
MANY = 100  # operations from which on more is asked for

Function = Callable[..., Any]
Compile = Callable[[Function], Function]
Make = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Program:
    """Something to compile.

    Attributes:
        operations: in its forward, about.
        make: the function, and what makes fresh arguments for it.
    """

    operations: int
    make: Callable[[], tuple[Function, Make]]


def _square() -> Tensor:
    return torch.randn(SIDE, SIDE, requires_grad=True)


def _three() -> tuple[Function, Make]:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin().sum()

    return function, lambda: (_square(), _square())


def _of(model: Callable[[], Model]) -> tuple[Function, Make]:
    one = model()
    return one.step, lambda: (*one.state(), *one.batch)


def _mlp() -> Model:
    module = nn.Sequential(nn.Linear(SIDE, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    return Model(module, (torch.randn(4, SIDE), torch.arange(4)), functional.cross_entropy)


def _twenty_aliased() -> tuple[Function, Make]:
    def function(w: Tensor, *views: Tensor) -> Tensor:
        for view in views:
            view.mul_(w)
        return views[0] * 2

    def make() -> tuple[Tensor, ...]:
        whole = torch.ones(21 * SIDE)
        return (torch.ones(SIDE), *(whole[i * SIDE :][: 2 * SIDE : 2] for i in range(20)))

    return function, make


# Pointwise, matrix, view, normalizing, reducing and in-place operations, in turn.
_LINKS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, w: x * w,
    lambda x, w: x @ w,
    lambda x, w: x.sin(),
    lambda x, w: x.t(),
    lambda x, w: x + w.sum(0),
    lambda x, w: x.mul_(0.5),
    lambda x, w: torch.relu(x),
    lambda x, w: x.softmax(-1),
    lambda x, w: x.reshape(2, -1).view(SIDE, SIDE),
    lambda x, w: x - x.mean(1, keepdim=True),
)


def chain(length: int) -> Program:
    """That many operations, one after the other."""
    return Program(length, partial(_chain, length))


def _chain(length: int) -> tuple[Function, Make]:
    def function(x: Tensor, w: Tensor) -> Tensor:
        for i in range(length):
            x = _LINKS[i % len(_LINKS)](x, w)
        return x

    return function, lambda: (_square(), _square())


PROGRAMS: dict[str, Program] = {
    "3 operations": Program(3, _three),
    "MLP": Program(8, lambda: _of(_mlp)),
    "8 conv-BN blocks": Program(60, lambda: _of(lambda: resnet(2, 4, 8, 8))),
    "TransformerEncoder, 2 layers": Program(60, lambda: _of(lambda: transformer(2, 6, 8, 2))),
    "TransformerEncoder, 6 layers": Program(180, lambda: _of(lambda: transformer(2, 6, 8, 6))),
    "20 aliased mutated inputs": Program(21, _twenty_aliased),
}


COMPILERS: dict[str, Compile] = {
    "aot": lambda f: aot.aot_function(f, aot.nop, partition_fn=aot.default_partition),
    "stock": lambda f: stock.aot_function(f, stock.nop, stock.nop, partition_fn=stock.default_partition),
}
WITH_MIN_CUT: dict[str, Compile] = {
    "aot": lambda f: aot.aot_function(f, aot.nop, partition_fn=aot.min_cut_rematerialization_partition),
    "stock": lambda f: stock.aot_function(
        f, stock.nop, stock.nop, partition_fn=stock.min_cut_rematerialization_partition
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--min-cut", action="store_true", help="with the min-cut partitioners")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each (default: 5)")
    parser.add_argument(
        "--chain", type=int, nargs="*", default=[100, 300, 1000, 3000], help="lengths of chains of operations"
    )
    parser.add_argument("--program", choices=list(PROGRAMS), nargs="*", help="these alone (default: all)")


def measure(options: argparse.Namespace) -> list[Table]:
    """Compile each program on both sides, in turn."""
    chosen = PROGRAMS if options.program is None else {name: PROGRAMS[name] for name in options.program}
    chains = {f"chain of {length}": chain(length) for length in sorted(options.chain)}
    compilers = WITH_MIN_CUT if options.min_cut else COMPILERS
    rows: list[Cells] = []
    growth: list[Cells] = []
    notes: list[str] = []
    shortest: tuple[float | None, ...] = ()
    for name, program in {**chosen, **chains}.items():
        spreads = _measured(name, program, compilers, options.rounds, notes)
        ours, theirs = spreads.get("aot"), spreads.get("stock")
        target = 1 / 10 if options.min_cut else 1 / 8 if program.operations >= MANY else 1 / 5
        ratio = ours.ratio(theirs) if ours and theirs else None
        middles = [one.middle if one else None for one in (ours, theirs)]
        rows.append((name, *cells(ours, 1e-3), *cells(theirs, 1e-3), *against(ratio, target)))
        if name in chains:
            each = tuple(m and m * 1e6 / program.operations for m in middles)
            shortest = shortest or each
            shares = (e and least and e / least for e, least in zip(each, shortest, strict=True))
            growth.append((name, *each, *shares))
    partitioner = "min-cut" if options.min_cut else "default"
    title = f"compiling forward and first backward, {partitioner} partitioner, ms of CPU time"
    heads = ("program", *columns(*compilers), "ratio", "target", "met")
    tables = [Table(title, heads, tuple(rows), tuple(notes))]
    if growth:
        times = "times that of the shortest"
        tables.append(
            Table(
                "us for each operation",
                ("program", *compilers, *(f"{side}, {times}" for side in compilers)),
                tuple(growth),
            )
        )
    return tables


def _measured(
    name: str, program: Program, compilers: Mapping[str, Compile], rounds: int, notes: list[str]
) -> dict[str, Spread]:
    """The times of the sides that can compile it; `notes` gets why others cannot."""
    function, make = program.make()
    sides = {}
    for side, compiler in compilers.items():
        sides[side] = partial(compile_time, compiler, function, make)
        try:
            sides[side]()  # what is needed once in a process
        except Exception as error:
            del sides[side]
            notes.append(f"{name}: {side} raises {first_line(error)}")
    return interleaved(sides, rounds)


def compile_time(compiler: Compile, function: Function, make: Make) -> float:
    """Seconds of CPU time that the first call and its backward take more than the second ones."""
    compiled = compiler(function)
    first, second = make(), make()
    start = time.process_time()
    _step(compiled, first)
    middle = time.process_time()
    _step(compiled, second)
    return (middle - start) - (time.process_time() - middle)


def _step(compiled: Function, arguments: tuple[Any, ...]) -> None:
    result = compiled(*arguments)
    if result.requires_grad:
        torch.autograd.backward(result, torch.ones_like(result))
