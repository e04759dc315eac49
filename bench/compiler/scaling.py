"""Growth: how long compiling and calling take for many arguments, results and arguments on one storage.

Times are those of the first call, which compiles (ms), and of a later one (us for each tensor), beside
those of `functorch.compile.aot_function`. Both run their graphs as they are. Stock raises for some, or takes
so long that larger ones are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import aot_function as stock_aot_function
from functorch.compile import nop as stock_nop
from torch import Tensor

import aot
from bench.report import Table

WIDTH = 4  # elements of each tensor

Function = Callable[[list[Tensor]], Any]
Make = Callable[[int], list[Tensor]]
Compile = Callable[[Function], Callable[..., Any]]


def _slices(count: int) -> list[Tensor]:
    """Views of one tensor."""
    whole = torch.ones(count * WIDTH)
    return [whole[i * WIDTH : (i + 1) * WIDTH] for i in range(count)]


def _columns(count: int) -> list[Tensor]:
    """Views of one matrix, interleaved."""
    whole = torch.ones(WIDTH, count)
    return [whole[:, i] for i in range(count)]


def _computed_columns(count: int) -> list[Tensor]:
    """Views of one matrix with a history."""
    whole = torch.ones(WIDTH, count, requires_grad=True) * 1
    return [whole[:, i] for i in range(count)]


def _computed_slices(count: int) -> list[Tensor]:
    """Views of one tensor with a history."""
    whole = torch.ones(count * WIDTH, requires_grad=True) * 1
    return [whole[i * WIDTH : (i + 1) * WIDTH] for i in range(count)]


def _parameters(count: int) -> list[Tensor]:
    """Leaves on one flat buffer, with a version counter each."""
    return [torch.nn.Parameter(part.data) for part in _slices(count)]


def _apart(count: int) -> list[Tensor]:
    """A storage for each."""
    return [torch.ones(WIDTH) for _ in range(count)]


def _groups(count: int) -> list[Tensor]:
    """Two that overlap on each of many storages."""
    wholes = [torch.ones(WIDTH + 1) for _ in range(count // 2)]
    return [part for whole in wholes for part in (whole[1:], whole[:-1])]


def _reads(xs: list[Tensor]) -> Any:
    return sum(x.sum() for x in xs)


def _writes_one(xs: list[Tensor]) -> Any:
    with torch.no_grad():
        xs[len(xs) // 2].mul_(2)
    return sum(x.sum() for x in xs)


def _writes_all(xs: list[Tensor]) -> None:
    with torch.no_grad():
        for x in xs:
            x.mul_(2)


def _writes_all_with_a_history(xs: list[Tensor]) -> None:
    for x in xs:
        x.mul_(2)


def _maps(xs: list[Tensor]) -> list[Tensor]:
    return [x * 2 for x in xs]


def _views(xs: list[Tensor]) -> list[Tensor]:
    return [x[1:] for x in xs]


def _aliases(xs: list[Tensor]) -> list[Tensor]:
    return [x.detach() for x in xs]


PROGRAMS: dict[str, tuple[Function, Make]] = {
    "separate, read": (_reads, _apart),
    "separate, written": (_writes_all, _apart),
    "separate, as many results": (_maps, _apart),
    "slices, read": (_reads, _slices),
    "slices, one written": (_writes_one, _slices),
    "slices, all written": (_writes_all, _slices),
    "slices, views returned": (_views, _slices),
    "slices with a history, read": (_reads, _computed_slices),
    "slices with a history, all written": (_writes_all_with_a_history, _computed_slices),
    "columns, read": (_reads, _columns),
    "columns, one written": (_writes_one, _columns),
    "columns, all written": (_writes_all, _columns),
    "columns, views returned": (_views, _columns),
    "columns with a history, all written": (_writes_all_with_a_history, _computed_columns),
    "flat parameters, read": (_reads, _parameters),
    "flat parameters, one written": (_writes_one, _parameters),
    "flat parameters, all written": (_writes_all, _parameters),
    "flat parameters, aliases returned": (_aliases, _parameters),
    "groups of two, read": (_reads, _groups),
    "groups of two, all written": (_writes_all, _groups),
}

COMPILERS: dict[str, Compile] = {
    "aot": lambda function: aot.aot_function(function, aot.nop),
    "stock": lambda function: stock_aot_function(function, stock_nop),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    sizes = [125, 250, 500, 1000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="how many tensors")
    parser.add_argument("--program", choices=list(PROGRAMS), action="append", help="only this one")
    parser.add_argument("--compiler", choices=list(COMPILERS), action="append", help="only this one")
    parser.add_argument(
        "--limit", type=float, default=10.0, help="seconds after which larger ones are left out"
    )


def measure(options: argparse.Namespace) -> list[Table]:
    """Compile and call each program at each size."""
    compiles: list[tuple[str | float | None, ...]] = []
    calls: list[tuple[str | float | None, ...]] = []
    notes: dict[str, None] = {}
    for name in options.program or PROGRAMS:
        for compiler in options.compiler or COMPILERS:
            times, note = _series(name, compiler, sorted(options.sizes), options.limit)
            padded = [*times, *[(None, None)] * (len(options.sizes) - len(times))]
            compiles.append((f"{name}: {compiler}", *(first and first * 1e3 for first, _ in padded)))
            calls.append((f"{name}: {compiler}", *(later and later * 1e6 for _, later in padded)))
            notes.update(dict.fromkeys(note))
    columns = ("program", *map(str, sorted(options.sizes)))
    return [
        Table("first call, ms", columns, tuple(compiles), tuple(notes)),
        Table("later call, us for each tensor", columns, tuple(calls)),
    ]


def _series(
    name: str, compiler: str, sizes: Sequence[int], limit: float
) -> tuple[list[tuple[float | None, float | None]], list[str]]:
    """Seconds of the first call, and of a later one for each tensor, size by size."""
    times: list[tuple[float | None, float | None]] = []
    for count in sizes:
        try:
            first, later = timed(name, compiler, count)
        except Exception as error:
            kind, text = type(error).__name__, str(error).strip().partition("\n")[0]
            return times, [f"{name}: {compiler} raises {kind}: {text[:100]}"]
        times.append((first, later))
        if first > limit:
            return times, [f"{name}: {compiler} takes more than {limit:g} s for {count}"]
    return times, []


def timed(name: str, compiler: str, count: int) -> tuple[float, float]:
    """Seconds of CPU time of the first call, and of a later one for each tensor."""
    function, make = PROGRAMS[name]
    COMPILERS[compiler](function)(make(8))  # what is needed once in a process
    compiled = COMPILERS[compiler](function)  # stock compiles once, whatever it is called with
    arguments = [make(count) for _ in range(4)]
    start = time.process_time()
    compiled(arguments.pop())
    first = time.process_time() - start
    later = []
    while arguments:
        one = arguments.pop()
        start = time.process_time()
        compiled(one)
        later.append(time.process_time() - start)
    return first, min(later) / count
