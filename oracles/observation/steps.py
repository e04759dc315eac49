"""Steps: backwards and changes after a call, in the order that a case gives.

In: a sequence of `Step`s and the live tensors of an observation. Out: one or two records for each step.

A backward may free the graph, keep it, accumulate into `.grad`, or be differentiated again. A write to an
argument or result may be noticed by a later backward. `requires_grad_()` may give a history to views that
were taken before. A target has to do in each case what eager does.
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
    """Take gradients from some results.

    Attributes:
        roots: indices, modulo their number, into the tensors that a backward can start from: results, then
            inputs with another history than before the call. None is all.
        how: "plain" takes the gradients of arguments and leaves with `torch.autograd.grad`. "accumulate" adds
            to the leaves' `.grad` with `torch.autograd.backward`. "double" is plain with `create_graph=True`,
            and differentiates the gradients afterwards.
        retain: keep the graph. A double backward always keeps it.
    """

    roots: tuple[int, ...] | None = None
    how: How = "plain"
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Do `tensor.mul_(2)` to the argument or result at `path`, such as `arg[0]` or `out[1]['k']`.

    It runs under no_grad, and in inference mode if the tensor is an argument that was made in inference mode.
    """

    path: str


@dataclass(frozen=True, slots=True)
class Require:
    """Do `tensor.requires_grad_()` to the argument or result at `path`.

    If that makes it a leaf, later backwards take its gradient too.
    """

    path: str


Step = Backward | Write | Require


@dataclass(slots=True)
class Steps:
    """The state of one observation's steps.

    Attributes:
        roots: gives the tensors from which a backward can start at this time.
        moved: gives the inputs among them.
        targets: the edges of which gradients are taken. A double backward takes those of moved inputs too.
        leaves: the known leaves.
        tensors: the arguments, the tensors behind them and the results, by path.
        known: all known tensors with their readers.
        refusal: gives the reason if an exception is a legitimate refusal.
        refused: why a backward was refused, or None.
        broken: a backward raised before it was complete.
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
        """Do the steps and record each.

        Steps end after a refusal. They end too after a backward that raised while it accumulated gradients or
        freed the graph: how much it had done depends on the order in which the engine ran nodes.
        """
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
        """Make a tensor require grad, and record from which tensors a backward can start then.

        All views of the tensor then say that they require grad. Only those that are older than a write to the
        tensor lead to it.
        """
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
        """The edges of inputs that have another history than before the call.

        Wrapper subclasses are left out (docs/reference/contract.md, *Not kept*).
        """
        moved = ((path, tensor) for path, tensor in self.moved() if not hasattr(tensor, "__tensor_flatten__"))
        found = {path: edge_of(tensor) for path, tensor in moved}
        return {f"{path} (as it is now)": edge for path, edge in found.items() if edge is not None}

    def _noted(self, differentiated: Differentiated) -> GradientRun:
        if differentiated.error is not None and self.refusal is not None:
            self.refused = self.refusal(differentiated.error)
        return differentiated.run
