"""`debug_assert`: every call is held against what was found when it was compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import aot
from aot.runtime.call_assertions import with_call_assertions
from tests.support.agreement import assert_agrees, leaf, non_leaf, values


@pytest.fixture(autouse=True)
def debugging() -> Iterator[None]:
    with aot.config.patch(debug_assert=True):
        yield


def plain(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (x * y).sin(), x.sum(0), y.view(-1)


def written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x[0].mul_(2)
    y.t_()
    return x, x.sum() * y, x[1:]


def saving(x: Tensor, y: Tensor) -> Tensor:
    return (x.exp() @ y.t()).softmax(0).relu().sum()


def views(x: Tensor, y: Tensor) -> list[Tensor]:
    base = x * 2
    return [base.t(), base[0], *torch.split(y, 1), x.data, y.detach()]


def draws(x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x * y, 0.5)


@pytest.mark.parametrize("make", [values, leaf, non_leaf], ids=["plain", "leaf", "non-leaf"])
@pytest.mark.parametrize("function", [plain, written, saving, views, draws], ids=lambda f: f.__name__)
def test_what_holds_is_not_disturbed(function: Callable[..., Any], make: Callable[..., Tensor]) -> None:
    refused = RuntimeError if function is written and make is leaf else None  # in place on a leaf
    assert_agrees(function, lambda: [make(3, 3), make(3, 3, start=9)], raises=refused)


def test_other_partitions_sizes_and_derivatives() -> None:
    assert_agrees(
        saving,
        lambda: [leaf(3, 3), leaf(3, 3)],
        partition=aot.min_cut_rematerialization_partition,
        functionalize_rng_ops=True,
    )
    compiled = aot.aot_function(saving, aot.nop, dynamic=True)
    for size in (3, 4):
        x = leaf(size, 5)
        (gradient,) = torch.autograd.grad(compiled(x, x), x, create_graph=True)
        (expected,) = torch.autograd.grad(saving(x, x), x, create_graph=True)
        torch.testing.assert_close(gradient, expected)
        torch.testing.assert_close(
            torch.autograd.grad(gradient.sum(), x), torch.autograd.grad(expected.sum(), x)
        )
    assert len(compiled.specializations) == 1


Change = Callable[[list[Any], Sequence[Any]], list[Any]]


def changed(change: Change, which: str) -> Callable[..., Any]:
    """A compiler that gets one graph wrong."""

    def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        kind = "backward" if "tangents_" in str(module.graph) else "forward"
        if kind != which:
            return module.forward
        return lambda *arguments: change(list(module(*arguments)), arguments)

    return compiler


def overwrite(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    arguments[0].add_(1)
    return results


WRONG: dict[str, tuple[Change, str]] = {
    "shape": (lambda r, a: [r[0][None], *r[1:]], "result 0.*shape"),
    "strides": (lambda r, a: [r[0].t().contiguous().t(), *r[1:]], "result 0.*strides"),
    "dtype": (lambda r, a: [r[0].double(), *r[1:]], "result 0.*dtype"),
    "no tensor": (lambda r, a: [1.0, *r[1:]], "result 0.*float"),
    "input's memory": (lambda r, a: [a[0].view_as(r[0]), *r[1:]], "result 0.*memory of input"),
    "one memory": (
        lambda r, a: [r[0], *(r[0].view_as(one) for one in r[1:])],
        "result 1.*memory of result 0",
    ),
    "written input": (overwrite, "wrote to its input"),
}


@pytest.mark.parametrize("which", ["forward", "backward"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_compiler_gets_wrong(wrong: str, which: str) -> None:
    change, words = WRONG[wrong]

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        both = x.exp() * y.exp()
        return both, both.sin()

    compiled = aot.aot_function(f, changed(change, which))
    with pytest.raises(aot.AssumptionViolated, match=f"{which} graph: .*{words}"):
        both, sine = compiled(leaf(2, 3), leaf(2, 3, start=7))
        (both.sum() + sine.sum()).backward(retain_graph=True)


def test_what_a_partitioner_saves() -> None:
    def careless(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        forward, backward = aot.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        *results, _ = forward.graph.output_node().args[0]
        forward.graph.output_node().args = ((*results, results[0]),)
        forward.recompile()
        return forward, backward

    x = leaf(2, 3)
    y = aot.aot_function(lambda x: x.exp().sin().sum(), aot.nop, partition_fn=careless)(x)
    with pytest.raises(aot.AssumptionViolated, match=r"backward graph: input exp.*shape \(\)"):
        y.backward()


def test_off_by_default() -> None:
    with aot.config.patch(debug_assert=False):
        compiled = aot.aot_function(torch.exp, changed(WRONG["dtype"][0], "forward"))
        assert compiled(values(2)).dtype == torch.float64


LIES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], list[Any]], str]] = {
    "written": (lambda x: x + 1, lambda x: [x.add_(1) + 1], "input 0 was written to"),
    "counted": (lambda x: x + 1, lambda x: [x.mul_(1) + 1], "version counter of input 0"),
    "moved": (lambda x: x + 1, lambda x: [x.t_() + 1], "input 0 has other sizes"),
    "not the input": (lambda x: x, lambda x: [x.view_as(x)], "output 0 is not input 0"),
    "no alias": (
        lambda x: x.t(),
        lambda x: [x.t().clone()],
        "output 0 does not lie in the memory of input 0",
    ),
    "an alias": (lambda x: x + 1, lambda x: [x.view_as(x)], "output 0 lies in the memory of input 0"),
    "requires grad": (lambda x: x + 1, lambda x: [(x + 1).requires_grad_()], "requires_grad=True"),
    "another type": (lambda x: x + 1, lambda x: [2], "output 0 is a int"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_a_call_gets_wrong(lie: str) -> None:
    function, wrong, words = LIES[lie]
    compiled = aot.aot_function(function, aot.nop)
    compiled(values(2, 3))
    metadata = compiled.specializations[0].metadata
    with pytest.raises(aot.AssumptionViolated, match=words):
        with_call_assertions(wrong, metadata, "f")(values(2, 3))
