"""Start of a process: until `aotfuzz --help` is there, and until a first function is compiled and has run.

Each is a process of its own, with all of its CPU time and its time on the wall. *Beyond torch* is what a
process takes longer than one that only imports torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from bench.report import Table
from bench.timing import Cells, Spread

_STEP = "f(torch.ones(3, requires_grad=True), torch.ones(3)).sum().backward()"
_FUNCTION = "(lambda x, y: (x * y).sin())"
_TORCH = "import torch"
PROCESSES: dict[str, tuple[str, ...]] = {
    "aotfuzz --help": ("-m", "fuzz.cli", "--help"),
    "aotfuzz run --help": ("-m", "fuzz.cli", "run", "--help"),
    _TORCH: ("-c", "import torch"),
    "eager": ("-c", f"import torch; f = {_FUNCTION}; {_STEP}"),
    "import aot": ("-c", "import aot"),
    "aot, forward and backward": (
        "-c",
        f"import torch, aot; f = aot.aot_function({_FUNCTION}, aot.nop); {_STEP}",
    ),
    "stock, imported": ("-c", "import functorch.compile"),
    "stock, forward and backward": (
        "-c",
        f"import torch, functorch.compile as s; f = s.aot_function({_FUNCTION}, s.nop, s.nop); {_STEP}",
    ),
}
_HELP_SECONDS = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind (default: 5)")
    parser.add_argument("--process", choices=list(PROCESSES), nargs="+", help="these alone (default: all)")


def measure(options: argparse.Namespace) -> list[Table]:
    """Start each kind of process, in turn."""
    # In any case what the others are compared with.
    names = list(PROCESSES) if options.process is None else [_TORCH, *options.process]
    walls: dict[str, list[float]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds + 1):
            for name in names:
                wall, cpu = _started(PROCESSES[name], folder)
                walls[name].append(wall)
                cpus[name].append(cpu)
    rows: list[Cells] = []
    # (The first ones read from a disk, and compile what is not compiled.)
    torch_alone = Spread(tuple(cpus[_TORCH][1:])).middle
    for name in names:
        wall, cpu = (Spread(tuple(times[name][1:])).middle for times in (walls, cpus))
        helps = name.endswith("--help")
        target = _HELP_SECONDS if helps else None
        beyond = None if helps else (cpu - torch_alone) * 1e3
        met = ("yes" if wall <= _HELP_SECONDS else "no") if helps else None
        rows.append((name, wall * 1e3, cpu * 1e3, beyond, target and target * 1e3, met))
    heads = ("process", "wall", "CPU", "CPU beyond torch", "target", "met")
    return [Table("a process from its start to its end, ms, medians", heads, tuple(rows))]


def _started(arguments: tuple[str, ...], folder: str) -> tuple[float, float]:
    """Seconds on the wall and of CPU time. Bytecode of all modules is kept in a folder, as that of installed
    ones is."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    end, after = time.perf_counter(), os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return end - start, cpu
