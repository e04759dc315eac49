"""A program as Python source: what is printed is what runs.

`render` gives a module that imports torch alone and defines `make()`, which makes fresh arguments, and the
function `f`. `load` compiles and executes exactly that text. Every name and operator in it comes from a
checked program and the operator table; constants are printed with `repr`.
"""

from __future__ import annotations

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
from fuzz.ir.nodes import (
    BOTH,
    DEVICES,
    Autocast,
    Block,
    Branch,
    Loop,
    Region,
    Storage,
    split_calls,
    tree_paths,
)
from fuzz.operators import OPERATORS, python_state
from fuzz.operators.dtypes import COMPLEX, FLOATS, INEXACT, reads_bytes
from fuzz.operators.subclasses import IMPORTS
from fuzz.program.argument_text import device_text, print_make, tree_text
from fuzz.program.decode import (
    Argument,
    Program,
    ProgramError,
    Ref,
    Root,
    Statement,
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
    storages = tuple(s if i in kept else _upcast_storage(s) for i, s in enumerate(program.storages))
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


def _upcast_storage(storage: Storage) -> Storage:
    """The storage in double precision, with the numbers that it has, however they were rounded."""
    dtype = _double(storage.dtype)
    if dtype == storage.dtype or storage.values in ("plain", "singular"):
        return replace(storage, dtype=dtype)
    return replace(storage, dtype=dtype, precision=storage.precision or storage.dtype)


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
        lines += [f"    {line}" for line in print_make(one)]
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
    yield f"return {tree_text(program.returns)}"


def _statements(program: Program) -> dict[int, str]:
    """The line of each statement, also of those that the first call does not come by."""
    lines = _print_run(program)
    for _, other in untaken_arms(program):
        lines = _print_run(other) | lines
    return lines


def _print_run(program: Program) -> dict[int, str]:
    state = initial_state(program)
    device = device_text(program)
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


def _kind(program: Program) -> str:
    device = program.scenario.device
    return "device" if device == BOTH else f'"{device.partition(":")[0]}"'
