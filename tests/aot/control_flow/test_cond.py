"""`torch.cond` whose condition depends on an argument: what is recorded, what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as map_op
from torch._higher_order_ops import while_loop
from torch.utils.checkpoint import checkpoint

import aot
from aot import errors
from tests.support.agreement import assert_agrees, checking_nop, leaf, values

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]

Branching = Callable[[Tensor, Tensor], Any]
LINEAR = nn.Linear(3, 3)


def make(sign: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def arguments() -> tuple[Tensor, Tensor]:
        x = (torch.arange(9.0).view(3, 3) * sign / 4).requires_grad_()
        return x, leaf(3)

    return arguments


def operands(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, z: x.sin() * z, lambda x, z: x.cos() + z, (x, z))


def one_branch_reads_it(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, z: x.sin(), lambda x, z: x + z.exp(), (x, z))


def detached(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.detach().sin(), lambda x: x.detach() + 1, (x,)) * z


def nobody_reads_it(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: torch.ones(3), lambda x: torch.zeros(3), (x,)) * z


def closure(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x * z).sin(), lambda x: x.cos(), (x * 2,))


def views(x: Tensor, z: Tensor) -> Any:
    y = x * 2
    return torch.cond(x.sum() > 0, lambda y: y.view(-1)[1:4] * z, lambda y: y.t()[0] + z, (y,)) * y.sum()


def view_and_base(x: Tensor, z: Tensor) -> Any:
    y = x.exp()
    return torch.cond(z.sum() > 0, lambda v, y: v * y, lambda v, y: y - v, (x[0] * 2, y))


def writes_within(x: Tensor, z: Tensor) -> Any:
    def true(x: Tensor, z: Tensor) -> Tensor:
        y = x.clone()
        y[0].mul_(z)
        return y.t().contiguous()

    return torch.cond(x.sum() > 0, true, lambda x, z: x * z, (x, z))


def writes_before_and_after(x: Tensor, z: Tensor) -> Any:
    y = x * 1
    y.mul_(2)
    r = torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y * z, (y,))
    r.add_(1)
    return r


def several_results(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x * z, z.sin()), lambda x: (x / 2, z.cos()), (x,))


def nested(x: Tensor, z: Tensor) -> Any:
    def true(x: Tensor, z: Tensor) -> Tensor:
        return torch.cond(x.sum() > 3, lambda x, z: x * z, lambda x, z: x + z, (x, z))

    return torch.cond(x.sum() > 0, true, lambda x, z: x.cos() * z, (x, z))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def nested_after_a_custom_function(x: Tensor, z: Tensor) -> Any:
    return nested(Double.apply(x), z)  # type: ignore[no-untyped-call]


def one_after_the_other(x: Tensor, z: Tensor) -> Any:
    y = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.sin(), (x,))
    return torch.cond(y.sum() > 0, lambda y: y * z, lambda y: y.exp(), (y,))


def literals(x: Tensor, z: Tensor) -> Any:
    return torch.cond(
        x.sum() > 0, lambda x: x * torch.tensor([1.0, 2.0, 3.0]), lambda x: x[torch.tensor([0, 2, 1])], (x,)
    )


def without_grad_within(x: Tensor, z: Tensor) -> Any:
    def true(x: Tensor, z: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 3
        return y * z

    return torch.cond(x.sum() > 0, true, lambda x, z: x * z, (x, z))


def module(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.relu() @ x, lambda x: x.softmax(1), (x,)).sum() * z


AGREEING: list[Branching] = [
    operands,
    one_branch_reads_it,
    detached,
    nobody_reads_it,
    closure,
    views,
    view_and_base,
    writes_within,
    writes_before_and_after,
    several_results,
    nested,
    nested_after_a_custom_function,
    one_after_the_other,
    literals,
    without_grad_within,
    module,
]


@pytest.mark.parametrize("sign", [1, -1], ids=["true", "false"])
@pytest.mark.parametrize("function", AGREEING, ids=lambda function: function.__name__)
def test_agrees_with_eager(function: Branching, sign: int) -> None:
    assert_agrees(function, make(sign))


@pytest.mark.parametrize("function", [closure, views, nested], ids=lambda function: function.__name__)
def test_agrees_with_eager_partitioned_by_min_cut(function: Branching) -> None:
    for sign in (1, -1):
        assert_agrees(function, make(sign), partition=aot.min_cut_rematerialization_partition)


def gradients(function: Branching, x: Tensor, z: Tensor) -> list[Tensor]:
    x, z = (t.detach().clone().requires_grad_() for t in (x, z))
    result = function(x, z)
    results = result if isinstance(result, tuple) else (result,)
    found = torch.autograd.grad(sum(r.sum() for r in results), (x, z), allow_unused=True)
    return [*results, *(torch.zeros_like(t) if g is None else g for g, t in zip(found, (x, z), strict=True))]


@pytest.mark.parametrize("function", AGREEING, ids=lambda function: function.__name__)
def test_one_compile_answers_both_branches(function: Branching) -> None:
    compiled = aot.aot_function(function, checking_nop)
    for sign in (1, -1, 1):
        x, z = make(sign)()
        for got, expected in zip(gradients(compiled, x, z), gradients(function, x, z), strict=True):
            assert torch.equal(got, expected)
    assert len(compiled.specializations) == 1


def test_the_graphs_have_a_node_each() -> None:
    compiled = aot.aot_function(operands, checking_nop)
    compiled(*make(1)()).sum().backward()
    (one,) = compiled.specializations
    for graph in (one.forward, *one.backwards):
        (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.higher_order.cond)
        true, false = (getattr(graph, str(n.target)) for n in node.args[1:3])
        count = len(node.args[3])
        assert (
            len(true.graph.find_nodes(op="placeholder"))
            == len(false.graph.find_nodes(op="placeholder"))
            == count
        )


def checkpointed(x: Tensor, z: Tensor) -> Any:
    def region(x: Tensor, z: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x, z: (x * z).sin(), lambda x, z: x.sin() + z, (x, z)).exp()

    return checkpoint(region, x, z, use_reentrant=False)


def checkpoints_within(x: Tensor, z: Tensor) -> Any:
    def true(x: Tensor, z: Tensor) -> Tensor:
        return checkpoint(lambda x, z: (x * z).sin(), x, z, use_reentrant=False)

    return torch.cond(x.sum() > 0, true, lambda x, z: x.sin() + z, (x, z))


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * ctx.saved_tensors[0]


def custom_function(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda: Tripled.apply(x) * z, lambda: x + z)


def of_a_custom_function(x: Tensor, z: Tensor) -> Any:
    y = Tripled.apply(x)
    return torch.cond(x.sum() > 0, lambda: y * x, lambda: y + z * x)


def gradient_within(x: Tensor, z: Tensor) -> Any:
    y = torch.cond(x.sum() > 0, lambda: x * z, lambda: x.sin() + z)
    return torch.autograd.grad(y.sum(), x)[0] * z.detach().requires_grad_() + x * z


def view_and_its_base(x: Tensor, z: Tensor) -> Any:
    y = x * 2
    row = y[0]
    return torch.cond(x.sum() > 0, lambda: y * row, lambda: y.sin() * z).exp() * row.sum()


def mapped(x: Tensor, z: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda: map_op(lambda row: row * z, x), x.sin)


@pytest.mark.parametrize(
    "function",
    [checkpointed, checkpoints_within, custom_function, of_a_custom_function, view_and_its_base, mapped],
    ids=lambda function: function.__name__,
)
def test_is_as_an_if(function: Branching, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Dynamo does not take, or takes for something else, is held against Python."""

    def as_an_if(condition: Tensor, true: Any, false: Any, operands: Any = ()) -> Any:
        return (true if condition else false)(*operands)

    compiled = aot.aot_function(function, checking_nop)
    for sign in (1, -1, 1):
        x, z = make(sign)()
        got = gradients(compiled, x, z)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "cond", as_an_if)
            expected = gradients(function, x, z)
        torch.testing.assert_close(got, expected)


