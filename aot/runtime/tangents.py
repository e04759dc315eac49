"""Gradients that come into a compiled backward, as the one that it was recorded for: of the same type, and
made in the same way.

A wrapper subclass says itself how one that is not is made such: `__coerce_same_metadata_as_tangent__` of the
gradient, with the context and the type, as in AOTAutograd. For one that does not say so, or gives None, the
backward is recorded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from aot.errors import UnsupportedTangent
from aot.tensors.subclasses import (
    GradientLayout,
    SubclassCreationMeta,
    flatten_subclass,
    is_wrapper,
    subclass_context_key,
    unflatten_subclass,
)
from aot.tensors.symbolic_sizes import SymbolicSizes
from aot.torch_internals import tensor_impl


class TangentMismatch(Exception):
    """A gradient is of another type than a backward was recorded for, or made otherwise."""


def tangent_coercion(meta: SubclassCreationMeta) -> Callable[[Any], Any]:
    """A function that gives a gradient as one that is made as `meta` says.

    Raises:
        OtherTangent: when called, if the gradient is none and does not make itself one.
    """
    matches = _tangent_type_matching(meta)

    def coerced(given: Any) -> Any:
        if matches(given):
            return given
        coerce = getattr(given, "__coerce_same_metadata_as_tangent__", None)
        other = None if coerce is None else coerce(meta.context, meta.kind)
        if other is not None and matches(other):
            return other
        raise TangentMismatch

    return coerced


def _tangent_type_matching(meta: SubclassCreationMeta) -> Callable[[Any], bool]:
    names = {name for name, _ in (*meta.parts, *meta.opaque)}
    context = subclass_context_key((meta.context, meta.opaque), meta.kind)
    inner = [
        (n, _tangent_type_matching(p) if isinstance(p, SubclassCreationMeta) else None) for n, p in meta.parts
    ]

    def matches(given: Any) -> bool:
        if type(given) is not meta.kind:
            return False
        ours, its = given.__tensor_flatten__()
        if set(ours) != names:
            return False
        opaque = tuple((name, getattr(given, name)) for name, _ in meta.opaque)
        if subclass_context_key((its, opaque), meta.kind) != context:
            return False
        parts = ((getattr(given, name), match) for name, match in inner)
        return all(not is_wrapper(part) if match is None else match(part) for part, match in parts)

    return matches


def tangent_as_in_trace(given: Any, like: Any, symbols: SymbolicSizes, numbers: Sequence[int]) -> Tensor:
    """A tensor for a tangent of another type than was guessed, or made otherwise, in a trace whose sizes are
    symbols: its sizes are those of what it is a tangent of.

    Args:
        given: the tangent.
        like: what it is a tangent of, in the trace.
        numbers: what the symbols are in this call.

    Raises:
        UnsupportedTangent: it is made of tensors of which nothing says which sizes they have for other ones.
    """
    size = tuple(like.shape)
    inner = [tuple(part.shape) for part in flatten_subclass(like)[1]] if is_wrapper(like) else []

    def shown(sizes: Sequence[int], strides: Sequence[int], *likely: Sequence[Any]) -> _Shown:
        found = next((one for one in (*likely, size) if symbols.at(one, numbers) == tuple(sizes)), None)
        if found is None:
            raise UnsupportedTangent(
                f"a backward is given a {type(given).__name__} of size {tuple(given.shape)}, made of a "
                f"tensor of size {tuple(sizes)}: nothing says which size that has for others, which are "
                f"symbols; compile with dynamic=False"
            )
        return found, _tangent_strides(found, sizes, strides)

    def traced(tensor: Any, *likely: Sequence[Any]) -> Tensor:
        where = shown(tensor.shape, tensor.stride(), *likely)
        with symbols.mode:
            if tensor_impl.is_zero_tensor(tensor):
                zeros = torch.ops.aten._efficientzerotensor
                made: Tensor = zeros(where[0], dtype=tensor.dtype, device=tensor.device)
                return made
            return torch.empty_strided(*where, dtype=tensor.dtype, device=tensor.device)

    if not is_wrapper(given):
        return traced(given)
    meta, plain = flatten_subclass(given)
    # (A part may be as the same one of what the tangent is like.)
    parts = [traced(part, *inner[i : i + 1]) for i, part in enumerate(plain)]
    return unflatten_subclass(meta.meta_laid_as(shown), parts)  # type: ignore[no-any-return]


_Shown = tuple[Sequence[Any], Sequence[Any]]


def _tangent_strides(size: Sequence[Any], sizes: Sequence[int], strides: Sequence[int]) -> tuple[Any, ...]:
    """The strides, in symbols, of what has these in a call; in row-major order where that says nothing."""
    order = sorted(range(len(size)), key=lambda d: (strides[d], sizes[d]))
    expected = 1
    for d in order:
        if sizes[d] != 1 and strides[d] != expected:
            order = list(reversed(range(len(size))))
            break
        expected *= sizes[d]
    made: list[Any] = [1] * len(size)
    known: Any = 1
    for d in order:
        made[d], known = known, known * size[d]
    return tuple(made)


def with_traced_strides(
    given: Tensor, size: tuple[int, ...], stride: tuple[int, ...], from_start: bool = False
) -> Tensor:
    """A tangent laid out as the backward graph was traced for, and not lazily conjugated or negated; at the
    start of its storage if it must be there (`from_start`).

    Raises:
        OtherTangent: it is a wrapper subclass, and does not make itself a plain tensor.
    """
    if type(given) is not Tensor and is_wrapper(given):
        coerce = getattr(given, "__coerce_same_metadata_as_tangent__", None)
        other = None if coerce is None else coerce(None, Tensor)
        if other is None or is_wrapper(other):
            raise TangentMismatch
        given = other
    if given.is_conj() or given.is_neg():
        given = given.resolve_conj().resolve_neg()
    if not (from_start and given.storage_offset()):
        if given.stride() == stride:
            return given
        if _lies_so(given, stride):
            return given.as_strided(size, stride)
    once = tuple(1 if n and not s else n for n, s in zip(size, stride, strict=True))
    if once != size:  # it shows one element several times
        given = given[tuple(slice(n) for n in once)]
    made = torch.empty_strided(once, stride, dtype=given.dtype, device=given.device).copy_(given)
    return made if once == size else made.expand(size)


def same_memory(given: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """A tangent seen with the strides that the backward graph was traced for, if it lies as these say: the
    strides of dimensions of one element may differ. Else as it is."""
    return given.as_strided(size, stride) if type(given) is Tensor and _lies_so(given, stride) else given


def _lies_so(given: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether a tensor has these strides, but for dimensions of one element."""
    strides = zip(given.shape, given.stride(), stride, strict=True)
    return all(n == 1 or one == other for n, one, other in strides)


def require_tangent_strides(stride: tuple[int, ...], given: Tensor) -> None:
    """Let a gradient pass for which eager's backward raises, because it has these strides.

    Raises:
        UnsupportedTangent: it has others.
    """
    if not is_wrapper(given) and _lies_so(given, stride):
        return
    raise UnsupportedTangent(
        f"the backward of a result raises for a gradient with strides {stride}, and may not for one with "
        f"{tuple(given.stride())}; give it one that is laid out as the result"
    )


def unflatten_tangent_values(
    layouts: Sequence[GradientLayout], values: Iterator[Tensor | None]
) -> list[Tensor | None]:
    """What is made of the next values, one after the other."""
    found: list[Tensor | None] = []
    for layout in layouts:
        plain = [next(values) for _ in layout.wheres]
        if layout.meta is None or plain[0] is None:
            found.append(plain[0])
        else:
            pairs = zip(plain, layout.wheres, strict=True)
            laid = [
                None if p is None else with_traced_strides(p, where.size, where.stride) for p, where in pairs
            ]
            found.append(unflatten_subclass(layout.meta, laid))
    return found
