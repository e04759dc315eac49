"""Which functions and classes of torch's namespaces call operators, and what its decorators are made of."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._contextlib import _DecoratorContextManager, context_decorator

__all__ = [
    "LEGACY_TYPES",
    "LEGACY_TYPE_IDS",
    "all_operators",
    "clone_of_mode",
    "context_decorator",
    "operator_functions",
    "operator_spaces",
]


# ``FloatTensor`` and its like, classes that are asked whether a tensor is an instance.
LEGACY_TYPES = frozenset(kind.__name__ for kind in torch._tensor_classes)
LEGACY_TYPE_IDS = frozenset(map(id, torch._tensor_classes))


clone_of_mode: Any = _DecoratorContextManager.clone


def operator_functions() -> Any:
    """What holds the functions of `torch` that call operators."""
    return torch._C._VariableFunctions


def operator_spaces() -> tuple[Any, ...]:
    """Modules of nothing but functions that call operators."""
    return tuple(getattr(torch._C, name) for name in ("_nn", "_special", "_linalg", "_fft"))


@functools.cache
def all_operators() -> frozenset[str]:
    """The names of the operators that the dispatcher has."""
    return frozenset(torch._C._dispatch_get_all_op_names())
