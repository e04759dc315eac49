"""Adapters: other people's compilers that ship as targets, one module each.

    openvino                 OpenVINO's backend of torch.compile
    onnxruntime_export       ONNX Runtime, through torch.onnx.export
    tvm_relax                Apache TVM, through torch.export and Relax
    executorch_portable      ExecuTorch's portable kernels, through torch.export
    thunder                  Lightning Thunder
    torch_export             torch.export and run_decompositions
    torchscript_trace        torch.jit.trace
    functorch_ts             functorch.compile: ts_compile and memory_efficient_fusion

Each module has `TARGETS`, and imports its library when a target is used. If a library is not installed, the
target's `available` says so.

    adapter("openvino").target.available()
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from fuzz.targets.adapters.adapter import Adapter

_MODULES = {
    "openvino": ("openvino",),
    "onnxruntime_export": ("onnxruntime",),
    "tvm_relax": ("tvm",),
    "executorch_portable": ("executorch",),
    "thunder": ("thunder",),
    "torch_export": ("torch-export",),
    "torchscript_trace": ("torchscript-trace",),
    "functorch_ts": ("functorch-ts-compile", "functorch-memory-efficient-fusion"),
}

ADAPTED: Mapping[str, str] = MappingProxyType(
    {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)
"""The names of the targets, each with its module."""


def adapter(name: str) -> Adapter:
    """The adapter of that name.

    Raises:
        KeyError: there is none.
    """
    found: Adapter = importlib.import_module(ADAPTED[name]).TARGETS[name]
    return found
