"""Autocast's cache in a trace: casts of leaves that autocast keeps until its outermost region ends.

Autocast casts a float32 leaf once in a region, and every later operation of the region takes that cast, in
a compiled call or out of it. So the cast is an argument of the function that is traced (a *candidate*). When
the function starts, autocast's cache holds it as the cast of what stands for the leaf. Which candidates are
taken is known when the function is over. A cast that the function makes otherwise (of a leaf that it has
written to, to another dtype) stays in its graph, and is made once more after each call.

In: which arguments are casts of which. Out: a `CastUse`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot.errors import AutocastCacheUnsupported
from aot.ops.classify import tensors_in
from aot.tensors.subclasses import is_wrapper
from aot.tensors.version_counters import version_of
from aot.torch_internals import autocast_state, dispatcher, leaf_casts

aten = torch.ops.aten
_TO_COPY = aten._to_copy.default
_LOWER = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An argument that is the cast of another one.

    Attributes:
        leaf, cast: the numbers of both among the tensors of the call.
        kept: whether autocast keeps it when the function is called; otherwise it would be made then.
        detached: whether it is an argument without history, since the function itself takes gradients with
            respect to the leaf.
    """

    leaf: int
    cast: int
    kept: bool
    detached: bool = False


@dataclass(frozen=True, slots=True)
class CastUse:
    """What a function does with autocast's cache.

    Attributes:
        used: the candidates that operations take, each with whether it may be made before the call: the leaf
            is then as it was, and the dtype the same.
        made: the tensors of which autocast keeps a cast that the function has made, and the dtypes.
        asks: whether it depends on autocast's cache.
    """

    used: tuple[tuple[Candidate, bool], ...] = ()
    made: tuple[tuple[int, torch.dtype], ...] = ()
    asks: bool = False


NO_CASTS = CastUse()


class CastsDiffer(Exception):
    """The function is to be traced once more, with other candidates.

    Attributes:
        inside: leaves whose casts the function makes itself.
        detached: leaves that it takes gradients with respect to.
    """

    def __init__(self, inside: Collection[int], detached: Collection[int]) -> None:
        super().__init__("autocast makes other casts than expected")
        self.inside = frozenset(inside)
        self.detached = frozenset(detached)


