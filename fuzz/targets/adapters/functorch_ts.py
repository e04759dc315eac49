"""Compilers of functorch.compile: graphs of torch's AOTAutograd as TorchScript, or with fewer saved
tensors.
"""

from __future__ import annotations

import warnings
from typing import Any

from fuzz.targets.adapters.adapter import Adapter
from fuzz.targets.target import Function, Target


def _refusal(error: BaseException) -> str | None:
    """The refusal of a value that depends on data: graphs are compiled on fake tensors, which have no
    values.
    """
    return "depends on data" if type(error).__name__ == "DataDependentOutputException" else None


def _compile_with_ts(function: Function) -> Function:
    from functorch.compile import aot_function, ts_compile

    return _in_dict(
        lambda boxed: aot_function(boxed, fw_compiler=ts_compile, bw_compiler=ts_compile), function
    )


def _compile_with_fusion(function: Function) -> Function:
    from functorch.compile import memory_efficient_fusion

    return _in_dict(memory_efficient_fusion, function)


def _in_dict(compiler: Any, function: Function) -> Function:
    """Compile through a dict, as `torch-aot-function` does: torch's `aot_function` returns a list in
    place of a tuple.
    """

    def boxed(*args: Any) -> dict[str, Any]:
        return {"result": function(*args)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = compiler(boxed)
    return lambda *args: compiled(*args)["result"]


_CONTROLS = ("torch-aot-function",)
# TorchScript's graphs take only tensors. A module's tensors would be constants of the function, which
# `torch-aot-function` tests.
_LACKS = ("module", "cuda", "argument: scalar", "argument: complex number")

TARGETS = {
    "functorch-ts-compile": Adapter(
        Target(
            "functorch-ts-compile",
            "functorch.compile's ts_compile: graphs of AOTAutograd as TorchScript",
            _compile_with_ts,
            _refusal,
            controls=_CONTROLS,
            lacks=_LACKS,
            clauses=("training",),
        ),
        "from functorch.compile import aot_function, ts_compile",
        'lambda *args: aot_function(lambda *a: {"": f(*a)}, ts_compile, ts_compile)(*args)[""]',
    ),
    "functorch-memory-efficient-fusion": Adapter(
        Target(
            "functorch-memory-efficient-fusion",
            "functorch.compile's memory_efficient_fusion: the same with recomputation in the backward",
            _compile_with_fusion,
            _refusal,
            controls=_CONTROLS,
            lacks=_LACKS,
            clauses=("training",),
        ),
        "from functorch.compile import memory_efficient_fusion",
        'lambda *args: memory_efficient_fusion(lambda *a: {"": f(*a)})(*args)[""]',
    ),
}
