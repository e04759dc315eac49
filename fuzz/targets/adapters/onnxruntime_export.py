"""ONNX Runtime on the CPU, through torch.onnx.export(dynamo=True), exported anew for each call.

An ONNX graph takes tensors and gives tensors: it writes to no argument, draws other numbers, and what it
returns is memory of its own. What the exporter declines, and kernels that the runtime says it has none of,
are refusals.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from fuzz.targets.adapters.adapter import Adapter, requires
from fuzz.targets.adapters.flat_calls import GRAPH_CLAUSES, GRAPH_LACKS, compile_flat
from fuzz.targets.target import Function, Target

if TYPE_CHECKING:
    import torch


def _export(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> Function:
    import torch

    program = torch.onnx.export(module.eval(), arguments, dynamo=True, verbose=False)
    assert program is not None  # it is None where a file is written
    call: Function = program
    return call


def _prepare() -> None:
    """Keep the exporter's table of operators, which it makes for each program: two thirds of its time."""
    from torch.onnx._internal.exporter import _registration

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    registry: Any = _registration.ONNXRegistry
    if not hasattr(registry.from_torchlib, "cache_info"):
        registry.from_torchlib = staticmethod(cache(registry.from_torchlib))


def _refusal(error: BaseException) -> str | None:
    import torch

    if isinstance(error, torch.onnx.errors.OnnxExporterError):
        return "not exported"
    return "no kernel" if "NOT_IMPLEMENTED" in str(error) else None


_SCRIPT = """
def onnx_runtime(f):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return f(*args)

    return lambda *args: torch.onnx.export(Module().eval(), args, dynamo=True, verbose=False)(*args)
""".strip()

TARGETS = {
    "onnxruntime": Adapter(
        Target(
            "onnxruntime",
            "ONNX Runtime on the CPU, through torch.onnx.export(dynamo=True)",
            compile_flat(_export),
            _refusal,
            prepare=_prepare,
            available=requires("onnxruntime", "onnx", "onnxscript", "onnxruntime"),
            clauses=GRAPH_CLAUSES,
            controls=("torch-export",),
            lacks=GRAPH_LACKS,
        ),
        _SCRIPT,
        "onnx_runtime(f)",
        ("onnxruntime", "onnx", "onnxscript"),
    )
}
