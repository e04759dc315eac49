"""`while_loop` whose condition depends on an argument: what is recorded, its backward, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops import while_loop

import aot
from aot import errors
from aot.torch_internals import pytree
from tests.support.agreement import (
    Arguments,
    assert_agrees,
    assert_same_story,
    checking_nop,
    leaf,
    values,
)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


def doubled_until(x: Tensor) -> Any:
    return while_loop(lambda x: x.sum() < 30, lambda x: (x.abs() * 2 + 0.5,), (x,))[0]


def counted(x: Tensor, n: Tensor) -> Any:
    i, y = while_loop(
        lambda i, y: i < n, lambda i, y: (i + 1, (y * x).sin()), (torch.zeros((), dtype=torch.int64), x)
    )
    return i, y + 1


def known_at_first(x: Tensor, n: Tensor) -> Any:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + n.clamp(min=1), y * 2), (torch.tensor(0), x))


def within_a_branch(x: Tensor, n: Tensor) -> Any:
    return torch.cond(
        n > 2,
        lambda x: while_loop(lambda x: x.sum() < 30, lambda x: (x.abs() * 2 + 0.5,), (x,))[0],
        torch.sin,
        (x,),
    )


def numbered(function: Callable[..., Any], *numbers: int) -> None:
    for n in numbers:
        assert_agrees(function, lambda n=n: Arguments((values(3, 3), torch.tensor(n))), grad=False)


def test_a_loop_agrees_with_eager() -> None:
    for sign in (1, -1, 100):
        assert_agrees(doubled_until, lambda sign=sign: (values(3) * sign,))


@pytest.mark.parametrize("function", [counted, within_a_branch], ids=lambda f: f.__name__)
def test_a_loop_of_so_many_turns(function: Callable[..., Any]) -> None:
    numbered(function, 0, 1, 4)


def test_a_loop_whose_condition_is_known_at_first() -> None:
    compiled = aot.aot_function(known_at_first, checking_nop)
    for n in (1, 2, 3):
        i, y = compiled(values(3), torch.tensor(n))
        turns = -(-3 // n)
        assert i.item() == turns * n
        assert torch.equal(y, values(3) * 2**turns)
    assert len(compiled.specializations) == 1


def test_one_compile_answers_any_number_of_turns() -> None:
    compiled = aot.aot_function(counted, checking_nop)
    for n in range(4):
        x = values(3) + 1
        i, y = compiled(x, torch.tensor(n))
        expected = x
        for _ in range(n):
            expected = (expected * x).sin()
        assert i.item() == n
        assert torch.equal(y, expected + 1)
    assert len(compiled.specializations) == 1


LOOPS_REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "complex": (
        lambda x: while_loop(lambda x: x.abs().sum() < 9, lambda x: (x * 2,), (x + 1j,)),
        "complex numbers",
    ),
    "number": (
        lambda x: while_loop(lambda i, x: x.sum() < 9, lambda i, x: (i + 1, x * 2), (0, x.detach())),
        "number",
    ),
    "shape": (
        lambda x: while_loop(lambda x: x.sum() < 9, lambda x: (torch.cat([x, x]),), (x.detach(),)),
        "something else",
    ),
    "column": (
        lambda x: while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x.detach().expand(2, 3)[:, 0],)),
        "gaps",
    ),
    "as it comes": (
        lambda x: while_loop(lambda x, y: x.sum() < 9, lambda x, y: (x + 1, y), (x.detach(), x.detach() * 2)),
        "memory",
    ),
}


@pytest.mark.parametrize("name", LOOPS_REFUSED)
def test_a_loop_is_refused_by_name(name: str) -> None:
    function, words = LOOPS_REFUSED[name]
    with pytest.raises(errors.UnsupportedOperation, match=f"while_loop.*{words}"):
        aot.aot_function(function, checking_nop)(leaf(3))


def test_a_loop_under_torch_compile() -> None:
    compiled = torch.compile(doubled_until, backend="aotfuzz", fullgraph=True)
    for sign in (1, -1):
        assert torch.equal(compiled(values(3) * sign), doubled_until(values(3) * sign))


# ---- its backward


def turned(condition: Any, body: Any, *carried: Tensor) -> Any:
    """`while_loop` with a count of turns carried first."""
    return while_loop(condition, body, (torch.zeros((), dtype=torch.int64), *carried))[1:]


def plain(x: Tensor, w: Tensor, n: Tensor) -> Any:
    return turned(lambda i, y: i < n, lambda i, y: (i + 1, (y * x).sin()), x)


def read_besides(x: Tensor, w: Tensor, n: Tensor) -> Any:
    (y,) = turned(lambda i, y: i < n, lambda i, y: (i + 1, (y @ w).tanh() + x), x * 2)
    return y * w.sum()


def two_carried(x: Tensor, w: Tensor, n: Tensor) -> Any:
    return turned(lambda i, y, z: i < n, lambda i, y, z: (i + 1, (z + y).cos(), y * w), x, w)


def not_all_followed(x: Tensor, w: Tensor, n: Tensor) -> Any:
    def body(i: Tensor, y: Tensor, z: Tensor, k: Tensor) -> Any:
        return i + 1, y.detach() + 1, z * y, k * 2

    return turned(lambda i, y, z, k: i < n, body, x, w * 1, torch.ones(2, dtype=torch.int64))


def made_of_nothing(x: Tensor, w: Tensor, n: Tensor) -> Any:
    return turned(lambda i, y: i < n, lambda i, y: (i + 1, torch.ones(3, 3) * i), x)


def lying_otherwise(x: Tensor, w: Tensor, n: Tensor) -> Any:
    return turned(lambda i, y: i < n, lambda i, y: (i + 1, (y.t().sin() @ w).t()), x.t())


def whole_numbers_of_half_precision(x: Tensor, w: Tensor, n: Tensor) -> Any:
    half = x.to(torch.bfloat16)
    return turned(lambda i, y: i < n, lambda i, y: (i + 1, (y.float() * w).to(torch.bfloat16)), half)


def asked_of_what_is_carried(x: Tensor, w: Tensor, n: Tensor) -> Any:
    return while_loop(lambda y: y.sum() < 40 * n, lambda y: (y.abs() * 1.5 + w.abs() + 1,), (x,))


def asked_of_a_weight(x: Tensor, w: Tensor, n: Tensor) -> Any:
    return while_loop(lambda y: y.sum() < w.sum() * 0 + 40 * n, lambda y: (y.abs() * 2 + 1,), (x,))


def written_within(x: Tensor, w: Tensor, n: Tensor) -> Any:
    def body(i: Tensor, y: Tensor) -> Any:
        z = y.clone()
        z[0].mul_(w[0])
        return i + 1, z.exp_() * 0.1

    return turned(lambda i, y: i < n, body, x)


def one_after_another(x: Tensor, w: Tensor, n: Tensor) -> Any:
    (y,) = plain(x, w, n)
    (z,) = turned(lambda i, z: i < n + 1, lambda i, z: (i + 1, z * y.cos()), w)
    return y, z


LOOPS = [
    plain,
    read_besides,
    two_carried,
    not_all_followed,
    made_of_nothing,
    lying_otherwise,
    whole_numbers_of_half_precision,
    asked_of_what_is_carried,
    asked_of_a_weight,
    written_within,
    one_after_another,
]


def unrolled(condition: Any, body: Any, carried: Any) -> Any:
    """What `while_loop` is to give: in eager its gradients are wrong without a turn (torch 2.13)."""
    while condition(*carried):
        carried = body(*carried)
    return tuple(one.clone() for one in carried)


def assert_as_unrolled(function: Callable[..., Any], numbers: tuple[int, ...]) -> None:
    """One compile gives the results and gradients of the loops written out, for so many turns each."""
    compiled = aot.aot_function(function, checking_nop)
    for turns in numbers:
        found = []
        for run in (compiled, function):
            x, w, n = operands(turns)
            with pytest.MonkeyPatch.context() as patch:
                if run is function:
                    patch.setitem(globals(), "while_loop", unrolled)
                    patch.setattr(torch, "cond", lambda c, t, f, given: t(*given) if c else f(*given))
                results = run(x, w, n)
            results = results if isinstance(results, tuple) else (results,)
            some = [(one * one.detach().cos()).sum() for one in results]
            gradients = torch.autograd.grad(some, [x, w], allow_unused=True)
            found.append([*results, *(torch.zeros(3, 3) if g is None else g for g in gradients)])
        torch.testing.assert_close(*found)
    assert len(compiled.specializations) == 1


def operands(turns: int) -> tuple[Tensor, Tensor, Tensor]:
    return leaf(3, 3), (values(3, 3) / 4 - 0.3).requires_grad_(), torch.tensor(turns)


@pytest.mark.parametrize("function", LOOPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("turns", [1, 3])
def test_gradients_agree_with_eager(function: Callable[..., Any], turns: int) -> None:
    assert_agrees(function, lambda: Arguments(operands(turns)), grad=True)


def test_results_are_not_written_to() -> None:
    def f(x: Tensor, w: Tensor, n: Tensor) -> Any:
        (y,) = plain(x, w, n)
        return y.mul_(w)

    assert_agrees(f, lambda: Arguments(operands(2)), grad=True, raises=RuntimeError)


@pytest.mark.parametrize("partition", [None, aot.min_cut_rematerialization_partition])
def test_gradients_agree_with_eager_for_each_partitioner(partition: Any) -> None:
    assert_agrees(one_after_another, lambda: Arguments(operands(2)), grad=True, partition=partition)


@pytest.mark.parametrize("function", [read_besides, two_carried, lying_otherwise], ids=lambda f: f.__name__)
def test_one_compile_is_right_for_any_number_of_turns(function: Callable[..., Any]) -> None:
    assert_as_unrolled(function, (2, 0, 1, 9))


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_a_backward_from_some_of_what_was_carried(which: tuple[int, ...]) -> None:
    def story(function: Callable[..., Any]) -> Any:
        x, w, n = operands(2)
        results = function(x, w, n)
        told = []
        for retain in (True, False):
            some = [results[i].sum() for i in which]
            told.append(torch.autograd.grad(some, [x, w], retain_graph=retain, allow_unused=True))
        return told

    assert_same_story(two_carried, story)


@pytest.mark.parametrize("what", [0, 1])
def test_a_write_to_what_a_loop_has_read_makes_its_backward_raise(what: int) -> None:
    """Eager keeps operands as attributes, and does not notice."""
    given = [one.clone() if i < 2 else one for i, one in enumerate(operands(2))]
    result = aot.aot_function(read_besides, checking_nop)(*given)
    with torch.no_grad():
        given[what].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_gradient_of_zeros_without_memory() -> None:
    """(Eager's `while_loop` does not take one before torch 2.13.)"""
    x, w, n = operands(2)
    (result,) = aot.aot_function(plain, checking_nop)(x, w, n)
    (gradient,) = torch.autograd.grad(result, x, torch._efficientzerotensor((3, 3)))
    assert torch.equal(gradient, torch.zeros(3, 3))


def test_second_derivatives_are_refused() -> None:
    """Eager's lack what goes by way of what is carried (torch 2.13)."""
    x, w, n = operands(2)
    result = aot.aot_function(read_besides, checking_nop)(x, w, n)
    with pytest.raises(errors.DoubleBackwardUnsupported, match="while_loop"):
        torch.autograd.grad(result.sum(), x, create_graph=True)


def test_loops_in_a_branch_and_branches_and_loops_in_a_loop() -> None:
    def in_a_branch(x: Tensor, w: Tensor, n: Tensor) -> Any:
        return torch.cond(n > 1, lambda x, w: plain(x, w, n)[0] * w, lambda x, w: x.sin(), (x, w))

    def a_branch(x: Tensor, w: Tensor, n: Tensor) -> Any:
        def body(i: Tensor, y: Tensor) -> Any:
            return i + 1, torch.cond(y.sum() > 1, lambda y: y.sin() * w, lambda y: y.cos(), (y,))

        return turned(lambda i, y: i < n, body, x)

    def a_loop(x: Tensor, w: Tensor, n: Tensor) -> Any:
        def body(i: Tensor, y: Tensor) -> Any:
            (z,) = turned(lambda k, z: k < i + 1, lambda k, z: (k + 1, (z * w).sin()), y)
            return i + 1, z * x

        return turned(lambda i, y: i < n, body, x)

    for function in (in_a_branch, a_branch, a_loop):
        assert_as_unrolled(function, (3, 1, 2))


def test_compilers_are_told_that_the_number_of_rows_is_not_known() -> None:
    shapes: dict[str, list[Any]] = {"forward": [], "backward": []}

    def compiler(which: str) -> Any:
        def compile(module: fx.GraphModule, inputs: Any) -> Any:
            ends = module.graph.output_node().args[0] if which == "forward" else module.graph.nodes
            shapes[which] += [
                tuple(one.meta["val"].shape) for one in ends if one.op in ("placeholder", "call_function")
                and isinstance(one.meta.get("val"), Tensor)
            ]  # fmt: skip
            return module.forward

        return compile

    compiled = aot.aot_function(plain, compiler("forward"), compiler("backward"))
    (y,) = compiled(*operands(4))
    y.sum().backward()
    for which in ("forward", "backward"):
        unknown = [shape for shape in shapes[which] if any(isinstance(n, torch.SymInt) for n in shape)]
        assert unknown and all(tuple(shape[1:]) == (3, 3) for shape in unknown)


def test_assumptions_are_checked_and_pages_made() -> None:
    with aot.config.patch(debug_assert=True):
        compiled = aot.aot_function(read_besides, checking_nop)
        compiled(*operands(3)).sum().backward()
    assert "while_loop_stack_output" in aot.explain(compiled, html=True)


class _Relaxing(nn.Module):
    def __init__(self, unrolled: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.unrolled = unrolled

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(y).tanh() + x  # type: ignore[no-any-return]

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if self.unrolled:
            y = x
            for _ in range(int(n)):
                y = self.step(x, y)
            return y
        return turned(lambda i, y: i < n, lambda i, y: (i + 1, self.step(x, y)), x)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["torch.compile", "aot_module"])
def test_a_module_with_a_loop_trains(how: str) -> None:
    """What is carried first does not require grad, so that in eager no gradient goes from turn to turn (torch
    2.13)."""
    torch.manual_seed(0)
    module, other = _Relaxing(False), _Relaxing(True)
    other.load_state_dict(module.state_dict())
    if how == "torch.compile":
        compiled: Any = torch.compile(module, backend="aotfuzz", fullgraph=True)
    else:
        compiled = aot.aot_module(module, checking_nop)
    for run in (compiled, other):
        run(values(3, 3), torch.tensor(3)).square().sum().backward()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def within(x: Tensor, w: Tensor, n: Tensor) -> Any:
    return torch.cond(n > 1, lambda x, w: plain(x, w, n)[0] * w, lambda x, w: x.sin() * w, (x, w))


# Dynamo does not take a loop that reads the result of another one.
BELOW = [
    not_all_followed,
    within,
    pytest.param(read_besides, marks=pytest.mark.nightly),
    pytest.param(two_carried, marks=pytest.mark.nightly),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", BELOW, ids=lambda f: f.__name__)
def test_loops_with_inductor_below(function: Callable[..., Any]) -> None:
    """A loop with several results, some without gradients, and one in a branch run always; others nightly."""
    compiled = torch.compile(function, backend="aotfuzz_inductor", fullgraph=True)
    other = aot.aot_function(function, checking_nop)
    for turns in (2, 1, 4):
        found = []
        for run in (compiled, other):
            x, w, n = operands(turns)
            with torch.no_grad():
                found.append(list(pytree.tree_flatten(run(x, w, n))[0]))
            results = pytree.tree_flatten(run(x, w, n))[0]
            some = [one.square().sum() for one in results if one.requires_grad]
            found[-1] += [*results, *torch.autograd.grad(some, [x, w], allow_unused=True)]
        torch.testing.assert_close(*found)
