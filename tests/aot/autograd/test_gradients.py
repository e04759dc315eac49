"""Gradients of any subset of the results, and of whatever the function does about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import (
    assert_agrees,
    assert_same_story,
    both,
    leaf,
    listed,
    non_leaf,
    values,
)

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("gradients")]


@pytest.mark.parametrize("differentiate", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), None])
def test_subsets_of_outputs(differentiate: tuple[int, ...] | None) -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * y, y.sin(), z * 2

    make = lambda: [leaf(3), leaf(3, start=3), leaf(3, start=6)]  # noqa: E731
    assert_agrees(f, make, grad=True, differentiate=differentiate)


@pytest.mark.parametrize("differentiate", [(0,), (1,), (2,), (1, 2), None])
def test_subsets_with_mutated_arguments(differentiate: tuple[int, ...] | None) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.mul_(x)
        return x.cos(), y[0]

    assert_agrees(f, lambda: [leaf(3), non_leaf(3, start=3)], grad=True, differentiate=differentiate)


@pytest.mark.parametrize("differentiate", [(0,), (1,), (2,), None])
def test_a_division_by_zero_that_is_not_differentiated(differentiate: tuple[int, ...] | None) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.relu()
        return x / y, y * 2, (x - x).sqrt()

    assert_agrees(f, lambda: [leaf(4)], grad=True, differentiate=differentiate)


def test_what_is_not_needed_is_none_and_not_zero() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x / x.relu(), y * 2

    for function in both(f):
        x, y = leaf(3), leaf(3)
        _, second = function(x, y)
        gradients = torch.autograd.grad(second.sum(), [x, y], allow_unused=True)
        assert listed(gradients) == [None, [2.0, 2.0, 2.0]]
        assert x.grad is None


def test_an_infinite_derivative_of_another_output_is_not_multiplied_by_zero() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 0
        return y.sqrt(), y + 1

    for function in both(f):
        x = leaf(3)
        function(x)[1].sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_an_overwritten_value_has_a_gradient_of_zeros() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        z.copy_(y)
        return z

    assert_agrees(f, lambda: [leaf(3), leaf(3, start=3)])


def _all_of_it(x: Tensor, zero: Tensor) -> None:
    x.div_(zero)


def _a_part(x: Tensor, zero: Tensor) -> None:
    x[0].div_(zero)


@pytest.mark.parametrize("f", [_all_of_it, _a_part])
def test_nothing_is_added_to_the_gradient_of_what_is_written(f: Callable[[Tensor, Tensor], Any]) -> None:
    """An infinite complex number to which zero was added is NaN: one of the two is multiplied by 1."""

    def make() -> list[Tensor]:
        return [non_leaf(2, 2, dtype=torch.complex64), torch.zeros((), dtype=torch.int8)]

    assert_agrees(f, make, grad=True)


@pytest.mark.parametrize("part", [..., 1])
def test_the_sign_of_a_zero_that_is_the_gradient_of_what_was_written(part: Any) -> None:
    def f(x: Tensor) -> None:
        x[part].mul_(3)

    for run in (f, aot.aot_function(f, aot.nop)):
        start = leaf(2, 2)
        x = start * 1
        run(x)
        (gradient,) = torch.autograd.grad(x, start, torch.full((2, 2), -0.0))
        assert gradient.signbit().all()


class Overwriting(torch.autograd.Function):
    """Writes ones, and has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.fill_(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


def test_a_write_without_a_gradient_has_none() -> None:
    def f(x: Tensor) -> Tensor:
        return Overwriting.apply(x) * 2  # type: ignore[no-any-return, no-untyped-call]

    assert_agrees(f, lambda: [non_leaf(3)], grad=True)


def test_a_gradient_of_zeros_of_an_output_that_is_not_differentiated() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * 2
        z.zero_()
        return z, y * 3

    for differentiate in ((0,), (1,), None):
        assert_agrees(f, lambda: [leaf(3), leaf(3, start=3)], grad=True, differentiate=differentiate)


@pytest.mark.parametrize("f", [torch.exp, torch.sin, lambda x: x * x], ids=["output", "input", "square"])
def test_a_second_backward(f: Callable[[Tensor], Tensor]) -> None:
    for function in both(f):
        x = leaf(3)
        y = function(x).sum()
        y.backward(retain_graph=True)
        first = x.grad.clone()
        y.backward()
        assert torch.equal(x.grad, first * 2)
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()


def test_a_second_backward_of_a_written_argument() -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x * x

    for function in both(f):
        root = leaf(3)
        y = function(root * 1).sum()
        y.backward(retain_graph=True)
        y.backward()
        assert torch.equal(root.grad, root.detach() * 16)
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()


def test_gradients_taken_inside_the_function() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * x * x).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y, gradient

    assert_agrees(f, lambda: [leaf(3)], grad=True)


TANGENTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: values(2, 3),
    "transposed": lambda: values(3, 2).t(),
    "expanded": lambda: torch.tensor(2.0).expand(2, 3),
    "strided": lambda: values(4, 6)[::2, ::2],
    "offset": lambda: values(8)[2:].view(2, 3),
    "reshaped row": lambda: values(1, 3).expand(2, 3),
}


@pytest.mark.parametrize("tangent", TANGENTS)
def test_tangents_of_any_layout(tangent: str) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = x * y
        return z.view(3, 2), z.t() @ x, x.t()

    seen = []
    for function in both(f):
        x, y = leaf(2, 3), leaf(2, 3, start=6)
        first, second, third = function(x, y)
        given = TANGENTS[tangent]()
        roots = [first, second, third]
        grads = [given.reshape(3, 2), values(3, 3).t(), given.t()]
        gradients = torch.autograd.grad(roots, [x, y], grads)
        assert torch.equal(given, TANGENTS[tangent]())
        seen.append([g.tolist() for g in gradients])
    assert seen[0] == seen[1]


def test_a_tangent_is_not_written_to() -> None:
    for function in both(lambda x: x * 1):
        x, tangent = leaf(3), values(3)
        function(x).backward(tangent, retain_graph=True)
        x.grad.mul_(5)
        assert torch.equal(tangent, values(3))


def test_accumulation_for_duplicated_arguments() -> None:
    for function in both(lambda x, y: x * 2 + y * 3):
        x = leaf(3)
        function(x, x).sum().backward()
        assert x.grad.tolist() == [5.0, 5.0, 5.0]
        function(x, x).sum().backward()
        assert x.grad.tolist() == [10.0, 10.0, 10.0]


def test_accumulation_hooks_run_once_for_a_duplicate() -> None:
    for function in both(lambda x, y: x * y):
        x = leaf(3)
        seen: list[list[float]] = []
        x.register_hook(lambda g, seen=seen: seen.append(g.tolist()))
        function(x, x).sum().backward()
        assert seen == [(x.detach() * 2).tolist()]


def test_hooks_and_retain_grad_on_arguments_and_outputs() -> None:
    results = []
    for function in both(lambda x: (x * 2, x[0])):
        x = leaf(3) * 1
        x.retain_grad()
        first, second = function(x)
        first.retain_grad()
        (first.sum() + second).backward()
        results.append([x.grad.tolist(), first.grad.tolist()])
    assert results[0] == results[1]


def test_a_gradient_that_only_one_of_two_views_gets() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a * 2

    for function in both(f):
        x = leaf(4)
        root = x * 1
        a, b = root[:2], root[2:]
        gradients = torch.autograd.grad(function(a, b).sum(), [a, b, x], allow_unused=True)
        assert listed(gradients) == [[2.0, 2.0], None, [2.0, 2.0, 0.0, 0.0]]


def test_a_subset_does_not_touch_the_graph_behind_other_arguments() -> None:
    for function in both(lambda x, y: (x * 2, y * 3)):
        x, hidden = leaf(3), leaf(3)
        y = hidden.exp()
        with torch.no_grad():
            y.mul_(2)  # whoever differentiates through `y` now fails
        first, _ = function(x, y)
        first.sum().backward()
        assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_no_grad_inside() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = x * 2
        return y * x, y

    assert_agrees(f, lambda: [leaf(3)])


def test_enable_grad_inside() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        with torch.enable_grad():
            z = x * y
        return y + 1, z

    assert_agrees(f, lambda: [leaf(3)])


def test_everything_under_no_grad_inside() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * 2

    assert_agrees(f, lambda: [leaf(3)])


def test_detached_branches() -> None:
    def f(x: Tensor) -> Tensor:
        return x * x.detach() + x.sin().detach()

    assert_agrees(f, lambda: [leaf(3)])


@pytest.mark.parametrize("grad", [False, True])
def test_grad_mode_left_changed(grad: bool) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return y * x

    assert_agrees(f, lambda: [leaf(3)], grad=grad)


def test_grad_mode_left_changed_and_an_argument_written() -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        torch.set_grad_enabled(False)
        x.add_(1)
        return x[0]

    assert_agrees(f, lambda: [non_leaf(3)])


