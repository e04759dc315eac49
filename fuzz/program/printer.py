"""A program as Python source: what is printed is what runs.

`render` gives a module that imports torch alone and defines `make()`, which makes fresh arguments, and the
function `f`. `load` compiles and executes exactly that text. Every name and operator in it comes from a
checked program and the operator table; constants are printed with `repr`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from fuzz.abstract.state import AbstractState, AbstractTensor
from fuzz.ir import subclass
from fuzz.ir.control_flow import (
    Outline,
    block_tree,
    executed_statements,
    is_else,
    resolve_branches,
    untaken_arms,
)
from fuzz.ir.nodes import BOTH, DEVICES, Autocast, Block, Branch, Loop, Region, split_calls, tree_paths
from fuzz.operators import OPERATORS, python_state
from fuzz.operators.dtypes import COMPLEX, FLOATS, INEXACT, INTEGERS, REAL_OF, reads_bytes
from fuzz.operators.side_effects import NOTES
from fuzz.operators.subclasses import IMPORTS
from fuzz.program.decode import (
    Argument,
    Dict,
    Duplicate,
    Literal,
    Module,
    Program,
    ProgramError,
    Ref,
    Root,
    Scalar,
    Seq,
    Statement,
    Storage,
    Tree,
    View,
    check,
    initial_state,
    interpret_statement,
)
from fuzz.program.statements import constant_text, describe, statement_text

Make = Callable[[], tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program that can be called: its text, `make` and `f` as the text defines them.

    `make()` returns `(args, leaves, tensors)`, fresh at each call: the arguments of `f`; every leaf that
    requires grad, by name; all roots and leaves, by name, so that a write to memory that no argument shows
    is seen too. Call it with grad mode on. `later` are the like for the program's later calls. `state` is
    what the function keeps from one call to the next, and `mode` the function mode for calls under it.
    """

    text: str
    make: Make
    f: Callable[..., Any]
    later: tuple[Make, ...] = ()
    state: object = None
    mode: Callable[[], AbstractContextManager[object]] | None = None

    @property
    def makes(self) -> tuple[Make, ...]:
        """One `make` for each call."""
        return (self.make, *self.later)


def load(program: Program) -> Loaded:
    """Compile and execute the text of a program (its definitions: nothing of the program runs yet).

    Raises `ProgramError` if the program is not valid.

    >>> from fuzz.program.decode import Program, Ref, Root, Statement, Storage
    >>> double = Statement("mul_number", ("a0",), (("value", 2.0),), ("v0",))
    >>> program = Program((Storage("float32", (2,), 1),), (Root(0),), (Ref("a0"),), (double,), Ref("v0"))
    >>> loaded = load(program)
    >>> args, leaves, tensors = loaded.make()
    >>> loaded.f(*args)
    tensor([-2.7500,  0.7500])
    """
    check(program)
    text = render(program)
    namespace = definitions(text, "program")
    later = tuple(namespace[make_function_name(number)] for number in range(1, len(program.later) + 1))
    state, mode = namespace.get("state"), namespace.get("Swap")
    return Loaded(text, namespace["make"], namespace["f"], later, state, mode)


def definitions(text: str, name: str) -> dict[str, Any]:
    """What a text defines, which is a module without side effects, called `name` in tracebacks."""
    namespace: dict[str, Any] = {"__name__": f"aotfuzz_{name}"}
    exec(compile(text, f"<{name}>", "exec"), namespace)
    del namespace["__name__"]  # Dynamo of torch 2.11 would import a module of that name.
    return namespace


def make_function_name(number: int) -> str:
    """The name of the function that makes the arguments of a call; the first call is number 0."""
    return f"make_{number + 1}" if number else "make"


def upcast(program: Program) -> Program | None:
    """The same program in float64 and complex128: the reference of the error policy.

    The program has one call. None if there is none, because it looks at the bytes of floating point numbers,
    or makes float32 out of integers or of nothing where it needs the dtype of its arguments.
    """
    kept = _storages_printed_as_integers(program)
    storages = tuple(
        s if i in kept else replace(s, dtype=_double(s.dtype)) for i, s in enumerate(program.storages)
    )
    arguments: list[Argument] = []
    for argument in program.arguments:
        if isinstance(argument, View) and argument.dtype is not None and argument.storage not in kept:
            root = program.storages[argument.storage].dtype
            if reads_bytes(root, argument.dtype) and {root, argument.dtype} & INEXACT:
                return None
            argument = replace(argument, dtype=_double(argument.dtype))
        arguments.append(argument)
    if _statement_shows_bytes(program):
        return None
    copies = _copying_conversions(program)
    statements = tuple(_upcast_statement(one, i in copies) for i, one in enumerate(program.statements))
    twin = replace(program, storages=storages, arguments=tuple(arguments), statements=statements)
    try:
        check(twin)
    except ProgramError:
        # What this call does not come by need not fit what it is given.
        taken = resolve_branches(program)
        return None if taken == program else upcast(taken)
    return twin


