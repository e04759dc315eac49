"""Wrapper subclasses: take a tensor apart that is made of other tensors, and put it together again.

In: a traceable wrapper subclass (https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html).
Out: a `SubclassCreationMeta`, which is data, and its plain tensors. Such a class has two methods.
`__tensor_flatten__` gives the names of the inner tensors and the *context*, which is all else that is needed
to make the tensor again. `__tensor_unflatten__` makes it. Inner tensors may be wrapper subclasses themselves.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aot.errors import UnsupportedArgument
from aot.tensors.constants import CONSTANTS, constant_key
from aot.tensors.geometry import Geometry, geometry
from aot.torch_internals import wrapper_subclasses


@dataclass(frozen=True, slots=True)
class PlainTensorMeta:
    """An inner tensor that is plain: the one at `position` in a list of plain tensors."""

    position: int


@dataclass(frozen=True, slots=True)
class SharedTensorMeta:
    """An inner tensor of a gradient that is no gradient itself, as the offsets of a nested tensor.

    It is number `number` in a list of shared tensors, which is separate from the plain ones.
    """

    number: int


@dataclass(frozen=True, slots=True)
class SubclassCreationMeta:
    """How a wrapper subclass is made.

    Attributes:
        kind: its type.
        parts: (name, meta) of its inner tensors.
        context: the context of `__tensor_flatten__`.
        size, stride: its own size and strides.
        opaque: (name, object) of its parts that are no tensors, such as a DTensor's mesh.
    """

    kind: Any
    parts: tuple[tuple[str, PlainTensorMeta | SharedTensorMeta | SubclassCreationMeta], ...]
    context: Any
    size: Any
    stride: Any
    opaque: tuple[tuple[str, Any], ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the plain tensors that it is made of, in the order of its parts."""
        return tuple(i for _, part in self.parts for i in _positions_of(part))

    def showing(self, numbers: Callable[[Any], Any]) -> SubclassCreationMeta:
        """The same with sizes and strides mapped by `numbers`, at all depths."""
        return self.meta_laid_as(lambda size, stride: (numbers(size), numbers(stride)))

    def meta_laid_as(self, shown: Callable[[Any, Any], tuple[Any, Any]]) -> SubclassCreationMeta:
        """The same with size and strides mapped together by `shown`, at all depths."""
        parts = tuple(
            (name, part.meta_laid_as(shown) if isinstance(part, SubclassCreationMeta) else part)
            for name, part in self.parts
        )
        size, stride = shown(self.size, self.stride)
        return replace(self, parts=parts, size=size, stride=stride)

    def moved(self, to: Callable[[int], int]) -> SubclassCreationMeta:
        """The same with the positions of plain tensors mapped by `to`."""
        return replace(self, parts=tuple((name, _moved(part, to)) for name, part in self.parts))


_Part = PlainTensorMeta | SharedTensorMeta | SubclassCreationMeta


def _positions_of(part: _Part) -> tuple[int, ...]:
    if isinstance(part, PlainTensorMeta):
        return (part.position,)
    return () if isinstance(part, SharedTensorMeta) else part.positions


def _moved(part: _Part, to: Callable[[int], int]) -> _Part:
    if isinstance(part, PlainTensorMeta):
        return PlainTensorMeta(to(part.position))
    return part if isinstance(part, SharedTensorMeta) else part.moved(to)


is_wrapper = wrapper_subclasses.is_wrapper_subclass


def flatten_subclass(tensor: Any) -> tuple[SubclassCreationMeta, list[Tensor]]:
    """Take a wrapper subclass apart: how it is made, and the plain tensors that it is made of."""
    plain: list[Tensor] = []
    return _flatten_inner_gradient(tensor, plain, None), plain


def flatten_gradient(tensor: Any) -> tuple[SubclassCreationMeta, list[Tensor], list[Tensor]]:
    """Take a gradient apart, or a tensor whose gradient has its form: meta, plain and shared tensors.

    A nested tensor's size names its tensor of offsets, and two nested tensors have one shape only if they
    share it. So a gradient shares the offsets of the tensor that it belongs to; autograd checks that.
    """
    plain: list[Tensor] = []
    shared: list[Tensor] = []
    return _flatten_inner_gradient(tensor, plain, shared if is_nested(tensor) else None), plain, shared


def is_nested(tensor: Tensor) -> bool:
    """Whether a size of a tensor is a nested int, which names a tensor of offsets."""
    return has_nested_ints(tuple(tensor.shape))


def has_nested_ints(numbers: Any) -> bool:
    """Whether sizes or strides contain a nested int. Other symbols are sizes of a dynamic trace."""
    if isinstance(numbers, (tuple, list)):
        return any(map(has_nested_ints, numbers))
    return is_nested_int(numbers)


def is_nested_int(number: Any) -> bool:
    """Whether a size or stride is a nested int."""
    return isinstance(number, torch.SymInt) and bool(number.node.is_nested_int())


def _flatten_inner_gradient(
    tensor: Any, plain: list[Tensor], shared: list[Tensor] | None
) -> SubclassCreationMeta:
    names, context = tensor.__tensor_flatten__()
    parts: list[tuple[str, _Part]] = []
    opaque: list[tuple[str, Any]] = []
    for name in names:
        part = getattr(tensor, name)
        if not isinstance(part, Tensor):
            opaque.append((name, part))
        elif is_wrapper(part):
            parts.append((name, _flatten_inner_gradient(part, plain, shared)))
        elif shared is not None and (0 in part.shape or not (part.is_floating_point() or part.is_complex())):
            parts.append((name, SharedTensorMeta(len(shared))))
            shared.append(part)
        else:
            parts.append((name, PlainTensorMeta(len(plain))))
            plain.append(part)
    size, stride = tuple(tensor.shape), tensor.stride()
    return SubclassCreationMeta(type(tensor), tuple(parts), context, size, stride, tuple(opaque))


