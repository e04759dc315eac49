"""A call's arguments: which tensors they are, how they share storage, and the call's specialization key.

`Arguments` takes a call apart: every tensor object once (an argument given twice is one tensor), everything
else a constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aot import errors
from aot.specialize.subclass_keys import subclass_key, subclass_keys
from aot.tensors.constants import CONSTANTS, constant_key
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.subclasses import SubclassCreationMeta, flatten_subclass, has_nested_ints, is_wrapper
from aot.tensors.version_counters import counter_groups, has_counter
from aot.torch_internals import (
    autograd_state,
    function_transforms,
    pytree,
    script_objects,
    wrapper_subclasses,
)

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_NO_CONTAINERS = _PLAIN.union(CONSTANTS)


def flatten_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Hashable]:
    """The leaves of a call's arguments, and their tree: equal for two calls exactly when their trees are."""
    if not kwargs and are_leaves(args):
        return args, len(args)  # ten times as fast
    return pytree.tree_flatten((args, kwargs))


def are_leaves(args: tuple[Any, ...]) -> bool:
    """Whether there are no containers among a call's arguments, nor what may be one."""
    return _NO_CONTAINERS.issuperset(map(type, args))


@contextlib.contextmanager
def refusing_container_changes(given: tuple[tuple[Any, ...], dict[str, Any]]) -> Iterator[None]:
    """Refuse a function that changes containers among its arguments while this lasts: it is given copies.

    Raises:
        ClosureMutation: something has been put into a list, a dict or the like, or taken out.
    """
    before, tree = pytree.tree_flatten(given)
    yield
    after, now = pytree.tree_flatten(given)
    if tree != now or not all(map(_is_same_argument_container, before, after)):
        raise errors.ClosureMutation(
            "the function changes a container among its arguments (a list, a dict, ...): a compiled call "
            "takes what is in it, and would leave it as it is; return what is new, or change a copy"
        )


def _is_same_argument_container(before: Any, after: Any) -> bool:
    if before is after:
        return True
    return (
        isinstance(before, CONSTANTS)
        and isinstance(after, CONSTANTS)
        and constant_key(before) == constant_key(after)
    )


@dataclass(frozen=True, slots=True)
class Arguments:
    """One call, taken apart.

    Attributes:
        tensors: every plain tensor among the leaves, and those that wrapper subclasses among them are made
            of; each object once, in order of first appearance.
        leaves: per leaf, the index of its tensor or None, and its value when it is not a tensor. Wrapper
            subclasses are counted after the plain tensors.
        key: equal for two calls exactly when one trace answers both.
        tensors_and_subclasses: the plain tensors, and then the wrapper subclasses among the leaves, each
            object once; what a compiled call takes.
        metas: how each wrapper subclass is made of `tensors`.
    """

    tensors: tuple[Tensor, ...]
    leaves: tuple[tuple[int | None, Any], ...]
    key: tuple[object, ...]
    tensors_and_subclasses: tuple[Tensor, ...]
    metas: tuple[SubclassCreationMeta, ...] = ()

    @property
    def wrappers(self) -> tuple[Tensor, ...]:
        """The wrapper subclasses."""
        return self.tensors_and_subclasses[len(self.tensors) :]

    def inner_indices(self, numbers: Iterable[int]) -> frozenset[int]:
        """Those of `tensors` that these of `tensors_and_subclasses` are, or are made of."""
        count = len(self.tensors)
        return frozenset(i for k in numbers for i in ((k,) if k < count else self.metas[k - count].positions))


def analyze_arguments(leaves: Sequence[Any]) -> Arguments:
    """The tensors, constants and specialization key of a call.

    Raises:
        UnsupportedArgument: a leaf is of a kind that cannot be part of a key.
    """
    tensors: list[Tensor] = []
    seen: dict[int, int] = {}
    parts: list[tuple[int | None, Any]] = []
    key: list[object] = []
    wrappers: list[Tensor] = []
    metas: list[SubclassCreationMeta] = []
    transformed = function_transforms.are_tensors_transformed()
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            identity = id(leaf)
            index = seen.get(identity)
            if index is None and type(leaf) not in _PLAIN and is_wrapper(leaf):
                index = seen[identity] = ~len(wrappers)
                meta, inner = flatten_subclass(leaf)
                _check_wrapper_argument(position, leaf, transformed)
                for part in inner:
                    if id(part) not in seen:
                        seen[id(part)] = len(tensors)
                        _check_tensor_argument(position, part, transformed)
                        tensors.append(part)
                places = [seen[id(part)] for part in inner]
                wrappers.append(leaf)
                metas.append(meta.moved(places.__getitem__))
            elif index is None:
                index = seen[identity] = len(tensors)
                if (
                    transformed
                    or type(leaf) not in _PLAIN
                    or leaf.is_quantized
                    or leaf.layout is not torch.strided
                    or leaf.is_inference()
                ):
                    _check_tensor_argument(position, leaf, transformed)
                tensors.append(leaf)
            parts.append((index, None))
            key.append(index)
        else:
            parts.append((None, leaf))
            key.append(_constant_argument_key(position, leaf))
    groups: dict[int, int] = {}
    bases: dict[int, int] = {}
    roots: dict[int, dict[int, Tensor]] = {}
    for tensor in tensors:
        view, leaf = tensor._is_view(), tensor.is_leaf
        root = tensor._base if view else tensor
        assert root is not None
        identity = id(root)
        storage = tensor.untyped_storage()
        address = storage._cdata
        group = groups.get(address)
        if group is None:
            group = groups[address] = len(groups)
            roots[address] = {identity: root}
            key.append(storage.nbytes())
        else:
            roots[address][identity] = root
        key.append(
            (
                type(tensor),
                tensor.shape,
                tensor.stride(),
                tensor.storage_offset(),
                tensor.is_conj(),
                tensor.is_neg(),
                tensor.dtype,
                tensor.device,
                tensor.requires_grad,
                leaf,
                leaf and tensor.grad is not None,
                tensor.is_inference(),
                group,
                bases.setdefault(identity, len(bases)),
            )
        )
        if view:
            key.append(
                (
                    geometry(root),
                    root.requires_grad,
                    root.is_leaf,
                    autograd_state.creation_meta(tensor),
                    autograd_state.can_accumulate_grad(tensor),
                    seen.get(identity),
                    root.untyped_storage()._cdata == address,
                )
            )
    for together in roots.values():
        if len(together) > 1:
            key.append(counter_groups(tuple(together.values())))
    plain = tuple(tensors)
    if not wrappers:
        return Arguments(plain, tuple(parts), tuple(key), plain)
    key.extend(subclass_keys(wrappers, metas, groups, seen))
    # (Numbers below 0 count wrappers.)
    counted = tuple((len(plain) + ~i if i is not None and i < 0 else i, value) for i, value in parts)
    return Arguments(plain, counted, tuple(key), (*plain, *wrappers), tuple(metas))