def _storages_printed_as_integers(program: Program) -> set[int]:
    """The storages of which nothing but bytes is shown, as integers: they stay as they are."""
    shown: dict[int, list[str | None]] = {}
    for argument in program.arguments:
        if isinstance(argument, (Root, View)):
            dtype = argument.dtype if isinstance(argument, View) else None
            shown.setdefault(argument.storage, []).append(dtype)
    return {
        number
        for number, dtypes in shown.items()
        if all(dtype is not None and dtype not in INEXACT for dtype in dtypes)
    }


def _statement_shows_bytes(program: Program) -> bool:
    """Whether a statement shows what has fractions, or shows something as such, by its bytes."""
    if all(statement.operator != "view_dtype" for statement in program.statements):
        return False
    state = initial_state(program)
    for i, statement in executed_statements(program):
        if statement.operator == "view_dtype":
            given, shown = state.meta(statement.operands[0]).dtype, dict(statement.attributes)["dtype"]
            assert isinstance(shown, str)
            if reads_bytes(given, shown) and not INEXACT.isdisjoint((given, shown)):
                return True
        interpret_statement(state, i, statement, program.blocks)
    return False


def _copying_conversions(program: Program) -> set[int]:
    """The conversions that make another tensor, and would not in double precision."""
    if all(statement.operator != "to" for statement in program.statements):
        return set()
    found = set()
    state = initial_state(program)
    for i, statement in executed_statements(program):
        if statement.operator == "to":
            given, made = state.meta(statement.operands[0]).dtype, dict(statement.attributes)["dtype"]
            assert isinstance(made, str)
            if given != made and _double(given) == _double(made):
                found.add(i)
        interpret_statement(state, i, statement, program.blocks)
    return found


def _upcast_statement(statement: Statement, copies: bool) -> Statement:
    attributes = tuple(
        (name, _double(value) if attribute.type == "dtype" and isinstance(value, str) else value)
        for attribute, (name, value) in zip(
            OPERATORS[statement.operator].attributes, statement.attributes, strict=True
        )
    )
    return replace(statement, operator="to_copy" if copies else statement.operator, attributes=attributes)


def _double(dtype: str) -> str:
    return "float64" if dtype in FLOATS else "complex128" if dtype in COMPLEX else dtype


def render(program: Program) -> str:
    """The program's text: a complete Python module.

    Raises `ProgramError` where a statement does not fit its operands (the comments say shapes and dtypes).
    """
    names = dict.fromkeys(statement.operator for statement in program.statements)
    lines = [*_imports(names), "import torch"]
    classes = subclass.definitions(
        [argument for one in split_calls(program) for argument in one.arguments], names
    )
    if any(isinstance(block, Region) and block.mode == "checkpoint" for block in program.blocks):
        lines.append("import torch.utils.checkpoint")
    lines += IMPORTS if classes else ()
    if program.scenario.device == BOTH:
        lines += ["", f'device = "{DEVICES[0]}"  # and {" and ".join(DEVICES[1:])}, which must agree']
    if _swaps(program):
        classes = [*classes, SWAP]
    for definition in dict.fromkeys((*classes, *(OPERATORS[name].defines for name in names))):
        lines += ["", "", *definition.splitlines()] if definition else []
    starting = python_state.initial_state_lines(map(OPERATORS.__getitem__, names))
    if starting:
        lines += ["", "", "def start(state):", *(f"    {line}" for line in starting)]
        if program.module is None:
            lines += ["", "", "class State:", "    pass", "", "", "state = State()", "start(state)"]
    for number, one in enumerate(split_calls(program)):
        lines += ["", "", f"def {make_function_name(number)}():"]
        lines += [f"    {line}" for line in _print_make(one)]
    if program.module is None:
        lines += ["", "", f"def f({', '.join(_parameters(program))}):"]
        lines += [f"    {line}" for line in _body(program)]
    else:
        lines += ["", "", "class Module(torch.nn.Module):"]
        lines += [f"    def forward({', '.join(('self', *_parameters(program)))}):"]
        lines += ["        state = self"] if starting else []
        lines += [f"        {name} = self.{name}" for name in program.module.held]
        if program.module.training is not None:
            lines += [f"        {program.module.training} = self.training"]
        lines += [f"        {line}" for line in _body(program)]
        lines += ["", "", "f = Module()"]
        lines += ["state = f", "start(state)"] if starting else []
    return "\n".join(lines) + "\n"


