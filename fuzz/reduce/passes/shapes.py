"""Shapes: the reduction pass that makes tensors smaller, by making a length 2 everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod

from fuzz.operators import OPERATORS
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Constant, Size
from fuzz.program.decode import Argument, Call, Program, Statement, View, split_calls
from fuzz.reduce.search import Edit, Pass

_SMALL = 2
# Attributes that are positions or counts along a dimension, with the largest value for length 2.
_BOUNDS = {"index": 1, "start": 1, "end": 2, "length": 2, "window": 2, "count": 2}


def _lengths(program: Program) -> Sequence[Edit]:
    """The lengths above 2, the longest first, as edits."""
    storages = [storage for call in split_calls(program) for storage in call.storages]
    return sorted({n for storage in storages for n in storage.size if n > _SMALL}, reverse=True)


def _shorten_lengths(program: Program, edits: frozenset[Edit]) -> Program:
    def size_of(size: Size) -> Size:
        return tuple(_SMALL if n in edits else n for n in size)

    storages = tuple(dataclasses.replace(s, size=size_of(s.size)) for s in program.storages)
    lengths = {edit: _SMALL for edit in edits if isinstance(edit, int)}
    for before, after in zip(program.storages, storages, strict=True):
        lengths.setdefault(prod(before.size), prod(after.size))
    arguments: list[Argument] = []
    for argument in program.arguments:
        if isinstance(argument, View):
            old, new = program.storages[argument.storage].size, storages[argument.storage].size
            argument = _shortened_view(argument, old, new, lengths)
        arguments.append(argument)
    statements = tuple(_shortened_statement(statement, lengths) for statement in program.statements)
    later = []
    for call in split_calls(program)[1:]:
        shorter = _shorten_lengths(call, edits & frozenset(_lengths(call)))
        later.append(Call(shorter.storages, shorter.arguments, shorter.scenario))
    return dataclasses.replace(
        program,
        storages=storages,
        arguments=tuple(arguments),
        statements=statements,
        later=tuple(later),
    )


def _shortened_view(view: View, old: Size, new: Size, lengths: dict[int, int]) -> View:
    """The view of a smaller root that comes nearest to the same part."""
    strides = {0: 0, 1: 1}
    position, offset = view.offset, 0
    for n, m, before, after in zip(old, new, contiguous_strides(old), contiguous_strides(new), strict=True):
        strides.setdefault(before, after)
        strides.setdefault(2 * before, 2 * after)
        if n:
            offset += min(position // before, m - 1) * after
            position %= before
    size = tuple(lengths.get(n, min(n, _SMALL)) for n in view.size)
    stride = tuple(strides.get(step, step) for step in view.stride)
    return dataclasses.replace(view, size=size, stride=stride, offset=offset)


def _shortened_statement(statement: Statement, lengths: dict[int, int]) -> Statement:
    row = OPERATORS[statement.operator]
    attributes: list[tuple[str, Constant]] = []
    for attribute, (name, value) in zip(row.attributes, statement.attributes, strict=True):
        if attribute.type == "ints" and name == "size" and isinstance(value, tuple):
            value = tuple(lengths.get(n, n) if isinstance(n, int) else n for n in value)
        elif name in _BOUNDS and isinstance(value, int):
            value = min(value, _BOUNDS[name])
        attributes.append((name, value))
    return dataclasses.replace(statement, attributes=tuple(attributes))


SHAPES = Pass("shapes", _lengths, _shorten_lengths)
