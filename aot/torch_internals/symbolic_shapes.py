"""Symbolic sizes: symbols, their expressions as Python and as graph nodes, and errors about them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensorMode

from aot.torch_internals.pytree import SequenceKey

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

__all__ = [
    "GuardOnDataDependentSymNode",
    "ShapeEnv",
    "assume_equal",
    "binding_keys",
    "data_symbol",
    "free_symbols",
    "is_symint_unsupported",
    "is_unbacked",
    "make_shape_env",
    "new_symbol",
    "no_fresh_symbols",
    "original_expression",
    "python_source",
    "replaced",
    "replaced_by_unbacked",
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
    if name == "CallShapeEnv":
        return _shape_env_type()
    if name not in ("GuardOnDataDependentSymNode", "ShapeEnv"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from torch.fx.experimental import symbolic_shapes

    return getattr(symbolic_shapes, name)


def make_shape_env() -> ShapeEnv:
    """A ``ShapeEnv`` in which the numbers of a call are not expressed by those that a graph computes
    (`data_symbol`), which are not there yet when a call begins."""
    return _shape_env_type()()  # type: ignore[no-any-return]


@functools.cache
def _shape_env_type() -> type[Any]:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class CallShapeEnv(ShapeEnv):
        """Knows the symbols of `data_symbol`.

        Attributes:
            data_symbols: these.
        """

        data_symbols: frozenset[Any] = frozenset()

        def _set_replacement(self, a: Any, tgt: Any, msg: str) -> None:
            if a not in self.data_symbols and tgt.free_symbols & self.data_symbols:
                if not tgt.is_Symbol:
                    return
                a, tgt = tgt, a
            super()._set_replacement(a, tgt, msg)

    CallShapeEnv.__qualname__ = CallShapeEnv.__name__  # Inductor pickles it, and finds it as an attribute
    return CallShapeEnv


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


def data_symbol(env: ShapeEnv, name: str, hint: int | float, *, is_size: bool) -> tuple[Any, Any]:
    """The symbol of a number that a graph computes from the values of tensors, which is `hint` in the call
    that is traced, unlike any other symbol; and a ``SymInt`` or ``SymFloat`` of it. That of a size is taken
    to be greater than 1."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = _CallSource(name)
    symbol = env.create_symbol(
        hint,
        source,
        dynamic_dim=DimDynamic.DYNAMIC,
        positive=True if is_size else None,
        do_not_specialize_zero_one=not is_size,
    )
    env.data_symbols = env.data_symbols | {symbol}  # type: ignore[attr-defined]
    if isinstance(hint, float):
        return symbol, env.create_symfloatnode(symbol, hint=hint, source=source)
    return symbol, env.create_symintnode(symbol, hint=hint, source=source)


def free_symbols(number: Any) -> set[Any]:
    """The symbols that a symbolic number follows from, as far as they are not known to be numbers."""
    return set(number.node.expr.free_symbols)


def no_fresh_symbols(env: ShapeEnv) -> contextlib.AbstractContextManager[Any]:
    """While this lasts, nobody has to say where the values of symbols that operations make are found."""
    return env.ignore_fresh_unbacked_symbols()


def is_unbacked(expression: Any) -> bool:
    """Whether an expression is a symbol for a number that is not known before something is computed."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(expression.is_Symbol and free_unbacked_symbols(expression))


def replaced(env: ShapeEnv, number: Any, found: Mapping[Any, Any]) -> Any:
    """A symbolic number with other symbols, or numbers, in place of some symbols."""
    import sympy  # type: ignore[import-untyped]

    expression = number.node.expr.xreplace({symbol: sympy.sympify(value) for symbol, value in found.items()})
    if expression.is_number:
        return float(expression) if isinstance(number, torch.SymFloat) else int(expression)
    hint = expression.xreplace(env.backed_var_to_val)
    if isinstance(number, torch.SymFloat):
        return env.create_symfloatnode(expression, hint=float(hint))
    return env.create_symintnode(expression, hint=int(hint))


def replaced_by_unbacked(
    env: ShapeEnv, number: Any, symbols: Mapping[Any, Any], known: dict[Any, Any]
) -> Any:
    """A number with a symbol of which nobody knows the value in place of each of `symbols`, whose numbers
    these are; `known` has those that were made."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat)):
        return number
    expression = number.node.expr
    found = expression.free_symbols & symbols.keys()
    if not found:
        return number
    with env.ignore_fresh_unbacked_symbols():
        for symbol in found - known.keys():
            is_float = isinstance(symbols[symbol], torch.SymFloat)
            known[symbol] = env.create_unbacked_symfloat() if is_float else env.create_unbacked_symint()
    expression = expression.xreplace({symbol: known[symbol].node.expr for symbol in found})
    if isinstance(number, torch.SymFloat):
        return env.create_symfloatnode(expression, hint=None)
    return env.create_symintnode(expression, hint=None)


def binding_keys(path: Sequence[int]) -> tuple[Any, ...]:
    """Where a number is found in the result of a node, in the words of ``unbacked_bindings``: the result
    itself, a size of it, or a size of one of several results."""
    from torch.fx.experimental.symbolic_shapes import CallMethodKey

    if not path:
        return ()
    *item, dimension = path
    return (*map(SequenceKey, item), CallMethodKey("size"), SequenceKey(dimension))


def original_expression(number: Any) -> Any:
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

    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    proxies = {symbol: torch.fx.Proxy(node, tracer) for symbol, node in inputs.items()}
    value = sympy_interp(_node_analysis(), proxies, expression)
    return value.node if isinstance(value, torch.fx.Proxy) else value


@functools.cache
def _node_analysis() -> type[Any]:
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    def node_of(function: Any, *args: Any) -> Any:
        """A call of a Python function that does not know proxies; of numbers, what it returns."""
        found = [one for one in args if isinstance(one, torch.fx.Proxy)]
        return found[0].tracer.create_proxy("call_function", function, args, {}) if found else function(*args)

    class NodeAnalysis(PythonReferenceAnalysis):
        """Functions of numbers as nodes, those among them of which torch's class makes expressions."""

        @staticmethod
        def int_truediv(a: Any, b: Any) -> Any:
            return a / b

        @staticmethod
        def reciprocal(x: Any) -> Any:
            return 1.0 / x

        @staticmethod
        def square(x: Any) -> Any:
            return x * x

        @staticmethod
        def trunc_to_int(x: Any, dtype: Any) -> Any:
            return torch.sym_int(x)  # type: ignore[no-untyped-call]

        # (No floor: that of a quotient stands for ``a // b`` as well, which Python computes otherwise.)

        @staticmethod
        def ceil_to_int(x: Any, dtype: Any) -> Any:
            return node_of(math.ceil, x)

        @staticmethod
        def round_to_int(a: Any, dtype: Any) -> Any:
            return node_of(round, a)

    return NodeAnalysis


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


def assume_equal(size: torch.SymInt, wanted: int | torch.SymInt) -> None:
    """Have the environment of a symbol know that it is another size."""
    torch._check(size == wanted)  # type: ignore[no-untyped-call]
