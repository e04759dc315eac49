"""Later calls with other sizes: what a compiler with dynamic shapes answers by what it has compiled."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fuzz.choices import Choices
from fuzz.generate.later_calls import eager_accepts, fits_storage
from fuzz.ir.nodes import Argument, Call, Program, View, with_call
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import MAX_ELEMENTS, Size
from fuzz.program.decode import literal_sizes


def draw_resized(choices: Choices, program: Program) -> tuple[Call, ...]:
    """Two later calls of a program that has none: a length is another one in each, 0 and 1 among them."""
    lengths = sorted({n for storage in program.storages for n in storage.size})
    if not lengths:
        return ()
    sizes = literal_sizes(program)
    first = Call(program.storages, program.arguments, program.scenario)
    later: list[Call] = []
    old = choices.pick(lengths)
    for new in (choices.pick((1, 0, 2, old + 1)), choices.pick((old + 7, 2 * old, 3, 17))):
        call = _resized(first, old, new)
        if call is not None and eager_accepts(with_call(program, call), sizes=sizes):
            later.append(call)
    return tuple(later)


def _resized(call: Call, old: int, new: int) -> Call | None:
    """The call with one length another one wherever a storage or a view has it, or None if it has no room."""

    def change(size: Size) -> Size:
        return tuple(new if n == old else n for n in size)

    storages = tuple(replace(storage, size=change(storage.size)) for storage in call.storages)
    if any(prod(storage.size) > MAX_ELEMENTS for storage in storages):
        return None
    arguments: list[Argument] = []
    for argument in call.arguments:
        if isinstance(argument, View):
            size, order = change(argument.size), sorted(argument.stride, reverse=True)
            if 0 in argument.stride or argument.offset or len(set(order)) < len(order):
                return None if size != argument.size else call
            dense = contiguous_strides(tuple(size[argument.stride.index(step)] for step in order))
            argument = replace(
                argument, size=size, stride=tuple(dense[order.index(s)] for s in argument.stride)
            )
            if not fits_storage(argument, storages[argument.storage]):
                return None
        arguments.append(argument)
    return Call(storages, tuple(arguments), call.scenario)
