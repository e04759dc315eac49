"""What rows of the wide table are put together from: operators of which kernels alone matter.

A compiler has a lowering of its own for each of these, and faults in one are faults of numbers: a dtype, a
size, a value at the edge. So the rows have exact rules for dtypes and sizes; their strides are followed where
eager lays the result out as any pointwise operator does. What a backward keeps of them is more than eager
keeps, so that no program writes over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from fuzz.choices import Choices
from fuzz.operators.builders import broadcasts, elementwise, fits_anywhere
from fuzz.operators.dtypes import (
    BOOL,
    COMPLEX,
    FLOATS,
    INEXACT,
    INTEGERS,
    REAL_OF,
    promote_dtypes,
)
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Constant,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Saves,
    Size,
)

SINGLE = frozenset({"float32", "float64"})
REAL_NUMBERS = FLOATS | INTEGERS
REAL_AND_BOOL = REAL_NUMBERS | BOOL
DtypeRule = Callable[[str], str]


def kernel_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    attributes: tuple[Attribute, ...] = (),
    *,
    differentiable: bool = True,
    indices: bool = False,
    random: bool = False,
) -> Operator:
    """A row of the wide table: new tensors, of which a backward may keep all operands and results.

    With `indices` the second result is a tensor of indices, which a backward keeps.
    """
    every = tuple(range(len(operands)))
    numbers: tuple[int | str, ...] = (*every, "result", *(("second",) if indices else ()))
    saves: Saves = tuple((which, every) for which in numbers) if differentiable else ()  # type: ignore[misc]
    return Operator(
        name=name,
        kind=Kind.KERNEL,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        random=random,
        differentiable=differentiable,
        saves=saves,
    )


# ---------------------------------------------------------------------------------------------------------
# dtypes of results


def same(dtype: str) -> str:
    return dtype


def fractional(dtype: str) -> str:
    """Functions of integers are float32."""
    return dtype if dtype in INEXACT else "float32"


def summed(dtype: str) -> str:
    """Sums of integers are int64."""
    return dtype if dtype in INEXACT else "int64"


def real(dtype: str) -> str:
    return REAL_OF.get(dtype, dtype)


def truth(dtype: str) -> str:
    return "bool"


def index(dtype: str) -> str:
    return "int64"


# ---------------------------------------------------------------------------------------------------------
# operands


def operand(dtypes: frozenset[str]) -> Operand:
    return Operand(dtypes, fits_anywhere)


def broadcast(dtypes: frozenset[str]) -> Operand:
    return Operand(dtypes, broadcasts)


def twin(dtypes: frozenset[str]) -> Operand:
    """An operand of operand 0's dtype that broadcasts with it."""
    return Operand(dtypes, lambda meta, earlier: meta.dtype == earlier[0].dtype and broadcasts(meta, earlier))


def equal(dtypes: frozenset[str]) -> Operand:
    """An operand of operand 0's dtype and size."""
    return Operand(dtypes, lambda meta, earlier: meta[:2] == earlier[0][:2])


# ---------------------------------------------------------------------------------------------------------
# results


def unknown_layout(dtype: str, size: Size) -> tuple[Result, ...]:
    """A new tensor whose strides are not modelled."""
    return (Result(Meta(dtype, size, None)),)


def pointwise(dtype: DtypeRule = same) -> Rule:
    """An elementwise result of the promoted dtype, or of what becomes of that."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        return elementwise(dtype(promote_dtypes(metas)), metas)

    return rule


def pointwise_copy(dtype: DtypeRule = same) -> Rule:
    """An elementwise result that eager lays out as a composition of kernels does."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        [result] = elementwise(dtype(promote_dtypes(metas)), metas)
        return unknown_layout(result.meta.dtype, result.meta.size)

    return rule


def filled(metas: Sequence[Meta]) -> None:
    """Raise Mismatch if an operand has no elements."""
    if any(prod(meta.size) == 0 for meta in metas):
        raise Mismatch("there are no elements")


def one_dtype(metas: Sequence[Meta]) -> str:
    """The dtype of all operands; Mismatch if they differ."""
    if len({meta.dtype for meta in metas}) > 1:
        raise Mismatch("the dtypes differ")
    return metas[0].dtype


# ---------------------------------------------------------------------------------------------------------
# attributes


def choice(name: str, kind: str, values: Sequence[Constant]) -> Attribute:
    """An attribute that is one of these values."""

    def draw(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
        return choices.pick(values)

    return Attribute(name, kind, draw)  # type: ignore[arg-type]


def within(attributes: Attributes, name: str, low: float, high: float) -> float:
    """A number among the attributes; Mismatch if it is out of range."""
    value = attributes[name]
    if not isinstance(value, (int, float)) or not low <= value <= high:
        raise Mismatch(f"{name} {value} is out of range")
    return value


def unary(
    name: str, source: str, dtypes: frozenset[str], dtype: DtypeRule = fractional, *, grad: bool = True
) -> Operator:
    """A pointwise function of one tensor."""
    return kernel_row(name, source, (operand(dtypes),), pointwise(dtype), differentiable=grad)


def binary(
    name: str, source: str, dtypes: frozenset[str], dtype: DtypeRule = same, *, grad: bool = True
) -> Operator:
    """A pointwise function of two tensors that promote."""
    return kernel_row(
        name, source, (operand(dtypes), broadcast(dtypes)), pointwise(dtype), differentiable=grad
    )


ALL_NUMBERS = REAL_AND_BOOL | COMPLEX
Shape = Callable[[Size], Size]


def shaped_row(
    name: str,
    source: str,
    shape: Shape,
    ranks: Sequence[int] = range(6),
    dtypes: frozenset[str] = ALL_NUMBERS,
    dtype: DtypeRule = same,
    *,
    others: tuple[Operand, ...] = (),
    grad: bool = True,
    random: bool = False,
) -> Operator:
    """A row whose result has a size that follows from operand 0's.

    Args:
        shape: the size of the result; raises Mismatch for a size that the function does not take.
        ranks: the ranks of operand 0. It has elements, and so have the others.
        others: more operands, of operand 0's dtype.
    """

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        filled(metas)
        size = metas[0].size
        if len(size) not in ranks:
            raise Mismatch(f"a tensor of {len(size)} dimensions")
        return unknown_layout(dtype(one_dtype(metas)), shape(size))

    return kernel_row(name, source, (operand(dtypes), *others), rule, differentiable=grad, random=random)
