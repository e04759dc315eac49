"""What acts outside of a graph happens as often as in eager, and in the same order, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops.effects import _EffectType
from torch.utils.checkpoint import checkpoint

import aot
from aot import errors
from aot.inductor import Inductor
from tests.support.agreement import checking_nop, leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("once")]

OPS = torch.ops.aot_effects
LOG: list[Any] = []


@torch.library.custom_op("aot_effects::log", mutates_args=())
def log(x: Tensor, tag: str) -> None:
    """It returns nothing, and so is there for what it does."""
    LOG.append((tag, x.tolist()))


@log.register_fake
def _(x: Tensor, tag: str) -> None:
    return None


@torch.library.custom_op("aot_effects::tap", mutates_args=())
def tap(x: Tensor, tag: str) -> Tensor:
    """It is registered as effectful; so is its backward."""
    LOG.append((tag, x.tolist()))
    return x.clone()


@tap.register_fake
def _(x: Tensor, tag: str) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("aot_effects::pair", mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    LOG.append(("pair", x.tolist()))
    return x + 1, x + 2


@pair.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


tap.register_autograd(
    lambda ctx, grad: (OPS.tap(grad, f"{ctx.tag} backward"), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "tag", inputs[1]),
)
for name in ("aot_effects::tap", "aot_effects::pair"):
    torch.library._register_effectful_op(name, _EffectType.ORDERED)


class Talking(torch.autograd.Function):
    """Its backward acts, and nobody reads what it makes there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        OPS.log(grad, "in a backward")
        OPS.tap(grad * 2, "unread in a backward")
        return grad * 4


def forward_only(x: Tensor) -> Tensor:
    OPS.log(x, "first")
    y = OPS.tap(x, "second")
    OPS.tap(y * 2, "unread")
    OPS.log(y, "last")
    return y * 3


def two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    return Talking.apply(x) * 2, OPS.tap(x, "the other")


def two_segments(x: Tensor) -> tuple[Tensor, Tensor]:
    shared = Talking.apply(x)
    return Talking.apply(shared * 3), Talking.apply(shared * 4) * x.detach()


