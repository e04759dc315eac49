"""TorchScript's tracer: torch.jit.trace, anew for each call, and the trace run with what it was made of.

A trace has no modes, hooks or Python objects, and what is no tensor is a constant of it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from fuzz.targets.adapters.adapter import Adapter
from fuzz.targets.adapters.flat_calls import compile_flat
from fuzz.targets.clause_sets import clauses_of
from fuzz.targets.target import Function, Target

if TYPE_CHECKING:
    import torch


def _export(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> Function:
    import torch

    # The tracer runs the function, which may write to its arguments: it is given others.
    copies = tuple(one.detach().clone().requires_grad_(one.requires_grad) for one in arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Function = torch.jit.trace(module, copies, check_trace=False)  # type: ignore[no-untyped-call]
    return traced


_SCRIPT = """
def trace(f):
    def call(*args):
        copies = tuple(one.detach().clone().requires_grad_(one.requires_grad) for one in args)
        return torch.jit.trace(f, copies, check_trace=False)(*args)

    return call
""".strip()

TARGETS = {
    "torchscript-trace": Adapter(
        Target(
            "torchscript-trace",
            "torch.jit.trace, run with the arguments that it was traced with",
            compile_flat(_export),
            clauses=clauses_of(("training",), without=("repeat", "threads", "lifetime", "once", "refusals")),
            lacks=("cuda", "module", "python", "random", "subclass"),
        ),
        _SCRIPT,
        "trace(f)",
    )
}
