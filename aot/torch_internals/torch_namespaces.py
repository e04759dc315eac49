"""Which functions and classes of torch's namespaces call operators, and what its decorators are made of."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._contextlib import _DecoratorContextManager, context_decorator

__all__ = [
    "LEGACY_TYPES",
    "LEGACY_TYPE_IDS",
    "context_decorator",
    "decorator_clone",
    "operator_modules",
    "operator_names",
    "operator_namespace",
]


# ``FloatTensor`` and its like, classes that are asked whether a tensor is an instance.
LEGACY_TYPES = frozenset(kind.__name__ for kind in torch._tensor_classes)
LEGACY_TYPE_IDS = frozenset(map(id, torch._tensor_classes))


decorator_clone: Any = _DecoratorContextManager.clone


def operator_namespace() -> Any:
    """What holds the functions of `torch` that call operators."""
    return torch._C._VariableFunctions


def operator_modules() -> tuple[Any, ...]:
    """Modules of nothing but functions that call operators."""
    return tuple(getattr(torch._C, name) for name in ("_nn", "_special", "_linalg", "_fft"))


@functools.cache
def operator_names() -> frozenset[str]:
    """The names of the operators that the dispatcher has."""
    return frozenset(torch._C._dispatch_get_all_op_names())
