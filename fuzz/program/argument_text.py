"""The arguments of a call as Python source: the lines of `make` in a program's text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fuzz.ir import subclass
from fuzz.ir.nodes import (
    BOTH,
    Argument,
    Dict,
    Duplicate,
    Literal,
    Module,
    Program,
    Ref,
    Root,
    Scalar,
    Seq,
    Storage,
    Tree,
    View,
)
from fuzz.ir.value_classes import FORMULAS, number_table
from fuzz.operators import OPERATORS
from fuzz.operators.dtypes import COMPLEX, FLOATS, INTEGERS, REAL_OF
from fuzz.operators.side_effects import NOTES
from fuzz.program.statements import constant_text, describe

RootText = Callable[[Storage, str], str]
"""Gives the elements of a root as an expression; its second argument is as `device_text` has it."""


@dataclass(frozen=True, slots=True)
class ArgumentText:
    """The lines that make the arguments of a call.

    Attributes:
        lines: assignments, one for each storage and argument, and what else is done to these.
        leaves: names of leaves that require grad.
        tensors: names of roots, of leaves and of aliases that arguments are views of.
    """

    lines: tuple[str, ...]
    leaves: tuple[str, ...]
    tensors: tuple[str, ...]


_VIA = {
    "view": "",
    "no_grad": "",
    "detach": ".detach()",
    "data": ".data",
    "multi": ".chunk(1)[0]",
    "parameter": "",
}


def argument_text(program: Program, values: RootText | None = None) -> ArgumentText:
    """The arguments of a program's call as text; `values` prints the elements of roots."""
    leaves: list[str] = []
    tensors: list[str] = []
    lines = tuple(_print_arguments(program, values or root_values_text, leaves, tensors))
    return ArgumentText(lines, tuple(leaves), tuple(tensors))


def print_make(program: Program) -> Iterator[str]:
    """The body of `make`: the arguments, and what it returns."""
    text = argument_text(program)
    yield from text.lines
    yield f"args = {tree_text(Seq('tuple', program.parameters))}"
    yield f"leaves = {_names(text.leaves)}"
    yield f"tensors = {_names(text.tensors)}"
    yield "return args, leaves, tensors"


def _print_arguments(
    program: Program, values: RootText, leaves: list[str], tensors: list[str]
) -> Iterator[str]:
    device = device_text(program)
    for i, storage in enumerate(program.storages):
        comment = f"  # {describe(storage.dtype, storage.size)}"
        made = values(storage, device)
        name = f"s{i}"
        if not storage.leaf:
            name = f"leaf{i}"
        made += ".requires_grad_()" if storage.requires_grad else ""
        if storage.inference:
            yield "with torch.inference_mode():"
        yield f"{'    ' if storage.inference else ''}{name} = {made}{comment}"
        tensors.append(name)
        if storage.requires_grad:
            leaves.append(name)
        if not storage.leaf:
            yield f"s{i} = leaf{i} * 1"
            tensors.append(f"s{i}")
    for i, argument in enumerate(program.arguments):
        match argument:
            case Root(number):
                yield f"a{i} = s{number}"
            case View():
                via = argument.via
                root = program.storages[argument.storage]
                comment = f"  # {describe(argument.dtype or root.dtype, argument.size)}"
                base = f"s{argument.storage}"
                if argument.base == "wrapper":
                    base = f"{argument.wrapped}{argument.storage}"
                    if base not in tensors:
                        tensors.append(base)
                        beside = values(replace(root, seed=root.seed + 1), device)
                        yield f"{base} = {_print_wrapper_subclass(argument, f's{argument.storage}', beside)}"
                elif argument.base != "root":
                    base = f"{argument.base}{argument.storage}"
                    if base not in tensors:
                        tensors.append(base)
                        yield f"{base} = s{argument.storage}{_VIA[argument.base]}"
                view = base if subclass.is_whole(argument, root) else _print_view(argument, root, base)
                hidden = _VIA[via]
                if argument.wrapped is not None and argument.base == "root":
                    other = replace(root, seed=root.seed + 1)
                    if argument.wrapped in ("two", "nested"):
                        elements = f"({values(other, device)})"
                        yield f"other{i} = {_print_view(argument, other, elements)}"
                    view, hidden = _print_wrapper_subclass(argument, view, f"other{i}"), ""
                if via == "parameter":
                    view = f"torch.nn.Parameter({view}{'' if argument.leaf else ', requires_grad=False'})"
                else:
                    view += f"{hidden}{'.requires_grad_()' if argument.leaf else ''}"
                if via == "no_grad":
                    yield "with torch.no_grad():"
                yield f"{'    ' if via == 'no_grad' else ''}a{i} = {view}{comment}"
                if argument.leaf:
                    leaves.append(f"a{i}")
            case Duplicate(earlier):
                yield f"a{i} = a{earlier}"
            case Scalar(value):
                yield f"a{i} = {constant_text(value)}"
        if f"a{i}" in program.scenario.marked:
            yield f"a{i}.mark = True"
    for i, storage in enumerate(program.storages):
        if storage.detached:
            yield f"s{i}.detach_()"
    if any(OPERATORS[statement.operator].has_side_effect for statement in program.statements):
        yield f"notes = {NOTES}.zero_()"
        tensors.append("notes")
    if program.module is not None:
        yield from _print_module_attributes(program, program.module)
        tensors += [name for name in program.module.held if not isinstance(_meant(program, name), Scalar)]


