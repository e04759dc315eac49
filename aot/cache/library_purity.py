"""Library purity: the functions and types of torch, numpy and Python whose results depend only on arguments.

In: an object. Out: a boolean. A call of a pure function reads nothing else, so the cache key needs only its
name. The tables here list what is allowed; anything else may read anything.
Invariant: objects are looked up by identity. So an object that replaces a function in its library is not
pure.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import math
import operator
import types
from typing import Any

import numpy
import torch
from torch import nn

from aot.cache.codec import OURS
from aot.torch_internals import op_queries, torch_namespaces

# Types of values that an operator's Python gets or can make. For the context of an autograd function it is
# the function class.
_TYPES: tuple[type, ...] = (
    *(torch.Tensor, nn.Parameter, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(torch.finfo, torch.iinfo, torch.SymInt, torch.SymFloat, torch.SymBool, torch.autograd.Function),
    *(int, float, bool, complex, str, bytes, tuple, list, dict, range, slice, type(None)),
    *(map, zip, filter, enumerate, reversed, type(iter([])), type(Ellipsis)),
    *(type({}.keys()), type({}.items())),
    *(functools.partial, itertools.chain, itertools.product, itertools.accumulate, itertools.repeat),
    *(itertools.islice, itertools.count, itertools.zip_longest, itertools.starmap, itertools.combinations),
    *(numpy.float64, numpy.float32, numpy.float16, numpy.int64, numpy.int32, numpy.bool_),
)
_CONSTANTS: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis), tuple, slice, torch.Size),
    *(torch.dtype, torch.layout, torch.memory_format, torch.device),
)
_CLASSES: tuple[type, ...] = tuple(kind for kind in _TYPES if kind is not torch.autograd.Function)
# Attributes that read the process, or evaluate a string.
_IMPURE_ATTRIBUTES = frozenset(
    (
        *("format", "format_map"),  # which read attributes
        *("share_memory_", "is_shared", "data_ptr", "storage", "untyped_storage", "typed_storage"),
        *("module_load", "reinforce", "saved_variables", "tofile", "dump", "dumps", "setflags"),
    )
)
_OF_VMAP = frozenset(("batch_size", "randomness"))  # attributes of the info that a vmap rule gets
_BUILTINS = frozenset(
    (
        *("abs", "all", "any", "bool", "callable", "chr", "complex", "dict", "divmod", "enumerate", "filter"),
        *("float", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next"),
        *("ord", "pow", "range", "repr", "reversed", "round", "slice", "sorted", "str", "sum"),
        *("tuple", "zip"),
        *("ArithmeticError", "AssertionError", "AttributeError", "Exception", "IndexError", "KeyError"),
        *("NotImplementedError", "RuntimeError", "StopIteration", "TypeError", "ValueError"),
        *("ZeroDivisionError", "OverflowError"),
    )
)
_READERS = frozenset(
    ("all", "any", "dict", "enumerate", "iter", "len", "list", "max", "min", "reversed", "sorted", "sum")
) | {"tuple", "zip"}
_IMPURE_OF_TORCH = frozenset(("from_file", "cudnn_is_acceptable", "is_vulkan_available", "frombuffer"))
# Pure functions of torch that are no operators. Default dtype and grad mode are in every key.
_OF_TORCH = frozenset(
    (
        *("tensor", "as_tensor", "asarray", "is_tensor", "get_default_dtype", "is_grad_enabled"),
        *("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum"),
        *("_check", "_check_index", "_check_is_size", "_check_not_implemented", "_check_tensor_all"),
        *("_check_type", "_check_value", "_check_with", "_assert"),
    )
)
_FUNCTIONALS = ("torch.functional", "torch.nn.functional", "torch._jit_internal")
_IMPURE_FUNCTIONALS = frozenset(("handle_torch_function", "boolean_dispatch", "lobpcg"))
_UFUNCS = frozenset(
    (
        *("sqrt", "cbrt", "square", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"),
        *("tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "absolute", "sign"),
        *("floor", "ceil", "rint", "power", "maximum", "minimum", "add", "subtract", "multiply", "divide"),
    )
)
_MODES = (torch.no_grad, torch.enable_grad)
_DECORATED = next(
    code
    for code in torch_namespaces.context_decorator.__code__.co_consts
    if isinstance(code, types.CodeType) and code.co_name == "decorate_context"
)


def is_pure(value: Any) -> bool:
    """Whether an object is a function or type whose result depends only on its arguments."""
    # `type` and not `isinstance`: an object may claim another class.
    kind = type(value)
    if _is_one_of(value, (*_CLASSES, *_MODES)):
        return True
    if kind is type:
        return _is_in(builtins, value, _BUILTINS)
    if kind is types.BuiltinFunctionType:
        return _is_pure_builtin(value)
    if kind is types.FunctionType:
        return value in _ORIGINALS
    if kind is numpy.ufunc:
        return _is_in(numpy, value, _UFUNCS) and value.signature is None and "O" not in value.types[0]
    if kind is op_queries.OpOverload:
        return value.namespace in OURS and _is_dispatched(value)
    if kind is op_queries.OpOverloadPacket:
        return any(is_pure(one) for one in op_queries.overloads(value))  # its other overloads take numbers
    return False


def is_reader(value: Any) -> bool:
    """Whether an object is a builtin that reads a container, and whose result holds only its entries."""
    return type(value) in (type, types.BuiltinFunctionType) and _is_in(builtins, value, _READERS)


def is_value(value: Any) -> bool:
    """Whether an object is a constant, or one of the classes of values."""
    return is_constant(value) or _is_one_of(value, _CLASSES)


def is_constant(value: Any) -> bool:
    """Whether an object is of an immutable type of Python or torch."""
    return _is_one_of(type(value), _CONSTANTS)


def _is_one_of(value: Any, some: tuple[Any, ...]) -> bool:
    """Whether an object is one of these, by identity: `==` might call Python of the user's."""
    return any(value is one for one in some)