class CastCache:
    """Follows autocast's cache while a function is traced.

    Args:
        read: gives the node of what a tensor shows.
        fakes: what stands for the tensors of the call.
        candidates: which of them are casts.
        name: names a tensor of the call in a message.
    """

    def __init__(
        self,
        read: Callable[[Tensor], fx.Node],
        fakes: Sequence[Tensor],
        candidates: Sequence[Candidate],
        name: Callable[[int], str],
    ) -> None:
        self._read = read
        self._fakes = fakes
        self._candidates = {candidate.leaf: candidate for candidate in candidates}
        self._name = name
        casts = {candidate.cast for candidate in candidates}
        self._numbers = {id(fake): i for i, fake in enumerate(fakes) if i not in casts}
        self._before = {
            i: self._value(fakes[i]) for i in self._numbers.values() if leaf_casts.is_cacheable_leaf(fakes[i])
        }
        cached = torch.is_autocast_cache_enabled()
        self._makes = {
            device: dtype for device, enabled, dtype in autocast_state.device_states() if enabled and cached
        }
        self._given: dict[int, Candidate] = {}  # by the cast
        self._keep: list[Tensor] = []
        self._used: dict[int, bool] = {}
        self._cast_from: dict[int, list[Any]] = {}
        self._detached: set[int] = set()
        self._asks = False

    def fill_cast_cache(self) -> None:
        """Put the candidates into the cache, before the function starts."""
        for candidate in self._candidates.values():
            leaf, cast = self._fakes[candidate.leaf], self._fakes[candidate.cast]
            if candidate.detached:
                given = leaf_casts.cached_cast(leaf, _cloning(cast))
            else:
                with _giving(cast):
                    given = leaf_casts.cached_cast(leaf)
            assert given is not None
            self._keep.append(given)
            self._given[id(given)] = candidate

    def follow_cast_cache(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation comes."""
        if func is _TO_COPY:
            self._note_cast(args[0], kwargs.get("dtype"))
        if not self._given:
            return
        for tensor in tensors_in(args, kwargs):
            candidate = self._given.get(id(tensor))
            if candidate is not None and candidate.leaf not in self._used:
                self._used[candidate.leaf] = self._is_early(candidate, tensor)

    def _note_cast(self, tensor: Tensor, dtype: torch.dtype | None) -> None:
        leaf = self._numbers.get(id(tensor))
        if leaf is None or dtype not in _LOWER or not leaf_casts.is_cacheable_leaf(tensor):
            return
        within, _ = autocast_state.cast_cache_key()
        if within or self._makes:
            self._asks = True
            self._cast_from.setdefault(leaf, []).append(self._value(tensor))

    def _is_early(self, candidate: Candidate, cast: Tensor) -> bool:
        """Whether a candidate that is taken now could have been made before the function started."""
        leaf = self._fakes[candidate.leaf]
        dtypes = {self._makes.get(leaf.device.type), torch.get_autocast_dtype(leaf.device.type)}
        return dtypes == {cast.dtype} and self._value(leaf) == self._before[candidate.leaf]

    def _value(self, fake: Tensor) -> fx.Node | int:
        """What tells whether a tensor shows something else."""
        return version_of(fake) if is_wrapper(fake) else self._read(fake)

    def note_differentiated_casts(self, numbers: Collection[int]) -> None:
        """The function takes gradients with respect to some tensors of the call.

        Raises:
            CastsDiffer: one of them has a candidate that has the caller's history.
        """
        leaves = {i for i in numbers if i in self._candidates and not self._candidates[i].detached}
        if leaves:
            self._detached |= leaves
            raise CastsDiffer((), leaves)

    def check_cached_casts(self) -> None:
        """See that the candidates are what autocast would have made.

        Raises:
            CastsDiffer: some are not.
        """
        inside = {leaf for leaf, early in self._used.items() if not (early or self._candidates[leaf].kept)}
        if inside or self._detached:
            raise CastsDiffer(inside, self._detached)

    def end(self) -> CastUse:
        """The function is over.

        Raises:
            CastsDiffer: some candidates are not what autocast would have made.
            AutocastCacheUnsupported: it cannot be told after a call what autocast would keep.
        """
        self.check_cached_casts()
        made = []
        for number in self._numbers.values():
            fake = self._fakes[number]
            if number in self._candidates or not leaf_casts.is_cacheable_leaf(fake):
                continue
            cast = leaf_casts.cached_cast(fake)
            if cast is None:
                continue
            now = self._value(fake)
            before = self._cast_from.get(number) or [self._before.get(number)]
            if any(value != now for value in before):
                raise AutocastCacheUnsupported(
                    f"the function writes to {self._name(number)} before and after autocast casts it, and "
                    f"autocast keeps that cast until its outermost region ends; leave the region after each "
                    f"step, or enter it with cache_enabled=False"
                )
            made.append((number, cast.dtype))
        used = tuple((self._candidates[leaf], early) for leaf, early in self._used.items())
        return CastUse(used, tuple(made), bool(self._asks or used or made))


def _cloning(cast: Tensor) -> Callable[[Callable[[], Tensor]], Tensor]:
    """What shows the same as a cast, and gets a history of its own."""
    return lambda _: aten.clone.default(cast)


_now = threading.local()


@contextlib.contextmanager
def _giving(cast: Tensor) -> Iterator[None]:
    """Casts of this thread are this one while this lasts."""
    _now.cast = cast
    try:
        yield
    finally:
        _now.cast = None


def _autocast_cast(ordinary: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    cast = getattr(_now, "cast", None)
    if cast is not None:
        return cast
    if isinstance(args[0], Tensor):
        return ordinary(*args, **kwargs)
    with dispatcher.trace_kernels_off():  # a number, of which a dispatcher alone makes a tensor
        return _TO_COPY(*args, **kwargs)


dispatcher.register_trace_kernels({_TO_COPY: _autocast_cast})