def checkpointed(x: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        OPS.log(x, "in a checkpoint")
        return OPS.tap(x * 2, "tapped in it") * x

    return checkpoint(part, x, use_reentrant=False) * 2


def several_results(x: Tensor) -> Tensor:
    with torch.no_grad():
        first, second = OPS.pair(x)
        OPS.pair(second)
    return x * first


def run(function: Callable[[Tensor], Any], grad: bool) -> list[Any]:
    """What a call and its backwards return, and what they have logged: each result for itself, then all."""
    LOG.clear()
    x = torch.arange(3.0).requires_grad_(grad)
    result = function(x)
    results = result if isinstance(result, tuple) else (result,)
    found: list[Any] = [[one.tolist() for one in results], list(LOG)]
    for outputs in [*([one] for one in results), list(results)] if grad else ():
        LOG.clear()
        (gradient,) = torch.autograd.grad([one.sum() for one in outputs], x, retain_graph=True)
        found += [gradient.tolist(), list(LOG)]
    return found


PROGRAMS = [forward_only, two_results, two_segments, checkpointed, several_results]
PARTITIONS = {
    "default": aot.default_partition,
    "min-cut": aot.min_cut_rematerialization_partition,
    "all recomputed": functools.partial(aot.min_cut_rematerialization_partition, memory_budget=0),
}


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_they_keep_order_and_number(function: Callable[[Tensor], Any], partition: str) -> None:
    for grad in (False, True):
        compiled = aot.aot_function(function, checking_nop, partition_fn=PARTITIONS[partition])
        expected = run(function, grad)
        assert any(expected[1::2]) or not grad
        assert run(compiled, grad) == expected
        assert run(compiled, grad) == expected
        assert len(compiled.specializations) == 1


def test_nothing_happens_while_a_function_is_traced() -> None:
    def f(x: Tensor) -> float:
        return OPS.tap(torch.ones(2), "known").sum().item()

    LOG.clear()
    with pytest.raises(errors.DataDependentValue):
        aot.aot_function(f, aot.nop)(values(2))
    assert not LOG


def test_torchs_own_print(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Tensor) -> Tensor:
        torch.ops.aten._print("one")
        y = x * 2
        torch.ops.aten._print("two")
        return y

    aot.aot_function(f, checking_nop)(values(2))
    assert capfd.readouterr().out.split() == ["one", "two"]


def test_a_backward_that_acts_is_not_recorded_again() -> None:
    x = values(3).requires_grad_()
    y = aot.aot_function(Talking.apply, checking_nop)(x)
    with pytest.raises(aot.DoubleBackwardUnsupported, match="acts outside"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    assert x.grad is None


def test_a_partitioner_that_loses_one() -> None:
    def forgetful(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        forward, backward = aot.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        for node in backward.graph.find_nodes(op="call_function", target=OPS.log.default):
            backward.graph.erase_node(node)
        return forward, backward

    with pytest.raises(aot.BackendError, match="log_default"):
        aot.aot_function(Talking.apply, aot.nop, partition_fn=forgetful)(values(3).requires_grad_())


class Tapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(3))

    def forward(self, x: Tensor) -> Tensor:
        OPS.log(x, "exported")
        return OPS.tap(x * self.weight, "exported, too").sum()


@pytest.mark.parametrize("joint", [False, True])
def test_exported_graphs_have_tokens(joint: bool) -> None:
    module = Tapped()
    graph, signature = aot.aot_export_module(
        module, [values(3)], trace_joint=joint, output_loss_index=0 if joint else None
    )
    inputs = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    assert signature.input_tokens == ("token",) and inputs[0] == "token"
    assert signature.output_tokens == (graph.graph.output_node().args[0][0].name,)
    called = graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    assert [node.args[1] for node in called] == [OPS.log.default, *[OPS.tap.default] * (1 + joint)]
    assert called[0].args[0].name == "token"
    LOG.clear()
    token, loss, *gradients = graph(torch.empty(0), module.weight, values(3))
    logged = list(LOG)
    LOG.clear()
    expected = module(values(3))
    assert loss.item() == expected.item() and token.numel() == 0
    if joint:
        expected.backward()
        torch.testing.assert_close(gradients, [module.weight.grad])
    assert logged == LOG


def test_a_joint_graph_has_what_its_backward_does() -> None:
    joint = aot.aot_export_joint_simple(
        lambda x: (Talking.apply(x),), [values(3).requires_grad_()], trace_joint=True
    )
    forward, backward = aot.default_partition(joint, [], num_fwd_outputs=1)
    assert not forward.graph.find_nodes(op="call_function", target=OPS.log.default)
    assert len(backward.graph.find_nodes(op="call_function", target=OPS.log.default)) == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("function", [forward_only, two_results])
def test_below_inductor(function: Callable[[Tensor], Any]) -> None:
    inductor = Inductor.configured()
    compiled = aot.aot_function(
        function, inductor.forward, inductor.backward, inference_compiler=inductor.inference
    )
    for grad in (False, True):
        assert run(compiled, grad) == run(function, grad)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: OPS.tap(x, "first"),
        lambda x, y: OPS.tap(x, "first") * y,
        lambda x, y: (OPS.tap(x * 2, "first"), y.sin()),
        lambda x, y: Talking.apply(x),
    ],
)
def test_what_acts_in_a_backward_that_leads_nowhere_is_refused(f: Any) -> None:
    """A view that was taken without grad of what requires grad says that it does, and eager runs what leads
    to it."""

    def arguments() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return leaf(3).view(3), leaf(3)

    x, y = arguments()
    LOG.clear()
    results = f(x, y)
    one = results[0] if isinstance(results, tuple) else results
    one.sum().backward()
    assert any("backward" in what for what, _ in LOG)
    with pytest.raises(errors.UnsupportedOperation, match="in a backward that computes no gradient"):
        aot.aot_function(f, checking_nop)(*arguments())


# ---- where a backward raises


