"""The IR's types: one fuzzing case as pure data (`fuzz.program.decode` reads and checks them)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fuzz.operators.row import Constant, Size
from oracles.observation.steps import Backward


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation and its root, a contiguous tensor of shape `size`.

    The root's elements are a fixed formula of `seed` and the element's index, or are the numbers of a value
    class (`fuzz.ir.value_classes`) in turn, as `precision` has them, which is a dtype, or None for the root's
    own. With `leaf=False` the root is `leaf * 1`, so that it may be
    written to although it requires grad. If such a one is `detached`, that is done in place when all
    arguments have been taken: their histories go on. An `inference` root is made in inference mode.
    """

    dtype: str
    size: Size
    seed: int
    requires_grad: bool = False
    leaf: bool = True
    values: str = "plain"
    detached: bool = False
    inference: bool = False
    precision: str | None = None

    @property
    def special(self) -> bool:
        """Whether NaN, infinities, zeros of either sign or denormals may be among the elements."""
        return self.values in ("special", "limits")


@dataclass(frozen=True, slots=True)
class Root:
    """An argument: a storage's root itself."""

    storage: int


@dataclass(frozen=True, slots=True)
class View:
    """An argument: a strided view on a root, taken plainly or hidden from autograd by `via`.

    `via` is "view", "detach" (no gradient, the same version counter), "data" (no gradient, a version
    counter of its own), "no_grad" (a view that was taken under `torch.no_grad()`), "multi" (a view by an
    operation that may give several, so that eager refuses to write to it in grad mode) or "parameter" (as
    "detach", and a `torch.nn.Parameter`, which requires grad if it is a `leaf`).
    `dtype` is the view's own, None for the root's; `stride` and `offset` count its elements. Autograd follows
    a complex view of a real root of the same precision, and the reverse; any other dtype reads the root's
    bytes, behind autograd's back. `leaf` makes one that autograd does not follow a leaf that requires grad.

    A `lazy` one is conjugated ("conj") or negated ("neg") when it is read: its bit is set. `base` is what the
    view is taken of: the "root", or an alias of that through "detach" or "data", which is the same tensor for
    all views of a call that are taken of such a one.

    If it is `wrapped`, the argument is a wrapper subclass (`fuzz.ir.subclass`) that is made of what has been
    said, detached: of that alone ("one"), of it and a tensor that lies likewise on another root of the same
    dtype and size ("two"), of it twice ("twice"), or of a wrapper subclass of it alone and such a tensor
    ("nested"). Autograd knows the wrapper, which has a version counter
    of its own: by "view" it has a history, which leads to the root, else it is a leaf or needs no gradient.
    If its `base` is the "wrapper", it is a view of one that is made so of the whole root, with a history that
    leads there; that is the same tensor for all views of a call that are taken of such a one. The view
    of all is that itself.
    """

    storage: int
    size: Size
    stride: Size
    offset: int
    via: str = "view"
    dtype: str | None = None
    leaf: bool = False
    wrapped: str | None = None
    lazy: str | None = None
    base: str = "root"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An argument: the same object as an earlier argument."""

    argument: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """An argument: a Python number, bool, string or None."""

    value: Constant


Argument = Root | View | Duplicate | Scalar


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
class Literal:
    """A constant in a tree: None, a number, a string."""

    value: Constant


Tree = Ref | Seq | Dict | Literal


@dataclass(frozen=True, slots=True)
class Region:
    """A block under "no_grad", "enable_grad", "inference_mode", "swapped" or "checkpoint".

    Under "swapped" a function mode of the program's calls other functions than the text names. What stands in
    the last is repeated by a backward (`torch.utils.checkpoint`), and holds no other block.
    """

    mode: str
    within: int = -1


@dataclass(frozen=True, slots=True)
class Autocast:
    """A block under `torch.autocast` to "bfloat16" or "float16", or where that is turned off."""

    dtype: str
    enabled: bool = True
    within: int = -1


@dataclass(frozen=True, slots=True)
class Branch:
    """One arm of an `if`: it runs where the Python value `argument` equals `value`, or where it does not.

    Two arms with the same question and opposite answers, one after the other, are an `if` and its `else`.
    """

    argument: str
    value: Constant
    holds: bool = True
    within: int = -1


@dataclass(frozen=True, slots=True)
class Loop:
    """A block that runs `count` times. A name that it binds anew is carried from one turn to the next."""

    count: int
    within: int = -1


Block = Region | Autocast | Branch | Loop
"""`within` is the number of the block around it, which is smaller than its own, or -1."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One call of an operator; `attributes` are in the row's order.

    `block` is the number of the innermost of the program's blocks that it stands in, or -1.
    """

    operator: str
    operands: tuple[str, ...]
    attributes: tuple[tuple[str, Constant], ...]
    results: tuple[str, ...]
    block: int = -1


@dataclass(frozen=True, slots=True)
class Write:
    """A step after a call: an argument "a0" or a result "v0" is doubled in place, under no_grad."""

    name: str


@dataclass(frozen=True, slots=True)
class Require:
    """A step after a call: an argument "a0" or a result "v0" is made to require grad."""

    name: str


TensorStep = Write | Require
Step = Backward | TensorStep


DEVICES = ("cpu", "cuda")
BOTH = "both"


@dataclass(frozen=True, slots=True)
class Scenario:
    """How a call is made: `grad` is the grad mode, and with `inference` it runs in inference mode. With
    `threads` it is made in two threads at once, in each on arguments of its own. With the `device` `BOTH` it
    is made on each of `DEVICES`, and these are compared with each other, too. With `autocast` it is made
    under `torch.autocast` to that dtype; what follows it is not. If `swapped`, the call is made under a
    function mode of the program's, which calls other functions than the text names. The arguments that are
    `marked` have an attribute `mark`.

    `differentiate` are the differentiable results that get a cotangent: indices, modulo their number, into
    the tensor outputs in tree order followed by the tensor arguments in order. None is all of them.
    `steps` are what is done after the call, in order; where there are none, it is what `oracles.observe`
    does by itself: gradients of `differentiate`, of results alone, writes to the results, gradients.
    """

    device: str = "cpu"
    grad: bool = True
    differentiate: tuple[int, ...] | None = None
    inference: bool = False
    steps: tuple[Step, ...] = ()
    threads: bool = False
    autocast: str | None = None
    swapped: bool = False
    marked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A later call of the same function, with as many arguments, which may be of any other kind."""

    storages: tuple[Storage, ...]
    arguments: tuple[Argument, ...]
    scenario: Scenario = Scenario()


