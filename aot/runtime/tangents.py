"""Gradients that come into a compiled backward, as the one that it was recorded for: of a wrapper subclass,
of the same type and made in the same way.

A subclass says itself how one that is not is made such: `__coerce_same_metadata_as_tangent__(context, type)`
of the gradient, as in AOTAutograd. One that does not say so, or gives None, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from aot.errors import UnsupportedTangent
from aot.subclasses import PlainTensorMeta, SubclassCreationMeta, is_wrapper, key_of_context


def coercing(meta: SubclassCreationMeta) -> Callable[[Any], Any]:
    """A function that gives a gradient as one that is made as `meta` says.

    Raises:
        UnsupportedTangent: when called, if the gradient is none and cannot be made one.
    """
    matches = _matching(meta)

    def coerced(given: Any) -> Any:
        if matches(given):
            return given
        coerce = getattr(given, "__coerce_same_metadata_as_tangent__", None)
        other = None if coerce is None else coerce(meta.context, meta.kind)
        if other is not None and matches(other):
            return other
        raise UnsupportedTangent(
            f"a backward is given a gradient of type {type(given).__name__} where one of type "
            f"{meta.kind.__name__} was expected, or one of that type that is made otherwise, and "
            f"__coerce_same_metadata_as_tangent__ does not make it one; convert the gradient"
        )

    return coerced


def plain(given: Any) -> Tensor:
    """A gradient as a plain tensor.

    Raises:
        UnsupportedTangent: it is a wrapper subclass that cannot be made one.
    """
    coerce = getattr(given, "__coerce_same_metadata_as_tangent__", None)
    other = None if coerce is None else coerce(None, Tensor)
    if other is None or is_wrapper(other):
        raise UnsupportedTangent(
            f"a backward is given a gradient of type {type(given).__name__} where a plain tensor was "
            f"expected, and __coerce_same_metadata_as_tangent__ does not make it one; convert the gradient"
        )
    return other  # type: ignore[no-any-return]


def _matching(meta: SubclassCreationMeta) -> Callable[[Any], bool]:
    names = [name for name, _ in meta.parts]
    context = key_of_context(meta.context, meta.kind)
    inner = [(n, None if isinstance(p, PlainTensorMeta) else _matching(p)) for n, p in meta.parts]

    def matches(given: Any) -> bool:
        if type(given) is not meta.kind:
            return False
        ours, its = given.__tensor_flatten__()
        if list(ours) != names or key_of_context(its, meta.kind) != context:
            return False
        parts = ((getattr(given, name), match) for name, match in inner)
        return all(not is_wrapper(part) if match is None else match(part) for part, match in parts)

    return matches
