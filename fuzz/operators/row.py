"""What a row of the operator table says: the types that the table is made of.

One row says everything about one operator: what it takes, what it gives, how it prints, and what it does to
its operands and to autograd. What it does not say is as for an operator that makes new tensors; the short
constructors of the families (`pointwise.unary`, `views.view`, ...) fill what a family has in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from fuzz.choices import Choices
from fuzz.operators.dtypes import DTYPES

MAX_ELEMENTS = 4096  # in any tensor of a program: a program's cost is bounded
MAX_RANK = 8

Size = tuple[int, ...]
Constant: TypeAlias = "int | float | complex | bool | str | tuple[Constant, ...] | None"


class Mismatch(Exception):
    """These operands or attributes do not fit an operator; the text says why."""


class Meta(NamedTuple):
    """What is known of a tensor (or Python number) before anything runs.

    `stride` is None where eager's choice of strides is not modelled; then `offset` says nothing either.
    A Python number has `number` set, the size () and the dtype "int64", "float32" or "bool" of its kind.
    `conj` and `neg` are the bits of a lazily conjugated or negated view.
    """

    dtype: str
    size: Size
    stride: Size | None
    offset: int = 0
    number: bool = False
    conj: bool = False
    neg: bool = False


class Aliasing(StrEnum):
    """How a result hangs on the first operand."""

    FRESH = "fresh"  # memory of its own
    VIEW = "view"  # a new tensor on the operand's memory, known to autograd as a view
    UNSAFE = "unsafe"  # as VIEW, with a version counter of its own, and no view for autograd
    DETACHED = "detached"  # a new tensor on the operand's memory, unknown to autograd (same version counter)
    DATA = "data"  # as DETACHED, with a version counter of its own
    TIED = "tied"  # as DETACHED, with a history of its own
    WRAPPED = "wrapped"  # a wrapper subclass on the operand's memory, with a history and a counter of its own
    PART = "part"  # what a wrapper subclass is made of, with a history of its own
    SELF = "self"  # the very object
    MAYBE = "maybe"  # FRESH or VIEW: depends on strides that are not modelled


class Change(StrEnum):
    """What a row does to operand 0 as an object, apart from its data."""

    GEOMETRY = "geometry"  # its size, strides and offset, within what it spans
    RESIZE = "resize"  # its size; its storage grows where that is too small, with undefined elements
    STORAGE = "storage"  # it lies where operand 1 lies from now on, or on a new storage
    UNTYPED = "untyped"  # the same, given the storage alone: autograd does not see operand 1
    DATA = "data"  # the same behind autograd's back: `.data =`
    DETACH = "detach"  # it loses its history
    REQUIRE = "require"  # it becomes a leaf that requires grad, or one that does not


class Expanded(StrEnum):
    """What eager says to a write to a tensor of which several indices name one element."""

    REFUSED = "refused"
    ALLOWED = "allowed"  # each element gets the same value
    UNDEFINED = "undefined"  # allowed, of some operators with a warning, but not defined for good


class Result(NamedTuple):
    """One result of an operator: its metadata, and how it hangs on the first operand."""

    meta: Meta
    aliasing: Aliasing = Aliasing.FRESH


class Kind(StrEnum):
    """The families of operators; profiles give each a weight."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    VIEW = "view"
    MULTI_VIEW = "multi-view"
    IN_PLACE = "in-place"
    SCATTER = "scatter"
    METADATA = "metadata"
    CREATION = "creation"
    INDEXING = "indexing"
    RANDOM = "random"
    JOIN = "join"
    CONVERT = "convert"
    NEURAL = "neural"
    NORMALIZATION = "normalization"
    ALGEBRA = "algebra"
    HIGHER_ORDER = "higher-order"  # takes functions
    FUNCTION = "function"  # a custom autograd.Function that makes no view, or a custom operator
    WRAPPER = "wrapper"  # makes a wrapper subclass, or takes one apart
    HOOK = "hook"  # registers a hook on operand 0
    RETAIN = "retain"  # has operand 0 keep its gradient
    MODE = "mode"  # leaves another grad mode behind
    PYTHON = "python"  # reads or writes Python state, or catches what an operation raises
    KERNEL = "kernel"  # a function of which the kernel alone matters: the wide table
    REFUSED = "refused"  # a call of such a function that eager refuses, whatever it is given


# Their results may be views of tensors that nobody sees.
VIEWS_INSIDE = (Kind.MATMUL, Kind.ALGEBRA, Kind.NEURAL, Kind.NORMALIZATION, Kind.HIGHER_ORDER)