def test_a_module_keeps_its_parameters() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, self.left, self.right, (x,))

    module = Gated()
    compiled = aot.aot_module(module, checking_nop)
    for sign in (1, -1):
        x = values(2, 3) * sign
        for run in (module, compiled):
            module.zero_grad()
            run(x).sum().backward()
            if run is module:
                expected = [p.grad.clone() for p in module.parameters()]  # type: ignore[union-attr]
        for parameter, gradient in zip(module.parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backend", ["aotfuzz", "aotfuzz_inductor"])
@pytest.mark.parametrize(
    "function", [closure, views, nested, several_results, literals], ids=lambda function: function.__name__
)
def test_below_torch_compile(function: Branching, backend: str) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for sign in (1, -1, 1):
        x, z = make(sign)()
        torch.testing.assert_close(gradients(compiled, x, z), gradients(function, x, z))
    assert counter.frame_count == 1


def test_autocast_casts_within() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda: x @ w, lambda: w @ x)

    x, w = make(1)()[0].detach(), values(3, 3).requires_grad_()
    compiled = aot.aot_function(f, checking_nop)
    for sign in (1, -1):
        results = []
        for function in (f, compiled):
            with torch.autocast("cpu"):
                result = function(x * sign, w)
            results.append([result, *torch.autograd.grad(result.float().sum(), w)])
        assert results[0][0].dtype == results[1][0].dtype == torch.bfloat16
        assert all(map(torch.equal, *results))


def test_explanations_show_the_branches() -> None:
    compiled = aot.aot_function(operands, checking_nop)
    compiled(*make(1)()).sum().backward()
    for html in (False, True):
        text = aot.explain(compiled, html=html)
        assert "sin" in text
        assert "cos" in text