def _check_wrapper_argument(position: int, wrapper: Tensor, transformed: bool) -> None:
    what = f"argument {position} (counting the leaves of the argument tree)"
    transform = function_transforms.transform_of(wrapper) if transformed else None
    if transform is not None:
        raise errors.UnsupportedArgument(
            f"{what} {transform}, which a compiled graph would not see; transform inside of the function"
        )
    if wrapper.is_inference():
        raise errors.UnsupportedArgument(
            f"{what} is a {type(wrapper).__name__} made in inference mode; make it under torch.no_grad"
        )


def call_key_without_sizes(
    arguments: Arguments, as_they_are: Collection[int], numbers: Sequence[int]
) -> tuple[object, ...]:
    """The key of a call without sizes, strides and offsets, but for those of the tensors `as_they_are`, and
    without the leaves `numbers`: equal for two calls only if symbols may answer both."""
    count = len(arguments.leaves)
    key: list[object] = list(arguments.key[:count])
    for leaf in numbers:
        key[leaf] = arguments.leaves[leaf][1] if arguments.leaves[leaf][1] < 2 else None
    number = -1
    for part in arguments.key[count:]:
        if not isinstance(part, tuple):  # the size of a storage
            continue
        first = part[0] if part else None
        number += isinstance(first, type)
        if number in as_they_are:
            key.append(part)
        elif isinstance(first, type):
            kind, size, _, _, *rest = part
            key.append((kind, tuple(n if n < 2 else None for n in size), *rest))
        elif isinstance(first, Geometry):  # of what it is a view of
            key.append((len(first.size), *first[3:], *part[1:]))
        elif first not in ("subclass", "base"):  # (With symbols no fake is a view of its base's.)
            key.append(part)
    for wrapper, meta in zip(arguments.wrappers, arguments.metas, strict=True):
        key.append(subclass_key(wrapper, meta.showing(_small)))
    return tuple(key)


def _small(numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes or strides, of which those of 0 and 1 count."""
    return tuple(n if has_nested_ints(n) or n < 2 else None for n in numbers)


def _check_tensor_argument(position: int, tensor: Tensor, transformed: bool) -> None:
    what = f"argument {position} (counting the leaves of the argument tree)"
    transform = function_transforms.transform_of(tensor) if transformed else None
    if transform is not None:
        raise errors.UnsupportedArgument(
            f"{what} {transform}, which a compiled graph would not see; transform inside of the function"
        )
    if type(tensor) not in _PLAIN and not wrapper_subclasses.acts_as_plain(tensor):
        raise errors.UnsupportedArgument(
            f"{what} is, or is made of, a {type(tensor).__name__}: of tensor subclasses, those can be "
            f"compiled that say what they are made of (__tensor_flatten__, __tensor_unflatten__); pass plain "
            f"tensors"
        )
    if tensor.is_quantized:
        raise errors.UnsupportedArgument(
            f"{what} is quantized: only plain tensors can be compiled; call dequantize()"
        )
    if tensor.layout is not torch.strided:
        raise errors.UnsupportedArgument(
            f"{what} has layout {tensor.layout}: only strided tensors can be compiled; call to_dense()"
        )
    if tensor.is_inference() and has_counter(tensor):
        raise errors.UnsupportedArgument(
            f"{what} was detached, outside of inference mode, from a tensor that was made there; clone it"
        )


def _constant_argument_key(position: int, value: object) -> object:
    if not isinstance(value, CONSTANTS):
        if script_objects.is_opaque_object(value):
            return type(value), value
        raise errors.UnsupportedArgument(
            f"argument {position} (counting the leaves of the argument tree) is a {type(value).__name__}; "
            f"tensors, numbers, strings, None and containers of them can be compiled "
            f"(torch.utils._pytree.register_pytree_node makes a class a container)"
        )
    return constant_key(value)