def test_an_integer_argument_among_floating_ones() -> None:
    def f(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        return x[i] * 2, i + 1

    assert_agrees(f, lambda: [leaf(3), torch.tensor([2, 0, 2])])


def test_complex_gradients() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * y
        return z.abs(), torch.view_as_real(z)

    def make() -> list[Tensor]:
        return [leaf(3, dtype=torch.complex64), leaf(3, dtype=torch.complex64, start=3)]

    assert_agrees(f, make)


def test_gradients_of_mixed_dtypes() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y + x.double().sum()

    assert_agrees(f, lambda: [leaf(3), leaf(3, dtype=torch.float64)])


def test_a_custom_autograd_function() -> None:
    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradient * 3 * x

    assert_agrees(lambda x: Triple.apply(x * 2).sin(), lambda: [leaf(3)])


def test_a_backward_that_raises() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ValueError("no gradient")

    assert_agrees(Broken.apply, lambda: [leaf(3)], grad=True, backward_raises=True)


def test_checkpointing_inside_the_function() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(lambda t: t.sin().cos(), x, use_reentrant=False)

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_backward_in_parts_equals_backward_at_once() -> None:
    for function in both(lambda x: (x.sin(), x.exp())):
        x = leaf(3)
        first, second = function(x)
        first.sum().backward(retain_graph=True)
        second.sum().backward()
        assert torch.equal(x.grad, x.detach().cos() + x.detach().exp())


def test_gradients_flow_on_through_two_compiled_functions() -> None:
    for function in both(lambda x: x.mul(2).sin()):
        x = leaf(3)
        function(function(x)).sum().backward()
        y = leaf(3)
        y.mul(2).sin().mul(2).sin().sum().backward()
        assert torch.equal(x.grad, y.grad)


Taking = Callable[[Tensor], Tensor]


def _older_view(take: Taking, change: str) -> Callable[[Tensor, Tensor], Any]:
    """A view of a view of an argument, which is a view itself, taken before and after a change."""

    def f(base: Tensor, part: Tensor) -> tuple[Tensor, ...]:
        older = take(part)
        with torch.set_grad_enabled(change != "without grad mode"):
            (part if change == "of the part" else base).mul_(2)
        return older[0], older[0:1], older * 3

    return f


@pytest.mark.parametrize("change", ["of the base", "of the part", "without grad mode"])
@pytest.mark.parametrize("take", [lambda v: v[0:2], lambda v: v.view(-1)[0:2], lambda v: v.unsqueeze_(0)[0]])
def test_a_view_of_an_older_view_hangs_on_the_base_alone(
    take: Callable[[Tensor], Tensor], change: str
) -> None:
    def story(function: Callable[..., Any]) -> Any:
        base = leaf(4) * 1
        part = base[1:]
        results = function(base, part)
        return [
            torch.autograd.grad(r.sum(), [base, part], retain_graph=True, allow_unused=True) for r in results
        ]

    assert_same_story(_older_view(take, change), story)


def _of_an_older_one(b: Tensor) -> tuple[Tensor, ...]:
    older = b[0:3]
    b.mul_(2)
    return older[0], older, older[0:2].view(2, 1)


def _of_two_older_ones(b: Tensor) -> tuple[Tensor, ...]:
    y = b * 1
    older = y[0:3]
    inner = older[0:2]
    older.mul_(2)
    return y, older, inner, older[0:2], inner[0:1]


def _of_one_that_was_written_without_grad_mode(b: Tensor) -> tuple[Tensor, ...]:
    older = b[0:3]
    with torch.no_grad():
        b.mul_(2)
    return older, older[0:2], older[0:2] * 3


def _parts_of_an_older_one(b: Tensor) -> tuple[Tensor, ...]:
    older = b[0:4]
    b.mul_(2)
    return older, *older.split(2)


@pytest.mark.parametrize(
    "f",
    [
        _of_an_older_one,
        _of_two_older_ones,
        _of_one_that_was_written_without_grad_mode,
        _parts_of_an_older_one,
    ],
)
def test_gradients_between_views_one_of_which_was_there_before_a_write(
    f: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    def story(function: Callable[..., Any]) -> Any:
        argument = leaf(6) * 1
        everything = [argument, *function(argument)]
        between = [
            torch.autograd.grad(r.sum(), everything, retain_graph=True, allow_unused=True) for r in everything
        ]
        everything[2].register_hook(lambda g: None if g is None else g * 7)
        after = [torch.autograd.grad(r.sum(), argument, retain_graph=True) for r in everything]
        return between, after

    assert_same_story(f, story)


def _taking(x: Tensor, y: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((y * y).sum() + x.sin().sum(), x, create_graph=True)
    return gradient * y


def test_a_gradient_that_is_taken_inside_with_respect_to_an_argument() -> None:
    assert_agrees(_taking, lambda: [non_leaf(3), leaf(3, start=3)], grad=True)
    assert_agrees(_taking, lambda: [leaf(3), values(3, start=3)], grad=True)


def _with_a_hook(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 2)
    return values(3)


def _that_retains(x: Tensor) -> Tensor:
    x.retain_grad()
    return values(3)


@pytest.mark.parametrize("prepare", [_with_a_hook, _that_retains, lambda x: (x * 2).sin()])
def test_a_gradient_inside_that_something_outside_has_a_part_in_is_refused(
    prepare: Callable[[Tensor], Tensor],
) -> None:
    compiled = aot.aot_function(_taking, aot.nop)
    x = non_leaf(3)
    with pytest.raises(aot.Unsupported, match="takes a gradient"):
        compiled(x, prepare(x))
    for y in (values(3), non_leaf(3, start=3)):
        compiled(non_leaf(3), y)
    x = non_leaf(3)
    with pytest.raises(aot.Unsupported, match="takes a gradient"):  # of a kind that is known
        compiled(x, prepare(x))
