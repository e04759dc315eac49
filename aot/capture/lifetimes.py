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


class Lifetimes:
    """The tensors made in one trace, none of which it keeps alive."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Tensor]] = []

    def note(self, fake: Tensor) -> Tensor:
        """Remember a tensor that was made."""
        self._made.append(weakref.ref(fake))
        return fake

    def check(self) -> None:
        """Refuse a function that has kept one, when all else of the trace is gone.

        Raises:
            EscapedTensor: one is still there.
        """
        if self.alive():
            gc.collect()  # it may only be part of a reference cycle
        alive = self.alive()
        # A cycle inside autograd (an in-place operation that keeps what it writes to) holds some as well, and
        # for good, as it does in eager; but no Python object does.
        stored = [
            fake
            for fake in alive
            if any(r is not alive and not isinstance(r, types.FrameType) for r in gc.get_referrers(fake))
        ]
        self.reserve()
        if stored:
            shape = tuple(stored[0].shape)
            raise EscapedTensor(
                f"the function stored a tensor of shape {shape} somewhere else than in its result (a list "
                f"outside, an attribute of a module); return it instead"
            )

    def check_stored(self, stored: Callable[[Sequence[Tensor]], str | None]) -> None:
        """Refuse a function that has kept one, when the trace lives on, and let nobody else use them.

        Args:
            stored: where one of the given tensors is stored, if it finds one.

        Raises:
            EscapedTensor: one is stored somewhere.
        """
        alive = self.alive()
        path = stored(alive)
        self.reserve()
        if path is not None:
            raise EscapedTensor(
                f"the function stored a tensor somewhere else than in its result, at {path}; return it "
                f"instead"
            )

    def reserve(self) -> None:
        """Let nobody but traces use those that are still there."""
        for fake in self.alive():
            internals.reserve(fake)

    def alive(self) -> list[Tensor]:
        """Those that are still there."""
        return [fake for ref in self._made if (fake := ref()) is not None]
