"""Modules of ParityBench: a file for each project, with a list `TESTCASES` of classes and their arguments.

An entry is the class, a function that gives `(args, kwargs)` to make it with, one that gives those of a call,
and whether TorchScript takes it, which is of no interest here. A case's name is `FILE::NUMBER::CLASS`.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import random
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bench.compiler.programs.program import Make, Program

_CASES = "TESTCASES = ["


def names(folder: Path) -> list[str]:
    """The cases in the files `test_*.py` of a folder, or of its folder `generated`."""
    found: list[str] = []
    for file in sorted(_modules(folder).glob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        start = text.rfind(f"\n{_CASES}")
        if start >= 0:
            try:
                (listed, *_) = ast.parse(text[start:]).body
            except SyntaxError:  # of a few files, which nobody can run
                continue
            assert isinstance(listed, ast.Assign) and isinstance(listed.value, ast.List)
            for number, entry in enumerate(listed.value.elts):
                assert isinstance(entry, ast.Tuple)
                found.append(f"{file.name}::{number}::{ast.unparse(entry.elts[0])}")
    return found


def _modules(folder: Path) -> Path:
    below = folder / "generated"
    return below if below.is_dir() else folder


def load(folder: Path, name: str, *, seed: int, training: bool = False) -> Make:
    """Run the file of a case."""
    file, number, _ = name.split("::")
    kind, init, forward, _ = _import(_modules(folder) / file).TESTCASES[int(number)]

    def make(*, double: bool = False) -> Program:
        _seed_generators(seed)
        args, kwargs = init()
        module = kind(*args, **kwargs).train(training)
        args, kwargs = copy.deepcopy(forward())
        if double:
            module = module.double()
            args, kwargs = pytree.tree_map(_double, (args, kwargs))
        return Program(module, tuple(args), kwargs)

    return make


def warm_up() -> None:
    """Load what nearly every file imports, if it is installed."""
    for package in ("pandas", "scipy", "torchvision"):
        with contextlib.suppress(ImportError):
            importlib.import_module(package)


def _seed_generators(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _import(file: Path) -> Any:
    """Run a file with the helpers beside it and with mocks of packages that are not installed."""
    before = torch.manual_seed, torch.get_default_dtype()
    sys.path[:0] = [str(file.parent), str(file.parent.parent)]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    sys.meta_path.append(_Mocks(_missing_packages(tree)))
    module = types.ModuleType(file.stem)
    sys.modules[file.stem] = module
    exec(compile(tree, str(file), "exec"), vars(module))
    # The helpers put a function that knows one seed in its place, and some projects set the default dtype.
    torch.manual_seed = before[0]
    torch.set_default_dtype(before[1])
    return module


def _missing_packages(tree: ast.Module) -> frozenset[str]:
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            named.add(node.module)
    return frozenset(
        root for root in {name.partition(".")[0] for name in named} if importlib.util.find_spec(root) is None
    )


class _Mock(types.ModuleType):
    """A module that has everything."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds mocks of some packages and of all that they may hold."""

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of a mock; None for what belongs to no such package."""
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The mock."""
        return _Mock(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is to be run."""
