"""Steps after a call: each is done, recorded, and compared as far as the first that differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import Arguments, Backward, Finding, Observation, Require, Step, Write, compare, observe
from oracles.observation.records import GradientRun, LaterRequire, LaterWrite
from tests.support.oracles.oracle_cases import leaf

pytestmark = pytest.mark.clause("double-backward")


def cube(w: Tensor) -> Tensor:
    return w * w * w


def run(function: Callable[..., Any], *steps: Step) -> Observation:
    return observe(function, leaf, steps=steps)


def found(target: Callable[..., Any], *steps: Step) -> list[tuple[str, str]]:
    findings: tuple[Finding, ...] = compare(run(cube, *steps), run(target, *steps))
    return [(finding.clause, finding.path) for finding in findings]


def gradient(record: object) -> Tensor:
    assert isinstance(record, GradientRun) and record.raised is None
    [(_, value)] = record.gradients
    assert value is not None
    return value.tensor()


def start() -> Tensor:
    value: Tensor = leaf().args[0]
    return value.detach()


def cotangent(like: Tensor) -> Tensor:
    [record] = run(lambda w: w * 1, Backward()).steps
    return gradient(record).reshape(like.shape)


def test_a_plain_backward_gives_the_gradient() -> None:
    [record] = run(cube, Backward()).steps
    torch.testing.assert_close(gradient(record), 3 * start() ** 2 * cotangent(start()))


def test_backwards_accumulate_into_grad() -> None:
    first, second = run(cube, Backward(how="accumulate", retain=True), Backward(how="accumulate")).steps
    torch.testing.assert_close(gradient(second), 2 * gradient(first))


def test_a_freed_graph_cannot_be_used_again_and_a_kept_one_can() -> None:
    _, again = run(cube, Backward(), Backward()).steps
    assert isinstance(again, GradientRun) and again.raised is not None
    assert "second time" in again.raised.message
    first, again = run(cube, Backward(retain=True), Backward()).steps
    torch.testing.assert_close(gradient(first), gradient(again))


def test_a_double_backward_differentiates_the_gradient() -> None:
    first, second = run(cube, Backward(how="double")).steps
    assert isinstance(second, GradientRun)
    assert (second.stage, second.roots) == ("double backward", ("grad of arg[0]",))
    torch.testing.assert_close(gradient(second), 6 * start() * cotangent(start()) ** 2)
    assert isinstance(first, GradientRun) and first.stage == "backward"


def test_a_gradient_without_a_history_is_not_differentiated() -> None:
    assert len(run(lambda w: w * 2, Backward(how="double")).steps) == 1


def test_a_write_is_noticed_by_the_backward_that_needs_what_was_written() -> None:
    write, backward = run(cube, Write("arg[0]"), Backward()).steps
    assert isinstance(write, LaterWrite) and write.raised is None
    assert isinstance(backward, GradientRun) and backward.raised is not None
    assert "modified by an inplace operation" in backward.raised.message
    _, backward = run(lambda w: w * 2, Write("arg[0]"), Backward()).steps
    assert isinstance(backward, GradientRun) and backward.raised is None


def test_there_is_nothing_to_do_for_a_result_that_does_not_exist() -> None:
    assert run(cube, Write("out[3]")).steps == ()


def test_what_is_made_to_require_grad_gets_gradients_from_views_that_are_older_than_a_write() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        before = x[:2]
        x.mul_(2)
        return before, x[1:]

    def plain() -> Arguments:
        return Arguments((start(),))

    steps = (Require("arg[0]"), Backward(), Backward(how="accumulate"))
    seen = observe(f, plain, steps=steps)
    required, first, second = seen.steps
    assert isinstance(required, LaterRequire) and required.raised is None
    assert required.leading == ("out[0]",)
    assert isinstance(first, GradientRun) and first.roots == ("out[0]",)
    torch.testing.assert_close(gradient(first), gradient(second))
    late = observe(lambda x: (x.mul_(2)[:2], x[1:]), plain, steps=steps)
    assert [(f.clause, f.path) for f in compare(seen, late)] == [("autograd-metadata", "out[0]")]


def test_what_cannot_require_grad_raises_as_in_eager() -> None:
    def f(w: Tensor) -> Tensor:
        return (w > 0).long()

    [record] = run(f, Require("out")).steps
    assert isinstance(record, LaterRequire) and record.raised is not None
    seen = (Require("out"), Require("arg[0]"), Require("out[3]"))
    assert [step.raised is None for step in run(cube, *seen).steps] == [True, True]


class Once(torch.autograd.Function):
    """Its gradient cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Unchecked(torch.autograd.Function):
    """Keeps what it needs where autograd does not see it."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        ctx.kept = w.detach().clone()
        return w**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        result: Tensor = grad * 3 * ctx.kept * ctx.kept
        return result


def keeps_the_graph(w: Tensor) -> Tensor:
    result: Tensor = Unchecked.apply(w)
    return result


WRONG: list[tuple[Callable[..., Any], tuple[Step, ...], tuple[str, str]]] = [
    (lambda w: cube(w) + w, (Backward(how="accumulate"),), ("gradients", "grad of arg[0] in step 1")),
    (keeps_the_graph, (Write("arg[0]"), Backward()), ("errors", "backward in step 2")),
    (keeps_the_graph, (Backward(), Backward()), ("errors", "backward in step 2")),
    (
        keeps_the_graph,
        (Backward(how="double"),),
        ("double-backward", "gradients that require grad in step 1"),
    ),
    (
        lambda w: cube(Once.apply(w)),
        (Backward(how="double"),),
        ("double-backward", "grad of arg[0] in step 1"),
    ),
]


@pytest.mark.parametrize(("target", "steps", "expected"), WRONG)
def test_a_wrong_step_is_found(
    target: Callable[..., Any], steps: tuple[Step, ...], expected: tuple[str, str]
) -> None:
    assert expected in found(target, *steps)


def test_what_follows_a_difference_is_not_compared() -> None:
    steps = (Backward(retain=True), Backward(how="accumulate"))
    assert {path for _, path in found(lambda w: cube(w) * 2, *steps)} & {"grad of arg[0] in step 2"} == set()


def test_equal_functions_agree_in_every_step() -> None:
    every = (Backward((0,), "double"), Backward(None, "accumulate", True), Write("out"), Backward())
    assert found(cube, *every) == []


def test_what_is_kept_is_alive_and_the_rest_is_not() -> None:
    kept: list[Tensor] = []

    def keeps(w: Tensor) -> Tensor:
        kept[:] = [w.detach()]
        return w * w * w

    assert run(cube, Backward(how="double")).alive == ()
    assert observe(keeps, leaf).alive == ("arg[0]",)
    assert [(f.clause, f.path) for f in compare(observe(cube, leaf), observe(keeps, leaf))] == [
        ("lifetime", "arg[0]")
    ]


def test_a_cycle_is_no_leak_and_a_refusal_keeps_nothing() -> None:
    def cyclic(w: Tensor) -> Tensor:
        ring: list[Any] = [w]
        ring.append(ring)
        return w * 2

    def refuses(w: Tensor) -> Tensor:
        copy = w.clone()
        raise NotImplementedError(f"not {copy.shape}")

    assert observe(cyclic, leaf).alive == ()
    assert observe(refuses, leaf, refusal=str).alive == ()


def test_a_result_that_lives_on_is_found() -> None:
    kept: list[Tensor] = []

    def keeps(w: Tensor) -> Tensor:
        kept[:] = [w * 2]
        return kept[0]

    def make() -> Arguments:
        return Arguments((torch.ones(2),))

    assert observe(keeps, make).alive == ("out",)


def test_memory_that_nothing_seen_lies_in_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA's allocator counts: here the function says how much it takes."""
    taken = [0]
    monkeypatch.setattr("oracles.observation.leaks.allocated_bytes", lambda: taken[0])

    def takes(w: Tensor) -> Tensor:
        taken[0] += 512
        return cube(w)

    eager, target = observe(cube, leaf), observe(takes, leaf)
    assert (eager.grown, target.grown) == (0, 512)
    assert [(f.clause, f.path, f.eager, f.target) for f in compare(eager, target)] == [
        ("lifetime", "memory", "0", "512")
    ]
    assert compare(target, target) == compare(target, eager) == ()
    # Nothing is counted where a name is alive, so that nobody knows how much it is.
    assert compare(replace(eager, alive=("arg[0]",)), target) == ()


