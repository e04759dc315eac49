"""Torch function modes of the caller: off while this compiler works, part of the specialization key.

torch calls a mode for each of its functions, including calls by this compiler and its generated code. The
user means a mode for the user's function only. So modes are set aside during a compiled call, and restored
while the user's function is traced. Two kinds of modes stay on: that of a default device, and the tracer of
`make_fx`.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from typing import Any

from aot.errors import UnsupportedOperation
from aot.guards.bytecode import is_library
from aot.guards.introspection import namespace_of
from aot.tensors.constants import identity_key
from aot.torch_internals import mode_stacks

_state = threading.local()


are_on = mode_stacks.is_user_function_mode_on


def has_modes_aside() -> bool:
    """Whether this thread has set aside a mode of the user's."""
    return not all(map(mode_stacks.is_torch_mode, modes_aside()))


def modes_aside() -> tuple[Any, ...]:
    """The modes that were on when this thread set modes aside, outermost first, with those that stay on."""
    stack: tuple[Any, ...] = getattr(_state, "aside", ())
    return stack


@contextlib.contextmanager
def without_user_modes(*, for_good: bool = False) -> Iterator[None]:
    """While it lasts, the user's modes are off in this thread.

    Args:
        for_good: `modes_restored` does not turn them on either.
    """
    stack, before = mode_stacks.function_modes(), modes_aside()
    staying = tuple(filter(mode_stacks.is_torch_mode, stack))
    _state.aside = staying if for_good else stack
    try:
        with mode_stacks.function_modes_replaced(staying):
            yield
    finally:
        _state.aside = before


@contextlib.contextmanager
def modes_restored() -> Iterator[None]:
    """While it lasts, the modes that were set aside are on again.

    Raises:
        UnsupportedOperation: the block leaves other modes on at its end.
    """
    stack = modes_aside()
    if not stack:
        yield
        return
    with mode_stacks.function_modes_replaced(stack):
        yield
        if [*map(id, mode_stacks.function_modes())] != [*map(id, stack)]:
            raise UnsupportedOperation(
                "the function leaves a torch function mode on, or takes one off that was on before; enter "
                "and leave a mode in one function, or outside"
            )


def modes_key() -> tuple[object, ...]:
    """The modes' part of the specialization key: classes and attributes of the modes that are set aside.

    Two calls with equal keys have modes that do the same, as long as the guards on the modes' code hold.
    """
    return tuple(_key_of_mode(mode) for mode in modes_aside() if not mode_stacks.is_tracer_mode(mode))


def _key_of_mode(mode: Any) -> object:
    if mode_stacks.is_device_mode(mode):
        return "device", str(mode.device)
    attributes = [*(namespace_of(mode) or {}).items(), *_slots(mode)]
    return type(mode), tuple((name, identity_key(value)) for name, value in attributes)


def _slots(mode: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(mode).__mro__[:-1]:
        if not is_library(kind.__module__):
            for name, slot in vars(kind).items():
                if isinstance(slot, types.MemberDescriptorType) and hasattr(mode, name):
                    yield name, getattr(mode, name)
