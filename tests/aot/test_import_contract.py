"""What the package imports: no torch AOTAutograd, and private torch API in one package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aot
from tests.support.agreement import leaf

pytestmark = pytest.mark.both_devices

PACKAGE = Path(aot.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
DOOR = PACKAGE / "torch_internals"
OTHERS = [path for path in MODULES if path.parent != DOOR]
STOCK = ("torch._functorch", "functorch", "torch._dynamo", "torch._inductor")
# Inductor is a graph compiler that may be put below; it is reached as all that is private.
BELOW = {DOOR / "inductor_api.py": "torch._inductor"}


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module and name that is imported, as `package.module.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_private(name: str) -> bool:
    """Whether a dotted torch name has a private part."""
    parts = name.split(".")
    return parts[0] == "torch" and any(part.startswith("_") for part in parts[1:])


def test_the_modules_are_found() -> None:
    assert DOOR / "inductor_api.py" in MODULES
    assert len(MODULES) > 10


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_no_module_imports_the_stock_compilers(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    banned = [name for name in STOCK if name != BELOW.get(path)]
    stock = [name for name in imports(tree) if any(name == s or name.startswith(f"{s}.") for s in banned)]
    assert stock == []


@pytest.mark.parametrize("path", OTHERS, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_private_torch_api_is_in_one_package(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [name for name in imports(tree) if is_private(name)] == []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert not node.attr.startswith("_"), f"torch.{node.attr} in line {node.lineno}"


def test_the_check_itself_sees_private_names() -> None:
    tree = ast.parse("import torch._C\nfrom torch.utils._pytree import tree_map\nfrom torch import _ops, nn")
    assert [name for name in imports(tree) if is_private(name)] == [
        "torch._C",
        "torch.utils._pytree.tree_map",
        "torch._ops",
    ]


POISON = """
import functools, types
import torch
import torch._functorch.aot_autograd, torch._functorch.partitioners

def poisoned(*args, **kwargs):
    raise SystemExit("torch's own AOTAutograd was called")

for module in (torch._functorch.aot_autograd, torch._functorch.partitioners):
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType) and value.__module__.startswith("torch._functorch"):
            setattr(module, name, poisoned)

import aot

def f(x, y):
    x.mul_(2)
    return x.view(-1), (x @ y).relu().sum(), torch.nn.functional.dropout(x, 0.5)

root, y = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
flat, total, _ = aot.aot_function(f, aot.nop)(root * 1, y)
(total + flat.sum()).backward()
assert root.grad.tolist() == [[6.0, 6.0], [6.0, 6.0]], root.grad
assert y.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]], y.grad
print("done")
"""


def test_it_works_where_the_stock_compiler_does_not() -> None:
    run = subprocess.run(
        [sys.executable, "-c", POISON], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert run.stdout.strip() == "done", run.stdout + run.stderr


def test_the_public_names_are_there() -> None:
    for name in aot.__all__:
        assert getattr(aot, name) is not None
    assert aot.aot_function(lambda x: x * 2, aot.nop)(leaf(2)).requires_grad