@pytest.mark.cuda
def test_cudas_allocator_counts_what_nobody_sees() -> None:
    kept: list[Tensor] = []

    def keeps(w: Tensor) -> Tensor:
        kept.append(w * 3)
        return w * 2

    def make() -> Arguments:
        return Arguments((torch.ones(2, device="cuda"),))

    observe(lambda w: w * 2, make)
    assert observe(lambda w: w * 2, make).grown == 0
    assert observe(keeps, make).grown == 512  # the least that it gives out


def test_an_argument_made_in_inference_mode_is_written_to_in_that() -> None:
    def make() -> Arguments:
        with torch.inference_mode():
            weight = torch.full((2,), 3.0)
        return Arguments((torch.ones(2, requires_grad=True), weight))

    def early(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight.sin()

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.weight = weight
            return x * weight.sin()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return gradient * ctx.weight.sin(), None

    steps = (Write("arg[1]"), Backward())
    write, _ = observe(early, make, steps=steps).steps
    assert isinstance(write, LaterWrite) and write.raised is None
    findings = compare(observe(early, make, steps=steps), observe(Late.apply, make, steps=steps))
    assert [finding.clause for finding in findings] == ["gradients"]


def test_a_double_backward_is_one_with_respect_to_what_was_written_as_well() -> None:
    def make() -> Arguments:
        return Arguments((torch.ones(2, requires_grad=True) * 1,))

    def written(x: Tensor) -> Tensor:
        return x.exp_().sin()

    class Apart(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * ctx.saved_tensors[0].detach().cos()  # which leads no further

    step = Backward((0,), "double")
    records = observe(written, make, steps=(step,)).steps
    assert [[path for path, _ in one.gradients] for one in records if isinstance(one, GradientRun)] == [
        ["arg[0]", "arg[0] (as it is now)"]
    ] * 2
    findings = compare(
        observe(written, make, steps=(step,)), observe(lambda x: Apart.apply(x.exp_()), make, steps=(step,))
    )
    assert "double-backward" in {finding.clause for finding in findings}
