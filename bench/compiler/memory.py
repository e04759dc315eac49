"""Bytes that a training step keeps for its backward, that are alive at most, and that compiling needs.

Measured while it runs and not computed from graphs: every storage that an operation makes is followed by a
weak reference. What is alive when the forward has returned, but for its loss, is what was saved, whoever
holds it. Parameters, buffers and the batch are not counted, since they are there anyway.

On a GPU (`--device cuda`) the same is asked of torch's allocator, which counts in pieces of 512 bytes.

While a first step compiles, it is the process's physical memory that counts, of tensors, graphs and all else:
the most that the kernel saw (`VmHWM` of proc(5)), less what there was before the step. Each is a process of
its own, which has compiled something small before.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import functorch.compile as stock
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import aot
from bench.compiler.models import Model, State, available
from bench.report import Table
from bench.timing import first_line

Step = Callable[..., Tensor]
_PIECE = 512  # bytes: what CUDA's allocator gives out for a loss

VARIANTS: dict[str, Callable[[Step], Step]] = {
    "eager": lambda step: step,
    "stock default": lambda step: stock.aot_function(
        step, stock.nop, stock.nop, partition_fn=stock.default_partition
    ),
    "aot default": lambda step: aot.aot_function(step, aot.nop, partition_fn=aot.default_partition),
    "stock min-cut": lambda step: stock.aot_function(
        step, stock.nop, stock.nop, partition_fn=stock.min_cut_rematerialization_partition
    ),
    "aot min-cut": lambda step: aot.aot_function(
        step, aot.nop, partition_fn=aot.min_cut_rematerialization_partition
    ),
}


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operations make.

    Attributes:
        peak: the most bytes that were alive after an operation.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {t.untyped_storage()._cdata for t in known}
        self._followed: dict[int, tuple[StorageWeakRef, int]] = {}
        self._at_most = 0  # what is alive, were nothing freed since it was last counted
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor):
                self._follow(value)
        if self._at_most > self.peak:
            self.peak = max(self.peak, self.alive())
        return result

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._at_most += storage.nbytes()
            self._followed[storage._cdata] = (
                StorageWeakRef(storage),  # type: ignore[no-untyped-call]
                storage.nbytes(),
            )

    def alive(self) -> int:
        """The bytes of all storages that are alive."""
        followed = self._followed.items()
        gone = [key for key, (ref, _) in followed if ref.expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._followed[key]
        self._at_most = sum(size for _, size in self._followed.values())
        return self._at_most


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes saved for backward, and bytes alive at the peak of a step, gradients included."""

    saved: int
    peak: int


def usage(model: Model, step: Step) -> Usage:
    """What one training step uses, after one that compiles."""
    parameters, buffers = model.state()
    torch.autograd.backward(step(parameters, buffers, *model.batch))
    for parameter in parameters.values():
        parameter.grad = None
    gc.collect()
    if model.batch[0].is_cuda:
        return _allocated(model, step, parameters, buffers)
    follower = Alive([*parameters.values(), *buffers.values(), *model.batch])
    with follower:
        loss = step(parameters, buffers, *model.batch)
        saved = follower.alive() - loss.untyped_storage().nbytes()
        torch.autograd.backward(loss)
    return Usage(saved, follower.peak)


def _allocated(model: Model, step: Step, parameters: State, buffers: State) -> Usage:
    """The same, as the allocator of the current CUDA device counts it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = step(parameters, buffers, *model.batch)
    saved = torch.cuda.memory_allocated() - before - _PIECE
    torch.autograd.backward(loss)
    return Usage(saved, torch.cuda.max_memory_allocated() - before)


def compiling(name: str, small: bool, variant: str) -> int:
    """The bytes of physical memory that a model's first step needs at most, in this process.

    Raises:
        OSError: there is no /proc to ask, or it cannot be told to forget an earlier peak.
    """
    torch.set_num_threads(1)
    compiled = VARIANTS[variant]
    torch.autograd.backward(compiled(lambda x: x.sin().sum())(torch.ones(2, requires_grad=True)))
    torch.manual_seed(0)
    model = available()[name][0 if small else 1]()
    step = compiled(model.step)
    parameters, buffers = model.state()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = _kilobytes("VmRSS")
    torch.autograd.backward(step(parameters, buffers, *model.batch))
    return 1024 * (_kilobytes("VmHWM") - before)


def _kilobytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--model", action="append", choices=sorted(available()), help="only this one")
    parser.add_argument("--device", default="cpu", help="where the models are (default: cpu)")
    parser.add_argument("--small", action="store_true", help="tiny models, for a quick look")


def measure(options: argparse.Namespace) -> list[Table]:
    """One table of saved bytes, one of peaks, and on a CPU one of what compiling needs."""
    rows: dict[str, list[Usage | None]] = {}
    peaks: dict[str, list[int | None]] = {}
    notes = []
    for name, makes in available().items():
        if options.model and name not in options.model:
            continue
        torch.manual_seed(0)
        model = makes[0 if options.small else 1]().to(options.device)
        rows[name] = []
        for variant, compiled in VARIANTS.items():
            try:
                torch.manual_seed(0)
                rows[name].append(usage(model, compiled(model.step)))
            except Exception as error:
                rows[name].append(None)
                notes.append(f"{name}, {variant}: {first_line(error)}")
        if options.device == "cpu":
            peaks[name] = _compiling(name, options.small, notes)
    tables = [
        _table(
            "saved for backward, MB",
            {n: [None if u is None else u.saved for u in row] for n, row in rows.items()},
            notes,
        ),
        _table(
            "peak of forward and backward, MB",
            {n: [None if u is None else u.peak for u in row] for n, row in rows.items()},
        ),
    ]
    if peaks:
        tables.append(_table("peak of a first step, which compiles, MB of physical memory", peaks))
    return tables


def _compiling(name: str, small: bool, notes: list[str]) -> list[int | None]:
    found: list[int | None] = []
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, fresh, max_tasks_per_child=1) as pool:
        for variant in VARIANTS:
            try:
                found.append(pool.submit(compiling, name, small, variant).result())
            except Exception as error:
                found.append(None)
                notes.append(f"{name}, {variant}, compiling: {first_line(error)}")
    return found


def _table(title: str, rows: dict[str, list[int | None]], notes: Sequence[str] = ()) -> Table:
    megabytes = ((name, *(None if n is None else n / 1e6 for n in row)) for name, row in rows.items())
    return Table(title, ("model", *VARIANTS), tuple(megabytes), tuple(notes))
