"""The figures of docs/explanation/testing.md, counted from the files.

python -m tests.quality.figures --write
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

from tabulate import tabulate

from bench.fuzzer.seeded_bugs import FAULTS
from fuzz.operators import OPERATORS
from oracles.findings import CLAUSES
from tests.reports.table import REPORTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "testing.md"
BEGIN, END = "<!-- python -m tests.quality.figures --write -->", "<!-- end of the figures -->"


def lines_of(*packages: str) -> int:
    """The lines of packages that are neither blank nor a comment."""
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    lines = [line.strip() for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def tests_in(folder: str) -> int:
    """The test functions below a folder. Most are run for several parameters."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / folder).rglob("test_*.py")]
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for tree in trees
        for node in ast.walk(tree)
    )


def figures() -> dict[str, int]:
    """What the page says, by name."""
    return {
        "lines of `aot`": lines_of("aot"),
        "lines of `fuzz` and `oracles`": lines_of("fuzz", "oracles"),
        "lines of tests": lines_of("tests"),
        "test functions": tests_in("tests"),
        "of these for the compiler": tests_in("tests/aot"),
        "clauses of the contract": len(CLAUSES),
        "operators that programs draw from": len(OPERATORS),
        "faults that the fuzzer has to find": len(FAULTS),
        "public reports that are run": len(REPORTS),
        "recorded cases": len([*(ROOT / "corpus").glob("*.json")]),
    }


def figures_on_the_page() -> dict[str, int]:
    """What the page says now."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table, found, _ = rest.partition(END)
    assert found, "the page has lost its marks"
    return {
        name: int(number.replace(",", "")) for name, number in re.findall(r"\| (.+?) +\| +([\d,]+) \|", table)
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.quality.figures", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write them into the page")
    rows = [[name, f"{number:,}"] for name, number in figures().items()]
    table = tabulate(rows, ["what", "how many"], tablefmt="github", colalign=("left", "right"))
    if parser.parse_args().write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
