"""What packages say of themselves in their docstrings, in the line *Invariant*, where a program can tell."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import aot
import fuzz

PACKAGE = Path(aot.__file__).parent


def tree_of(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def imports_of(module: str) -> Iterator[str]:
    """The modules of `aot` that a module imports, wherever it does."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "aot":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                path = PACKAGE.joinpath(*name.split(".")[1:])
                yield name if path.is_dir() or path.with_suffix(".py").exists() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "aot")


# What a run has left, as frozen data.
DATA = frozenset(
    (
        "aot.analysis.effect_summary",
        "aot.capture.autograd.edge_targets",
        "aot.capture.memory.metadata_log",
        "aot.capture.memory.view_ops",
        "aot.joint.joint",
    )
)
PLANNING = ("plan", "saved_values", "schedule", "codegen.backward", "codegen.wrapper", "codegen.writer")


@pytest.mark.parametrize("module", PLANNING)
def test_the_wrapper_is_planned_and_written_from_data(module: str) -> None:
    earlier = ("aot.capture", "aot.analysis", "aot.joint")
    imported = {name for name in imports_of(f"aot.runtime.{module}") if name.startswith(earlier)}
    assert imported <= DATA


def test_imports_are_seen_in_functions_too() -> None:
    assert "aot.partition.joint_graph" in set(imports_of("aot.runtime.saved_values"))
    assert "aot.errors" in set(imports_of("aot.frontends.minifier"))


# Today's reads, by module: what a run did is to become data, and then nothing of this is left (issue 51).
LIVE = ("requires_grad", "is_leaf", "_version", "grad_fn", "_is_view", "_base", "recorder", "builder")
READS = {
    "__init__": 3,
    "context": 12,
    "histories": 5,
    "input_mutations": 46,
    "metadata": 8,
    "output_aliasing": 16,
    "subclass_effects": 31,
    "view_facts": 19,
    "view_rules": 13,
}


def live_reads(module: str) -> int:
    """How often a module reads an attribute that only tensors, or the recorder, have."""
    return sum(isinstance(n, ast.Attribute) and n.attr in LIVE for n in ast.walk(tree_of(module)))


def test_the_analysis_reads_live_tensors_and_the_recorder_no_more_than_it_did() -> None:
    modules = sorted(path.stem for path in (PACKAGE / "analysis").glob("*.py"))
    counted = Counter({m: live_reads(f"aot.analysis.{m}".removesuffix(".__init__")) for m in modules})
    assert {m: n for m, n in counted.items() if n} == READS, "fewer? then write down how many are left"


def torch_imports(file: Path) -> list[str]:
    """The names of torch's modules that a file imports, wherever it does."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return [name for name in names if name.split(".")[0] == "torch"]


@pytest.mark.parametrize("package", ["ir", "operators", "abstract"])
def test_programs_are_known_without_torch(package: str) -> None:
    files = sorted((Path(fuzz.__file__).parent / package).glob("*.py"))
    assert files and [file.name for file in files if torch_imports(file)] == []


def test_imports_of_torch_are_seen() -> None:
    assert torch_imports(Path(fuzz.__file__).parent / "execute" / "call.py")
