"""The IR's types: one fuzzing case as pure data (`fuzz.program` reads, writes and checks them)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuzz.operators.row import Constant, Size


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation and its root, a contiguous tensor of shape `size`.

    The root's values are a fixed formula of `seed` and the element's index. With `leaf=False` the root is
    `leaf * 1`, so that it may be written to although it requires grad.
    """

    dtype: str
    size: Size
    seed: int
    requires_grad: bool = False
    leaf: bool = True


@dataclass(frozen=True, slots=True)
class Root:
    """An argument: a storage's root itself."""

    storage: int


@dataclass(frozen=True, slots=True)
class View:
    """An argument: a strided view on a root, taken plainly or hidden from autograd by `via`.

    `via` is "view", "detach" (no gradient, the same version counter), "data" (no gradient, a version
    counter of its own) or "no_grad" (a view that was taken under `torch.no_grad()`).
    `dtype` is the view's own, None for the root's; `stride` and `offset` count its elements. Autograd follows
    a complex view of a real root of the same precision, and the reverse; any other dtype reads the root's
    bytes, behind autograd's back. `leaf` makes one that autograd does not follow a leaf that requires grad.
    """

    storage: int
    size: Size
    stride: Size
    offset: int
    via: str = "view"
    dtype: str | None = None
    leaf: bool = False


@dataclass(frozen=True, slots=True)
class Same:
    """An argument: the same object as an earlier argument."""

    argument: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """An argument: a Python number, bool, string or None."""

    value: Constant


Argument = Root | View | Same | Scalar


@dataclass(frozen=True, slots=True)
class Ref:
    """A leaf of a tree: "a0".. an argument, "v0".. a statement's result."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """A "tuple" or a "list" in a tree."""

    kind: str
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Dict:
    """A dict in a tree, in its order."""

    items: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, slots=True)
class Lit:
    """A constant in a tree: None, a number, a string."""

    value: Constant


Tree = Ref | Seq | Dict | Lit


@dataclass(frozen=True, slots=True)
class Statement:
    """One call of an operator; `attributes` are in the row's order.

    `mode` is the region that it stands in: "inherit", "no_grad", "enable_grad" or "inference_mode".
    """

    operator: str
    operands: tuple[str, ...]
    attributes: tuple[tuple[str, Constant], ...]
    results: tuple[str, ...]
    mode: str = "inherit"


@dataclass(frozen=True, slots=True)
class Scenario:
    """How the program is called: `grad` is the grad mode, and with `inference` it runs in inference mode.

    `differentiate` are the differentiable results that get a cotangent: indices, modulo their number, into
    the tensor outputs in tree order followed by the tensor arguments in order. None is all of them.
    """

    device: str = "cpu"
    grad: bool = True
    differentiate: tuple[int, ...] | None = None
    inference: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """One case. `parameters` are the function's parameters: trees in which each argument stands once."""

    storages: tuple[Storage, ...]
    arguments: tuple[Argument, ...]
    parameters: tuple[Tree, ...]
    statements: tuple[Statement, ...]
    returns: Tree
    scenario: Scenario = Scenario()


def references(tree: Tree) -> Iterator[str]:
    """The names in a tree, from left to right.

    >>> list(references(Seq("tuple", (Ref("a0"), Lit(None), Ref("v0")))))
    ['a0', 'v0']
    """
    match tree:
        case Ref(name):
            yield name
        case Seq(_, items):
            for item in items:
                yield from references(item)
        case Dict(entries):
            for _, item in entries:
                yield from references(item)
        case Lit():
            pass
