"""ONNX Runtime on the CPU, through torch.onnx.export(dynamo=True), exported for each call anew.

An ONNX graph takes and returns tensors. It writes to no argument, draws other random numbers, and returns
memory of its own. Programs that the exporter declines are refusals, and so are operators without a kernel in
the runtime.
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
    assert program is not None  # it is None only if a file is written
    call: Function = program
    return call


def _prepare() -> None:
    """Cache the exporter's table of operators. To make it for each program is two thirds of its time."""
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