def keeps_state(program: Program) -> bool:
    """Whether the text has `state`, which lives longer than a call, and `start`, which begins it
    anew."""
    rows = (OPERATORS[statement.operator] for statement in program.statements)
    return bool(python_state.initial_state_lines(rows))


def _imports(names: Iterable[str]) -> list[str]:
    """What the rows of these names need besides torch."""
    text = "".join(f"{OPERATORS[name].source}{OPERATORS[name].defines}" for name in names)
    return [f"import {name}" for name in ("functools", "random", "numpy") if f"{name}." in text]


# A function mode that calls other functions than the text names: they keep the same for a backward, or less.
SWAP = """
class Swap(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul and not isinstance(args[1], torch.Tensor):
            func = torch.Tensor.add
        elif func in (torch.sin, torch.Tensor.sin):
            func = torch.cos
        elif func in (torch.neg, torch.Tensor.neg):
            func = torch.clone
        return func(*args, **(kwargs or {}))
""".strip()


def _swaps(program: Program) -> bool:
    """Whether a call, or a block, is under a function mode of the program's."""
    return any(call.scenario.swapped for call in split_calls(program)) or any(
        isinstance(block, Region) and block.mode == "swapped" for block in program.blocks
    )


# ---------------------------------------------------------------------------------------------------------
# make


_VIA = {
    "view": "",
    "no_grad": "",
    "detach": ".detach()",
    "data": ".data",
    "multi": ".chunk(1)[0]",
    "parameter": "",
}


def _print_make(program: Program) -> Iterator[str]:
    device = _device(program)
    leaves, tensors = [], []
    for i, storage in enumerate(program.storages):
        comment = f"  # {describe(storage.dtype, storage.size)}"
        made = root_values_text(storage, device)
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
                        beside = root_values_text(replace(root, seed=root.seed + 1), device)
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
                        elements = f"({root_values_text(other, device)})"
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
    yield f"args = {_print_tree(Seq('tuple', program.parameters))}"
    yield f"leaves = {_names(leaves)}"
    yield f"tensors = {_names(tensors)}"
    yield "return args, leaves, tensors"


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


