"""Arguments of one call as plain constructors: literals where the elements are few, no name that nobody uses.

In: a program of one call. Out: `Constructed`, lines of Python and what each tensor is called there.
The printer's lines are the start. Then names of the same object become one, and names that are read once go.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fuzz.ir.nodes import Program, Storage
from fuzz.ir.value_classes import FORMULAS, number_table
from fuzz.operators.dtypes import COMPLEX, FLOATS, INTEGERS
from fuzz.program.argument_text import argument_text, root_values_text
from fuzz.program.statements import constant_text

MAX_LITERAL = 16
"""The most elements that are written out; more are a formula."""
# Of a literal that torch.tensor is given.
_DEFAULT_DTYPES = ("float32", "int64", "bool", "complex64")
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Constructed:
    """The arguments of a call as text.

    Attributes:
        lines: Python that makes them.
        names: what each root, leaf and argument of the program is called in it.
    """

    lines: tuple[str, ...]
    names: dict[str, str]

    def lines_for(self, used: Iterable[str]) -> list[str]:
        """The lines that it takes to have these names, which are those of the text."""
        return _drop_unused(list(self.lines), set(used))


def construct_arguments(program: Program) -> Constructed:
    """Print the arguments of a program of one call as plain constructors."""
    lines = argument_text(program, literal_text).lines
    names: dict[str, str] = {}
    tree = ast.parse("\n".join(line for line in lines if not line.endswith(".clear()")))
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.setdefault(node.id, node.id)
    aliases = {
        statement.targets[0].id: statement.value.id
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Name)
    }
    for name, source in aliases.items():
        # The first argument that is a root gives the root its name.
        if names[source] == source and source[0] == "s" and name[0] == "a":
            names[source] = name
        names[name] = names[source]
    kept = [
        ast.unparse(_Plain(names).visit(statement))
        for statement in tree.body
        if not (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and isinstance(statement.value, ast.Name)
        )
    ]
    return Constructed(tuple(kept), names)


def literal_text(storage: Storage, device: str) -> str:
    """The elements of a root, written out where they are few.

    >>> literal_text(Storage("float32", (2,), 1), "")
    'torch.tensor([-1.375, 0.375])'
    """
    count = math.prod(storage.size)
    if not 0 < count <= MAX_LITERAL or storage.values in FORMULAS or storage.precision is not None:
        return root_values_text(storage, device)
    elements = [_element(storage, 7 * i + storage.seed) for i in range(count)]
    return tensor_text(elements, storage.dtype, storage.size, device)


def tensor_text(elements: list[object], dtype: str, size: tuple[int, ...], device: str = "") -> str:
    """A tensor of these elements, in row-major order, as an expression."""
    nested: list[str] = [constant_text(element) for element in elements]  # type: ignore[arg-type]
    for length in reversed(size):
        nested = [f"[{', '.join(nested[i : i + length])}]" for i in range(0, len(nested), length)]
    shown = "" if dtype in _DEFAULT_DTYPES else f", dtype=torch.{dtype}"
    return f"torch.tensor({nested[0]}{shown}{device})"


def _element(storage: Storage, number: int) -> object:
    """An element as `root_values_text` computes it; each is exact in its dtype."""
    if storage.values != "plain":
        numbers = number_table(storage.values, storage.precision or storage.dtype)
        return numbers[number % len(numbers)]
    fraction = number % 13 / 4 - 1.625
    if storage.dtype in COMPLEX:
        return complex(fraction, -0.5 * fraction)
    if storage.dtype in FLOATS:
        return fraction
    if storage.dtype in INTEGERS:
        whole = number % 5 - 2
        return whole % 256 if storage.dtype == "uint8" else whole
    return number % 2 == 0


class _Plain(ast.NodeTransformer):
    """Gives names their new names, and `requires_grad_()` of a literal as an argument of its constructor."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="tensor")) as made, attr=attr)
            ) if attr == "requires_grad_":
                made.keywords.append(ast.keyword("requires_grad", ast.Constant(True)))
                return made
        return node


def _drop_unused(lines: list[str], used: set[str]) -> list[str]:
    """The lines without assignments to names that nothing reads, and with names that one reads put there."""
    trees = [ast.parse(line).body[0] for line in lines]
    counts: Counter[str] = Counter(dict.fromkeys(used, 2))
    kept: list[ast.stmt] = []
    for statement in reversed(trees):
        stored = {name for name, store in _names_in(statement) if store}
        if stored and not any(counts[name] for name in stored):
            continue
        reads = [name for name, store in _names_in(statement) if not store]
        # What stands in a block, under a mode, stays out of it; a call for its effect keeps its names.
        counts.update(reads if isinstance(statement, ast.Assign) else [*reads, *reads])
        kept.insert(0, statement)
    result: list[str] = []
    inline: dict[str, ast.expr] = {}
    for statement in kept:
        statement = _Inlined(inline).visit(statement)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                counts[name] == 1 and len(ast.unparse(value)) < _WIDTH
            ):
                inline[name] = value
            case _:
                result += ast.unparse(statement).splitlines()
    return result


def _names_in(statement: ast.AST) -> list[tuple[str, bool]]:
    """The names in a statement, each with whether it is assigned."""
    found = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return [(node.id, isinstance(node.ctx, ast.Store)) for node in found]


class _Inlined(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, expressions: dict[str, ast.expr]) -> None:
        self.expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.expressions.get(node.id, node) if isinstance(node.ctx, ast.Load) else node
