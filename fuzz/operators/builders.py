"""What the operator table's rows are put together from: operands, attributes, draws, small rules."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.choices import Choices
from fuzz.operators.dtypes import BOOL, CATEGORY, COMPLEX, DTYPES, FLOATS, INEXACT, INTEGERS, NUMERIC
from fuzz.operators.layout import (
    broadcast_sizes,
    contiguous_strides,
    dimension,
    elementwise_stride,
    expandable,
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

# ---------------------------------------------------------------------------------------------------------
# what a backward keeps

NOTHING: Saves = ()
SELF: Saves = ((0, (0,)),)
RESULT: Saves = (("result", (0,)),)
INDICES: Saves = (("second", (0,)),)
CROSS: Saves = ((0, (1,)), (1, (0,)))

# ---------------------------------------------------------------------------------------------------------
# operands


def fits_anywhere(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """Fits anywhere."""
    return True


def broadcasts(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """Broadcasts with all operands before it."""
    try:
        broadcast_sizes(meta.size, *(other.size for other in earlier))
    except Mismatch:
        return False
    return True


def expands(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """Can be expanded to operand 0, and its dtype stored there."""
    return expandable(meta.size, earlier[0].size) and CATEGORY[meta.dtype] <= CATEGORY[earlier[0].dtype]


def same_dtype(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """Has operand 0's dtype."""
    return meta.dtype == earlier[0].dtype


