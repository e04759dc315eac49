"""What is done after a call, step by step: backwards of every kind, and changes in between.

Without any steps `observe` does what it does by itself. With them it does them in order: a backward that
frees the graph, one that keeps it, one that accumulates into `.grad`, one that is differentiated again, and
writes to arguments and results, which a later backward notices or not, as in eager. A tensor may be made to
require grad, and then so do views of it that were taken before, or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.autograd.graph import GradientEdge

from oracles.observation.gradients import (
    Differentiated,
    Roots,
    accumulate_gradients,
    differentiate_roots,
    edge_of,
    observe_later_write,
    record_exception,
)
from oracles.observation.records import GradientRun, LaterRequire, LaterWrite, Raised, Refusal
from oracles.observation.tensor_state import Known

How = Literal["plain", "accumulate", "double"]


@dataclass(frozen=True, slots=True)
class Backward:
    """Gradients from some results: of all arguments and leaves, or accumulated into the leaves' `.grad`.

    `roots` are indices, modulo their number, into what a backward can start from: results, then inputs with
    another history than before the call; None is all. `how` is "plain" (`torch.autograd.grad`), "accumulate"
    (`torch.autograd.backward`) or "double": with `create_graph=True`, and then the gradients are
    differentiated themselves. Unless `retain`, the graph is freed (a double backward keeps it).
    """

    roots: tuple[int, ...] | None = None
    how: How = "plain"
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """`tensor.mul_(2)` of the argument or result at a path such as `arg[0]`, `out[1]['k']`: under no_grad, or
    in inference mode if it is an argument that was made in that."""

    path: str


@dataclass(frozen=True, slots=True)
class Require:
    """`tensor.requires_grad_()` of the argument or result at a path, which later backwards go to if that made
    a leaf of it."""

    path: str


Step = Backward | Write | Require


@dataclass(slots=True)
class Steps:
    """The steps of one observation under way.

    `roots` gives what a backward may start from, now, and `moved` those of the inputs. Gradients are taken of
    `targets`, and in a double backward of the inputs that have moved as well; `leaves` are the known leaves;
    `tensors` are the arguments and results by path. `refused` is why one of the backwards was refused,
    `broken` whether one raised half-way.
    """

    roots: Callable[[], Roots]
    moved: Callable[[], Roots]
    targets: dict[str, GradientEdge]
    leaves: Roots
    tensors: Mapping[str, torch.Tensor]
    known: Sequence[Known]
    refusal: Refusal | None
    refused: str | None = None
    broken: bool = False

    def take_steps(self, steps: Sequence[Step]) -> Iterator[GradientRun | LaterWrite | LaterRequire]:
        """Do the steps, and record each; nothing is done after a refusal, nor after a backward that raised
        while it accumulated or freed: what it had done by then depends on the engine's order."""
        for step in steps:
            if self.refused is not None or self.broken:
                return
            match step:
                case Write(path) if path in self.tensors:
                    tensor = self.tensors[path]
                    made = tensor.is_inference() and not path.startswith("out")
                    with torch.inference_mode(made), torch.no_grad():
                        yield observe_later_write(path, tensor, self.known)
                case Require(path) if path in self.tensors:
                    tensor = self.tensors[path]
                    before = tensor.requires_grad
                    yield self._take_requires_grad_step(path, tensor)
                    if not before and tensor.requires_grad:
                        self._add_leaf(path, tensor)
                case Backward():
                    yield from self._take_backward_step(step)

    def _take_backward_step(self, step: Backward) -> Iterator[GradientRun]:
        roots = self.roots()
        if not roots or not self.targets:
            return
        wanted = range(len(roots)) if step.roots is None else step.roots
        chosen = sorted({index % len(roots) for index in wanted})
        if not chosen:
            return
        picked = tuple(roots[index] for index in chosen)
        if step.how == "accumulate":
            accumulated = accumulate_gradients(picked, self.leaves, chosen, retain=step.retain)
            self.broken = accumulated.error is not None
            yield self._noted(accumulated)
            return
        double = step.how == "double"
        targets = {**self.targets, **self._written()} if double else self.targets
        first = differentiate_roots(picked, targets, chosen, retain=step.retain, create=double)
        self.broken = first.error is not None and not step.retain
        yield self._noted(first)
        if not double or first.error is not None:
            return
        gradients = tuple(
            (f"grad of {path}", gradient)
            for path, gradient in zip(targets, first.gradients, strict=True)
            if gradient is not None and gradient.requires_grad
        )
        if gradients:
            ordinals = range(len(gradients))
            yield self._noted(differentiate_roots(gradients, targets, ordinals, "double backward"))

    def _take_requires_grad_step(self, path: str, tensor: torch.Tensor) -> LaterRequire:
        """Views of the tensor that are older than a write to it lead to it from then on, and others do not;
        all of them say that they require grad."""
        error: Raised | None = None
        try:
            tensor.requires_grad_()
        except Exception as exception:
            error = record_exception("later requires_grad_", exception)
        return LaterRequire(path, error, tuple(name for name, _ in self.roots()))

    def _add_leaf(self, path: str, tensor: torch.Tensor) -> None:
        edge = edge_of(tensor)
        if edge is not None and tensor.grad_fn is None:
            self.targets[f"{path} (a leaf since a step)"] = edge
            self.leaves = (*self.leaves, (path, tensor))

    def _written(self) -> dict[str, GradientEdge]:
        """The edges of inputs that have another history than before the call: not of wrapper subclasses
        (docs/reference/contract.md, *Not kept*)."""
        moved = ((path, tensor) for path, tensor in self.moved() if not hasattr(tensor, "__tensor_flatten__"))
        found = {path: edge_of(tensor) for path, tensor in moved}
        return {f"{path} (as it is now)": edge for path, edge in found.items() if edge is not None}

    def _noted(self, differentiated: Differentiated) -> GradientRun:
        if differentiated.error is not None and self.refusal is not None:
            self.refused = self.refusal(differentiated.error)
        return differentiated.run
