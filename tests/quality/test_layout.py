"""The tests and modules as files: none is too long, and each clause of the contract has tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from oracles.findings import CLAUSES

ROOT = Path(__file__).parents[2]
LIMIT = 600  # lines
# Modules that are longer still, with their lengths. They may only shrink.
LONGER = {
    "aot/frontends/function.py": 845,
    "aot/guards/collect.py": 711,
    "aot/guards/side_effects.py": 660,
    "aot/guards/variables.py": 616,
    "aot/runtime/codegen/wrapper.py": 607,
    "fuzz/generate/later_calls.py": 616,
}


def lengths(*folders: str) -> dict[str, int]:
    """The lines of each Python file in these folders."""
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert files
    return {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}


def test_no_test_file_is_longer_than_the_limit() -> None:
    assert {file: lines for file, lines in lengths("tests").items() if lines > LIMIT} == {}


def test_no_module_is_longer_than_the_limit_or_than_it_was() -> None:
    longer = {file: n for file, n in lengths("aot", "fuzz", "oracles", "bench").items() if n > LIMIT}
    assert longer == LONGER, "make modules shorter; once one is, make its number smaller here"


def marked(file: Path) -> Iterator[str]:
    """The clauses that the marks of a test file name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.clause":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant))


@pytest.fixture(scope="module")
def clauses() -> dict[str, list[str]]:
    """For each file, the clauses that it is marked with."""
    return {str(file.relative_to(ROOT)): [*marked(file)] for file in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("clause", CLAUSES)
def test_each_clause_has_tests_of_the_compiler(clause: str, clauses: dict[str, list[str]]) -> None:
    assert [file for file, names in clauses.items() if file.startswith("tests/aot/") and clause in names]


def test_marks_name_clauses(clauses: dict[str, list[str]]) -> None:
    assert {name for names in clauses.values() for name in names} == set(CLAUSES)
