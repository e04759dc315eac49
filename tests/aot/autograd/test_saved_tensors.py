"""What is kept for a backward: no more than it reads, and nothing through which more would be kept."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._higher_order_ops import scan, while_loop
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import aot
from bench.compiler.memory import Alive
from oracles import Arguments
from tests.support.agreement import KINDS, PARTITIONERS, assert_agrees, checking_nop, leaf, values

pytestmark = pytest.mark.clause("lifetime")


FLOAT = 4


def kept_bytes(function: Callable[..., Tensor], *args: Tensor) -> int:
    """The bytes that are alive between a forward and its backward, but for the arguments and the result."""
    function(*args)
    with Alive([*args]) as alive:
        result = function(*args)
        return alive.alive() - result.untyped_storage().nbytes()


def attention(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = (x @ w).chunk(3, -1)
    return functional.softmax(q @ k.t(), -1) @ v


PROGRAMS: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]]]] = {
    "a chain": (lambda x, w: (x @ w).sin().exp().tanh().sum(), lambda: [values(9, 9), leaf(9, 9)]),
    "an unread branch": (
        lambda x, w: (x.sin() @ w + x.exp().detach()).sum(),
        lambda: [leaf(9, 9), leaf(9, 9)],
    ),
    "chunks": (lambda x, w: attention(x, w).sum(), lambda: [values(9, 6), leaf(6, 12)]),
    "one chunk": (lambda x, w: (x @ w).chunk(4)[1].sin().sum(), lambda: [values(16, 9), leaf(9, 9)]),
    "a row": (lambda x, w: (x @ w)[0].sin().sum(), lambda: [values(16, 9), leaf(9, 9)]),
    "expanded": (lambda x, w: ((x @ w).sum() + 1).expand(50).sin().sum(), lambda: [values(9, 9), leaf(9, 9)]),
    "a write": (lambda x, w: (x @ w).sin().mul_(2).exp_().sum(), lambda: [values(9, 9), leaf(9, 9)]),
    "integers": (lambda x, w: (x @ w).max(0).values.sin().sum(), lambda: [values(9, 9), leaf(9, 9)]),
}


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_more_is_kept_than_eager_keeps(name: str, partitioner: str) -> None:
    function, make = PROGRAMS[name]
    compiled = aot.aot_function(function, aot.nop, partition_fn=PARTITIONERS[partitioner])
    assert kept_bytes(compiled, *make()) <= kept_bytes(function, *make())


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_less_is_kept_of_a_value_of_which_a_part_is_read(partitioner: str) -> None:
    for name, kept in (("one chunk", 4 * 9 * FLOAT), ("a row", 9 * FLOAT)):
        function, make = PROGRAMS[name]
        compiled = aot.aot_function(function, aot.nop, partition_fn=PARTITIONERS[partitioner])
        assert kept_bytes(compiled, *make()) == kept
        assert kept_bytes(function, *make()) > kept


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_an_argument_is_not_kept_for_a_slice_of_it(partitioner: str) -> None:
    def f(x: Tensor) -> Tensor:
        return x[2:4].sin()

    x = leaf(100, 3)
    argument = x * 1
    result = aot.aot_function(f, aot.nop, partition_fn=PARTITIONERS[partitioner])(argument)
    storage = StorageWeakRef(argument.untyped_storage())
    gc.disable()
    try:
        del argument
        assert storage.expired()
    finally:
        gc.enable()
    (gradient,) = torch.autograd.grad(result.sum(), x)
    expected = torch.zeros(100, 3)
    expected[2:4] = x.detach()[2:4].cos()
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("take", [lambda x: x, lambda x: x[...], lambda x: x.view(-1), lambda x: x[1:]])
@pytest.mark.parametrize("write", [lambda x: x.mul_(2.0), lambda x: x.exp_(), lambda x: x[0].sigmoid_()])
def test_an_argument_that_is_written_keeps_nothing_of_another(
    write: Callable[[Tensor], Tensor], take: Callable[[Tensor], Tensor]
) -> None:
    """What either keeps of the history of its view is its own."""

    def f(a: Tensor, b: Tensor) -> None:
        write(take(a))
        write(take(b))

    first, second = leaf(3), leaf(4)
    arguments = [first * 1, second * 1]
    aot.aot_function(f, aot.nop)(*arguments)
    other = StorageWeakRef(second.untyped_storage())
    gc.disable()
    try:
        del second, arguments[1]
        assert other.expired()
    finally:
        gc.enable()
    (gradient,) = torch.autograd.grad(arguments[0].sum(), first)
    assert torch.count_nonzero(gradient)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_write_to_an_argument_of_which_a_slice_was_copied_is_noticed(partitioner: str) -> None:
    def f(x: Tensor) -> Tensor:
        return x[2:4].sin()

    for function in (f, aot.aot_function(f, aot.nop, partition_fn=PARTITIONERS[partitioner])):
        x = leaf(100, 3)
        argument = x * 1
        result = function(argument)
        with torch.no_grad():
            argument.mul_(2)
        with pytest.raises(RuntimeError, match=r"\[100, 3\]|\[2, 3\]"):
            torch.autograd.grad(result.sum(), x)


def test_a_slice_of_a_parameter_is_not_copied() -> None:
    def f(x: Tensor) -> Tensor:
        return x[2:4].sin().sum()

    assert kept_bytes(aot.aot_function(f, aot.nop), leaf(100, 3)) == 0


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_what_is_kept_is_detached(partitioner: str) -> None:
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    function, make = PROGRAMS["chunks"]
    compiled = aot.aot_function(function, aot.nop, partition_fn=PARTITIONERS[partitioner])
    args = make()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compiled(*args)
    given = {a.untyped_storage().data_ptr() for a in args}
    own = [t for t in kept if t.untyped_storage().data_ptr() not in given]
    assert all(not t.requires_grad and t.grad_fn is None and t._base is None for t in own)
    (gradient,) = torch.autograd.grad(result, args[1])
    (expected,) = torch.autograd.grad(function(*args), args[1])
    assert torch.equal(gradient, expected)


def test_hooks_around_the_call_are_given_what_is_kept_and_nothing_of_the_trace() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            y = x.sin()
        return y * w.exp()

    packed: list[list[float]] = []

    def pack(tensor: Tensor) -> list[float]:
        packed.append(tensor.tolist())
        return packed[-1]

    x, w = leaf(3), leaf(3, start=5)
    compiled = aot.aot_function(f, aot.nop)
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.tensor):
            y = compiled(x, w)
        assert packed
        packed.clear()
        gradients = torch.autograd.grad(y.sum(), (x, w))
        for ours, eager in zip(gradients, torch.autograd.grad(f(x, w).sum(), (x, w)), strict=True):
            torch.testing.assert_close(ours, eager)
    assert not packed


def test_writes_to_what_hooks_keep_as_it_is_are_not_noticed() -> None:
    """As `save_on_cpu` does on the CPU: autograd checks nothing that hooks were given."""

    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return (x * 3).exp()

    gradients = []
    for function in (f, aot.aot_function(f, aot.nop)):
        x = leaf(3)
        y = function(x)
        with torch.no_grad():
            y.mul_(2)
        y.sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_nothing_is_kept_when_the_results_are_dropped(partitioner: str) -> None:
    function, make = PROGRAMS["chunks"]
    compiled = aot.aot_function(function, aot.nop, partition_fn=PARTITIONERS[partitioner])
    args = make()
    compiled(*args)
    with Alive([*args]) as alive:
        result = compiled(*args)
        assert alive.alive() > 0
        del result
        assert alive.alive() == 0


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_what_was_kept_is_let_go_by_the_backward(partitioner: str) -> None:
    function, make = PROGRAMS["chunks"]
    compiled = aot.aot_function(function, aot.nop, partition_fn=PARTITIONERS[partitioner])
    args = make()
    compiled(*args).backward()
    args[1].grad = None
    with Alive([*args]) as alive:
        result = compiled(*args)
        result.backward(retain_graph=True)
        retained = alive.alive()
        args[1].grad = None
        result.backward()
        gradient = args[1].grad
        assert gradient is not None
        left = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (result, gradient)}
        assert alive.alive() == sum(left.values())
        assert retained > alive.alive()


class Recording:
    """A backward compiler that notes what it is given, and overwrites what it may."""

    def __init__(self) -> None:
        self.donated: list[list[str]] = []

    def __call__(self, module: fx.GraphModule, example_inputs: Any) -> Any:
        names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        self.donated.append([names[i] for i in module.meta["donated"]])
        return checking_nop(module, example_inputs)


def test_what_nobody_else_has_is_donated() -> None:
    """Not the parameter, not the product that is returned, not what two saved views share."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        product = x @ w
        a, b = product.cos().chunk(2)
        return product, product.sin() * product.exp() + (a * b).sum()

    backward = Recording()
    compiled = aot.aot_function(f, aot.nop, backward)
    results = []
    for function in (f, compiled):
        x, w = values(4, 3), leaf(3, 3)
        product, y = function(x, w)
        (gradient,) = torch.autograd.grad(y.sum(), w)
        results.append((product, y, gradient))
    for ours, eager in zip(*results, strict=True):
        assert torch.equal(ours, eager)
    # (The backward of the product is a graph of its own: gradients with respect to it may be asked for.)
    assert backward.donated == [["sin_default", "exp_default"], []]


