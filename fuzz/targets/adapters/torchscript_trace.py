"""TorchScript's tracer: torch.jit.trace for each call anew, and the trace runs with the same arguments.

A trace has no modes, hooks or Python objects. Arguments that are no tensors are constants of it.
"""

from __future__ import annotations

import copy
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

    # The tracer runs the function, which may write to its arguments, so it gets copies with the same layout.
    copies = copy.deepcopy(tuple(one.detach() for one in arguments))
    for one, argument in zip(copies, arguments, strict=True):
        one.requires_grad_(argument.requires_grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Function = torch.jit.trace(module, copies, check_trace=False)  # type: ignore[no-untyped-call]
    return traced


_SCRIPT = """
import copy

def trace(f):
    def call(*args):
        copies = copy.deepcopy(tuple(one.detach() for one in args))
        for one, arg in zip(copies, args):
            one.requires_grad_(arg.requires_grad)
        return torch.jit.trace(f, copies, check_trace=False)(*args)

    return call
""".strip()

TARGETS = {
    "torchscript-trace": Adapter(
        Target(
            "torchscript-trace",
            "torch.jit.trace, run with the arguments that it was traced with",
            compile_flat(_export),
            clauses=clauses_of(
                ("results", "strides", "aliasing"), without=("repeat", "threads", "lifetime", "refusals")
            ),
            lacks=(
                *("cuda", "module", "python", "random", "subclass", "argument: parameter"),
                *("gradient: retained", "gradient: hook", "metadata: requires_grad_", "metadata: detach_"),
            ),
        ),
        _SCRIPT,
        "trace(f)",
    )
}
