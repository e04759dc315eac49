"""No function is more complex than the limit, or than it was.

Complexity is the cyclomatic one, counted as radon counts it: Boolean operands, conditional expressions,
clauses of comprehensions and nested functions included. (ruff's C901 counts none of the former two.)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 15
# Functions that are more complex still, with their complexity. It may only shrink.
EXCEPTIONS = Path(__file__).with_name("complex_functions.txt")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
)


def branches(node: ast.AST) -> int:
    """How many ways more than one there are through a node itself."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    has_else = isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.Try)) and bool(node.orelse)
    return isinstance(node, BRANCHES) + has_else


def complexity(function: ast.AST) -> int:
    """The cyclomatic complexity of a function, with the functions in it. (It is a branch itself.)"""
    return sum(map(branches, ast.walk(function)))


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The functions and methods of a module, by their names; not those within functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            yield prefix + child.name, child
        else:
            yield from functions(
                child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
            )


def counted(*packages: str) -> dict[str, int]:
    """The complexity of each function of packages; where one name stands twice, that of the more complex."""
    found: dict[str, int] = {}
    for path in sorted(path for package in packages for path in (ROOT / package).rglob("*.py")):
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            key = f"{path.relative_to(ROOT)}:{name}"
            found[key] = max(complexity(function), found.get(key, 0))
    return found


def listed() -> dict[str, int]:
    lines = (line.split() for line in EXCEPTIONS.read_text(encoding="utf-8").splitlines())
    return {name: int(number) for number, name in lines}


def faults(now: dict[str, int], before: dict[str, int]) -> list[str]:
    """What is wrong with functions, or with the list of exceptions."""
    complex_ones = {name: number for name, number in now.items() if number > LIMIT}
    found = []
    for name, number in sorted(complex_ones.items()):
        if number > before.get(name, LIMIT):
            found.append(f"{name}: {number}, and at most {before.get(name, LIMIT)}: make it simpler")
        elif number < before[name]:
            found.append(f"{name}: write down that it is {number} now, and not {before[name]} any more")
    found += [f"{name}: remove it from the list" for name in sorted(before.keys() - complex_ones.keys())]
    return found


def test_no_function_is_more_complex_than_the_limit_or_than_it_was() -> None:
    assert faults(counted("aot", "fuzz", "oracles"), listed()) == [], f"see {EXCEPTIONS.name}"


def test_the_list_is_in_order() -> None:
    """The most complex ones come first."""
    names = [(-number, name) for name, number in listed().items()]
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a", 1),
        ("return a and b and not c", 3),
        ("return a if b else c", 2),
        ("return [x for x in a if x if b]", 4),
        ("for x in a:\n  pass\n else:\n  b", 3),
        ("try:\n  a\n except E:\n  b\n except F:\n  c\n else:\n  d", 4),
        ("def g():\n  return b or c\n return g", 3),
        ("return lambda: a or b", 3),
        ("with a, b:\n  c", 1),
        ("if a:\n  b\n elif c:\n  d", 3),
        ("match a:\n  case 1:\n   b\n  case _:\n   c", 3),
    ],
)
def test_branches_are_counted_with_boolean_operands_and_nested_functions(body: str, expected: int) -> None:
    ((name, function),) = functions(ast.parse(f"def f(a, b, c):\n {body}"))
    assert (name, complexity(function)) == ("f", expected)


def test_the_list_only_shrinks() -> None:
    now = {"m.py:same": 20, "m.py:grown": 21, "m.py:new": 16, "m.py:shrunk": 17, "m.py:simple": 15}
    before = {"m.py:same": 20, "m.py:grown": 20, "m.py:shrunk": 18, "m.py:simple": 16, "m.py:gone": 30}
    assert faults(now, before) == [
        "m.py:grown: 21, and at most 20: make it simpler",
        "m.py:new: 16, and at most 15: make it simpler",
        "m.py:shrunk: write down that it is 17 now, and not 18 any more",
        "m.py:gone: remove it from the list",
        "m.py:simple: remove it from the list",
    ]


def test_methods_have_the_names_of_their_classes() -> None:
    tree = ast.parse("class A:\n  def f(self): ...\n  class B:\n    def g(self): ...\nif x:\n  def h(): ...")
    assert [name for name, _ in functions(tree)] == ["A.f", "A.B.g", "h"]