def test_a_write_between_forward_and_backward_is_noticed() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda: x * w, lambda: x + w)

    for function in (f, aot.aot_function(f, checking_nop)):
        x, w = leaf(3), values(3)
        y = function(x, w)
        w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_second_derivative_is_refused() -> None:
    compiled = aot.aot_function(operands, checking_nop)
    x, z = make(1)()
    with pytest.raises(errors.DoubleBackwardUnsupported, match=r"torch\.cond"):
        torch.autograd.grad(compiled(x, z).sum(), x, create_graph=True)


def test_nothing_lives_on() -> None:
    compiled = aot.aot_function(operands, checking_nop)
    x, z = make(1)()
    compiled(x, z).sum().backward()
    seen = [weakref.ref(x.untyped_storage()), weakref.ref(compiled)]
    del x, z, compiled
    for _ in range(4):
        gc.collect()
    assert [one() for one in seen] == [None, None]


def test_different_sizes_are_compiled_each_for_itself() -> None:
    compiled = aot.aot_function(operands, checking_nop, dynamic=True)
    for n in (2, 3):
        x, z = values(n, n).requires_grad_(), leaf(n)
        torch.testing.assert_close(gradients(compiled, x, z), gradients(operands, x, z))
    assert len(compiled.specializations) == 2


def raises_for_some_values(x: Tensor, i: Tensor) -> Any:
    torch.cond(x.sum() > 0, lambda: x.gather(0, i), x.sin)
    return x + 1


def test_what_raises_for_some_values_does() -> None:
    compiled = aot.aot_function(raises_for_some_values, checking_nop)
    index = torch.tensor([0, 1, 2])
    assert torch.equal(compiled(torch.ones(3), index), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="index 3 is out of bounds"):
        compiled(torch.ones(3), index + 1)
    assert torch.equal(compiled(-torch.ones(3), index + 1), torch.zeros(3))


REFUSED: dict[str, tuple[Branching, str]] = {
    "strides": (lambda x, z: torch.cond(z.sum() > 0, lambda: x.t().sin(), x.sin), "strides"),
    "shapes": (lambda x, z: torch.cond(z.sum() > 0, x.sin, x[0].sin), "shapes"),
    "structures": (lambda x, z: torch.cond(z.sum() > 0, x.sin, lambda: (x.sin(),)), "structures"),
    "numbers": (lambda x, z: torch.cond(z.sum() > 0, lambda: (x.sin(), 1), lambda: (x.sin(), 2)), "other"),
    "draw": (lambda x, z: torch.cond(z.sum() > 0, lambda: torch.rand(3), z.sin), "random"),
    "write": (lambda x, z: torch.cond(x.sum() > 0, lambda: z.detach().mul_(2) * 1, lambda: z * 1), "changes"),
    "reshape": (lambda x, z: torch.cond(x.sum() > 0, lambda: z.detach().t_() * 1, lambda: z * 1), "changes"),
    "operand": (lambda x, z: torch.cond(x.sum() > 0, lambda: z, z.sin), "memory"),
    "view": (lambda x, z: torch.cond(x.sum() > 0, lambda: x[0], z.sin), "memory"),
    "twice": (
        lambda x, z: torch.cond(x.sum() > 0, lambda: (y := z.sin(), y[:]), lambda: (z * 1, z * 2)),
        "memory",
    ),
    "conjugated": (
        lambda x, z: torch.cond(z.sum() > 0, lambda: torch.conj(x * 1j), lambda: torch.conj(x * 2j)),
        "conjugated",
    ),
    "detach": (lambda x, z: torch.cond(x.sum() > 0, lambda: z.detach_().sin(), z.sin), "grad"),
    "print": (lambda x, z: torch.cond(x.sum() > 0, lambda: _printing(z), z.sin), "acts outside"),
    "leaf": (
        lambda x, z: torch.cond(
            x.detach().sum() > 0, lambda: torch.ones(3, requires_grad=True) * 2, lambda: torch.ones(3)
        ),
        "requires grad",
    ),
}


def _printing(z: Tensor) -> Tensor:
    torch.ops.aten._print("here")
    return z.sin()


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_by_name(name: str) -> None:
    function, words = REFUSED[name]
    x, z = make(1)()
    with pytest.raises(errors.UnsupportedOperation, match=words):
        aot.aot_function(function, checking_nop)(x, z)
    assert (x._version, z._version) == (0, 0)


@pytest.mark.filterwarnings("ignore")
def test_in_inference_mode_nothing_is_followed_whatever_the_grad_mode_is() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))
        turns = torch.zeros((), dtype=torch.int64)
        return y, while_loop(lambda n, x: n < x.sum(), lambda n, x: (n + 1, x * 1), (turns, x))[1]

    compiled = aot.aot_function(f, aot.nop)
    x = values(3).requires_grad_()
    with torch.inference_mode(), torch.enable_grad():
        results, expected = compiled(x), f(x)
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.is_inference() and not one.requires_grad and not other.requires_grad
