"""Samples of GraphNet: folders with a module in `model.py` and what it is called with in `*_meta.py`.

All weights are arguments of `GraphModule.forward`. A meta file has a class for each tensor, with its name,
shape, dtype, and elements or how these are distributed. Everything is run on a CPU, whatever device the
sample says.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.compiler.programs.program import Make, Program

# As GraphNet does it: values lie closer together than the model's, so that a variance stays above zero.
_SPREAD = 0.2
_LARGEST = 100.0
_METAS = ("input_meta.py", "weight_meta.py")
_DEVICE = re.compile(r"cuda(:\d+)?")


def names(folder: Path) -> list[str]:
    """The samples below a folder: those of torch with a module and tensors."""
    return [
        model.parent.relative_to(folder).as_posix()
        for model in folder.rglob("model.py")
        if (model.parent / _METAS[1]).exists() and _is_of_torch(model.parent)
    ]


def _is_of_torch(sample: Path) -> bool:
    about = sample / "graph_net.json"
    return not about.exists() or json.loads(about.read_text(encoding="utf-8")).get("framework") == "torch"


def load(folder: Path, name: str, *, seed: int, training: bool = False) -> Make:
    """Run a sample's files; what is drawn depends on the seed."""
    sample = folder / name
    namespace = _run_on_cpu(sample / "model.py")
    metas: dict[str, Any] = {
        vars(value)["name"]: value
        for file in _METAS
        if (sample / file).exists()
        for value in _run_on_cpu(sample / file).values()
        if isinstance(value, type) and hasattr(value, "shape")
    }
    generator = torch.Generator().manual_seed(seed)
    kind = namespace["GraphModule"]
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    # (A parameter's annotation is the class, or its name where annotations are text.)
    given = [
        (make_tensor(metas[one.name], generator), "Parameter" in str(one.annotation)) for one in parameters
    ]

    def make(*, double: bool = False) -> Program:
        return Program(kind(), tuple(_copy(tensor, trained, double) for tensor, trained in given))

    return make


def warm_up() -> None:
    """Samples need torch alone."""


def make_tensor(meta: Any, generator: torch.Generator) -> Tensor:
    """The tensor that a class of a meta file describes."""
    dtype = getattr(torch, meta.dtype.removeprefix("torch."))
    data, low, high = (getattr(meta, name, None) for name in ("data", "min_val", "max_val"))
    if data is not None:
        return torch.tensor(data, dtype=dtype).reshape(meta.shape)
    if dtype is torch.bool:
        return torch.rand(meta.shape, generator=generator) > 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        high = low + 1 if high is None and low is not None else (high or 0)
        return torch.randint(low or 0, high + 1, meta.shape, generator=generator, dtype=dtype)
    mean, std = (
        value if isinstance(value, (int, float)) and math.isfinite(value) else other
        for value, other in ((meta.mean, 0.0), (meta.std, 0.1))
    )
    made = torch.randn(meta.shape, generator=generator) * (std * _SPREAD) + mean
    return made.clamp(
        -_LARGEST if low is None else max(low, -_LARGEST), _LARGEST if high is None else min(high, _LARGEST)
    ).to(dtype)


def _copy(tensor: Tensor, trained: bool, double: bool) -> Tensor:
    made = tensor.double() if double and tensor.is_floating_point() else tensor.clone()
    return nn.Parameter(made) if trained and made.is_floating_point() else made


def _run_on_cpu(file: Path) -> dict[str, Any]:
    """Run a sample's file with a CPU for each device in it."""
    tree = _OnCpu().visit(ast.parse(file.read_text(encoding="utf-8")))
    module = types.ModuleType(f"graphnet_{file.stem}")
    exec(compile(ast.fix_missing_locations(tree), str(file), "exec"), vars(module))
    return vars(module)


class _OnCpu(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and _DEVICE.fullmatch(node.value):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) in ("device", "torch.device"):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "index"]
        return self.generic_visit(node)
