"""The wrapper subclasses among a call's arguments: their part of the specialization key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from aot.tensors.geometry import geometry
from aot.tensors.subclasses import (
    SubclassCreationMeta,
    flatten_subclass,
    inner_wrappers,
    is_wrapper,
    subclass_meta_key,
)
from aot.torch_internals import autograd_state


def subclass_keys(
    wrappers: Sequence[Tensor],
    metas: Sequence[SubclassCreationMeta],
    storages: Mapping[int, int],
    numbers: Mapping[int, int],
) -> Iterator[tuple[object, ...]]:
    """The parts of a call's key that tell of its wrapper subclasses.

    Args:
        storages: the numbers of the storages that the call's plain tensors lie in, by their address.
        numbers: those of the arguments, by their identity.

    Raises:
        UnsupportedArgument: it cannot be told of one which others are like it.
    """
    for wrapper, meta in zip(wrappers, metas, strict=True):
        yield subclass_key(wrapper, meta)
        base = view_base(wrapper)
        if base is not None and is_wrapper(base):
            of, parts = flatten_subclass(base)
            places = (storages.get(part.untyped_storage()._cdata) for part in parts)
            yield "base", subclass_meta_key(of), *map(geometry, parts), *places
    families = base_groups(wrappers)
    if len(set(families)) < len(wrappers):
        yield "families", *families
    if any(nesting_depth(meta) > 1 for meta in metas):
        inner = (part for wrapper in wrappers for _, part in inner_wrappers(wrapper))
        yield "inner", *(numbers.get(id(part)) for part in inner)


def subclass_key(wrapper: Tensor, meta: SubclassCreationMeta) -> tuple[object, ...]:
    """The part that tells of one, but for how its base lies."""
    base, leaf = view_base(wrapper), wrapper.is_leaf
    return (
        "subclass",
        subclass_meta_key(meta),
        isinstance(wrapper, torch.nn.Parameter),
        wrapper.dtype,
        wrapper.device,
        wrapper.requires_grad,
        leaf,
        leaf and wrapper.grad is not None,
        None if base is None else (autograd_state.creation_meta(wrapper), base.requires_grad, base.is_leaf),
    )


def view_base(wrapper: Tensor) -> Tensor | None:
    return wrapper._base if wrapper._is_view() else None


def base_groups(wrappers: Sequence[Tensor]) -> tuple[int, ...]:
    """For each wrapper subclass the first one that is a view of the same tensor, or is that."""
    bases = [view_base(wrapper) for wrapper in wrappers]
    roots = [wrapper if base is None else base for wrapper, base in zip(wrappers, bases, strict=True)]
    return tuple(next(i for i, one in enumerate(roots) if one is root) for root in roots)


def nesting_depth(meta: SubclassCreationMeta) -> int:
    return 1 + max(
        (nesting_depth(part) for _, part in meta.parts if isinstance(part, SubclassCreationMeta)), default=0
    )