def is_pure_attribute(name: str, stored: bool) -> bool:
    """Whether an attribute of a value depends only on the value.

    Args:
        name: the attribute.
        stored: the operator's own code sets an attribute of this name.
    """
    if name in _IMPURE_ATTRIBUTES or (name.startswith("_") and not stored) or _is_dunder(name):
        return False
    found = [inspect.getattr_static(kind, name, None) for kind in _TYPES if _has(kind, name)]
    return all(map(_is_of_library, found)) and (bool(found) or stored or name in _OF_VMAP)


def _has(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_of_library(value: Any) -> bool:
    """Whether an object is a method or a descriptor of torch, numpy or Python."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        return _is_of_library(value.fget)
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__")).split(".")[0] in ("torch", "functools")
    kinds = (types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)
    builtin = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
    return isinstance(value, (*kinds, *builtin))


def _is_in(space: Any, value: Any, names: frozenset[str]) -> bool:
    name = getattr(value, "__name__", None)
    return name in names and vars(space).get(name) is value


def _is_pure_builtin(value: Any) -> bool:
    name, module = value.__name__, value.__self__
    if name.startswith("_") or name in _IMPURE_OF_TORCH:  # (as a module's `__dir__`)
        return False
    if value.__module__ == "_operator":
        return vars(operator).get(name) is value
    if module is math:
        return True
    if module is builtins:
        return name in _BUILTINS
    if module is functools.reduce.__self__:  # type: ignore[attr-defined]
        return value is functools.reduce
    if any(module is space for space in torch_namespaces.operator_modules()):
        return True
    return getattr(torch_namespaces.operator_namespace(), name, None) is value or (
        name in _OF_TORCH and value in _ORIGINALS
    )


def _original_torch_functions() -> frozenset[Any]:
    """Functions of torch that may be called, as they were when this was imported."""
    named = (getattr(torch, name, None) for name in _OF_TORCH)
    found = {value for value in named if _is_of_library(value)}
    for space in (torch.functional, nn.functional):
        found |= {
            value
            for name, value in vars(space).items()
            if isinstance(value, types.FunctionType)
            and not name.startswith("_")
            and name not in _IMPURE_FUNCTIONALS
            and _is_of_torch(value)
        }
    return frozenset(found)


def _is_of_torch(value: types.FunctionType) -> bool:
    return value.__globals__.get("__name__") in _FUNCTIONALS


_ORIGINALS = _original_torch_functions()


@functools.cache
def _is_dispatched(op: op_queries.OpOverload) -> bool:
    """Whether it is an operator of the dispatcher, and not one of TorchScript alone."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    return name in torch_namespaces.operator_names() and op._opname not in _IMPURE_OF_TORCH


def decorating_mode(function: types.FunctionType) -> tuple[str, Any] | None:
    """What `torch.no_grad()` or the like has decorated, and with which; None if it has not.

    Example:
        >>> decorating_mode(torch.no_grad()(math.sqrt))
        ('no_grad', <built-in function sqrt>)
    """
    code = function.__code__
    if code is not _DECORATED:
        # (torch 2.15 gives each the name of its mode.)
        named = code.replace(co_name=_DECORATED.co_name, co_qualname=_DECORATED.co_qualname)
        if code.co_filename != _DECORATED.co_filename or named != _DECORATED:
            return None
    cells = dict(zip(_DECORATED.co_freevars, function.__closure__ or (), strict=True))
    factory = cells["ctx_factory"].cell_contents
    mode = getattr(factory, "__self__", None)
    if type(mode) in _MODES and getattr(factory, "__func__", None) is torch_namespaces.decorator_clone:
        return type(mode).__name__, cells["func"].cell_contents
    return None
