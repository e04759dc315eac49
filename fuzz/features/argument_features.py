"""Argument features: features of a call's arguments: kinds, shared memory, and what a module holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuzz.abstract.state import AbstractState, AbstractTensor
from fuzz.ir.nodes import Duplicate, Module, Program, Ref, Root, Scalar, View
from fuzz.operators.dtypes import COMPLEX, HALF, REAL_OF, reads_bytes
from fuzz.operators.layout import covered_bytes, is_channels_last, overlaps_itself, shares_elements
from fuzz.operators.row import Meta

_SMALL = ("uint8", "int8", "int16")


def argument_features(
    program: Program,
    state: AbstractState,
    inputs: Sequence[AbstractTensor],
    groups: Sequence[Sequence[AbstractTensor]],
) -> Iterator[str]:
    """The features (`fuzz.features.table.FEATURES`) of a call's arguments.

    `state` is the one before the first statement. `inputs` are the tensors among the arguments, each once.
    `groups` has those that share storage with others.
    """
    for argument in program.arguments:
        match argument:
            case Root():
                yield "argument: root"
            case View(
                storage=storage, via=via, dtype=dtype, leaf=leaf, wrapped=wrapped, lazy=lazy, base=base
            ):
                if wrapped is None or via == "parameter":
                    yield f"argument: {via}"
                if wrapped is not None:
                    yield from _wrapped(via, wrapped)
                    if base == "wrapper":
                        yield "subclass: argument is a view"
                root = program.storages[storage].dtype
                if dtype is not None and reads_bytes(root, dtype):
                    yield "argument: other dtype"
                elif dtype not in (None, root):
                    yield "argument: complex or real view"
                if leaf:
                    yield "argument: own leaf"
                    if via == "no_grad":
                        yield "argument: leaf taken without grad"
                if lazy is not None:
                    yield f"argument: lazily {'conjugated' if lazy == 'conj' else 'negated'}"
                if base not in ("root", "wrapper"):
                    yield "argument: view of an alias"
                if via == "view" and base == "root" and program.storages[storage].detached:
                    yield "argument: its base detached since"
            case Duplicate():
                yield "argument: duplicate"
            case Scalar(value):
                yield "argument: scalar"
                if isinstance(value, complex):
                    yield "argument: complex number"
    if program.module is not None:
        yield from _features_of_module(program, program.module, state)
    if any(storage.special for storage in program.storages):
        yield "argument: special values"
    if not all(isinstance(tree, Ref) for tree in program.parameters):
        yield "argument: nested"
    for tensor in inputs:
        yield from _features_of_argument(tensor)
        if tensor.inference and not program.scenario.inference:
            yield "argument: inference"
        if tensor.wrapped:
            yield from _wrapper(tensor, inputs)
    if len(groups) > 1:
        yield "alias: several groups"
    for group in groups:
        for i, one in enumerate(group):
            for other in group[:i]:
                yield from _features_of_argument_pair(other, one, inputs)
        if len(group) > 2 and not any(
            shares_elements(one.meta, other.meta) for i, one in enumerate(group) for other in group[:i]
        ):
            yield "alias: flat buffer"
            if len(group) > 7:
                yield "alias: many slices"


def _features_of_module(program: Program, module: Module, state: AbstractState) -> Iterator[str]:
    held = [state.names[name] for name in module.held]
    tensors = [value for value in held if isinstance(value, AbstractTensor)]
    parameters = {
        id(state.names[f"a{i}"])
        for i, argument in enumerate(program.arguments)
        if isinstance(argument, View) and argument.via == "parameter"
    }
    yield "module: its function"
    if len(tensors) < len(held):
        yield "module: attribute"
    if len(set(map(id, tensors))) < len(tensors):
        yield "module: tied"
    if parameters & set(map(id, tensors)):
        yield "module: parameter"
    others = {
        name
        for name, value in zip(module.held, held, strict=True)
        if isinstance(value, AbstractTensor) and id(value) not in parameters
    }
    if others - set(module.attributes):
        yield "module: buffer"
    if others & set(module.attributes):
        yield "module: tensor attribute"
    if module.training is not None:
        yield f"module: {'training' if state.names[module.training] else 'evaluation'}"


_PARTS = {"two": "two parts", "twice": "one part twice", "nested": "nested"}


def _wrapped(via: str, parts: str) -> Iterator[str]:
    yield "subclass: argument"
    if parts != "one":
        yield f"subclass: {_PARTS[parts]}"
    if via == "parameter":
        yield "subclass: parameter"


def _wrapper(tensor: AbstractTensor, inputs: Sequence[AbstractTensor]) -> Iterator[str]:
    if tensor.requires_grad:
        yield "subclass: non-leaf" if tensor.grad_fn else "subclass: leaf"
    if any(one.memory == tensor.memory and one is not tensor for one in inputs):
        yield "subclass: part is an alias"


def _features_of_argument(tensor: AbstractTensor) -> Iterator[str]:
    meta = tensor.meta
    if tensor.requires_grad:
        yield "argument: non-leaf" if tensor.grad_fn else "argument: leaf"
    if 0 in meta.size:
        yield "argument: empty"
    elif not meta.size:
        yield "argument: 0-d"
    if 1 in meta.size:
        yield "argument: size 1"
    if meta.dtype in COMPLEX:
        yield "dtype: complex"
    elif meta.dtype in HALF:
        yield "dtype: half"
    elif meta.dtype in _SMALL:
        yield "dtype: small integer"
    if is_channels_last(meta):
        yield "argument: channels-last"
    if any(n > 1 and s == 0 for n, s in zip(meta.size, meta.stride or (), strict=True)):
        yield "argument: expanded"
    elif overlaps_itself(meta):
        yield "argument: overlapping"


def _features_of_argument_pair(
    first: AbstractTensor, second: AbstractTensor, inputs: Sequence[AbstractTensor]
) -> Iterator[str]:
    """The features of two arguments on one storage, in their order."""
    if first.wrapped and (first.base or first) is (second.base or second):
        yield "subclass: two on one base"
    if first.base is second or second.base is first:
        yield "alias: base and view"
    elif first.base is not None and first.base is second.base and first.base not in inputs:
        yield "alias: views alone"
    elif None not in (first.base, second.base) and first.base is not second.base:
        yield "alias: views of two bases"
    here, there = first.meta.dtype, second.meta.dtype
    if here != there:
        pair = REAL_OF.get(here, here) == REAL_OF.get(there, there)
        yield "alias: complex and real" if pair else "alias: other dtype"
    if first.own and second.own and not (first.grad_fn or second.grad_fn):
        yield "alias: two leaves"
    if first.meta == second.meta:
        yield "alias: same metadata"
    elif _transposed(first.meta, second.meta):
        yield "alias: transposed"
        yield "alias: same elements"
    else:
        yield f"alias: {_relation(first.meta, second.meta)}"
    if _windows(first.meta, second.meta):
        yield "alias: windows"
    if second.meta.offset < first.meta.offset:
        yield "alias: out of order"
    if first.requires_grad != second.requires_grad:
        yield "alias: mixed gradient"


def _transposed(first: Meta, second: Meta) -> bool:
    """Whether one is the other with its dimensions in another order."""
    if first.stride is None or second.stride is None or first.size == second.size == ():
        return False
    here = sorted(zip(first.size, first.stride, strict=True))
    there = sorted(zip(second.size, second.stride, strict=True))
    return here == there and (first.dtype, first.offset) == (second.dtype, second.offset)


def _windows(first: Meta, second: Meta) -> bool:
    """Whether both are windows of one matrix that begin in different rows and share elements."""
    if len(first.size) != 2 or first.stride != second.stride or not first.stride:
        return False
    row, column = first.stride
    apart = abs(first.offset - second.offset)
    return column == 1 and apart >= row > 1 and shares_elements(first, second)


def _relation(first: Meta, second: Meta) -> str:
    """The relation of two geometries on one storage, in a word."""
    here, there = covered_bytes(first), covered_bytes(second)
    if here == there:
        return "same elements"
    return "disjoint" if here.isdisjoint(there) else "overlapping"