def put_onto(view: Tensor, other: Tensor) -> Tensor:
    view.data = other
    return view


@pytest.mark.parametrize(
    "put",
    [
        lambda x, y: setattr(x, "data", y),
        lambda x, y: x.set_(y.detach()),
        lambda x, y: put_onto(x.view(-1), y),
    ],
    ids=["an argument's data", "an argument", "a view"],
)
def test_what_a_tensor_was_put_onto_is_not_overwritten(put: Callable[[Tensor, Tensor], Any]) -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        y = w.sin()
        shown = put(x, y)
        return (y * y).sum(), shown

    def overwriting(module: fx.GraphModule, example_inputs: Any) -> Any:
        run = checking_nop(module, example_inputs)

        def overwrites(*arguments: Any) -> Any:
            gradients = run(*arguments)
            for position in module.meta["donated"]:
                arguments[position].fill_(7)
            return gradients

        return overwrites

    for function in (f, aot.aot_function(f, aot.nop, overwriting)):
        x, w = values(3), leaf(3)
        loss, shown = function(x, w)
        loss.backward()
        assert torch.equal((x if shown is None else shown).detach(), w.detach().sin())
        assert torch.equal(w.grad, 2 * w.detach().sin() * w.detach().cos())


def test_a_retained_backward_is_given_nothing_to_overwrite() -> None:
    backward = Recording()
    compiled = aot.aot_function(PROGRAMS["a chain"][0], aot.nop, backward)
    x, w = PROGRAMS["a chain"][1]()
    (expected,) = torch.autograd.grad(PROGRAMS["a chain"][0](x, w), w)
    y = compiled(x, w)
    for retain in (True, True, False):
        (gradient,) = torch.autograd.grad(y, w, retain_graph=retain)
        assert torch.equal(gradient, expected)
    assert [bool(names) for names in backward.donated] == [False, True]
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, w)


