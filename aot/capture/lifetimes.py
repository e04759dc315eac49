"""The tensors of a trace must not outlive it: they have no memory.

What still holds one afterwards is either the traceback of an error, or a place where the function has stored
it (a list outside, an attribute of a module). A program that does the latter cannot be compiled: later calls
would not store anything.

Where a backward was recorded, the trace itself lives on, and its tensors with it. Then one that was stored is
looked for where the function's Python can get at something; and all of them become such that only a trace can
use them, so that one which was stored elsewhere raises as soon as somebody looks at it.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Sequence

from torch import Tensor

from aot import torch_internals as internals
from aot.errors import EscapedTensor
from aot.subclasses import is_wrapper, plain_parts


class Lifetimes:
    """The tensors made in one trace, none of which it keeps alive."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Tensor]] = []

    def note(self, fake: Tensor) -> Tensor:
        """Remember a tensor that was made."""
        self._made.append(weakref.ref(fake))
        return fake

    def check(self, stored: Callable[[Sequence[Tensor]], str | None]) -> None:
        """Refuse a function that has kept one, when all else of the trace is gone.

        Args:
            stored: where one of the given tensors is stored, if it finds one.

        Raises:
            EscapedTensor: one is still there.
        """
        if self.alive():
            gc.collect()  # it may only be part of a reference cycle
        alive = self.alive()
        path = stored(alive) if alive else None
        # A cycle inside autograd (an in-place operation that keeps what it writes to) holds some as well, and
        # for good, as it does in eager; but no Python object does. (Of the objects that were there before a
        # `gc.freeze` none is a referrer: where it is one of them, its place tells.)
        held = [fake for fake in alive if _is_held(fake, {id(alive)})]  # (a generator would be a referrer)
        self.reserve()
        if held or path is not None:
            raise _escaped(path)

    def check_stored(self, stored: Callable[[Sequence[Tensor]], str | None]) -> None:
        """Refuse a function that has kept one, when the trace lives on, and let nobody else use them.

        Args:
            stored: where one of the given tensors is stored, if it finds one.

        Raises:
            EscapedTensor: one is stored somewhere.
        """
        path = stored(self.alive())
        self.reserve()
        if path is not None:
            raise _escaped(path)

    def reserve(self) -> None:
        """Let nobody but traces use those that are still there."""
        for fake in self.alive():
            internals.reserve(fake)

    def alive(self) -> list[Tensor]:
        """Those that are still there."""
        return [fake for ref in self._made if (fake := ref()) is not None]


def _is_held(tensor: Tensor, known: set[int]) -> bool:
    """Whether a Python object refers to a tensor, other than the `known` ones, frames, and wrappers of the
    trace that it is a part of and that nothing refers to."""
    referrers = gc.get_referrers(tensor)
    for referrer in referrers:
        if id(referrer) in known or isinstance(referrer, types.FrameType):
            continue
        wrapper = _wrapper(referrer)
        if wrapper is None or _is_held(wrapper, known | {id(referrers), id(referrer)}):
            return True
    return False


def _wrapper(referrer: object) -> Tensor | None:
    """The wrapper of a trace that this is, or whose attributes these are."""
    owners = gc.get_referrers(referrer) if isinstance(referrer, dict) else [referrer]
    for owner in owners:
        own = isinstance(owner, Tensor) and (referrer is owner or referrer is vars(owner))
        if own and is_wrapper(owner) and all(map(internals.is_memoryless, plain_parts(owner))):
            assert isinstance(owner, Tensor)
            return owner
    return None


def _escaped(path: str | None) -> EscapedTensor:
    """What is said of a tensor that is stored at that path, or wherever it is."""
    where = " (a list outside, an attribute of a module)" if path is None else f", at {path}"
    return EscapedTensor(
        f"the function stored a tensor somewhere else than in its result{where}; return it instead"
    )
