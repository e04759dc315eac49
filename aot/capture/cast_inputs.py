"""Casts of leaves that autocast keeps until its outermost region ends, as further arguments of a call.

In: the tensors of a call, and what a function does with autocast's cache (`CastUse`). Out: the tensors that
its compile takes. They are made by autocast itself, so that whatever else runs in the region takes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aot.capture.recorder.autocast_cache import Candidate, CastsDiffer, CastUse
from aot.specialize.call import Arguments, analyze_arguments, call_key_without_sizes
from aot.specialize.inline_cache import compile_inline_test
from aot.tensors.symbolic_sizes import StaticSizes
from aot.torch_internals import autocast_state, dynamo_api, leaf_casts


@dataclass(frozen=True, slots=True)
class CastInputs:
    """The arguments that are casts, for one compile.

    Attributes:
        arguments: the call, with the candidates as its last leaves.
        candidates: what these are.
        inside: tensors of which the function makes the cast itself.
        detached: those of which the casts have no history.
    """

    arguments: Arguments
    candidates: tuple[Candidate, ...] = ()
    inside: frozenset[int] = frozenset()
    detached: frozenset[int] = frozenset()

    def differing(self, difference: CastsDiffer, call: Arguments) -> CastInputs:
        """What the next trace of a call gets."""
        return find_cast_inputs(
            call, False, self.inside | difference.inside, self.detached | difference.detached
        )

    def of(self, tensors: Collection[int]) -> frozenset[int]:
        """The casts of some tensors."""
        return frozenset(one.cast for one in self.candidates if one.leaf in tensors)

    def constant(self, constant: StaticSizes) -> StaticSizes:
        """Which numbers are no symbols: those of a cast are like those of its leaf."""
        casts = {one.leaf: one.cast for one in self.candidates}
        dimensions = {(casts[leaf], d) for leaf, d in constant.dimensions if leaf in casts}
        tensors = constant.tensors | self.of(constant.tensors)
        return replace(constant, tensors=tensors, dimensions=constant.dimensions | dimensions)


def find_cast_inputs(
    call: Arguments,
    inference: bool,
    inside: frozenset[int] = frozenset(),
    detached: frozenset[int] = frozenset(),
) -> CastInputs:
    """Find the leaves of a call that autocast may cast in it.

    Args:
        inference: whether it is made in inference mode, in which autocast keeps nothing.
        inside: those of which the function makes the cast itself, unless autocast keeps one.
        detached: those that it takes gradients with respect to.
    """
    within, cached = autocast_state.cast_cache_key()
    if inference or not (within or autocast_state.is_autocast_enabled()):
        return CastInputs(call)
    found: list[tuple[int, Tensor, bool]] = []
    for number, leaf in enumerate(call.tensors):
        if not leaf_casts.is_cacheable_leaf(leaf):
            continue
        cast = leaf_casts.cached_cast(leaf)
        kept = cast is not None
        makes = cached and number not in inside and torch.is_autocast_enabled(leaf.device.type)
        if cast is None and makes:
            cast = leaf_casts.uncached_cast(leaf)
        if cast is not None:
            found.append((number, cast.detach() if number in detached else cast, kept))
    if not found:
        return CastInputs(call, (), inside, detached)
    given = [value if index is None else call.tensors_and_subclasses[index] for index, value in call.leaves]
    arguments = analyze_arguments([*given, *(cast for _, cast, _ in found)])
    first = len(arguments.leaves) - len(found)
    candidates = []
    for position, (number, _, kept) in enumerate(found, first):
        cast_number, _ = arguments.leaves[position]
        assert cast_number is not None
        candidates.append(Candidate(number, cast_number, kept, number in detached))
    return CastInputs(arguments, tuple(candidates), inside, detached)


@dataclass(frozen=True, slots=True)
class _Slot:
    """One candidate at a call.

    Attributes:
        leaf: the number of its leaf.
        filler: a tensor without memory that lies like it, where nothing takes the cast.
        makes: whether autocast is to make it, where it keeps none.
        detached: whether it is given without history.
    """

    leaf: int
    filler: Tensor | None
    makes: bool
    detached: bool

    def of(self, tensors: Sequence[Tensor]) -> Tensor | None:
        leaf = tensors[self.leaf]
        if self.filler is not None:
            if self.filler.shape == leaf.shape:
                return self.filler
            return torch.empty_like(leaf, dtype=self.filler.dtype, device="meta")
        cast = leaf_casts.cast_leaf(leaf) if self.makes else leaf_casts.cached_cast(leaf)
        return cast.detach() if self.detached and cast is not None else cast


class CallCasts:
    """Gets the casts that a compile takes, at each call.

    Args:
        casting: the call that it was made for.
        use: what the function does with them.
        symbolic: whether it answers calls of other sizes.

    Raises:
        ValueError: `use` is that of another call.
    """

    def __init__(self, casting: CastInputs, use: CastUse, symbolic: bool) -> None:
        arguments, uses = casting.arguments, dict(use.used)
        if not uses.keys() <= set(casting.candidates):
            raise ValueError("casts of other arguments")
        self._at = len(arguments.tensors) - len(casting.candidates)
        self._slots: list[_Slot] = []
        used: list[Tensor] = []
        for candidate in casting.candidates:
            cast, makes = arguments.tensors[candidate.cast], uses.get(candidate)
            filler = None
            if makes is None:
                filler = torch.empty_strided(cast.shape, cast.stride(), dtype=cast.dtype, device="meta")
            else:
                used.append(cast)
            self._slots.append(_Slot(candidate.leaf, filler, bool(makes), candidate.detached))
        self._made = use.made
        # (Wrapper subclasses come after the plain tensors, and so after the casts.)
        shift = len(casting.candidates)
        self._absent = [number if number < self._at else number - shift for number, _ in use.made]
        self._fits = _are_fitting_casts(used, symbolic)

    def of(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """The casts for the tensors of a call; None where what autocast keeps is of another kind."""
        if self.kept(tensors):
            return None
        found: list[Tensor] = []
        for slot in self._slots:
            cast = slot.of(tensors)
            if cast is None:
                return None
            found.append(cast)
        used = [cast for cast, slot in zip(found, self._slots, strict=True) if slot.filler is None]
        return tuple(found) if self._fits(*used) else None

    def kept(self, tensors: Sequence[Tensor]) -> list[int]:
        """The tensors of a call that the function casts itself, and of which autocast keeps a cast."""
        return [n for n in self._absent if leaf_casts.cached_cast(tensors[n]) is not None]

    def joined(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The tensors that the compile takes for a call; None where it does not answer it."""
        casts = self.of(tensors)
        return None if casts is None else (*tensors[: self._at], *casts, *tensors[self._at :])

    def making(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call after which autocast keeps the casts that the function has made itself."""
        made = self._made
        if not made:
            return call

        def calling(*tensors: Any) -> Any:
            result = call(*tensors)
            for number, dtype in made:
                leaf_casts.cast_leaf(tensors[number], dtype)
            return result

        dynamo_api.skip(calling)
        return calling


def _are_fitting_casts(casts: Sequence[Tensor], symbolic: bool) -> Callable[..., bool]:
    """Whether others are of the same kind; with symbols for sizes, `ShapeGuards` tells of these."""
    if not casts:
        return lambda: True
    arguments = analyze_arguments(casts)
    key = _key(arguments, symbolic)
    test = None if symbolic else compile_inline_test(arguments)

    def fits(*others: Tensor) -> bool:
        if test is not None and test(*others) is not None:
            return True
        return _key(analyze_arguments(others), symbolic) == key

    return fits


def _key(arguments: Arguments, symbolic: bool) -> tuple[object, ...]:
    return call_key_without_sizes(arguments, (), ()) if symbolic else arguments.key
