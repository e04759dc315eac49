"""Where an exception was raised: the innermost function of the compiler under test.

Two exceptions of one function with one message are one fault, whatever the program that met it. Frames of
this project, of generated code and of torch's dispatcher say nothing of that: every operator comes by there.
"""

from __future__ import annotations

import traceback
from types import TracebackType

from oracles.object_names import encodable

_LONGEST = 200
# Packages and modules that are never to blame: those who call, and those that every operator goes through.
_PASSED = (
    *("fuzz", "oracles", "contextlib", "functools", "torch._ops", "torch._tensor", "torch.overrides"),
    *("torch._compile", "torch._prims_common.wrappers", "torch._subclasses", "torch.autograd"),
    *("torch.utils._python_dispatch", "torch.utils._pytree", "torch.utils._stats", "torch.utils._traceback"),
    *("torch.fx.experimental.proxy_tensor", "torch.fx.interpreter", "torch.fx.graph_module"),
    *("torch.nn.modules.module", "torch._library", "torch._dynamo.eval_frame"),
)
_CHECKS = "torch"  # the module of `torch._check`, by which others raise


def exception_origin(trace: TracebackType | None) -> str:
    """The module and name of the innermost function that may be to blame; "" if there is none.

    try:
        torch.compile(f, backend="aot_eager")(x)
    except Exception as error:
        exception_origin(error.__traceback__)  # "torch._functorch._aot_autograd.functional_utils.gen_alias"
    """
    origin = ""
    for frame, _ in traceback.walk_tb(trace):
        code = frame.f_code
        module = frame.f_globals.get("__name__")
        if type(module) is not str or code.co_filename.startswith("<") or _is_passed(module):
            continue
        origin = f"{module}.{code.co_name}"
    return encodable(origin)[:_LONGEST]


def _is_passed(module: str) -> bool:
    return module == _CHECKS or any(module == name or module.startswith(f"{name}.") for name in _PASSED)