def number(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """A Python number that keeps operand 0's dtype."""
    return meta.number and CATEGORY[meta.dtype] <= CATEGORY[earlier[0].dtype]


ANY = Operand(DTYPES, fits_anywhere)
NUMBERS = Operand(NUMERIC, fits_anywhere)
ARITHMETIC = Operand(NUMERIC | COMPLEX, fits_anywhere)
REAL = Operand(FLOATS, fits_anywhere)
SMOOTH = Operand(INEXACT, fits_anywhere)
BITS = Operand(INTEGERS | BOOL, fits_anywhere)
INDEX = Operand(frozenset({"int64"}), fits_anywhere)
PYTHON = Operand(frozenset({"int64", "float32", "complex64"}), number, number=True)

# ---------------------------------------------------------------------------------------------------------
# draws


def draw_dim(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """A dimension of operand 0; now and then counted from the end."""
    rank = max(len(metas[0].size), 1)
    dim = choices.integer(0, rank - 1)
    return dim - rank if choices.chance(0.2) else dim


def draw_filled_dim(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """A dimension of operand 0 that is not of size 0."""
    size = metas[0].size
    dims = [dim for dim, n in enumerate(size) if n] if size else [0]
    if not dims:
        raise Mismatch("no dimension has elements")
    return choices.pick(dims)


def draw_bool(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.chance(0.5)


_FACTORS = (2.0, 0.5, -1.5, 3.0, -0.25)
_INTEGERS = (2, 3, -1, 5)
_COMPLEX_FACTORS = (1j, 0.5 - 2j, -1.5 + 0.5j)


def draw_number(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """A small number that operand 0's dtype holds, and that is not neutral for any operator."""
    if metas and metas[0].dtype not in INEXACT:
        return choices.pick(_INTEGERS)
    return choices.pick(_FACTORS)


def draw_dtype(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """Mostly float32."""
    if choices.chance(0.15):
        return choices.pick(("complex64", "float16", "bfloat16", "int16", "uint8", "complex128", "int8"))
    return choices.pick(("float32", "float32", "float32", "float64", "int64"))


def draw_size(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """The size of a new small tensor."""
    return choices.pick(((3,), (2, 3), (3, 3), (), (1,), (4,), (2, 1, 3), (2, 2), (0, 3), (3, 2)))


def draw_factor_size(choices: Choices, elements: int) -> Size:
    """A size with this number of elements."""
    if elements == 0:
        return choices.pick(((0,), (0, 3), (2, 0)))
    size: list[int] = []
    rest = elements
    for _ in range(choices.integer(0, 2)):
        size.append(choices.pick([n for n in range(1, rest + 1) if rest % n == 0]))
        rest //= size[-1]
    if rest != 1 or choices.chance(0.2):
        size.append(rest)
    return tuple(size)


DIM = Attribute("dim", "int", draw_dim)
FILLED_DIM = Attribute("dim", "int", draw_filled_dim)
KEEPDIM = Attribute("keepdim", "bool", draw_bool)
VALUE = Attribute("value", "number", draw_number)
COMPLEX_VALUE = Attribute("value", "complex", lambda choices, metas, chosen: choices.pick(_COMPLEX_FACTORS))
DTYPE = Attribute("dtype", "dtype", draw_dtype)
SIZE = Attribute("size", "ints", draw_size)


def ints_attribute(attributes: Attributes, name: str) -> Size:
    """An attribute of type "ints"."""
    value = attributes[name]
    assert isinstance(value, tuple)
    result = tuple(item for item in value if isinstance(item, int))
    if any(abs(item) > 4096 for item in result):
        raise Mismatch(f"{name} {result} is out of range")
    return result


def lengths(attributes: Attributes, name: str = "size") -> Size:
    """An attribute that is a size."""
    result = ints_attribute(attributes, name)
    if any(n < 0 for n in result):
        raise Mismatch(f"{name} {result} has a negative item")
    return result


def integer(attributes: Attributes, name: str) -> int:
    """An attribute of type "int"."""
    value = attributes[name]
    assert isinstance(value, int)
    if abs(value) > 4096:
        raise Mismatch(f"{name} {value} is out of range")
    return value


def text(attributes: Attributes, name: str = "dtype") -> str:
    """An attribute of type "dtype"."""
    value = attributes[name]
    assert isinstance(value, str)
    return value


def as_number(value: Constant) -> Meta:
    """A Python number as promotion sees it."""
    dtypes = {bool: "bool", float: "float32", complex: "complex64"}
    return Meta(dtypes.get(type(value), "int64"), (), None, 0, True)


# ---------------------------------------------------------------------------------------------------------
# small rules


def new_tensor(dtype: str, size: Size) -> tuple[Result, ...]:
    """One new contiguous tensor."""
    return (Result(Meta(dtype, size, contiguous_strides(size))),)


def elementwise(dtype: str, metas: Sequence[Meta]) -> tuple[Result, ...]:
    """One new tensor of the operands' common size, laid out as eager lays it out."""
    size = broadcast_sizes(*(meta.size for meta in metas))
    return (Result(Meta(dtype, size, elementwise_stride(size, metas))),)


def empty_like(meta: Meta, dtype: str | None = None) -> Meta:
    """What `empty_like` gives: the operand's strides where it is dense."""
    return Meta(dtype or meta.dtype, meta.size, elementwise_stride(meta.size, [meta]))


def alike(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """The rule of a new tensor like operand 0."""
    return (Result(empty_like(metas[0])),)


def python_row(
    name: str,
    source: str,
    rule: Rule,
    operands: tuple[Operand, ...] = (),
    defines: str = "",
    saves: Saves = NOTHING,
    *,
    differentiable: bool = True,
) -> Operator:
    """A row of Python that is more than a call of an operator."""
    return Operator(
        name=name,
        kind=Kind.PYTHON,
        operands=operands,
        rule=rule,
        source=source,
        differentiable=differentiable,
        saves=saves,
        defines=defines,
    )


def reduce_size(size: Size, dims: Sequence[int], keepdim: Constant) -> Size:
    """A size with some dimensions reduced."""
    if keepdim:
        return tuple(1 if dim in dims else n for dim, n in enumerate(size))
    return tuple(n for dim, n in enumerate(size) if dim not in dims)


def store_result_rule(metas: Sequence[Meta], dtype: str) -> tuple[Result, ...]:
    """An in-place write of a result of this dtype and the operands' common size into operand 0."""
    target = metas[0]
    if broadcast_sizes(*(meta.size for meta in metas)) != target.size:
        raise Mismatch(f"the result does not fit in a tensor of size {target.size}")
    if CATEGORY[dtype] > CATEGORY[target.dtype]:
        raise Mismatch(f"a {dtype} result cannot be stored in {target.dtype}")
    return ()


def sized_dim(metas: Sequence[Meta], attributes: Attributes) -> int:
    """The attribute `dim` of operand 0, which must have elements along it."""
    size = metas[0].size
    dim = dimension(attributes["dim"], len(size))
    if size and size[dim] == 0:
        raise Mismatch(f"dimension {dim} has no elements")
    return dim
