"""Bytes that a training step keeps for its backward, and the most that are alive at any time.

Measured while it runs and not computed from graphs: every storage that an operation makes is followed by a
weak reference. What is alive when the forward has returned, but for its loss, is what was saved, whoever
holds it. Parameters, buffers and the batch are not counted, since they are there anyway.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import functorch.compile as stock
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import aot
from bench.models import Model, available
from bench.report import Table

Step = Callable[..., Tensor]

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
    follower = Alive([*parameters.values(), *buffers.values(), *model.batch])
    with follower:
        loss = step(parameters, buffers, *model.batch)
        saved = follower.alive() - loss.untyped_storage().nbytes()
        torch.autograd.backward(loss)
    return Usage(saved, follower.peak)


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--model", action="append", choices=sorted(available()), help="only this one")
    parser.add_argument("--small", action="store_true", help="tiny models, for a quick look")


def measure(options: argparse.Namespace) -> list[Table]:
    """One table of saved bytes and one of peaks."""
    rows: dict[str, list[Usage | None]] = {}
    notes = []
    for name, makes in available().items():
        if options.model and name not in options.model:
            continue
        torch.manual_seed(0)
        model = makes[0 if options.small else 1]()
        rows[name] = []
        for variant, compiled in VARIANTS.items():
            try:
                torch.manual_seed(0)
                rows[name].append(usage(model, compiled(model.step)))
            except Exception as error:
                rows[name].append(None)
                notes.append(f"{name}, {variant}: {type(error).__name__}: {str(error).splitlines()[0]}")
    return [
        _table("saved for backward, MB", rows, notes, lambda one: one.saved),
        _table("peak of forward and backward, MB", rows, notes, lambda one: one.peak),
    ]


def _table(
    title: str, rows: dict[str, list[Usage | None]], notes: list[str], pick: Callable[[Usage], int]
) -> Table:
    megabytes = {name: [None if u is None else pick(u) / 1e6 for u in row] for name, row in rows.items()}
    return Table(title, ("model", *VARIANTS), tuple((n, *row) for n, row in megabytes.items()), tuple(notes))