def _print_module_attributes(program: Program, module: Module) -> Iterator[str]:
    """The lines that give the module, which is `f`, what it holds in this call, and nothing else."""
    yield "f._parameters.clear()"
    yield "f._buffers.clear()"
    for name in module.held:
        match _meant(program, name):
            case Scalar() | View(via="parameter"):
                yield f"f.{name} = {name}"
            case _ if name in module.attributes:
                yield f"f.{name} = {name}"
            case _:
                yield f'f.register_buffer("{name}", {name})'
    if module.training is not None:
        yield f"f.train({module.training})"


def _meant(program: Program, name: str) -> Argument:
    """The argument of a name; of duplicates, the first."""
    argument = program.arguments[int(name[1:])]
    while isinstance(argument, Duplicate):
        argument = program.arguments[argument.argument]
    return argument


def _print_wrapper_subclass(view: View, one: str, other: str) -> str:
    """A wrapper subclass of a view, and of what is to stand beside it."""
    followed = view.via == "view" or view.base == "wrapper"
    given = one if followed else f"{one}.detach()"
    match view.wrapped:
        case "two":
            given += f", {other}"
        case "twice":
            given += f", {one}.detach()"
        case "nested":
            given = f"{given}, {other}, True" if followed else f"Wrapper({given}), {other}"
    return f"{'Wrap.apply' if followed else 'Wrapper'}({given})"


def _print_view(view: View, root: Storage, name: str) -> str:
    """A view of a root: strided, of its dtype or of another, and perhaps lazily conjugated or negated."""
    strided = _print_strided(view, root, name)
    match view.lazy:
        case "conj":
            return f"{strided}.conj()"
        case "neg":
            return f"torch._neg_view({strided})"
        case _:
            return strided


def _print_strided(view: View, root: Storage, name: str) -> str:
    size, stride, offset = view.size, view.stride, view.offset
    if view.dtype is None or view.dtype == root.dtype:
        pass
    elif REAL_OF.get(view.dtype) == root.dtype:
        pairs, steps = (*size, 2), (*(2 * step for step in stride), 1)
        return f"torch.view_as_complex({name}.as_strided({pairs}, {steps}, {2 * offset}))"
    elif REAL_OF.get(root.dtype) == view.dtype:
        name = f"torch.view_as_real({name})"
    else:
        flat = name if len(root.size) == 1 else f"{name}.reshape(-1)"
        name = f"{flat}.view(torch.{view.dtype})"
    return f"{name}.as_strided({size}, {stride}, {offset})"


def _names(names: tuple[str, ...]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"


def root_values_text(storage: Storage, device: str) -> str:
    """The elements of a root, by the fixed formula: small, exact in every dtype, no zeros among fractions,
    bits that alternate. `device` is "", or a keyword argument after a comma."""
    ramp = f"torch.arange({math.prod(storage.size)}{device})"
    if len(storage.size) != 1:
        ramp += f".reshape({', '.join(map(str, storage.size)) or '()'})"
    ramp = f"({ramp} * 7 + {storage.seed})"
    if storage.values in FORMULAS:
        return _matrix_text(storage, device)
    if storage.values != "plain":
        given = storage.precision or storage.dtype
        numbers = number_table(storage.values, given)
        # (An index without dimensions would give a view of the table.)
        shown = numbers if storage.size else numbers[storage.seed % len(numbers)]
        table = f"torch.tensor({constant_text(shown)}, dtype=torch.{given}{device})"
        converted = f".to(torch.{storage.dtype})" if given != storage.dtype else ""
        return f"{table}{f'[{ramp} % {len(numbers)}]' if storage.size else ''}{converted}"
    if storage.dtype in COMPLEX:
        return f"(({ramp} % 13 / 4 - 1.625).to(torch.{storage.dtype}) * (1 - 0.5j))"
    if storage.dtype in FLOATS:
        return f"({ramp} % 13 / 4 - 1.625).to(torch.{storage.dtype})"
    if storage.dtype in INTEGERS:
        return f"({ramp} % 5 - 2).to(torch.{storage.dtype})"
    return f"{ramp} % 2 == 0"


def _matrix_text(storage: Storage, device: str) -> str:
    """Matrices of rank 1, or Hilbert's, which a seed moves on by a few rows."""
    *_, rows, columns = storage.size
    ramp = f"torch.arange({math.prod(storage.size)}{device}).reshape({', '.join(map(str, storage.size))})"
    row, column = f"({ramp} // {max(columns, 1)} % {max(rows, 1)})", f"({ramp} % {max(columns, 1)})"
    if storage.values == "singular":
        made = f"(({row} * 2 + {storage.seed}) % 5 + 1) * ({column} % 3 + 1)"
        return f"({made}).to(torch.{storage.dtype})"
    made = f"1 / ({row} + {column} + {storage.seed + 1}).to(torch.float64)"
    given = storage.precision or storage.dtype
    converted = f".to(torch.{storage.dtype})" if given != storage.dtype else ""
    return f"({made}).to(torch.{given}){converted}"


def device_text(program: Program) -> str:
    """`, device=...` for a constructor, or nothing where that is the CPU."""
    device = program.scenario.device
    if device == BOTH:
        return ", device=device"
    return "" if device == "cpu" else f', device="{device}"'


def tree_text(tree: Tree) -> str:
    """A tree as an expression."""
    match tree:
        case Ref(name):
            return name
        case Seq("list", items):
            return f"[{', '.join(map(tree_text, items))}]"
        case Seq(_, items):
            return f"({', '.join(map(tree_text, items))}{',' if len(items) == 1 else ''})"
        case Dict(entries):
            return "{" + ", ".join(f"{constant_text(key)}: {tree_text(item)}" for key, item in entries) + "}"
        case Literal(value):
            return constant_text(value)
