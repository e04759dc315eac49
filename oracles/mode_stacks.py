"""The modes that a thread is in: those that a call has entered and not left, and those that it has left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.overrides
import torch.utils._python_dispatch as dispatch
from torch.utils._device import DeviceContext

_functions: Any = torch.overrides  # not annotated in torch
_dispatch: Any = dispatch


@dataclass(slots=True)
class ModesLeft:
    """The classes of modes that a block has entered for good, and how many modes it has taken away."""

    names: tuple[str, ...] = ()


@contextmanager
def modes_left() -> Iterator[ModesLeft]:
    """Note which modes the block leaves behind, and leave them.

    A mode of `torch.set_default_device` is not counted: the default device is ambient state of its own.

        with modes_left() as left:
            SomeMode().__enter__()
        left.names    # ("SomeMode",)
    """
    functions, dispatched = len(_function_modes()), len(_dispatch_modes())
    left = ModesLeft()
    try:
        yield left
    finally:
        names = [*_left(_function_modes(), functions), *_left(_dispatch_modes(), dispatched)]
        if names:
            left.names = tuple(names)
            for _ in range(len(_dispatch_modes()) - dispatched):
                _dispatch._pop_mode()
            for _ in range(len(_function_modes()) - functions):
                _functions._pop_mode()


def _function_modes() -> list[object]:
    modes = _functions._get_current_function_mode_stack()
    return [mode for mode in modes if not isinstance(mode, DeviceContext)]


def _dispatch_modes() -> list[object]:
    modes: list[object] = _dispatch._get_current_dispatch_mode_stack()
    return modes


def _left(modes: list[object], before: int) -> list[str]:
    """The classes of the modes above what there was, or that so many are gone."""
    if len(modes) < before:
        return [f"{before - len(modes)} gone"]
    return [type(mode).__qualname__ for mode in modes[before:]]
