"""Opaque state: state of an object that is in none of its attributes, as a comparable value.

Examples are the position of an iterator, the next draws of a random generator, the items of a queue, and the
object behind a weak reference.
Invariant: two values are equal only if the state has not changed. A value keeps no object alive, except
constants and classes.
"""

from __future__ import annotations

import gc
import io
import itertools
import operator
import queue
import random
import types
from collections import deque
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy
import torch
from torch import Tensor

from aot.guards.bytecode import is_library
from aot.guards.containers import builtin_view
from aot.tensors.constants import CONSTANTS, constant_key
from aot.torch_internals import mode_stacks, rng

QUEUES = (queue.Queue, queue.SimpleQueue)
_Numpys = (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)
_SHOWING = (map, filter, zip, enumerate)  # their position is that of the iterators in them
_CALLING = type(iter(int, 1))
_HIDING: tuple[Any, ...] = (
    *(itertools.cycle, itertools.product, itertools.permutations, itertools.combinations),
    *(itertools.combinations_with_replacement, type(itertools.tee(())[0])),
)
_CONTAINERS = (list, tuple, set, frozenset, deque)


def has_state(value: Any) -> bool:
    """Whether use of the object changes state that is in none of its attributes.

    An iterator class of the user's has none: its state is in attributes. The default generators of torch,
    Python and numpy do not count here, because draws from them are recorded, or refused as draws.
    """
    if isinstance(value, (random.Random, torch.Generator, *_Numpys)):
        python: Any = random.random
        numpys: Any = numpy.random.get_state
        defaults = (python.__self__, numpys.__self__, *rng.default_generators())
        return not any(value is one for one in defaults)
    return isinstance(value, QUEUES) or _is_iterator(value)


def state_of(owner: Any) -> object:
    """The state of an object, as a value. It is equal to no other value if the state cannot be read.

    Example:
        >>> numbers = iter([1, 2])
        >>> state = state_of(numbers)
        >>> state_of(numbers) == state, next(numbers), state_of(numbers) == state
        (True, 1, False)
    """
    if isinstance(owner, QUEUES):
        return owner.qsize(), [id(one) for one in getattr(owner, "queue", ())]
    if isinstance(owner, random.Random):
        try:
            return owner.getstate()
        except NotImplementedError:  # it asks the operating system
            return object()
    if isinstance(owner, torch.Generator):
        with mode_stacks.dispatch_modes_off():
            return owner.get_state().numpy().tobytes()
    if isinstance(owner, numpy.random.RandomState):
        return _numbers(owner.get_state(legacy=False))
    if isinstance(owner, (numpy.random.Generator, numpy.random.BitGenerator)):
        bits = owner if isinstance(owner, numpy.random.BitGenerator) else owner.bit_generator
        return _numbers(bits.state)
    return _iterator_state(owner, set())


def parts_of(owner: Any) -> list[Any]:
    """The objects that an iterator iterates over or calls; none for another object."""
    if not _is_iterator(owner):
        return []
    return [one for one in gc.get_referents(owner) if not isinstance(one, (types.FrameType, types.CodeType))]


def observable_opaque_content(value: Any, names: Set[str], objects: dict[int, Any]) -> object:
    """What can be seen of an object through these attributes and through entries of containers, recursively.

    Args:
        value: the object.
        names: the attributes that are read.
        objects: gets each object on the way, by its id.
    """
    if isinstance(value, CONSTANTS):
        return constant_key(value)
    if isinstance(value, Tensor):
        return id(value), tensor_likeness(value)
    if id(value) in objects:
        return id(value)
    objects[id(value)] = value
    if isinstance(value, Mapping):
        return [
            [observable_opaque_content(part, names, objects) for part in entry]
            for entry in builtin_view(value).items()
        ]
    if isinstance(value, _CONTAINERS):
        return [observable_opaque_content(one, names, objects) for one in builtin_view(value)]
    space = {} if isinstance(value, (type, types.ModuleType)) else getattr(value, "__dict__", {})
    held = [
        (name, observable_opaque_content(space[name], names, objects))
        for name in sorted(names & space.keys())
    ]
    return id(value), type(value), held


def tensor_likeness(tensor: Tensor) -> object:
    """A tensor's `requires_grad`, dtype, shape, device, layout, `is_leaf`; its class if it has no shape."""
    try:
        return tensor.requires_grad, tensor.dtype, tensor.shape, tensor.device, tensor.layout, tensor.is_leaf
    except RuntimeError:  # an uninitialized parameter of a lazy module, or a nested tensor
        return type(tensor)


def gradient_of(tensor: Tensor) -> Tensor | None:
    """The gradient of a leaf, and None for other tensors, because torch warns when their `.grad` is read."""
    return tensor.grad if tensor.is_leaf else None


def _is_iterator(value: Any) -> bool:
    following = getattr(type(value), "__next__", None)
    if following is None or isinstance(value, io.IOBase):
        return False
    return not isinstance(following, types.FunctionType) or is_library(following.__module__)


def _iterator_state(iterator: Any, seen: set[int]) -> object:
    """An iterator's own position, and the positions of the iterators in it."""
    seen.add(id(iterator))
    position: object = None
    kind = type(iterator)
    if isinstance(iterator, types.GeneratorType):
        position = None if iterator.gi_frame is None else iterator.gi_frame.f_lasti
    elif isinstance(iterator, itertools.count):
        position = repr(iterator)
    elif hasattr(kind, "__length_hint__"):
        try:
            position = operator.length_hint(iterator)
        except OverflowError:
            position = repr(iterator.__reduce__())  # of a range of huge numbers
    elif not (
        isinstance(iterator, _SHOWING)
        or (kind.__module__ == "itertools" and not isinstance(iterator, _HIDING))
        or (kind is _CALLING and isinstance(gc.get_referents(iterator)[0], types.FunctionType))
    ):
        return object()
    return position, _values_left_in_iterator(parts_of(iterator), seen)


def _values_left_in_iterator(parts: Iterable[Any], seen: set[int]) -> list[object]:
    found: list[object] = []
    for one in parts:
        if isinstance(one, CONSTANTS):
            found.append(constant_key(one))
        elif id(one) in seen:
            found.append(id(one))
        elif _is_iterator(one):
            found.append(_iterator_state(one, seen))
        elif isinstance(one, tuple):
            found.append(_values_left_in_iterator(one, seen))
        else:
            found.append(id(one))
    return found


def _numbers(state: Any) -> object:
    if isinstance(state, Mapping):
        return [_numbers(one) for one in state.values()]
    return state.tobytes() if isinstance(state, numpy.ndarray) else state
