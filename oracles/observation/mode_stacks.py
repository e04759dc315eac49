"""Mode stacks: the torch function modes and dispatch modes of a thread, and which a block has leaked.

torch has no public way to list them, so this module reads its private stacks.
Invariant: the mode of a default device does not count here; `ambient` records the default device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import overrides
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

from oracles.object_names import class_name

_overrides: Any = overrides  # not annotated in torch
_dispatch: Any = _python_dispatch


@dataclass(slots=True)
class LeakedModes:
    """What a block did to the mode stacks.

    `names` has the class of each mode that the block entered and did not leave, and "without" with the class
    of each mode that it left without having entered it.
    """

    names: tuple[str, ...] = ()


@contextmanager
def recording_leaked_modes() -> Iterator[LeakedModes]:
    """While it lasts, watch the mode stacks. At the end, record what has changed and undo it.

    The mode of a default device does not count: that is ambient state of its own.

        with recording_leaked_modes() as leaked:
            SomeMode().__enter__()
        leaked.names    # ("module.SomeMode",)
    """
    functions, dispatches = _function_modes(), _dispatch_modes()
    left = LeakedModes()
    try:
        yield left
    finally:
        left.names = (
            *_restore_mode_stack(functions, _function_modes(), _overrides._push_mode, _overrides._pop_mode),
            *_restore_mode_stack(dispatches, _dispatch_modes(), _dispatch._push_mode, _dispatch._pop_mode),
        )


def active_modes() -> tuple[object, ...]:
    """The modes of this thread, torch function modes first, without that of a default device."""
    return (*_function_modes(), *_dispatch_modes())


def active_transforms() -> tuple[str, ...]:
    """The `torch.func` transforms of this thread, the innermost last, then "saved tensor hooks" if there are.

    >>> torch.vmap(lambda x: (print(active_transforms()), x)[1])(torch.ones(2))
    ('vmap',)
    """
    stack = torch._C._functorch.get_interpreter_stack() or ()
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (*(one.key().name.lower() for one in stack), *(("saved tensor hooks",) if hooks else ()))


def _function_modes() -> tuple[object, ...]:
    """The torch function modes of this thread, the innermost last, without that of a default device."""
    stack = _overrides._get_current_function_mode_stack()
    return tuple(mode for mode in stack if type(mode) is not DeviceContext)


def _dispatch_modes() -> tuple[object, ...]:
    """The dispatch modes of this thread, the innermost last."""
    return tuple(_dispatch._get_current_dispatch_mode_stack())


def _restore_mode_stack(
    before: Sequence[object],
    after: Sequence[object],
    push: Callable[[object], object],
    pop: Callable[[], object],
) -> Iterator[str]:
    """Restore a mode stack, and yield in words what was different."""
    kept = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(before, after, strict=False)))
    for _ in after[kept:]:
        pop()
    for mode in before[kept:]:
        push(mode)
    yield from (class_name(type(mode)) for mode in after if not any(mode is one for one in before))
    yield from (f"without {class_name(type(m))}" for m in before if not any(m is one for one in after))