def unflatten_subclass(meta: SubclassCreationMeta, plain: Sequence[Any], shared: Sequence[Any] = ()) -> Any:
    """Make a wrapper subclass of these plain tensors, outside of autograd."""

    def made(part: _Part) -> Any:
        if isinstance(part, PlainTensorMeta):
            return plain[part.position]
        if isinstance(part, SharedTensorMeta):
            return shared[part.number]
        return unflatten_subclass(part, plain, shared)

    inner = {**{name: made(part) for name, part in meta.parts}, **dict(meta.opaque)}
    with torch.no_grad():
        return meta.kind.__tensor_unflatten__(inner, meta.context, torch.Size(meta.size), meta.stride)


def all_inner_tensors(wrapper: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The inner tensors of a wrapper subclass at all depths, each with the names that lead to it."""
    for name in wrapper.__tensor_flatten__()[0]:
        part = getattr(wrapper, name)
        if not isinstance(part, Tensor):
            continue
        yield (*path, name), part
        if is_wrapper(part):
            yield from all_inner_tensors(part, (*path, name))


def inner_wrappers(wrapper: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The inner tensors of a wrapper subclass that are wrapper subclasses themselves, with their paths."""
    return ((path, part) for path, part in all_inner_tensors(wrapper) if is_wrapper(part))


@dataclass(frozen=True, slots=True)
class GradientLayout:
    """The layout of a gradient.

    Attributes:
        wheres: the geometry of the gradient, or of each plain tensor that it is made of.
        meta: how it is made of these, if it is a wrapper subclass.
    """

    wheres: tuple[Geometry, ...]
    meta: SubclassCreationMeta | None = None


def layout_of(gradient: Any) -> GradientLayout:
    """The layout of a gradient."""
    if not is_wrapper(gradient):
        return GradientLayout((geometry(gradient),))
    meta, plain, _ = flatten_gradient(gradient)
    return GradientLayout(tuple(map(geometry, plain)), meta)


def inner_tensors(gradient: Any) -> list[Tensor]:
    """The plain tensors of a gradient: itself, or its inner tensors that are not shared."""
    return flatten_gradient(gradient)[1] if is_wrapper(gradient) else [gradient]


def shared_inner_tensors(gradient: Any) -> list[Tensor]:
    """The inner tensors that a gradient shares with the tensor that it belongs to."""
    return flatten_gradient(gradient)[2] if is_wrapper(gradient) else []


def subclass_meta_key(meta: SubclassCreationMeta) -> object:
    """A key that is equal for two metas exactly if one trace answers both.

    Raises:
        UnsupportedArgument: contexts of this type cannot be compared.
    """
    parts = tuple(
        (name, subclass_meta_key(part) if isinstance(part, SubclassCreationMeta) else part)
        for name, part in meta.parts
    )
    return (
        meta.kind,
        parts,
        subclass_context_key(meta.context, meta.kind),
        subclass_context_key(meta.opaque, meta.kind),
        *map(_key_of_numbers, (meta.size, meta.stride)),
    )


def subclass_context_key(context: Any, kind: type) -> object:
    """A key that is equal for two contexts of wrapper subclasses of a type exactly if they are equal.

    Raises:
        UnsupportedArgument: contexts of this type cannot be compared.

    Example:
        >>> subclass_context_key({"scale": 2.0}, Tensor) == subclass_context_key({"scale": 2.0}, Tensor)
        True
    """
    if isinstance(context, CONSTANTS):
        return constant_key(context)
    if isinstance(context, (tuple, list)):
        return type(context), tuple(subclass_context_key(one, kind) for one in context)
    if isinstance(context, dict):
        return type(context), tuple((name, subclass_context_key(one, kind)) for name, one in context.items())
    by_value: Any = type(context).__eq__
    if by_value is not object.__eq__ or isinstance(context, _ONE_OF_A_KIND):
        try:
            hash(context)
        except TypeError:
            pass
        else:
            return type(context), context
    raise UnsupportedArgument(
        f"a {kind.__name__} whose __tensor_flatten__ gives a {type(context).__name__} as context: it cannot "
        f"be told whether two of these are equal; give it __eq__ and __hash__"
    )


_ONE_OF_A_KIND = (type, enum.Enum, types.FunctionType, types.BuiltinFunctionType)


def _key_of_numbers(numbers: Sequence[Any]) -> tuple[object, ...]:
    """Sizes or strides as a key. A nested int counts as "nested", because inner tensors are in the key."""
    return tuple("nested" if isinstance(n, torch.SymInt) else n for n in numbers)


@dataclass(frozen=True, slots=True)
class SubclassMeta:
    """The wrapper subclasses among arguments and results of a compiled function.

    Attributes:
        inputs: the ones among the arguments, each object once, made of plain tensors of the call.
        outputs: the ones among the results that the function made, by position in the result's tree. Their
            plain tensors are counted after the results.

    Example:
        >>> compiled = aot.aot_function(torch.sin, aot.nop)
        >>> _ = compiled(TwoTensor(torch.ones(2), torch.ones(2)))  # doctest: +SKIP
        >>> compiled.specializations[0].metadata.subclasses.outputs[0].positions  # doctest: +SKIP
        (1, 2)
    """

    inputs: tuple[SubclassCreationMeta, ...]
    outputs: dict[int, SubclassCreationMeta]
