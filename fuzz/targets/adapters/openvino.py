"""OpenVINO, through its backend of torch.compile (https://docs.openvino.ai).

The backend is for inference. It compiles the parts of a graph that it supports, and leaves the others to
PyTorch. A graph that it cannot compile at all goes to Inductor without a warning; here that is a refusal.
"""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

from fuzz.targets.adapters.adapter import Adapter, requires
from fuzz.targets.clause_sets import clauses_of
from fuzz.targets.target import Target

_FALLS_BACK = "OpenVINO's backend falls back to Inductor"


def _prepare() -> None:
    importlib.import_module("openvino.torch")  # the import registers the backend, and sets options of Dynamo
    from openvino.frontend.pytorch.torchdynamo import backend

    backend.compile_fx = _fall_back


def _fall_back(_graph: Any, _example_inputs: Any) -> NoReturn:
    raise NotImplementedError(_FALLS_BACK)


def _refusal(error: BaseException) -> str | None:
    return "falls back to Inductor" if _FALLS_BACK in str(error) else None


def _reset() -> None:
    from openvino.frontend.pytorch.torchdynamo import execute

    execute.clear_caches()
    execute.req_cache.clear()  # `clear_caches` does not clear it


TARGETS = {
    "openvino": Adapter(
        Target.from_backend(
            "openvino",
            description="OpenVINO's backend of torch.compile, for inference",
            prepare=_prepare,
            reset=_reset,
            refusal=_refusal,
            available=requires("openvino", "openvino"),
            # Results are tensors of its own, a request shares the memory of its inputs until the next one,
            # and the CPU plugin computes double precision in single precision.
            clauses=clauses_of(("results",), without=("lifetime",)),
            computes_in={"float64": "float32"},
            flushes_denormals=True,
            lacks=("complex", "random", "subclass", "cuda"),
        ),
        "import openvino.torch",
        'torch.compile(f, backend="openvino")',
        ("openvino",),
    )
}
