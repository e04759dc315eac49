"""Exception origin: the innermost function of the compiler under test that raised.

Two exceptions with the same origin and message count as one bug, whatever program raised them. Frames of this
project, of generated code and of torch's dispatcher are skipped, because every operator passes through them.
"""

from __future__ import annotations

import traceback
from types import TracebackType

from oracles.object_names import encodable

_LONGEST = 200
# Packages and modules that are skipped: callers, and code that every operator passes through.
_PASSED = (
    *("fuzz", "oracles", "contextlib", "functools", "torch._ops", "torch._tensor", "torch.overrides"),
    *("torch._compile", "torch._prims_common.wrappers", "torch._subclasses", "torch.autograd"),
    *("torch.utils._python_dispatch", "torch.utils._pytree", "torch.utils._stats", "torch.utils._traceback"),
    *("torch.fx.experimental.proxy_tensor", "torch.fx.interpreter", "torch.fx.graph_module"),
    *("torch.nn.modules.module", "torch._library", "torch._dynamo.eval_frame"),
)
_CHECKS = "torch"  # the module of `torch._check`, with which other modules raise


def exception_origin(trace: TracebackType | None) -> str:
    """The module and name of the innermost function that is not skipped; "" if there is none.

    Example:
        try:
            torch.compile(f, backend="aot_eager")(x)
        except Exception as error:
            exception_origin(error.__traceback__)
            # "torch._functorch._aot_autograd.functional_utils.gen_alias"
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
