"""Inductor below ours and below stock: a model's first step, whose time it is, and the steps after it.

Both sides are `torch.compile` with Inductor's kernels: backend `aotfuzz_inductor`, and `inductor`, which has
stock AOTAutograd between Dynamo and Inductor. What a side's layer takes of the first forward and backward is
what is left of it without a second one (which compiles nothing), without what Dynamo takes alone (backend
`eager`), and without Inductor's own work, of which torch keeps the time: its compile of two graphs and its
passes before. Seconds on the wall, as kernels are compiled in other processes; Inductor's caches are off.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch._dynamo import utils as dynamo
from torch._inductor import config

from bench.compiler.models import Model, transformer
from bench.report import Table
from bench.timing import Cells, Spread, cells, columns

MODELS: dict[str, Callable[[], Model]] = {
    "TransformerEncoder, 2 layers": lambda: transformer(4, 32, 64, 2),
    "TransformerEncoder, 6 layers": lambda: transformer(4, 32, 64, 6),
}
SIDES = {"aot": "aotfuzz_inductor", "stock": "inductor"}
_DYNAMO = "eager"  # the backend that leaves what Dynamo captures as it is
# As torch's own account of compile times calls them; none is a part of another one.
_INDUCTOR = ("_recursive_pre_grad_passes", "_recursive_joint_graph_passes", "compile_fx_inner")


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--rounds", type=int, default=3, help="compiles of each (default: 3)")
    parser.add_argument("--steps", type=int, default=20, help="timed after each compile (default: 20)")
    parser.add_argument("--model", choices=list(MODELS), nargs="*", help="these alone (default: all)")


def measure(options: argparse.Namespace) -> list[Table]:
    """Compile and run each model on both sides, in turn."""
    compiles: list[Cells] = []
    runs: list[Cells] = []
    for name in options.model or MODELS:
        ran = _ran(MODELS[name](), options.rounds, options.steps)
        alone = _spread(ran[_DYNAMO], "compile").middle
        layers = {}
        for side in SIDES:
            layers[side] = layer = Spread(tuple(one.compile - one.inductor - alone for one in ran[side]))
            whole = _spread(ran[side], "compile").middle
            parts = (whole, alone, _spread(ran[side], "inductor").middle, layer.middle)
            compiles.append((name, side, *parts, 100 * layer.middle / whole))
        compiles.append((name, "ratio", None, None, None, layers["aot"].ratio(layers["stock"]), None))
        steps = {side: _spread(found, "step") for side, found in ran.items()}
        known = (cell for spread in steps.values() for cell in cells(spread, 1e-3))
        runs.append((name, *known, steps["aot"].ratio(steps["stock"])))
    heads = ("model", "side", "first step", "Dynamo", "Inductor", "the layer between", "its share, %")
    title = "compiling forward and first backward through torch.compile, s on the wall"
    others = ("model", *columns(*SIDES, "not compiled"), "ratio")
    return [
        Table(title, heads, tuple(compiles)),
        Table("a later step, forward and backward, ms on the wall", others, tuple(runs)),
    ]


@dataclass(frozen=True, slots=True)
class _Ran:
    """Seconds on the wall.

    Attributes:
        compile: that the first step took more than a later one.
        inductor: of these, Inductor.
        step: a later one (the median).
    """

    compile: float
    inductor: float
    step: float


def _spread(ran: Sequence[_Ran], what: str) -> Spread:
    return Spread(tuple(getattr(one, what) for one in ran))


def _ran(model: Model, rounds: int, steps: int) -> dict[str, list[_Ran]]:
    """Compile the model on each side, in turn, and run it."""
    backends = {**SIDES, _DYNAMO: _DYNAMO}
    with config.patch(force_disable_caches=True):
        for backend in backends.values():
            _once(model, backend, 1)  # what is needed once in a process
        found: dict[str, list[_Ran]] = {side: [] for side in backends}
        for _ in range(rounds):
            for side, backend in backends.items():
                gc.collect()
                found[side].append(_once(model, backend, steps))
    return found


def _once(model: Model, backend: str, steps: int) -> _Ran:
    torch._dynamo.reset()
    before = _inductor_seconds()
    function = torch.compile(model.module, backend=backend)
    first = _step(model, function)
    inductor = _inductor_seconds() - before
    _step(model, function)  # which may use what was learned at the first one
    later = median(_step(model, function) for _ in range(steps))
    return _Ran(first - later, inductor, later)


def _step(model: Model, function: Callable[..., torch.Tensor]) -> float:
    start = time.perf_counter()
    torch.autograd.backward(model.loss(function(model.batch[0]), model.batch[-1]))
    end = time.perf_counter()
    model.module.zero_grad(set_to_none=True)
    return end - start


def _inductor_seconds() -> float:
    """What Inductor has taken in this process."""
    return sum(sum(dynamo.compilation_time_metrics.get(part, ())) for part in _INDUCTOR)
