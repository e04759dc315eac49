"""The dispatcher: keys that are skipped, and kernels of aot's own that it calls in threads that trace."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._higher_order_ops.scan import generic_scan
from torch._ops import _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS, OpOverload, _higher_order_ops
from torch.overrides import enable_reentrant_dispatch

from aot.torch_internals import (
    autocast_state,
    function_transforms,
    mode_stacks,
    op_queries,
    wrapper_subclasses,
)

__all__ = [
    "FALLBACKS",
    "INPLACE_OR_VIEW",
    "below_autograd",
    "is_below_autograd",
    "python_dispatcher_on",
    "register_higher_order_kernels",
    "register_trace_kernels",
    "run_decomposition",
    "run_unrecorded",
    "trace_kernels_off",
    "trace_kernels_on",
    "tracking_views",
]

INPLACE_OR_VIEW = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)  # where versions are


def python_dispatcher_on() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, what composite operations are made of is asked of Python, where it is told there:
    kernels take no symbols for sizes."""
    manager: contextlib.AbstractContextManager[Any] = enable_python_dispatcher()
    return manager


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Operations go to their kernels directly, past autograd and its modes."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return manager


# A dispatch key above autograd that nothing uses: operations with kernels of our own there are called with
# them in threads that turn it on, and in no others.
_TRACE_KEY_NAME = "TESTING_ONLY_GenericMode"
_TRACE_KEY = torch._C._dispatch_key_parse(_TRACE_KEY_NAME)
_BELOW_TRACE_KEY = torch._C._dispatch_keyset_full_after(_TRACE_KEY)
_LIBRARY: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
FALLBACKS: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
FALLBACKS.fallback(torch.library.fallthrough_kernel, _TRACE_KEY_NAME)
_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_TRACE_KEY)
for _operator in _higher_order_ops.values():
    _operator.fallthrough(_TRACE_KEY)  # type: ignore[no-untyped-call]


def register_trace_kernels(kernels: Mapping[OpOverload, Callable[..., Any]]) -> None:
    """Let operations be ``kernel(ordinary, *args, **kwargs)`` in threads that use trace kernels, where
    ``ordinary(*args, **kwargs)`` is what they are otherwise. (Autocast and functorch come first.)"""
    for op, kernel in kernels.items():
        _LIBRARY.impl(op, _trace_kernel(op, kernel), _TRACE_KEY_NAME, with_keyset=True)


_SINCE = {"switch": "2.14"}  # operators that not every torch has that is supported


def register_higher_order_kernels(kernels: Mapping[str, Callable[..., Any]]) -> None:
    """Let operators that take functions, by name, be ``kernel(dense, *args, **kwargs)`` in threads that use
    trace kernels, where ``dense`` runs them step by step. (functorch comes first.)

    An operator of a later torch is left out.
    """
    for name, kernel in kernels.items():
        if name in _SINCE and name not in _higher_order_ops:
            continue
        op = _higher_order_ops[name]
        dense = op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
        if name == "scan":  # whose kernel is the same, and a check that no mode is on
            dense = _scan
        op.non_fallthrough_keys = op.non_fallthrough_keys.add(_TRACE_KEY)
        op.py_impl(_TRACE_KEY)(functools.partial(kernel, dense))


def _scan(function: Callable[..., Any], init: Any, xs: Any, others: Any) -> Any:
    run: Any = generic_scan
    return run(function, init, xs, additional_inputs=others)


def _trace_kernel(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        def ordinary(*args: Any, **kwargs: Any) -> Any:
            return op.redispatch(keys & _BELOW_TRACE_KEY, *args, **kwargs)

        if mode_stacks.is_function_mode_on():
            return mode_stacks.shield_from_function_modes(call)(keys, *args, **kwargs)
        if function_transforms.are_tensors_transformed():
            return ordinary(*args, **kwargs)
        # for which ATen takes the roads for tensor subclasses in eager, too
        if any(map(wrapper_subclasses.is_wrapper_subclass, args)):
            return ordinary(*args, **kwargs)
        if any(keys.has(key) and op_queries.has_kernel(op, key) for key in autocast_state.AUTOCAST_KEYS):
            return ordinary(*args, **kwargs)
        return kernel(ordinary, *args, **kwargs)

    return call


_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_VIEWS = torch._C.DispatchKey.ADInplaceOrView


def is_below_autograd() -> bool:
    """Whether autograd has been passed: in the code of a tensor subclass or of an operator, where views are
    none, and writes are not counted. (Inference mode alone is not below it.)"""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    return excluded(_AUTOGRAD) and (excluded(_VIEWS) or not torch.is_inference_mode_enabled())


def trace_kernels_on() -> contextlib.AbstractContextManager[Any]:
    """In this thread, operations are done by trace kernels where they have one."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._IncludeDispatchKeyGuard(_TRACE_KEY)
    return manager


def trace_kernels_off() -> contextlib.AbstractContextManager[Any]:
    """In this thread, operations are done as they are otherwise."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(_TRACE_KEY)
    )
    return manager


def run_decomposition(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: bool, inside: bool
) -> Any:
    """Run the kernel of a composite operation, inside a dispatch mode that it came to as a whole; `inside` of
    the code of a tensor subclass, where autograd, and what notes views and versions, have been passed.

    What it is made of is noticed by what notes views and versions, resolves lazy tensors, and casts (if
    `autocast`, and it was on when the operation came), unless that waits for what `op` returns.
    (`op.decompose` would prefer Python versions, which are not always the same: that of dropout clones what
    the kernel returns as it is.)
    """
    off = [torch._C.DispatchKeySet(_TRACE_KEY)]
    for key in (torch._C.DispatchKey.ADInplaceOrView, *autocast_state.AUTOCAST_KEYS):
        if inside or op_queries.has_kernel(op, key) or (key in autocast_state.AUTOCAST_KEYS and not autocast):
            off.append(torch._C.DispatchKeySet(key))
    with (
        enable_reentrant_dispatch(),  # what was on when the operation came is on again
        below_autograd(),
        torch._C._ExcludeDispatchKeyGuard(functools.reduce(operator.or_, off)),
    ):
        return op._op_dk(op_queries.composite_key(op), *args, **kwargs)


def run_unrecorded(op: OpOverload, *args: Any, **kwargs: Any) -> None:
    """Run an operation of which neither autograd, nor what counts versions, nor a tensor subclass is told."""
    with (
        below_autograd(),
        torch._C._ExcludeDispatchKeyGuard(INPLACE_OR_VIEW),
        torch._C._DisableTorchDispatch(),
    ):
        op(*args, **kwargs)


def tracking_views() -> contextlib.AbstractContextManager[Any]:
    """Inside a dispatch mode: what notes views and versions notices operations once more."""
    guard = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False)
    manager: contextlib.AbstractContextManager[Any] = guard
    return manager
