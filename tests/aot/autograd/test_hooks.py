"""Hooks and `retain_grad`: the caller's see eager's gradients in eager's order; the function's are kept or
refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from aot.capture.intercept.patches import patched
from tests.support.agreement import (
    assert_agrees,
    assert_same_story,
    both,
    checking_nop,
    leaf,
    non_leaf,
    values,
)
from tests.support.aot.programs import Square

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("gradients")]


def test_a_hook_on_an_intermediate() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y * y

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_several_hooks_on_an_intermediate_run_in_their_order() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 10)
        y.register_hook(lambda g: g + 1)
        y.mul_(x)
        y.register_hook(lambda g: g.sin())
        return y * y

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_method_that_is_replaced_between_two_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in for torch's methods while a trace lasts is made once, of what it found then."""
    with patched():
        pass
    called = []
    register = Tensor.register_hook
    monkeypatch.setattr(
        Tensor, "register_hook", lambda self, hook: called.append(hook) or register(self, hook)
    )
    with patched():
        leaf(3).register_hook(print)
    assert called == [print]
    leaf(3).register_hook(print)
    assert called == [print, print]


def test_a_hook_that_was_removed() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 10).remove()
        return y * y

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_that_computes_with_the_functions_tensors() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        mask = y > 0
        z = x.sin()
        z.register_hook(lambda g: torch.where(mask, g, g * y))
        return z * x

    assert_agrees(f, lambda: [leaf(3), values(3, start=3)], grad=True)


def test_a_hook_to_which_no_gradient_comes_gives_back_none() -> None:
    def f(x: Tensor) -> Tensor:
        seen, unseen = (x * 2).unbind()
        seen.register_hook(lambda g: g if g is None else g * 10)
        unseen.register_hook(lambda g: g if g is None else g * 10)
        return seen.sin()

    assert_agrees(f, lambda: [leaf(2, 3)], grad=True)


def test_a_hook_on_a_node() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        assert y.grad_fn is not None
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 3,))
        return y * x

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_before_a_node_and_on_the_node_of_a_result() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + outputs[0],))
        return y, y[1:] * 2

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_on_a_node_between_a_view_of_an_argument_and_a_result() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.t()
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
        return y * 2

    assert_agrees(f, lambda: [non_leaf(3, 2)], grad=True)


def test_a_hook_on_what_is_written_to_a_part_of_an_argument() -> None:
    def f(x: Tensor) -> Tensor:
        y = (x[1] * 2).sin()
        y.register_hook(lambda g: g * 10)
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
        x[0].mul_(y)
        return x * 2

    assert_agrees(f, lambda: [non_leaf(2, 3)], grad=True)


def test_a_hook_on_the_node_of_a_written_argument() -> None:
    def f(x: Tensor) -> Tensor:
        x[0].mul_(3)
        assert x.grad_fn is not None
        x.grad_fn.register_prehook(lambda outputs: (outputs[0] * 5,))
        x.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10, *inputs[1:]))
        return x * 2

    assert_agrees(f, lambda: [non_leaf(2, 3)], grad=True)


def test_hooks_that_nothing_runs() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        assert y.grad_fn is not None
        y.grad_fn.register_hook(lambda inputs, outputs: None).remove()
        unused = y[1:]
        assert unused.grad_fn is not None
        unused.grad_fn.register_hook(lambda inputs, outputs: None)
        return y * x

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_in_a_gradient_that_is_taken_inside() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        y = x.detach().sin().requires_grad_()
        z = y * 1
        z.register_hook(seen.append)
        torch.autograd.grad((z * z).sum(), y)
        return x * 2, seen[0]

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def _on_an_argument(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 10)
    return x * 2


def _on_an_argument_before_a_write(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 10)
    x.mul_(3)
    return x * 2


def _on_a_written_argument(x: Tensor) -> Tensor:
    x.mul_(3)
    x.register_hook(lambda g: g * 10)
    return x * 2


