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
    "current_mode",
    "dispatch_modes",
    "function_mode_count",
    "function_modes",
    "function_modes_are_on",
    "function_modes_replaced",
    "is_device_mode",
    "is_imagined",
    "is_mode_of_tracer",
    "is_traced_elsewhere",
    "modes_are_on",
    "modes_off",
    "nothing_on",
    "set_dispatch_modes",
    "set_function_modes",
    "stays_on",
    "user_function_modes_are_on",
    "without_dispatch_modes",
    "without_function_modes",
]

_NOTHING = contextlib.nullcontext()

# What is included and excluded in every thread, besides what is turned on and off.
_ON = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_ON = _ON | torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_OFF = functools.reduce(operator.or_, map(torch._C.DispatchKeySet, autocast_state.AUTOCAST_KEYS))


def current_mode() -> Any:
    """The innermost dispatch mode of this thread, if one is on."""
    return _get_current_dispatch_mode()


_PROXIES = torch._C._TorchDispatchModeKey.PROXY
_FAKES = torch._C._TorchDispatchModeKey.FAKE
_mode_on = torch._C._get_dispatch_mode


def is_traced_elsewhere() -> bool:
    """Whether a tracer of torch's own is on, to which operations come after all other dispatch modes."""
    return _mode_on(_PROXIES) is not None or _mode_on(_FAKES) is not None


def is_imagined() -> bool:
    """Whether what is on is a mode of fake tensors alone."""
    return _mode_on(_PROXIES) is None and _mode_on(_FAKES) is not None


def modes_off() -> contextlib.AbstractContextManager[Any]:
    """Run real tensor code in the middle of a trace."""
    before = _len_torch_dispatch_stack_pre_dispatch()  # type: ignore[no-untyped-call]
    if not before and not torch._C._len_torch_dispatch_stack():
        return _NOTHING  # torch's own would look again, and import what it compares modes with
    manager: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return manager


@contextlib.contextmanager
def nothing_on() -> Iterator[None]:
    """In the middle of a trace, run real tensor code as in a thread in which no mode is on, nor autocast, and
    which is in no operation: autograd, and what notes views, take part."""
    with modes_off(), torch._C._ForceDispatchKeyGuard(_ON, _OFF):
        yield


function_mode_count: Callable[[], int] = torch._C._len_torch_function_stack


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are on, the innermost last."""
    return list(_get_current_dispatch_mode_stack())


def set_dispatch_modes(modes: Sequence[Any]) -> None:
    """Let just these be on. (What their own `__enter__` and `__exit__` would do is left out.)"""
    now = dispatch_modes()
    same = _common(now, modes)
    for mode in reversed(now[same:]):
        TorchDispatchMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]
    for mode in modes[same:]:
        TorchDispatchMode.__enter__(mode)  # type: ignore[no-untyped-call]


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many of the first ones are the same objects."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))


# Whether torch's functions ask modes, in this thread.
function_modes_are_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled


def function_modes() -> tuple[Any, ...]:
    """The torch function modes of this thread, outermost first."""
    return tuple(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def is_device_mode(mode: Any) -> bool:
    """Whether a torch function mode does nothing but set a default device."""
    return type(mode) is DeviceContext


def is_mode_of_tracer(mode: Any) -> bool:
    """Whether it is one by which `make_fx` notes what is called."""
    return type(mode).__module__ == "torch.fx.experimental.proxy_tensor"


def stays_on(mode: Any) -> bool:
    """Whether a torch function mode is torch's own: that of a default device, or of a tracer."""
    return is_device_mode(mode) or is_mode_of_tracer(mode)


def user_function_modes_are_on() -> bool:
    """Whether a torch function mode of the user's is asked by this thread's calls of torch."""
    return function_modes_are_on() and not all(map(stays_on, function_modes()))


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


def without_function_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this package that torch calls in the middle of the user's, whose modes are not for it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not function_modes_are_on():
            return function(*args, **kwargs)
        with function_modes_replaced(tuple(filter(is_device_mode, function_modes()))):
            return function(*args, **kwargs)

    return call


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, dispatch modes of the user's are off; another tracer's stay on."""
    return _NOTHING if is_traced_elsewhere() else modes_off()


def modes_are_on() -> bool:
    """Whether a mode may change what a trace records: one of functions, other than that for a default device,
    or one of operations."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(type(mode) is not DeviceContext for mode in stack) or _get_current_dispatch_mode() is not None
