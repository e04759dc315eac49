"""What is known of an ATen operator: its kernels, its tags, its schema, and what registered it."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import torch
from torch._library import custom_ops as _custom_ops
from torch._library.custom_ops import OPDEFS
from torch._meta_registrations import _meta_lib_dont_use_me_use_register_meta as _META_LIBRARY
from torch._ops import OpOverload, OpOverloadPacket

__all__ = [
    "OpOverload",
    "OpOverloadPacket",
    "composite_key",
    "custom_definition",
    "has_derivative",
    "has_inplace_or_view_kernel",
    "has_kernel",
    "has_python_meta",
    "has_symint_results",
    "is_collective",
    "is_composite",
    "is_composite_below_autograd",
    "is_inplace_view",
    "is_nondeterministic_seeded",
    "may_be_random",
    "overloads",
]

_COMPOSITE_KEYS = (
    torch._C.DispatchKey.CompositeImplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
)
_AUTOGRAD_KEYS = (
    torch._C.DispatchKey.Autograd,
    torch._C.DispatchKey.AutogradCPU,
    torch._C.DispatchKey.AutogradCUDA,
)
_DEVICE_KEYS = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


def is_collective(op: OpOverload) -> bool:
    """Whether an operation is one of those in which several processes take part, or waits for one."""
    return op.namespace == "_c10d_functional"


def has_python_meta(op: Any) -> bool:
    """Whether what an operation returns for fake tensors is told by a kernel that is written in Python, and
    the operation may be run on other values without being noticed."""
    return (
        isinstance(op, OpOverload)
        and op.name().replace("::", "/") + "/Meta" in _META_LIBRARY._op_impls  # type: ignore[no-untyped-call]
        and not is_nondeterministic_seeded(op)
    )


@functools.cache
def is_nondeterministic_seeded(op: Any) -> bool:
    """Whether what an operation returns follows from the state of a random generator, or from a seed that it
    is given. (A kernel takes a seed for memory of whatever device it expects it on.)"""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


@functools.cache
def may_be_random(op: OpOverload) -> bool:
    """Whether an operation may move a random generator. (What is given the seed of another one repeats what
    that has drawn, as backwards of attention do, of which torch says the contrary.)"""
    return is_nondeterministic_seeded(op) and all(
        argument.name != "philox_seed" for argument in op._schema.arguments
    )


@functools.cache
def has_symint_results(op: Any) -> bool:
    """Whether an operation returns whole numbers that follow from sizes, as attention does beside tensors."""
    return isinstance(op, OpOverload) and any(
        isinstance(result.real_type, torch._C.SymIntType) for result in op._schema.returns
    )


def is_composite(op: OpOverload) -> bool:
    """Whether `op` is made of others, for autograd too, and no device has a kernel for it."""
    made_of_others = has_kernel(op, torch._C.DispatchKey.CompositeImplicitAutograd)
    return made_of_others and not any(has_kernel(op, key) for key in _DEVICE_KEYS)


def is_composite_below_autograd(op: OpOverload) -> bool:
    """Whether `op` is an operation of its own for autograd, and made of others on every device."""
    return composite_key(op) is not None and not any(has_kernel(op, key) for key in _DEVICE_KEYS)


def has_derivative(op: OpOverload) -> bool:
    """Whether autograd knows `op`: how to differentiate it, or that it cannot be."""
    return any(has_kernel(op, key) and not _is_fallthrough(op, key) for key in _AUTOGRAD_KEYS)


def has_inplace_or_view_kernel(op: OpOverload) -> bool:
    """Whether autograd has been told how to count the writes of `op`."""
    return has_kernel(op, torch._C.DispatchKey.ADInplaceOrView)


def composite_key(op: OpOverload) -> Any:
    return next((key for key in _COMPOSITE_KEYS if has_kernel(op, key)), None)


def is_inplace_view(op: Any) -> bool:
    """Whether an operation changes what its first argument shows, and not its data."""
    return isinstance(op, OpOverload) and torch.Tag.inplace_view in op.tags


def _is_fallthrough(op: OpOverload, key: Any) -> bool:
    ask: Any = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough
    return bool(ask(op._name, key))


def has_kernel(op: OpOverload, key: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))  # type: ignore[no-untyped-call]


def overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """The operators of one name."""
    names = packet.overloads()  # type: ignore[no-untyped-call]
    return [getattr(packet, name) for name in names]


def custom_definition(op: OpOverload) -> tuple[Any, dict[str, Any]] | None:
    """What a custom operator was made by (`torch.library.custom_op`), and functions of it that a trace calls.
    (No kernels: these run at each call.)

    There is none if anything else was registered for the operator as well, in Python or in C++.
    """
    name = op._schema.name
    definition: Any = OPDEFS.get(name)
    if definition is None or definition._opoverload is not op or op.py_kernels:
        return None
    if definition._torch_dispatch_fns or any(path != _CUSTOM_OPS_FILE for path in _registration_files(name)):
        return None
    parts = {part: getattr(definition, part) for part in _TRACED_PARTS}
    return definition, {**parts, "_autocast_dtype": _autocast_dtypes(definition)}


def _autocast_dtypes(definition: Any) -> tuple[tuple[str, torch.dtype], ...]:
    """What a custom operator casts its arguments to under autocast, for each device with a rule."""
    dtypes: dict[str, torch.dtype | None]
    if hasattr(definition, "_autocast_dtype"):
        dtypes = definition._autocast_dtype
    else:  # torch 2.11
        dtypes = {"cpu": definition._autocast_cpu_dtype, "cuda": definition._autocast_cuda_dtype}
    return tuple((device, dtype) for device, dtype in sorted(dtypes.items()) if dtype is not None)


_TRACED_PARTS = ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn")
_CUSTOM_OPS_FILE = inspect.getfile(_custom_ops)


def _registration_files(name: str) -> list[str]:
    """The files from which kernels are registered for an operator."""
    dump: str = torch._C._dispatch_dump(name)
    return re.findall(r": registered at (.+?):\d+ :: ", dump)