@dataclass(frozen=True, slots=True)
class Module:
    """The function is the `forward` of a module, which holds some of the arguments under their own names.

    Of those that are `held` an `nn.Parameter` is a parameter of it, any other tensor a buffer, or just an
    attribute if it is among the `attributes`, as a Python value is; `training` names an argument, True or
    False in each call, that is its `training` instead. Before a call the module is given what that call is
    made with.
    """

    held: tuple[str, ...] = ()
    training: str | None = None
    attributes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments that are not passed."""
        return self.held if self.training is None else (*self.held, self.training)


@dataclass(frozen=True, slots=True)
class Program:
    """One case. `parameters` are the function's parameters: trees in which each argument stands once,
    but for those that a `module` holds.

    The first call is made with `storages`, `arguments` and `scenario`; then come the `later` ones.
    The statements of a block, and of the blocks within it, stand together (`fuzz.ir.control_flow`).
    """

    storages: tuple[Storage, ...]
    arguments: tuple[Argument, ...]
    parameters: tuple[Tree, ...]
    statements: tuple[Statement, ...]
    returns: Tree
    scenario: Scenario = Scenario()
    later: tuple[Call, ...] = ()
    blocks: tuple[Block, ...] = ()
    module: Module | None = None


def split_calls(program: Program) -> tuple[Program, ...]:
    """A program of one call for each call of a program, in order.

    >>> double = Statement("mul_number_", ("a0",), (("value", 2.0),), ())
    >>> storage, other = Storage("float32", (3,), seed=1), Storage("float64", (4,), seed=1)
    >>> program = Program((storage,), (Root(0),), (Ref("a0"),), (double,), Ref("a0"))
    >>> program = replace(program, later=(Call((other,), (Root(0),)),))
    >>> [call.storages[0].dtype for call in split_calls(program)]
    ['float32', 'float64']
    """
    if not program.later:
        return (program,)
    first = Call(program.storages, program.arguments, program.scenario)
    return tuple([with_call(program, call) for call in (first, *program.later)])


def with_call(program: Program, call: Call) -> Program:
    """The program of one call that makes another of the same function. (The generator makes many of these,
    and `replace` takes several times as long.)"""
    return Program(
        call.storages,
        call.arguments,
        program.parameters,
        program.statements,
        program.returns,
        call.scenario,
        (),
        program.blocks,
        program.module,
    )


def devices(program: Program) -> tuple[str, ...]:
    """Where a program runs."""
    return DEVICES if program.scenario.device == BOTH else (program.scenario.device,)


def on_device(program: Program, device: str) -> Program:
    """The program with all its calls on another device, or on `BOTH`."""
    scenario = replace(program.scenario, device=device)
    later = tuple(replace(call, scenario=replace(call.scenario, device=device)) for call in program.later)
    return replace(program, scenario=scenario, later=later)


def tree_paths(tree: Tree, path: str, quote: Callable[[str], str] = repr) -> Iterator[tuple[str, str]]:
    """The names in a tree, each with the expression that leads to it, where `path` is the tree's own.

    >>> list(tree_paths(Dict((("k", Seq("tuple", (Ref("v0"),))),)), "out"))
    [('v0', "out['k'][0]")]
    """
    match tree:
        case Ref(name):
            yield name, path
        case Seq(_, items):
            for i, item in enumerate(items):
                yield from tree_paths(item, f"{path}[{i}]", quote)
        case Dict(entries):
            for key, item in entries:
                yield from tree_paths(item, f"{path}[{quote(key)}]", quote)
        case Literal():
            pass


def where_names_are(program: Program) -> dict[str, str]:
    """The paths of arguments and results, as the oracles name them: `arg[0]`, `out['k']`, `tensor['a1']`.

    A result that is an argument has its path as an argument; the last is one that a module holds.
    """
    held = {name: f"tensor[{name!r}]" for name in program.module.held} if program.module else {}
    return (
        held
        | dict(tree_paths(program.returns, "out"))
        | dict(tree_paths(Seq("tuple", program.parameters), "arg"))
    )


def tree_references(tree: Tree) -> Iterator[str]:
    """The names in a tree, from left to right.

    >>> list(tree_references(Seq("tuple", (Ref("a0"), Literal(None), Ref("v0")))))
    ['a0', 'v0']
    """
    match tree:
        case Ref(name):
            yield name
        case Seq(_, items):
            for item in items:
                yield from tree_references(item)
        case Dict(entries):
            for _, item in entries:
                yield from tree_references(item)
        case Literal():
            pass