Attributes = Mapping[str, Constant]
Rule = Callable[[Sequence[Meta], Attributes], tuple[Result, ...]]
Fit = Callable[[Meta, Sequence[Meta]], bool]
Draw = Callable[[Choices, Sequence[Meta], Attributes], Constant]
Fills = Callable[[Sequence[Meta], Attributes], Meta]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: the dtypes that it may have and whether it goes with the operands before it."""

    dtypes: frozenset[str]
    fits: Fit
    number: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """One constant argument: its name, its type and how the generator chooses a value.

    `draw` may raise Mismatch where no value suits the operands at hand.
    """

    name: str
    type: Literal["int", "number", "complex", "bool", "dtype", "ints", "numbers"]
    draw: Draw

    def accepts(self, value: Constant) -> bool:
        """Whether a constant is of this attribute's type (the operator's rule looks at its value)."""
        match self.type:
            case "int":
                return type(value) is int
            case "number":
                return type(value) in (int, float)
            case "complex":
                return type(value) is complex
            case "bool":
                return type(value) is bool
            case "dtype":
                return isinstance(value, str) and value in DTYPES
            case "ints":
                return isinstance(value, tuple) and all(type(item) is int for item in value)
            case "numbers":
                return isinstance(value, tuple) and all(type(item) in (int, float, bool) for item in value)


# What the backward of a result keeps: (which, when). `which` is an operand's number, the (first) "result" or
# the "second" one; it is kept if one of the operands in `when` requires grad. Writing over what was kept
# makes eager's backward raise.
Saves = tuple[tuple[int | Literal["result", "second"], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row of the table.

    `rule` maps the operands' metadata and the attributes to the results, without running anything, and
    raises Mismatch where eager would reject shapes, dtypes or attributes. A row that writes to operand 0 has
    no results, save that the rule of a row with a `change` returns that operand's new metadata. `fills` gives
    the elements of operand 0 that such a row writes without reading any of them, or is None. Other operands
    that are written to are `statistics`, kept beside the results: they get no history.
    `source` is a format string: `{0}`, `{1}` are the operands, `{dim}` an attribute by its name, `{n}` the
    size of operand 0 along `dim` (along dimension 0 where there is no `dim`), `{elements}` its number of
    elements, `{slice}` an index made of dim, start, end and step, and `{device}` a device argument with a
    leading comma, or nothing. An index operand is printed as `{1} % {n}`, so that any values are in range.
    A row that says no more than these makes new tensors, of which a backward keeps nothing.
    """

    name: str
    kind: Kind
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...] = ()
    rule: Rule
    source: str
    writes: tuple[int, ...] = ()  # the operands whose data it writes
    bumps_version: bool = True  # their version counters notice
    statistics: tuple[int, ...] = ()  # operands without a derivative: eager refuses those that require grad
    fills: Fills | None = None
    change: Change | None = None
    expanded: Expanded = Expanded.REFUSED
    overlap: bool = False  # other operands may be exactly the elements of one that is written to
    random: bool = False  # draws from the global generator
    has_side_effect: bool = False  # notes what it is given elsewhere (`fuzz.operators.side_effects`)
    differentiable: bool = True  # its floating results (or operand 0, where it writes to it) can require grad
    saves: Saves = ()
    defines: str = ""  # a class or an operator that `source` uses, defined ahead of the function, or ""

    @property
    def sized(self) -> bool:
        """Whether the text of a statement has a size of operand 0 as a number."""
        return "{n}" in self.source or "{elements}" in self.source

    @property
    def given(self) -> bool:
        """Whether operand 0 is given as `out=`: eager refuses that where autograd would have to follow."""
        return "out={0}" in self.source

    @property
    def stateful(self) -> bool:
        """Whether it reads or writes what lives longer than a call."""
        return self.kind is Kind.PYTHON and ("state" in self.source or "table(" in self.source)

    @property
    def unwraps(self) -> bool:
        """Whether operand 0 is a wrapper subclass, which it takes apart."""
        return "Unwrap.apply(" in self.source

    @property
    def raises(self) -> bool:
        """Whether eager raises when it computes it, whatever it is given."""
        return self.kind is Kind.REFUSED or "torch.linalg.inv(torch.zeros(" in self.source

    @property
    def metadata(self) -> bool:
        """Whether it changes operand 0 as an object."""
        return self.change is not None
