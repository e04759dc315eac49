"""Symbolic sizes: symbols, their expressions as Python and as graph nodes, and errors about them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensorMode

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

__all__ = [
    "GuardOnDataDependentSymNode",
    "ShapeEnv",
    "is_symint_unsupported",
    "new_symbol",
    "original_expression",
    "python_source",
    "symbol_nodes",
    "unbacked_bindings",
    "unbacked_fakes_like",
    "unbacked_symint",
]


def is_symint_unsupported(error: BaseException) -> bool:
    """Whether this is what torch raises where a kernel asks a tensor with symbols for numbers."""
    return "symbolic sizes/strides" in str(error)


def __getattr__(name: str) -> Any:
    """(What symbols are made of is imported when it is used: sympy takes a fifth of a second.)"""
    if name not in ("GuardOnDataDependentSymNode", "ShapeEnv"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from torch.fx.experimental import symbolic_shapes

    return getattr(symbolic_shapes, name)


@dataclasses.dataclass(frozen=True)
class _CallSource(Source):
    """Where a number is found in a call."""

    path: str

    @property
    def _name_template(self) -> str:
        return self.path


def new_symbol(env: ShapeEnv, name: str, hint: int) -> tuple[Any, Any]:
    """The symbol of a number which is `hint` in the call that is traced, the same for equal numbers, or the
    number itself where that is 0 or 1; and a ``SymInt`` of it."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = _CallSource(name)
    symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DUCK, constraint_dim=None)
    return symbol, env.create_symintnode(symbol, hint=hint, source=source)


def original_expression(number: torch.SymInt) -> Any:
    """The expression that a number was made as, whatever has become known of its symbols since."""
    return number.node._expr


def python_source(expression: Any) -> str:
    """An expression of ``ShapeEnv``'s as Python source; the symbol ``s0`` is called ``n_s0`` there."""
    return str(_symbol_printer()().doprint(expression))


@functools.cache
def _symbol_printer() -> type[Any]:
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):
        def _print_Symbol(self, symbol: Any) -> str:
            return f"n_{symbol.name}"

    return Printer


def symbol_nodes(expression: Any, inputs: Mapping[Any, torch.fx.Node], graph: torch.fx.Graph) -> Any:
    """Nodes that compute an expression of ``ShapeEnv``'s from the values of its symbols, or a constant."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    proxies = {symbol: torch.fx.Proxy(node, tracer) for symbol, node in inputs.items()}
    value = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    return value.node if isinstance(value, torch.fx.Proxy) else value


def unbacked_symint() -> torch.SymInt:
    """A symbol for a number that is not known before something is computed."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return ShapeEnv().create_unbacked_symint()


def unbacked_fakes_like(inputs: Sequence[Any]) -> list[Any]:
    """Fake tensors like others, of a mode in which sizes may be symbols that nobody knows the values of."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    known: dict[Any, torch.SymInt] = {}

    def size(number: Any) -> Any:
        if not isinstance(number, torch.SymInt):
            return number
        if original_expression(number) not in known:
            known[original_expression(number)] = env.create_unbacked_symint()
        return known[original_expression(number)]

    def like(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        sizes = [size(number) for number in value.shape]
        return torch.empty_strided(sizes, value.stride(), dtype=value.dtype, device=value.device)

    with FakeTensorMode(shape_env=env), env.ignore_fresh_unbacked_symbols():
        return [like(value) for value in inputs]


def unbacked_bindings(value: Any, known: Collection[Any]) -> dict[Any, Any]:
    """The symbols in a value that stand for what data decides, but for those that are known, each with the
    way to where it is in the value."""
    from torch.fx.experimental.symbolic_shapes import _free_unbacked_symbols_with_path, free_unbacked_symbols

    pending = set(free_unbacked_symbols(value)) - set(known)
    return _free_unbacked_symbols_with_path(value, (), pending=pending) if pending else {}
