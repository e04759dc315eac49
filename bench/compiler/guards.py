"""Guards: what finding the specialization of a call costs, by tensors and by specializations.

The time of a call less that of what it finds (`Specialization.call`): taking the arguments apart, their key,
the guards, and putting the results together. Kinds of call that differ in shapes are told apart by one look
into a dictionary. Those that differ in a number which the function reads are tried, newest first, and the
oldest is called. Stock tests for nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aot
from bench.report import Table
from bench.timing import against, cells, columns, interleaved

TARGET = 0.1  # us for each tensor and specialization that is tried
WIDTH = 4  # elements of each tensor

factor = 0  # what the function reads besides its arguments


def _read(*xs: Tensor) -> Tensor:
    return xs[0] * factor


def _by_shape(tensors: int, specializations: int) -> tuple[aot.CompiledFunction, tuple[Tensor, ...], int]:
    """Compiled for several shapes: the function, arguments of the first, and how many are tried."""
    compiled = aot.aot_function(_read, aot.nop)
    calls = [tuple(torch.ones(WIDTH + i) for _ in range(tensors)) for i in range(specializations)]
    for arguments in calls:
        compiled(*arguments)
    return compiled, calls[0], 1


def _by_number(tensors: int, specializations: int) -> tuple[aot.CompiledFunction, tuple[Tensor, ...], int]:
    """Compiled for several values of a global: the function, arguments, and how many are tried."""
    global factor
    compiled = aot.aot_function(_read, aot.nop)
    arguments = tuple(torch.ones(WIDTH) for _ in range(tensors))
    for factor in range(specializations, 0, -1):  # noqa: B007 (the function reads it)
        compiled(*arguments)
    factor = specializations
    return compiled, arguments, specializations


KINDS = {"shapes": _by_shape, "numbers": _by_number}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--rounds", type=int, default=21, help="bursts of each (default: 21)")
    parser.add_argument("--calls", type=int, default=200, help="calls in a burst (default: 200)")
    parser.add_argument("--tensors", type=int, nargs="+", default=[1, 10, 100], help="default: 1 10 100")
    parser.add_argument("--specializations", type=int, nargs="+", default=[1, 8], help="default: 1 8")


def measure(options: argparse.Namespace) -> list[Table]:
    """Find each, and run what is found."""
    rows = []
    for kind, make in KINDS.items():
        for tensors in options.tensors:
            for specializations in options.specializations:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", aot.RecompileWarning)
                    compiled, arguments, tried = make(tensors, specializations)
                found = compiled.specializations[0].call
                sides = {
                    "call": _burst(compiled, arguments, options.calls),
                    "found": _burst(found, arguments, options.calls),
                }
                spreads = interleaved(sides, options.rounds)
                hit = (spreads["call"].middle - spreads["found"].middle) * 1e6
                times = (*cells(spreads["call"], 1e-6), *cells(spreads["found"], 1e-6), hit)
                each = against(hit / tensors / tried, TARGET)
                rows.append((kind, tensors, specializations, tried, *times, *each))
    heads = ("differ in", "tensors", "specializations", "tried", *columns("call", "found"), "hit")
    each_of = ("for each tensor and specialization tried", "target", "met")
    return [Table("finding a specialization, us of CPU time", (*heads, *each_of), tuple(rows))]


def _burst(call: Callable[..., Any], arguments: tuple[Tensor, ...], calls: int) -> Callable[[], float]:
    """Measures that many calls: seconds for each."""

    def burst() -> float:
        start = time.process_time()
        for _ in range(calls):
            call(*arguments)
        return (time.process_time() - start) / calls

    return burst
