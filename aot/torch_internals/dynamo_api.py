"""Dynamo: frames that it skips, marks that it leaves on tensors and nodes, its registry of backends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "TORCH_ATTRIBUTE_PREFIXES",
    "dynamic_mark",
    "has_dynamic_marks",
    "is_module_state",
    "is_number_input",
    "is_static_input",
    "is_version_decrement",
    "register_if_loading",
    "skip",
]


# How Python attributes of tensors begin that torch keeps there for itself.
TORCH_ATTRIBUTE_PREFIXES = ("__", "_dynamo_")


def skip(function: Any) -> Any:
    """Let Dynamo trace neither `function` nor what it calls. Unlike `torch.compiler.disable`, it costs calls
    nothing more."""
    function._torchdynamo_disable = True  # as part of a caller
    frames = torch._C._dynamo.eval_frame
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def dynamic_mark(tensor: Tensor, dimension: int) -> bool | None:
    """Whether a dimension is marked as one whose size changes (``torch._dynamo.mark_dynamic``), or as one
    whose size does not (``mark_static``); None if it is not marked."""
    for name, answer in _MARKS.items():
        if dimension in getattr(tensor, name, ()):
            return answer
    return None


_MARKS = {
    "_dynamo_dynamic_indices": True,
    "_dynamo_weak_dynamic_indices": True,
    "_dynamo_static_indices": False,
}


def has_dynamic_marks(tensor: Tensor) -> bool:
    """Whether a dimension is marked as one whose size changes."""
    return any(getattr(tensor, name, ()) for name, answer in _MARKS.items() if answer)


def is_static_input(node: torch.fx.Node) -> bool:
    """Whether Dynamo has marked an input of its graph as lying in one place from call to call."""
    return bool(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def is_module_state(node: torch.fx.Node) -> bool:
    """Whether an input of Dynamo's graph is a parameter or a buffer."""
    return is_static_input(node) or isinstance(node.meta.get("example_value"), torch.nn.Parameter)


def is_number_input(node: torch.fx.Node) -> bool:
    """Whether an input of Dynamo's graph is a Python float, which a call hands over as a tensor (float64, no
    dimensions)."""
    example = node.meta.get("example_value")
    is_scalar = isinstance(example, Tensor) and (example.dtype, example.dim()) == (torch.float64, 0)
    return is_scalar and bool(getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False))


def is_version_decrement(function: Any) -> bool:
    """Whether this is what Dynamo calls on a tensor after `set_` where the program assigns ``.data``."""
    return getattr(function, "__name__", "") == "_lower_version_count_by_1"


_registry_lock = threading.Lock()


def register_if_loading(backend: Callable[..., Any], name: str) -> bool:
    """Register a backend if Dynamo is loading it by its entry point, once for all threads that do.

    The caller is a module's ``__getattr__``, asked by ``EntryPoint.load``. Dynamo's `lookup_backend`
    registers what `load` returns, and raises for a name that another thread has registered meanwhile. None is
    not registered: `register_backend` takes it for its use as a decorator. Dynamo looks the name up then.
    """
    registry = sys.modules.get("torch._dynamo.backends.registry")
    loading = sys._getframe(1).f_back
    asking = None if loading is None else loading.f_back
    if registry is None or asking is None or asking.f_code is not registry.lookup_backend.__code__:
        return False
    with _registry_lock:
        if name not in registry._COMPILER_FNS:
            registry.register_backend(backend, name=name)
    return True
