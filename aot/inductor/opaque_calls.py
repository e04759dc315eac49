"""Opaque calls: calls that Inductor does not decompose, as operators of their own.

In: a function, and the arguments of a call. Out: the results of an operator in the namespace ``aot_whole``,
which takes tensors and numbers and makes this call. Inductor has no rule for the operator. So it does not
decompose it, and gives it tensors with the strides of the graph.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aot.tensors.symbolic_sizes import has_symbols
from aot.torch_internals import op_queries, pytree

NAMESPACE = "aot_whole"

_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_LOCK = threading.Lock()
_TAGS = (torch.Tag.nondeterministic_seeded, torch.Tag.needs_exact_strides)


def is_opaque(target: Any) -> bool:
    """Whether a node with this target makes an opaque call."""
    return isinstance(target, op_queries.OpOverload) and target.namespace == NAMESPACE


class _Tensor:
    def __repr__(self) -> str:
        return "tensor"


class _Number:
    def __repr__(self) -> str:
        return "number"


_TENSOR, _NUMBER = _Tensor(), _Number()


def call_opaque(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    known: Any,
    after: Sequence[Tensor] = (),
) -> Any:
    """Call a function by an operator of its own, which is made for this call. It may draw random numbers.

    For fake tensors the operator returns fakes like `known`. If sizes of `known` have symbols, it runs the
    function on the fakes.

    Args:
        function: the function.
        args, kwargs: tensors, numbers and constants, or containers of them.
        known: the result in the trace: a tensor, or a tuple of tensors and constants.
        after: results of calls that must run before; they are not read.

    Example:
        >>> call_opaque(torch.rand, [2], {}, torch.empty(2)).shape
        torch.Size([2])
    """
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    numbers = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)]
    form = [
        _TENSOR if isinstance(leaf, Tensor) else _NUMBER if isinstance(leaf, torch.SymInt) else leaf
        for leaf in leaves
    ]

    many = isinstance(known, (tuple, list))
    given_back = [i for i, value in enumerate(known) if isinstance(value, Tensor)] if many else None

    def call(tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
        given, counted = iter(tensors), iter(numbers)
        filled = [next(given) if x is _TENSOR else next(counted) if x is _NUMBER else x for x in form]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        result = function(*args, **kwargs)
        return [result] if given_back is None else [result[i] for i in given_back]

    likes = [value for value in (known if many else [known]) if isinstance(value, Tensor)]
    shapes = [(tuple(v.shape), v.stride(), v.dtype, v.device) for v in likes]
    if has_symbols(shapes):
        shapes = []

    def imagine(tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
        # The strides in the trace are those of kernels; a meta kernel might give others.
        if not shapes:
            return call(tensors, numbers)
        return [
            torch.empty_strided(size, stride, dtype=dtype, device=device)
            for size, stride, dtype, device in shapes
        ]

    text = f"{function}, {form}, {spec}, {given_back}, {shapes}"
    name = f"call_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    with _LOCK:
        if not hasattr(getattr(torch.ops, NAMESPACE), name):
            _LIBRARY.define(f"{name}(Tensor[] tensors, SymInt[] numbers) -> Tensor[]", tags=_TAGS)
            _LIBRARY.impl(name, call, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{NAMESPACE}::{name}", imagine, lib=_LIBRARY)
    results = getattr(getattr(torch.ops, NAMESPACE), name).default([*tensors, *after], numbers)
    if given_back is None:
        return results[0]
    tuple_of = dict(zip(given_back, results, strict=True))
    return tuple(tuple_of.get(i, value) for i, value in enumerate(known))
