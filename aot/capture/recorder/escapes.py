"""The tensors of a trace must not outlive it: they have no memory.

What still holds one afterwards is either garbage that Python has not collected yet (the traceback of an error
that the function has caught), or a place where the function has stored it (a list outside, an attribute of a
module). A program that does the latter cannot be compiled: later calls would not store anything.

Reference counts tell whether there is such a holder. Only if they say so, garbage is collected, the young
part of it first, and holders are looked for: both look at objects of the whole process.

Where a backward was recorded, the trace itself lives on, and its tensors with it: it tells what it holds, and
that is no evidence. Then a tensor that was stored is looked for where the function's Python can get at
something; and all of them become such that only a trace can use them, so that one which was stored elsewhere
raises as soon as somebody looks at it.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from aot.errors import EscapedTensor
from aot.tensors.subclasses import inner_tensors, is_wrapper
from aot.torch_internals import plain_fakes, tensor_impl

_YOUNG = 1  # the oldest generation that a collection of young objects looks at


class EscapeCheck:
    """The tensors made in one trace, none of which it keeps alive."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Tensor]] = []
        self._by_trace: Counter[int] = Counter()

    def track(self, fake: Tensor) -> Tensor:
        """Remember a tensor that was made."""
        self._made.append(weakref.ref(fake))
        return fake

    def track_references(self, tensors: Iterable[Tensor]) -> None:
        """Expect the trace to hold these from now on: one reference to each, as often as it is given."""
        self._by_trace = Counter(map(id, tensors))

    def refuse_escapes(self, stored: Callable[[Sequence[Tensor]], str | None]) -> None:
        """Refuse a function that has kept one, when all else of the trace is gone.

        Args:
            stored: where one of the given tensors is stored, if it finds one.

        Raises:
            EscapedTensor: one is still there.
        """
        suspects = self._escape_suspects()
        if suspects:  # a reference cycle in which one is may have grown old while the function ran
            del suspects
            gc.collect()
            suspects = self._referred()
        path = stored(suspects) if suspects else None
        # (Of the objects that were there before a `gc.freeze` none is a referrer: where it is one of them,
        # its place tells. A generator would be a referrer.)
        held = [fake for fake in suspects if _is_held(fake, {id(suspects)})]
        self.poison()
        if held or path is not None:
            raise _escaped(path)

    def refuse_stored_escapes(self, stored: Callable[[Sequence[Tensor]], str | None]) -> None:
        """Refuse a function that has kept one, when the trace lives on, and let nobody else use them.

        Args:
            stored: where one of the given tensors is stored, if it finds one.

        Raises:
            EscapedTensor: one is stored somewhere.
        """
        suspects = self._escape_suspects()
        path = stored(suspects) if suspects else None
        del suspects
        self.poison()
        if path is not None:
            raise _escaped(path)

    def poison(self) -> None:
        """Let nobody but traces use those that are still there."""
        for fake in self.alive():
            plain_fakes.poison(fake)

    def alive(self) -> list[Tensor]:
        """Those that are still there."""
        return [fake for ref in self._made if (fake := ref()) is not None]

    def _escape_suspects(self) -> list[Tensor]:
        """Those that something refers to which is not known to be the trace's: young garbage is none.

        (What autograd alone holds is none either, although it may do so for good, as in eager: an in-place
        operation that keeps what it writes to.)
        """
        if self._referred():
            gc.collect(_YOUNG)
        return self._referred()

    def _referred(self) -> list[Tensor]:
        """Those to which Python has more references than the trace has told of."""
        alive = self.alive()
        counts = tensor_impl.count_python_references(alive)
        known = self._by_trace
        return [fake for fake, count in zip(alive, counts, strict=True) if count > known[id(fake)]]


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
        if own and is_wrapper(owner) and all(map(plain_fakes.is_fake, inner_tensors(owner))):
            assert isinstance(owner, Tensor)
            return owner
    return None


def _escaped(path: str | None) -> EscapedTensor:
    """What is said of a tensor that is stored at that path, or wherever it is."""
    where = " (a list outside, an attribute of a module)" if path is None else f", at {path}"
    return EscapedTensor(
        f"the function stored a tensor somewhere else than in its result{where}; return it instead"
    )


def escape_error() -> EscapedTensor:
    """The refusal of a tensor of a trace, in a thread that does not trace."""
    return EscapedTensor(
        "this tensor was made while a function was compiled, and stored by it somewhere else than in its "
        "result: it has no values; return it instead"
    )


plain_fakes.register_escape_error(escape_error)