def test_what_hooks_have_kept_is_not_overwritten() -> None:
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    backward = Recording()
    compiled = aot.aot_function(PROGRAMS["a chain"][0], aot.nop, backward)
    args = PROGRAMS["a chain"][1]()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = compiled(*args)
    copies = [t.clone() for t in kept]
    y.backward()
    assert copies
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert backward.donated == [[]]


def test_after_a_backward_that_raised_there_is_no_other() -> None:
    def failing(module: fx.GraphModule, example_inputs: Any) -> Any:
        run = checking_nop(module, example_inputs)

        def fails(*arguments: Any) -> Any:
            run(*arguments)
            raise ZeroDivisionError

        return fails

    args = PROGRAMS["a chain"][1]()
    y = aot.aot_function(PROGRAMS["a chain"][0], aot.nop, failing)(*args)
    with pytest.raises(ZeroDivisionError):
        y.backward(retain_graph=True)
    with pytest.raises(ZeroDivisionError):
        y.backward()
    with pytest.raises(RuntimeError, match="a backward that raised"):
        y.backward()


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("unsafe_first", [True, False])
def test_a_write_to_an_argument_is_noticed_beside_unsafe_views_of_it(
    partitioner: str, unsafe_first: bool
) -> None:
    """Views and unsafe views show the same elements under other version counters, and values of a graph tell
    them not apart."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        if unsafe_first:
            x.unsafe_chunk(2, 1)
        first, second = x.tensor_split(2, 1)
        if not unsafe_first:
            x.unsafe_chunk(2, 1)
        return first.exp().mul(first), functional.gelu(second)

    def g(x: Tensor) -> tuple[Tensor, ...]:
        first, second = x.unsafe_chunk(2, 1)
        views = x.tensor_split(2, 1)
        return first.exp().mul(first), functional.gelu(second), views[0]

    for function, raises in ((f, True), (g, False)):
        for call in (function, aot.aot_function(function, aot.nop, partition_fn=PARTITIONERS[partitioner])):
            x = leaf(4, 2)
            results = call(x)
            with torch.no_grad():
                x.mul_(2)
            for result in results[:2]:
                if raises:
                    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                        result.sum().backward()
                else:
                    result.sum().backward()


LAZY = {"conjugated": torch.conj, "negated": torch._neg_view}


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("kind", ["leaf", "non_leaf", "detached", "detached leaf"])
def test_lazy_arguments_are_kept_watched_and_written_to(lazy: str, kind: str) -> None:
    def make() -> list[Tensor]:
        x = LAZY[lazy](KINDS.get(kind, values)(3, dtype=torch.complex64))
        if kind.startswith("detached"):
            x = x.detach().requires_grad_(kind.endswith("leaf"))
        return [x, leaf(3, dtype=torch.complex64)]

    def written(x: Tensor, y: Tensor) -> Tensor:
        with torch.set_grad_enabled(kind in ("non_leaf", "detached")):
            x.mul_(3)
        return x * y

    assert_agrees(lambda x, y: x * y, make)
    assert_agrees(written, make)
    assert_agrees(lambda x, y: (x * y, x.detach().mul_(2)), make, backward_raises=True)


@pytest.mark.parametrize("lazy", LAZY)
def test_what_a_write_to_a_lazy_view_keeps_is_watched(lazy: str) -> None:
    """The kernel for that does it to a clone of the view."""

    def function(x: Tensor) -> Tensor:
        source = x * 2
        x.index_copy_(0, torch.tensor((2, 0, 1)), source)
        return source.view(-1)

    def make() -> Arguments:
        given = leaf(3, dtype=torch.complex64)
        base = given * 1
        return Arguments((LAZY[lazy](base),), {"leaf": given}, {"base": base})

    assert_agrees(function, make)


@pytest.mark.parametrize("lazy", LAZY)
def test_a_lazy_argument_that_gets_a_history(lazy: str) -> None:
    """It may be one that has required grad."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.requires_grad_(False)
        x.mul_(y)
        return x * y

    for dtype in (torch.complex64, torch.complex128):
        assert_agrees(
            function,
            lambda dtype=dtype: [
                LAZY[lazy](values(3, dtype=dtype)).detach().requires_grad_(),
                leaf(3, dtype=dtype),
            ],
        )


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view], ids=["conjugated", "negated"])
def test_several_lazy_arguments_are_written_to(lazy: Callable[[Tensor], Tensor]) -> None:
    """By one call each: eager's operators on lists take none."""

    def doubled(*tensors: Tensor) -> None:
        for tensor in tensors:
            tensor.mul_(2)

    def make() -> list[Tensor]:
        return [lazy(values(3, dtype=torch.complex64)) for _ in range(2)] + [values(3), values(4)]

    assert_agrees(doubled, make)