def _names(names: list[str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"


# Exact in float64. The last two are denormal: in float16, and in float32 and bfloat16.
_SPECIAL = (math.nan, 1.5, -0.0, math.inf, -2.0, -math.inf, 0.5, 0.0, -0.75, 2.0**-24, 2.0**-130)


def root_values_text(storage: Storage, device: str) -> str:
    """The elements of a root, by the fixed formula: small, exact in every dtype, no zeros among fractions,
    bits that alternate. `device` is "", or a keyword argument after a comma."""
    ramp = f"torch.arange({math.prod(storage.size)}{device})"
    if len(storage.size) != 1:
        ramp += f".reshape({', '.join(map(str, storage.size)) or '()'})"
    ramp = f"({ramp} * 7 + {storage.seed})"
    if storage.special:
        table = f"torch.tensor({constant_text(_SPECIAL)}, dtype=torch.{storage.dtype}{device})"
        return f"{table}[{ramp} % {len(_SPECIAL)}]"
    if storage.dtype in COMPLEX:
        return f"(({ramp} % 13 / 4 - 1.625).to(torch.{storage.dtype}) * (1 - 0.5j))"
    if storage.dtype in FLOATS:
        return f"({ramp} % 13 / 4 - 1.625).to(torch.{storage.dtype})"
    if storage.dtype in INTEGERS:
        return f"({ramp} % 5 - 2).to(torch.{storage.dtype})"
    return f"{ramp} % 2 == 0"


# ---------------------------------------------------------------------------------------------------------
# f


def _parameters(program: Program) -> list[str]:
    return [
        parameter.name if isinstance(parameter, Ref) else f"p{i}"
        for i, parameter in enumerate(program.parameters)
    ]


def _body(program: Program) -> Iterator[str]:
    for i, parameter in enumerate(program.parameters):
        if not isinstance(parameter, Ref):
            yield from (f"{name} = {path}" for name, path in tree_paths(parameter, f"p{i}", constant_text))
    lines = _statements(program)
    yield from _print_block(program, block_tree(program.statements, program.blocks), lines)
    yield f"return {_print_tree(program.returns)}"


def _statements(program: Program) -> dict[int, str]:
    """The line of each statement, also of those that the first call does not come by."""
    lines = _print_run(program)
    for _, other in untaken_arms(program):
        lines = _print_run(other) | lines
    return lines


def _print_run(program: Program) -> dict[int, str]:
    state = initial_state(program)
    device = _device(program)
    lines: dict[int, str] = {}
    for i, statement in executed_statements(program):
        line = "" if i in lines else statement_text(statement, state, device)
        interpret_statement(state, i, statement, program.blocks)
        lines.setdefault(i, f"{line}{_print_comment(statement, state)}")
    return lines


def _print_block(program: Program, tree: Outline, lines: Mapping[int, str]) -> Iterator[str]:
    """The lines of a part of the outline."""
    before: Block | None = None
    for item in tree:
        if isinstance(item, int):
            before = None
            yield lines[item]
            continue
        number, content = item
        block = program.blocks[number]
        if block == Region("checkpoint", block.within):
            statements = [program.statements[i] for i in content if isinstance(i, int)]
            inner = [lines[i] for i in content if isinstance(i, int)]
            yield from _print_checkpoint(f"part{number}", statements, inner)
        else:
            yield _print_block_head(block, before, _kind(program))
            yield from (f"    {line}" for line in _print_block(program, content, lines))
        before = block


def _print_block_head(block: Block, before: Block | None, device: str) -> str:
    """The line that a block begins with; `before` is the block that has just ended, `device` the kind of
    device, as an expression."""
    match block:
        case Region("swapped"):
            return "with Swap():"
        case Region(mode):
            return f"with torch.{mode}():"
        case Autocast(dtype, enabled):
            on = "" if enabled else ", enabled=False"
            return f"with torch.autocast({device}, dtype=torch.{dtype}{on}):"
        case Branch(argument, value, holds):
            if is_else(block, before):
                return "else:"
            return f"if {argument} {'==' if holds else '!='} {constant_text(value)}:"
        case Loop(count):
            return f"for _ in range({count}):"


def _print_checkpoint(name: str, statements: Sequence[Statement], lines: Sequence[str]) -> Iterator[str]:
    """Statements as a function that `checkpoint` calls, and its call."""
    made: dict[str, None] = {}
    taken: dict[str, None] = {}
    for statement in statements:
        taken.update((name, None) for name in statement.operands if name not in made)
        made.update((name, None) for name in statement.results)
    yield f"def {name}({', '.join(taken)}):"
    yield from (f"    {line}" for line in lines)
    given = ", ".join((name, *taken))
    run = f"torch.utils.checkpoint.checkpoint({given}, use_reentrant=False)"
    if made:
        yield f"    return {', '.join(made)}"
        yield f"{', '.join(made)} = {run}"
    else:
        yield run  # a tensor of length 0 unbinds into nothing


def _print_comment(statement: Statement, state: AbstractState) -> str:
    row = OPERATORS[statement.operator]
    shown = statement.operands[:1] if row.metadata else statement.results
    values = [state.names[name] for name in shown]
    return "".join(
        f"{', ' if i else '  # '}{describe(value.meta.dtype, value.meta.size)}"
        for i, value in enumerate(values)
        if isinstance(value, AbstractTensor)
    )


def _device(program: Program) -> str:
    device = program.scenario.device
    if device == BOTH:
        return ", device=device"
    return "" if device == "cpu" else f', device="{device}"'


def _kind(program: Program) -> str:
    device = program.scenario.device
    return "device" if device == BOTH else f'"{device.partition(":")[0]}"'


def _print_tree(tree: Tree) -> str:
    match tree:
        case Ref(name):
            return name
        case Seq("list", items):
            return f"[{', '.join(map(_print_tree, items))}]"
        case Seq(_, items):
            return f"({', '.join(map(_print_tree, items))}{',' if len(items) == 1 else ''})"
        case Dict(entries):
            return (
                "{" + ", ".join(f"{constant_text(key)}: {_print_tree(item)}" for key, item in entries) + "}"
            )
        case Literal(value):
            return constant_text(value)
