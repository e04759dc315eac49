"""ExecuTorch's portable kernels on the CPU, through torch.export and the edge dialect, for each call anew.

A program that torch.export or ExecuTorch cannot lower is a refusal, and so is an operator without a kernel in
the runtime. The runtime copies its inputs, so writes to arguments are lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fuzz.targets.adapters.adapter import Adapter, requires
from fuzz.targets.adapters.flat_calls import GRAPH_CLAUSES, GRAPH_LACKS, compile_flat
from fuzz.targets.target import Function, Target

if TYPE_CHECKING:
    import torch


class NotLoweredError(Exception):
    """torch.export or ExecuTorch's lowering has raised, or a method cannot be loaded."""


def _export(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> Function:
    import torch
    from executorch.exir import to_edge
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    try:
        plain = tuple(_plain(tensor).requires_grad_(tensor.requires_grad) for tensor in arguments)
        lowered = to_edge(torch.export.export(module, plain)).to_executorch()
        loaded = _load_for_executorch_from_buffer(lowered.buffer)
    except Exception as error:
        raise NotLoweredError(f"{type(error).__name__}: {error}") from error
    return lambda *tensors: loaded.forward([_plain(tensor) for tensor in tensors])


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without history in a layout that the runtime takes; a copy if it has another layout."""
    return tensor.detach().contiguous().resolve_neg()


def _refusal(error: BaseException) -> str | None:
    if isinstance(error, NotLoweredError):
        return "not lowered"
    return "no kernel" if _NO_KERNEL.search(str(error)) else None


_NO_KERNEL = re.compile(r"error: 0x1[0134]\b")
"""NotSupported, NotImplemented, InvalidType, OperatorMissing (executorch/runtime/core/error.h)."""

_SCRIPT = """
from executorch.exir import to_edge
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

def executorch(f):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return f(*args)

    def call(*args):
        args = tuple(arg.detach().contiguous().resolve_neg() for arg in args)
        lowered = to_edge(torch.export.export(Module(), args)).to_executorch()
        results = _load_for_executorch_from_buffer(lowered.buffer).forward(args)
        return results[0] if len(results) == 1 else tuple(results)

    return call
""".strip()

TARGETS = {
    "executorch": Adapter(
        Target(
            "executorch",
            "ExecuTorch's portable kernels on the CPU, through torch.export",
            compile_flat(_export),
            _refusal,
            available=requires("executorch", "executorch"),
            clauses=GRAPH_CLAUSES,
            controls=("torch-export",),
            lacks=GRAPH_LACKS,
        ),
        _SCRIPT,
        "executorch(f)",
        ("executorch",),
    )
}
