"""Dispatch modes and torch function modes: which are on in this thread, and how to run without them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
)

from aot.torch_internals import autocast_state

__all__ = [
    "TorchDispatchMode",
    "current_dispatch_mode",
    "dispatch_modes",
    "dispatch_modes_off",
    "function_mode_count",
    "function_modes",
    "function_modes_replaced",
    "is_another_tracer_on",
    "is_any_mode_on",
    "is_device_mode",
    "is_function_mode_on",
    "is_only_fake_mode_on",
    "is_torch_mode",
    "is_tracer_mode",
    "is_user_function_mode_on",
    "outside_all_modes",
    "set_dispatch_modes",
    "set_function_modes",
    "shield_from_function_modes",
    "user_dispatch_modes_off",
]

_NOTHING = contextlib.nullcontext()

# What is included and excluded in every thread, besides what is turned on and off.
_INCLUDED_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_INCLUDED_KEYS = _INCLUDED_KEYS | torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_EXCLUDED_KEYS = functools.reduce(operator.or_, map(torch._C.DispatchKeySet, autocast_state.AUTOCAST_KEYS))


def current_dispatch_mode() -> Any:
    """The innermost dispatch mode of this thread, if one is on."""
    return _get_current_dispatch_mode()


_PROXY_KEY = torch._C._TorchDispatchModeKey.PROXY
_FAKE_KEY = torch._C._TorchDispatchModeKey.FAKE
_dispatch_mode = torch._C._get_dispatch_mode


def is_another_tracer_on() -> bool:
    """Whether a tracer of torch's own is on, to which operations come after all other dispatch modes."""
    return _dispatch_mode(_PROXY_KEY) is not None or _dispatch_mode(_FAKE_KEY) is not None


def is_only_fake_mode_on() -> bool:
    """Whether what is on is a mode of fake tensors alone."""
    return _dispatch_mode(_PROXY_KEY) is None and _dispatch_mode(_FAKE_KEY) is not None


def dispatch_modes_off() -> contextlib.AbstractContextManager[Any]:
    """Run real tensor code in the middle of a trace."""
    before = _len_torch_dispatch_stack_pre_dispatch()  # type: ignore[no-untyped-call]
    if not before and not torch._C._len_torch_dispatch_stack():
        return _NOTHING  # torch's own would look again, and import what it compares modes with
    manager: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return manager


@contextlib.contextmanager
def outside_all_modes() -> Iterator[None]:
    """In the middle of a trace, run real tensor code as in a thread in which no mode is on, nor autocast, and
    which is in no operation: autograd, and what notes views, take part."""
    with dispatch_modes_off(), torch._C._ForceDispatchKeyGuard(_INCLUDED_KEYS, _EXCLUDED_KEYS):
        yield


function_mode_count: Callable[[], int] = torch._C._len_torch_function_stack


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are on, the innermost last."""
    return list(_get_current_dispatch_mode_stack())


def set_dispatch_modes(modes: Sequence[Any]) -> None:
    """Let just these be on. (What their own `__enter__` and `__exit__` would do is left out.)"""
    now = dispatch_modes()
    same = _common_length(now, modes)
    for mode in reversed(now[same:]):
        TorchDispatchMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]
    for mode in modes[same:]:
        TorchDispatchMode.__enter__(mode)  # type: ignore[no-untyped-call]


def _common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many of the first ones are the same objects."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))


# Whether torch's functions ask modes, in this thread.
is_function_mode_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled


def function_modes() -> tuple[Any, ...]:
    """The torch function modes of this thread, outermost first."""
    return tuple(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def is_device_mode(mode: Any) -> bool:
    """Whether a torch function mode does nothing but set a default device."""
    return type(mode) is DeviceContext


def is_tracer_mode(mode: Any) -> bool:
    """Whether it is one by which `make_fx` notes what is called."""
    return type(mode).__module__ == "torch.fx.experimental.proxy_tensor"


def is_torch_mode(mode: Any) -> bool:
    """Whether a torch function mode is torch's own: that of a default device, or of a tracer."""
    return is_device_mode(mode) or is_tracer_mode(mode)


def is_user_function_mode_on() -> bool:
    """Whether a torch function mode of the user's is asked by this thread's calls of torch."""
    return is_function_mode_on() and not all(map(is_torch_mode, function_modes()))


@contextlib.contextmanager
def function_modes_replaced(modes: Sequence[Any]) -> Iterator[None]:
    """While this lasts, these are the torch function modes of this thread."""
    before = function_modes()
    set_function_modes(modes)
    try:
        yield
    finally:
        set_function_modes(before)


def set_function_modes(modes: Sequence[Any]) -> None:
    """Let just these be the torch function modes of this thread."""
    while function_mode_count():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def shield_from_function_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this package that torch calls in the middle of the user's, whose modes are not for it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_function_mode_on():
            return function(*args, **kwargs)
        with function_modes_replaced(tuple(filter(is_device_mode, function_modes()))):
            return function(*args, **kwargs)

    return call


def user_dispatch_modes_off() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, dispatch modes of the user's are off; another tracer's stay on."""
    return _NOTHING if is_another_tracer_on() else dispatch_modes_off()


def is_any_mode_on() -> bool:
    """Whether a mode may change what a trace records: one of functions, other than that for a default device,
    or one of operations."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(type(mode) is not DeviceContext for mode in stack) or _get_current_dispatch_mode() is not None
