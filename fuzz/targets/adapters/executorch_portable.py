"""ExecuTorch's portable kernels on the CPU, through torch.export and the edge dialect, anew for each call.

What torch.export or ExecuTorch cannot lower is a refusal, and so is an operator that the runtime has no
kernel for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

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
        exported = torch.export.export(module, arguments)
        loaded = _load_for_executorch_from_buffer(to_edge(exported).to_executorch().buffer)
    except Exception as error:
        raise NotLoweredError(f"{type(error).__name__}: {error}") from error

    signature = exported.graph_signature
    written = [name in signature.user_inputs_to_mutate.values() for name in signature.user_inputs]

    def call(*tensors: torch.Tensor) -> list[Any]:
        with torch.no_grad():
            given = [tensor.detach().contiguous().resolve_neg() for tensor in tensors]
            results: list[Any] = loaded.forward(given)
            for tensor, one, is_written in zip(tensors, given, written, strict=True):
                if is_written and one.data_ptr() != tensor.data_ptr():  # a copy has been written to
                    tensor.detach().copy_(one)
        return results

    return call


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
        lowered = to_edge(torch.export.export(Module(), args)).to_executorch()
        loaded = _load_for_executorch_from_buffer(lowered.buffer)
        results = loaded.forward([arg.detach().contiguous().resolve_neg() for arg in args])
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
