"""New tensors out of nothing, out of a tensor's shape, and out of the random generator."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.choices import Choices
from fuzz.operators.builders import (
    ANY,
    DTYPE,
    NOTHING,
    NUMBERS,
    REAL,
    SIZE,
    VALUE,
    empty_like,
    integer,
    lengths,
    new_tensor,
    text,
)
from fuzz.operators.dtypes import COMPLEX, FLOATS, INEXACT
from fuzz.operators.inplace import in_place_row, writes_all
from fuzz.operators.row import (
    MAX_ELEMENTS,
    Aliasing,
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
)


def _creation_row(
    name: str,
    source: str,
    rule: Rule,
    attributes: tuple[Attribute, ...] = (),
    operands: tuple[Operand, ...] = (),
    *,
    random: bool = False,
    differentiable: bool = False,
    saves: Saves = NOTHING,
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.RANDOM if random else Kind.CREATION,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        random=random,
        differentiable=differentiable,
        saves=saves,
    )


def _sized(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = lengths(attributes)
    if prod(size) > MAX_ELEMENTS:
        raise Mismatch(f"size {size} is larger than any program's tensor")
    return new_tensor(text(attributes), size)


def _valued(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dtype = text(attributes)
    if dtype not in INEXACT and type(attributes["value"]) is float:
        raise Mismatch("a fraction in a tensor of integers")
    return _sized(metas, attributes)


def _like(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(empty_like(metas[0])),)


def _like_valued(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].dtype not in INEXACT and type(attributes["value"]) is float:
        raise Mismatch("a fraction in a tensor of integers")
    return _like(metas, attributes)


def _new(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _sized(metas, {**attributes, "dtype": metas[0].dtype})


def _new_full(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _valued(metas, {**attributes, "dtype": metas[0].dtype})


def _of_maker(metas: Sequence[Meta]) -> str:
    """The dtype of a tensor whose `new` or `new_tensor` is called."""
    if metas[0].conj or metas[0].neg:
        raise Mismatch("a tensor that is lazily conjugated or negated makes no new one")
    return metas[0].dtype


def _new_of(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _literal(metas, {**attributes, "dtype": _of_maker(metas)})


def _new_vector(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _counted(metas, {**attributes, "dtype": _of_maker(metas)})


def _new_copy(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(Meta(_of_maker(metas), metas[1].size, None)),)


def _copied(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(metas[0]._replace(stride=None, offset=0)),)


def _counted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if integer(attributes, "count") < 0 or text(attributes) in COMPLEX:
        raise Mismatch("a negative count, or complex numbers")
    return new_tensor(text(attributes), (integer(attributes, "count"),))


def _square(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    count = integer(attributes, "count")
    if not 0 <= count <= 64:
        raise Mismatch("a count out of range")
    return new_tensor(text(attributes), (count, count))


def _inverted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """There is none: eager raises when it comes to the numbers, which a compiler does when the graph runs."""
    count = integer(attributes, "count")
    if not 1 <= count <= 64:
        raise Mismatch("a count out of range")
    return (Result(Meta("float32", (count, count), None)),)


def _literal(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    values = attributes["values"]
    assert isinstance(values, tuple)
    dtype = text(attributes)
    if dtype not in INEXACT and any(type(value) is float for value in values):
        raise Mismatch("fractions in a tensor of integers")
    return new_tensor(dtype, (len(values),))


def _of_dtype(dtype: str) -> Rule:
    return lambda metas, attributes: _sized(metas, {**attributes, "dtype": dtype})


def _drawn(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _probability(attributes)
    return new_tensor(metas[0].dtype, metas[0].size)


def _kept(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _probability(attributes)
    return (Result(metas[0], Aliasing.SELF),)


def _dropped(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Dropout returns its operand itself where it has nothing to draw."""
    p = _probability(attributes)
    if p in (0, 1) or prod(metas[0].size) == 0:
        raise Mismatch("dropout of nothing or of everything")
    return (Result(empty_like(metas[0])),)


