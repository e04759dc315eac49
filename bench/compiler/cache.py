"""Cache on disk: the first step of a model in a process that finds its compile, beside one that does not.

Each side is a process of its own: with no cache, with an empty one that it fills, with a filled one. CPU time
of what the backend does in the first forward and backward (those less the second ones), Dynamo aside, and of
the whole first step, Dynamo included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.compiler.models import Model, resnet, transformer
from bench.report import Table
from bench.timing import Cells, Spread, cells, columns

SIDES = ("none", "empty", "filled")


def _mlp() -> Model:
    layers = [layer for _ in range(20) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())]
    return Model(nn.Sequential(*layers), (torch.randn(4, 16), torch.arange(4)), nn.functional.cross_entropy)


MODELS: dict[str, Callable[[], Model]] = {
    "MLP of 60 layers": _mlp,
    "8 conv-BN blocks": lambda: resnet(2, 4, 8, 8),
    "TransformerEncoder, 2 layers": lambda: transformer(2, 6, 8, 2),
    "TransformerEncoder, 6 layers": lambda: transformer(2, 6, 8, 6),
}
BACKENDS = ("aotfuzz", "aotfuzz_inductor")


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind (default: 5)")
    parser.add_argument("--model", choices=list(MODELS), nargs="*", help="these alone (default: all)")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0], help="default: aotfuzz")


def measure(options: argparse.Namespace) -> list[Table]:
    """Start the processes of each model, kind after kind, round after round."""
    backend: list[Cells] = []
    whole: list[Cells] = []
    for name in options.model or MODELS:
        times: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                for side in SIDES:
                    times[side].append(_started(name, options.backend, side, folder))
        for rows, what in ((backend, "backend"), (whole, "step")):
            spreads = {side: Spread(tuple(one[what] for one in times[side])) for side in SIDES}
            cold, storing, hot = (spreads[side] for side in SIDES)
            known = (cell for side in SIDES for cell in cells(spreads[side], 1e-3))
            rows.append((name, *known, storing.ratio(cold), hot.ratio(cold)))
    heads = ("model", *columns(*SIDES), "empty / none", "filled / none")
    title = f"{options.backend}: compiling forward and first backward, ms of CPU time"
    other = "the whole first step, Dynamo included, ms of CPU time"
    return [Table(title, heads, tuple(backend)), Table(other, heads, tuple(whole))]


def _started(name: str, backend: str, side: str, folder: str) -> dict[str, float]:
    environment = dict(os.environ)
    environment.pop("AOTFUZZ_CACHE_DIR", None)
    environment["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"  # as empty, or filled, as ours
    if side != "none":
        environment["AOTFUZZ_CACHE_DIR"] = f"{folder}/aot"
    elif backend != BACKENDS[0]:
        environment["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor, once"
    command = [sys.executable, "-m", "bench.compiler.cache", name, backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def step(name: str, backend: str) -> dict[str, float]:
    """The first step of a model in this process, in seconds of CPU time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()  # loads it
    model = MODELS[name]()
    spent: list[float] = []

    def timed(graph: Any, inputs: Any) -> Any:
        compiled = torch._dynamo.lookup_backend(backend)(graph, inputs)

        def run(*args: Any) -> Any:
            start = time.process_time()
            results = compiled(*args)
            spent.append(time.process_time() - start)
            return results

        return run

    function = torch.compile(model.module, backend=timed)
    steps, backwards = [], []
    for _ in range(2):
        start = time.process_time()
        loss = model.loss(function(model.batch[0]), model.batch[-1])
        middle = time.process_time()
        torch.autograd.backward(loss)
        end = time.process_time()
        steps.append(end - start)
        backwards.append(end - middle)
        model.module.zero_grad(set_to_none=True)
    first, second = (sum(half) for half in (spent[: len(spent) // 2], spent[len(spent) // 2 :]))
    return {"backend": first - second + backwards[0] - backwards[1], "step": steps[0]}


if __name__ == "__main__":
    print(json.dumps(step(*sys.argv[1:])))