def _older(x: Tensor) -> tuple[Tensor, Tensor]:
    tapped, square = OPS.tap(x, "older"), x * x
    x.mul_(2)
    return tapped, square


def _younger(x: Tensor) -> tuple[Tensor, Tensor]:
    square, tapped = x * x, OPS.tap(x, "younger")
    x.mul_(2)
    return tapped, square


def _between(x: Tensor) -> tuple[Tensor, ...]:
    first, square = OPS.tap(x, "older"), x * x
    second = OPS.tap(x, "younger")
    x.mul_(2)
    return first, second, square


def _behind(x: Tensor) -> tuple[Tensor, Tensor]:
    square = OPS.tap(x, "behind") ** 2
    power = square.exp()
    square.mul_(2)
    power.mul_(2)
    return x * 1, power


def _all_sets(function: Callable[[Tensor], Any]) -> list[Any]:
    """What the backwards of each set of results give, or raise, and what they have logged."""
    found: list[Any] = []
    start = leaf(3)
    x = start * 1
    results = [*function(x), x]
    for mask in range(1, 1 << len(results)):
        LOG.clear()
        chosen = [one for i, one in enumerate(results) if mask >> i & 1]
        try:
            found += [
                g.tolist() for g in torch.autograd.grad([c.sum() for c in chosen], start, retain_graph=True)
            ]
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append("raised")
        found.append(list(LOG))
    return found


@pytest.mark.parametrize("function", [_older, _younger, _between, _behind])
def test_what_acts_before_a_backward_raises_does_so_before(function: Callable[[Tensor], Any]) -> None:
    expected = _all_sets(function)
    assert "raised" in expected
    assert _all_sets(aot.aot_function(function, checking_nop)) == expected


@pytest.mark.parametrize(
    "f",
    [
        lambda y: (OPS.tap(y, "above"), y.mul_(2))[0],
        lambda y: (OPS.tap(OPS.tap(y, "x").sin(), "z"), y.mul_(2))[0],
    ],
)
def test_what_acts_in_a_backward_that_raises_is_refused(f: Any) -> None:
    def g(x: Tensor) -> Any:
        return f(x.exp())

    compiled = aot.aot_function(g, checking_nop)
    LOG.clear()
    result = g(leaf(3))
    count = len(LOG)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    assert len(LOG) > count
    with pytest.raises(errors.UnsupportedOperation, match="in a backward that raises"):
        compiled(leaf(3))


def test_what_acts_on_both_sides_of_what_raises_is_refused() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        first, square = OPS.tap(x, "older"), x * x
        result = OPS.tap(first, "younger")
        x.mul_(2)
        return result, square

    with pytest.raises(errors.UnsupportedOperation, match="in a backward that raises"):
        aot.aot_function(f, checking_nop)(leaf(3) * 1)


def _acts_beside_a_size(x: Tensor, a: Tensor) -> Tensor:
    count = (x > 0).nonzero()
    seen = OPS.tap(x, "once")
    return count.sum() + seen.sum() + torch.linalg.cholesky(a).sum()


def _acts_where_an_exception_is_caught(x: Tensor, a: Tensor) -> Tensor:
    seen = OPS.tap(x, "once")
    try:
        return torch.linalg.cholesky(a) + seen.sum()
    except RuntimeError:
        return seen


@pytest.mark.parametrize("on_unsupported", ["raise", "eager"])
@pytest.mark.parametrize("f", [_acts_beside_a_size, _acts_where_an_exception_is_caught])
def test_a_call_that_raises_has_acted_once(
    f: Callable[[Tensor, Tensor], Tensor], on_unsupported: Any
) -> None:
    """No other compile answers it, and not the function as in eager: each would act once more."""
    compiled = aot.aot_function(f, checking_nop, on_unsupported=on_unsupported)
    good, bad = torch.eye(2), -torch.eye(2)
    assert torch.equal(compiled(values(3), good), f(values(3), good))
    for _ in range(3):
        LOG.clear()
        with pytest.raises((torch.linalg.LinAlgError, errors.DataDependentValue)):
            compiled(values(3), bad)
        assert len(LOG) == 1