def _overwritten(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return ()


def _overwritten_drop(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _dropped(metas, attributes)
    return ()


def _probability(attributes: Attributes) -> float:
    p = attributes["p"]
    assert isinstance(p, (int, float))
    if not 0 <= p <= 1:
        raise Mismatch(f"{p} is no probability")
    return p


def _draw_values(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return tuple(choices.integer(-3, 3) for _ in range(choices.integer(1, 4)))


COUNT = Attribute("count", "int", lambda choices, metas, chosen: choices.integer(1, 6))
PROBABILITY = Attribute("p", "number", lambda choices, metas, chosen: choices.pick((0.5, 0.25)))
_WHOLE = Attribute("value", "number", lambda choices, metas, chosen: choices.pick((2, 3, -1)))
_VALUES = Attribute("values", "numbers", _draw_values)
_TYPED = "dtype={dtype}{device}"
_FILLED = Operand(FLOATS, lambda meta, earlier: 0 not in meta.size)

ROWS = (
    _creation_row("zeros", f"torch.zeros({{size}}, {_TYPED})", _sized, (SIZE, DTYPE)),
    _creation_row("ones", f"torch.ones({{size}}, {_TYPED})", _sized, (SIZE, DTYPE)),
    _creation_row("full", f"torch.full({{size}}, {{value}}, {_TYPED})", _valued, (SIZE, _WHOLE, DTYPE)),
    _creation_row("arange", f"torch.arange({{count}}, {_TYPED})", _counted, (COUNT, DTYPE)),
    _creation_row(
        "inverse_of_zeros",
        "torch.linalg.inv(torch.zeros(({count}, {count}){device}))",
        _inverted,
        (COUNT,),
    ),
    _creation_row("eye", f"torch.eye({{count}}, {_TYPED})", _square, (COUNT, DTYPE)),
    _creation_row("tensor", f"torch.tensor({{values}}, {_TYPED})", _literal, (_VALUES, DTYPE)),
    _creation_row("zeros_like", "torch.zeros_like({0})", _like, operands=(ANY,)),
    _creation_row("ones_like", "torch.ones_like({0})", _like, operands=(ANY,)),
    _creation_row("full_like", "torch.full_like({0}, {value})", _like_valued, (VALUE,), (NUMBERS,)),
    _creation_row(
        "empty_like_filled", "torch.empty_like({0}).fill_({value})", _like_valued, (VALUE,), (NUMBERS,)
    ),
    _creation_row("new_zeros", "{0}.new_zeros({size})", _new, (SIZE,), (ANY,)),
    _creation_row("new_ones", "{0}.new_ones({size})", _new, (SIZE,), (ANY,)),
    _creation_row("new_full", "{0}.new_full({size}, {value})", _new_full, (SIZE, _WHOLE), (NUMBERS,)),
    _creation_row(
        "new_empty_filled", "{0}.new_empty({size}).fill_({value})", _new_full, (SIZE, _WHOLE), (NUMBERS,)
    ),
    _creation_row("new_tensor", "{0}.new_tensor({values})", _new_of, (_VALUES,), (NUMBERS,)),
    _creation_row("new_tensor_of", "{0}.new_tensor({1})", _new_copy, operands=(NUMBERS, NUMBERS)),
    _creation_row("tensor_of", "torch.tensor({0})", _copied, operands=(NUMBERS,)),
    _creation_row("new_of", "{0}.new(list({values}))", _new_of, (_VALUES,), (NUMBERS,)),
    _creation_row("new_sized", "{0}.new({count}).fill_({value})", _new_vector, (COUNT, _WHOLE), (NUMBERS,)),
    _creation_row(
        "laplace",
        "torch.distributions.Laplace(torch.zeros({size}{device}), 1.0).sample()",
        _of_dtype("float32"),
        (SIZE,),
        random=True,
    ),
    _creation_row(
        "exponential",
        "torch.distributions.Exponential(torch.ones({size}{device})).sample()",
        _of_dtype("float32"),
        (SIZE,),
        random=True,
    ),
    _creation_row("rand", "torch.rand({size}{device})", _of_dtype("float32"), (SIZE,), random=True),
    _creation_row("randn", "torch.randn({size}{device})", _of_dtype("float32"), (SIZE,), random=True),
    _creation_row("randint", "torch.randint(0, 7, {size}{device})", _of_dtype("int64"), (SIZE,), random=True),
    _creation_row("rand_like", "torch.rand_like({0})", _like, operands=(REAL,), random=True),
    _creation_row("randn_like", "torch.randn_like({0})", _like, operands=(REAL,), random=True),
    _creation_row(
        "bernoulli", "torch.full_like({0}, {p}).bernoulli()", _drawn, (PROBABILITY,), (REAL,), random=True
    ),
    _creation_row(
        "dropout",
        "torch.nn.functional.dropout({0}, {p})",
        _dropped,
        (PROBABILITY,),
        (_FILLED,),
        random=True,
        differentiable=True,
    ),
    _creation_row(
        "dropout_eval",
        "torch.nn.functional.dropout({0}, {p}, training=False)",
        _kept,
        (PROBABILITY,),
        (REAL,),
        differentiable=True,
    ),
    in_place_row("uniform_", "{0}.uniform_()", (REAL,), _overwritten, fills=writes_all, random=True),
    in_place_row("normal_", "{0}.normal_()", (REAL,), _overwritten, fills=writes_all, random=True),
    in_place_row(
        "bernoulli_",
        "{0}.bernoulli_({p})",
        (REAL,),
        _overwritten,
        NOTHING,
        (PROBABILITY,),
        fills=writes_all,
        random=True,
    ),
    in_place_row(
        "dropout_",
        "torch.nn.functional.dropout({0}, {p}, inplace=True)",
        (_FILLED,),
        _overwritten_drop,
        NOTHING,
        (PROBABILITY,),
        random=True,
    ),
)