def _on_an_output(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y


def _on_an_output_that_is_a_view(x: Tensor) -> Tensor:
    y = (x * 2)[1:]
    y.register_hook(lambda g: g * 10)
    return y


def _for_its_side_effect(x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    y = x * 2
    y.register_hook(seen.append)
    return y * y


def _on_a_view_that_a_result_is_a_view_of(x: Tensor) -> Tensor:
    y = (x * 2)[1:]
    y.register_hook(lambda g: g * 10)
    return y[1:]


def _node(x: Tensor) -> Any:
    assert x.grad_fn is not None
    return x.grad_fn


def _on_the_node_of_a_view_that_is_a_result(x: Tensor) -> Tensor:
    y = (x * 2)[1:]
    _node(y).register_prehook(lambda outputs: (outputs[0] * 10,))
    return y


def _on_the_node_of_a_view_of_an_argument(x: Tensor) -> Tensor:
    y = x[1:]
    _node(y).register_prehook(lambda outputs: (outputs[0] * 10,))
    return y[1:]


def _on_the_node_of_an_argument(x: Tensor) -> Tensor:
    _node(x).register_hook(lambda inputs, outputs: (inputs[0] * 10, *inputs[1:]))
    return x * 2


def _before_the_node_of_an_argument(x: Tensor) -> Tensor:
    torch.autograd.graph.get_gradient_edge(x).node.register_prehook(lambda outputs: (outputs[0] * 10,))
    return x * 2


def _on_a_node_for_its_side_effect(x: Tensor) -> Tensor:
    y = x * 2
    _node(y).register_hook(lambda inputs, outputs: None)
    return y * y


def _before_a_node_for_its_side_effect(x: Tensor) -> Tensor:
    y = x * 2
    _node(y).register_prehook(lambda outputs: None)
    return y * y


def _before_the_node_of_an_argument_that_is_written(x: Tensor) -> Tensor:
    _node(x).register_prehook(lambda outputs: (outputs[0] * 10,))
    x[0].mul_(3)
    return x * 2


REFUSED = [
    _before_the_node_of_an_argument_that_is_written,
    _on_a_view_that_a_result_is_a_view_of,
    _on_the_node_of_a_view_that_is_a_result,
    _on_the_node_of_a_view_of_an_argument,
    _on_the_node_of_an_argument,
    _before_the_node_of_an_argument,
    _on_a_node_for_its_side_effect,
    _before_a_node_for_its_side_effect,
    _on_an_argument,
    _on_an_argument_before_a_write,
    _on_a_written_argument,
    _on_an_output,
    _on_an_output_that_is_a_view,
    _for_its_side_effect,
]


@pytest.mark.parametrize("f", REFUSED)
def test_what_cannot_be_kept_is_refused(f: Callable[[Tensor], Tensor]) -> None:
    x = non_leaf(3)
    before, version = x.clone(), x._version
    with pytest.raises(aot.Unsupported, match="outside"):
        aot.aot_function(f, checking_nop)(x)
    assert torch.equal(x, before)
    assert x._version == version


def test_accumulation_hooks_of_the_functions_own_are_refused() -> None:
    def f(x: Tensor) -> Tensor:
        x.register_post_accumulate_grad_hook(lambda p: None)
        return x * 2

    x = leaf(3)
    with pytest.raises(aot.Unsupported, match="register it outside"):
        aot.aot_function(f, checking_nop)(x)
    assert x._post_accumulate_grad_hooks is None


class Hooked(torch.nn.Module):
    """A module whose gradients a hook sees."""

    def __init__(self, register: str, hook: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        getattr(self.inner, register)(hook)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.sin()).exp()  # type: ignore[no-any-return]


def _tripled(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if g is None else g * 3 for g in gradients)


MODULE_HOOKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "full": ("register_full_backward_hook", lambda module, inputs, outputs: _tripled(inputs)),
    "full, before": ("register_full_backward_pre_hook", lambda module, outputs: _tripled(outputs)),
    "not full": ("register_backward_hook", lambda module, inputs, outputs: _tripled(inputs)),
}


def _functional(module: torch.nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    return lambda parameters, x: torch.func.functional_call(module, parameters, (x,))


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("kind", MODULE_HOOKS)
def test_a_hook_of_a_module_that_changes_gradients(kind: str) -> None:
    module = Hooked(*MODULE_HOOKS[kind])

    def make() -> list[Any]:
        parameters = {"inner.weight": leaf(3, 3), "inner.bias": leaf(3, start=9)}
        return [parameters, leaf(2, 3, start=12)]

    assert_agrees(_functional(module), make, grad=True)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("kind", MODULE_HOOKS)
def test_a_hook_of_a_module_that_is_there_for_its_side_effect_is_refused(kind: str) -> None:
    seen: list[int] = []
    module = Hooked(MODULE_HOOKS[kind][0], lambda *gradients: seen.append(1))
    parameters = dict(module.named_parameters())
    compiled = aot.aot_function(_functional(module), checking_nop)
    with pytest.raises(aot.Unsupported, match="returns nothing"):
        compiled(parameters, leaf(2, 3))
    with torch.no_grad():
        assert compiled(parameters, leaf(2, 3)).shape == (2, 3)


def test_a_node_of_the_callers_keeps_nothing_of_a_refused_hook() -> None:
    x = non_leaf(3)
    with pytest.raises(aot.Unsupported):
        aot.aot_function(_on_the_node_of_an_argument, checking_nop)(x)
    assert torch.equal(torch.autograd.grad(x.sum(), x)[0], torch.ones(3))


def test_registering_is_as_ever_after_a_trace_and_in_other_threads() -> None:
    method, of_node = Tensor.register_hook, torch.autograd.Function._register_hook
    aot.aot_function(torch.sin, checking_nop)(leaf(3))
    with pytest.raises(ValueError, match="not today"):
        aot.aot_function(_raising, checking_nop)(leaf(3))
    assert Tensor.register_hook is method
    assert torch.autograd.Function._register_hook is of_node


def _raising(x: Tensor) -> Tensor:
    raise ValueError("not today")


def test_the_callers_hooks_see_what_eager_shows_them_in_its_order() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x * w
        return y, y.sin() * x

    seen = []
    for function in both(f):
        x, w = non_leaf(3), leaf(3, start=3)
        events: list[tuple[str, Any]] = []

        def note(name: str, events: list[tuple[str, Any]] = events) -> Callable[[Tensor], None]:
            return lambda t: events.append((name, t.tolist() if t.grad is None else t.grad.tolist()))

        x.register_hook(note("x"))
        x.register_hook(lambda g: g * 2)
        x.register_hook(note("x again"))
        w.register_hook(note("w"))
        w.register_post_accumulate_grad_hook(note("w accumulated"))
        first, second = function(x, w)
        first.register_hook(note("first"))
        second.register_hook(note("second"))
        (first.sum() + second.sum()).backward()
        seen.append(events)
    assert seen[0] == seen[1]
    assert [name for name, _ in seen[0]].count("w accumulated") == 1


@pytest.mark.parametrize("written", [False, True])
def test_retain_grad_inside(written: bool) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.retain_grad()
        if written:
            x.mul_(2)
        y = x.sin()
        y.retain_grad()
        return y, (y * 1)[1:]

    seen = []
    for function in both(f):
        x = non_leaf(3)
        first, second = function(x)
        (first * 3).sum().backward(retain_graph=True)
        second.sum().backward()
        seen.append((x.retains_grad, first.retains_grad, second.retains_grad, x.grad, first.grad))
    assert seen[0][:3] == seen[1][:3] == (True, True, False)
    assert all(torch.equal(a, b) for a, b in zip(seen[0][3:], seen[1][3:], strict=True))


@pytest.mark.parametrize(
    "several", [lambda x: torch._foreach_mul([x, x * 1], 3.0), lambda x: x.unsafe_chunk(2)]
)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_first_of_several_results_keeps_its_gradient_and_is_written(
    several: Callable[[Tensor], tuple[Tensor, Tensor]], backwards: bool
) -> None:
    """Autograd looks for what keeps it at the first result of the node (torch 2.13)."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        first, second = several(x)
        first.retain_grad()
        return (second, first) if backwards else (first, second)

    def story(function: Callable[..., Any]) -> Any:
        x = non_leaf(3, 3)
        results = function(x)
        for result in results:
            if result.retains_grad:
                result.mul_(2)
        (results[0].sum() + results[1].sum()).backward()
        return [result.grad for result in results if result.retains_grad]

    assert len(story(f)) == 1
    assert_same_story(f, story)


PARTS: dict[str, Callable[[Tensor], Any]] = {
    "split": lambda x: x.split(2),
    "unbind": lambda x: x.unbind()[:2],
    "of the function's own": lambda x: (x * 2).chunk(2),
    "of parts": lambda x: [part for half in x.split(2) for part in half.unbind()][::-1],
    "beside another": lambda x: [*x.split(2), x.sin()],
    "viewed again": lambda x: [part.view(1, -1) for part in x.split(2)],
    "of two calls": lambda x: [x.split(2)[0], x.split(2)[1]],
    "of a written argument": lambda x: [*x.mul_(2).split(2)],
}


def _changed(x: Tensor) -> list[Tensor]:
    first, second = x.split(1)
    before = first.view(2)
    first.t_()
    return [before, first, second]


def test_one_of_several_views_that_is_changed() -> None:
    assert_agrees(_changed, lambda: [values(2, 2)])


@pytest.mark.parametrize("name", PARTS)
def test_hooks_on_views_that_one_call_has_made(name: str) -> None:
    told = []
    for function in both(PARTS[name]):
        for chosen in range(2):
            x = non_leaf(4)
            results, seen = function(x), []
            for i, result in enumerate(results):
                result.register_hook(
                    lambda g, i=i, seen=seen: seen.append((i, g if g is None else g.tolist()))
                )
            results[chosen].sum().backward()
            told.append((sorted(seen, key=lambda one: one[0]), [type(r.grad_fn) for r in results[:2]]))
    assert told[:2] == told[2:]


def test_a_hook_that_is_registered_in_inference_mode() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        with torch.inference_mode():
            y.register_hook(lambda gradient: gradient * 2)
        return y.sin()

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_on_a_view_without_a_history_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            view = x.view(-1)
        view.register_hook(lambda gradient: gradient * 2)
        return x * 2

    with pytest.raises(errors.UnsupportedHook, match="no gradient comes to it"):
        aot.aot_function(f, aot.nop)(leaf(3) * 1)


@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("retained", [False, True])
def test_a_hook_where_no_gradient_comes_is_given_none(chosen: tuple[int, ...], retained: bool) -> None:
    def f(x: Tensor) -> list[Tensor]:
        one, other = x.square(), Square.apply(x)
        if retained:
            other.retain_grad()
        else:
            other.register_hook(lambda gradient: None if gradient is None else gradient * 3)
        return [*torch._foreach_exp([one, other]), one * other]

    def told(function: Callable[..., Any]) -> Any:
        x = leaf(3)
        results = function(x)
        roots = [results[k] for k in chosen]
        return torch.autograd.grad(roots, x, [torch.ones(3)] * len(roots))[0].tolist()

    compiled = aot.aot_function(f, checking_nop)
    assert told(f) == told(compiled) == told(compiled)


def test_a_hook_that_makes_a_gradient_of_none_raises_as_in_eager() -> None:
    def f(x: Tensor) -> list[Tensor]:
        one, other = x.square(), Square.apply(x)
        other.register_hook(lambda gradient: torch.ones(3) if gradient is None else gradient * 3)
        return [*torch._foreach_exp([one, other])]

    for function in (f, aot.aot_function(f, checking_nop)):
        x = leaf(3)
        results = function(x)
        with pytest.raises(RuntimeError, match="replace a None gradient"):
            torch.autograd.grad(results[0].sum(), x)