class _Attribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.clone()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.x.cos()  # type: ignore[no-any-return]


def _scanned(x: Tensor) -> Tensor:
    # (Eager's scan of torch 2.11 loses gradients where what is carried first requires none.)
    return scan(lambda c, row: (c + row, c * row), x[0] * 0, x.clone())[1]  # type: ignore[no-any-return]


def _looped(x: Tensor) -> Tensor:
    turn = torch.zeros((), dtype=torch.int64)
    return while_loop(  # type: ignore[no-any-return]
        lambda i, y: i < 1 + (y.sum() > 0), lambda i, y: (i + 1, y.sin() * 2), (turn, x)
    )[1].clone()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "f",
    [_Attribute.apply, _scanned, _looped, lambda x: _scanned(x).sin(), lambda x: _Attribute.apply(x.exp())],
    ids=["attribute", "scan", "while_loop", "scan, then another", "another, then attribute"],
)
@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_second_backward_goes_through_where_eager_keeps_attributes(f: Any, partitioner: str) -> None:
    """Nothing gives these up after a backward that does not retain the graph."""
    torch._dynamo.reset()
    told: list[list[Any]] = []
    compiled = aot.aot_function(f, checking_nop, partition_fn=PARTITIONERS[partitioner])
    for run in (f, compiled):
        x = leaf(3)
        result = run(x)
        with torch.no_grad():
            result.detach().mul_(1)
        told.append([])
        for retain in (True, False, False, False):
            try:
                (gradient,) = torch.autograd.grad(result.sum(), x, retain_graph=retain)
                told[-1].append(gradient.tolist())
            except RuntimeError as error:
                told[-1].append(str(error)[:60])
    assert told[0] == told[1]


def _added_in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(lambda x: torch._foreach_add([x, x], 2.0)[0], x, use_reentrant=False)  # type: ignore[no-any-return]


def _listed_in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(lambda x: torch._foreach_sin([x, x])[0], x, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "f",
    [_listed_in_a_checkpoint, _added_in_a_checkpoint, lambda x: _Attribute.apply(_listed_in_a_checkpoint(x))],
)
def test_a_second_backward_raises_where_a_checkpoint_does_not_tell_what_it_keeps(f: Any) -> None:
    for run in (f, aot.aot_function(f, checking_nop)):
        result = run(leaf(3)).sum()
        result.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            result.backward()
