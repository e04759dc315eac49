"""Scenarios around a function: several calls and backwards, threads, hooks, modes and what stays alive, each
told of eager and of the compiled function alike."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import aot
from tests.support.agreement import assert_same_story, checking_nop, leaf, non_leaf, values

Function = Callable[..., Any]


def _network(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    hidden = (x @ w).tanh()
    return (hidden * hidden).sum(), hidden


def _writing(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(w)
    return x.sin().sum(), x[1:]


def _viewing(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x.t() * w).exp().mean(), x.view(-1)[2:]


def _dropping(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = functional.dropout(x * w, 0.5)
    return y.sum(), y * x


FUNCTIONS = [_network, _writing, _viewing, _dropping]


def _made() -> tuple[Tensor, Tensor, Tensor]:
    root = leaf(3, 3)
    return root, root * 1, leaf(3, 3, start=9)


def _grads(*tensors: Tensor) -> list[Tensor | None]:
    return [None if t.grad is None else t.grad.clone() for t in tensors]


def _several_calls(function: Function) -> Any:
    root, x, w = _made()
    first = function(x, w)[0]
    second = function(root * 2, w)[0]
    (first * second).backward()
    return _grads(root, w)


def _calls_of_other_kinds(function: Function) -> Any:
    told = []
    for made in (_made, _made):
        root, x, w = made()
        function(x, w)[0].backward()
        told.append(_grads(root, w))
        with torch.no_grad():
            told.append(function(values(3, 3), w)[0].requires_grad)
        function(values(3, 3), w)[0].backward()
        told.append(_grads(root, w))
    return told


def _retained(function: Function) -> Any:
    root, x, w = _made()
    loss, other = function(x, w)
    told = []
    for _ in range(2):
        loss.backward(retain_graph=True)
        told.append(_grads(root, w))
    other.sum().backward()
    told.append(_grads(root, w))
    return told


def _in_parts(function: Function) -> Any:
    root, x, w = _made()
    loss, other = function(x, w)
    told: list[Any] = []
    for result in (other.sum(), loss, loss):
        try:
            result.backward()
        except RuntimeError as error:
            told.append("second time" in str(error))
        told.append(_grads(root, w))
    return told


def _with_inputs(function: Function) -> Any:
    root, x, w = _made()
    before = x * 1
    loss, _ = function(before, w)
    loss.backward(inputs=[w])
    return _grads(root, w)


def _in_another_thread(function: Function) -> Any:
    root, x, w = _made()
    results = function(x, w)
    caught: list[str] = []

    def run() -> None:
        try:
            (results[0] + results[1].sum()).backward()
        except Exception as error:
            caught.append(type(error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return _grads(root, w), caught


def _with_hooks(function: Function) -> Any:
    root, x, w = _made()
    events: list[Any] = []
    w.register_hook(lambda g: events.append(("w", g.clone())))
    w.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(lambda p: events.append(("accumulated", p.grad.clone())))
    root.register_hook(lambda g: g + 1)
    loss, other = function(x, w)
    loss.register_hook(lambda g: g * 3)
    other.register_hook(lambda g: events.append(("other", g.clone())))
    (loss + other.sum()).backward()
    return events, _grads(root, w)


def _under_anomaly_mode(function: Function) -> Any:
    root, x, w = _made()
    with torch.autograd.detect_anomaly(check_nan=True):
        function(x, w)[0].backward()
    told: list[Any] = [_grads(root, w)]
    root, x, w = _made()
    with torch.autograd.detect_anomaly(check_nan=True):
        loss, _ = function(x, w)
        try:
            (loss * float("nan")).backward()
        except RuntimeError as error:
            told.append("nan" in str(error))
    return told


def _with_saved_tensor_hooks(function: Function) -> Any:
    root, x, w = _made()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2):
        loss, _ = function(x, w)
    with torch.autograd.graph.save_on_cpu():
        other, _ = function(root * 3, w)
    (loss + other).backward()
    return _grads(root, w)


def _unused_arguments_are_none(function: Function) -> Any:
    root, x, w = _made()
    unused = leaf(2)
    loss, _ = function(x, w)
    return torch.autograd.grad(loss, [root, w, unused], allow_unused=True)


def _unused_arguments_raise(function: Function) -> Any:
    _, x, w = _made()
    loss, _ = function(x, w)
    return torch.autograd.grad(loss, [w, leaf(2)])


def _tangents(function: Function) -> Any:
    told = []
    for make in (
        lambda s: values(*s[::-1]).permute(*reversed(range(len(s)))),
        lambda s: torch.tensor(2.0).expand(s),
        torch.zeros,
        lambda s: torch._neg_view(values(*s)),
        lambda s: torch.cat([values(*s)] * 2, -1)[..., : s[-1]],
        lambda s: values(*s).double(),
    ):
        root, x, w = _made()
        _, other = function(x, w)
        other.backward(make(tuple(other.shape)))
        told.append(_grads(root, w))
    return told


def _training(function: Function) -> Any:
    torch.manual_seed(3)
    w, unused = leaf(3, 3), leaf(2)
    optimizer = torch.optim.Adam([w, unused], lr=0.1, weight_decay=0.1)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss, _ = function(values(3, 3, start=step).requires_grad_() * 1, w)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, w, unused


def _grad_of_a_written_result(function: Function) -> Any:
    root, x, w = _made()
    _, other = function(x, w)
    other.mul_(2)
    other.sum().backward()
    return _grads(root, w)


STORIES = [
    _several_calls,
    _calls_of_other_kinds,
    _retained,
    _in_parts,
    _with_inputs,
    _in_another_thread,
    _with_hooks,
    _with_saved_tensor_hooks,
    _under_anomaly_mode,
    _unused_arguments_are_none,
    _unused_arguments_raise,
    _tangents,
    _training,
    _grad_of_a_written_result,
]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("story", STORIES)
def test_scenario(function: Function, story: Callable[[Function], Any]) -> None:
    def seeded(f: Function) -> Any:
        torch.manual_seed(0)
        return story(f)

    assert_same_story(function, seeded)


@pytest.mark.parametrize("layout", ["channels last", "complex"])
def test_tangents_of_other_layouts(layout: str) -> None:
    def story(function: Function) -> Any:
        if layout == "complex":
            x = leaf(3, dtype=torch.complex64)
            tangent = values(3, dtype=torch.complex64, start=4).conj()
        else:
            x = leaf(2, 3, 2, 2)
            tangent = values(2, 3, 2, 2, start=4).to(memory_format=torch.channels_last)
        function(x).backward(tangent)
        return torch.view_as_real(x.grad) if layout == "complex" else x.grad

    assert_same_story(lambda x: (x * x).sin(), story)


def test_the_autograd_functions_of_a_subclass_tangent_are_not_lost() -> None:
    class Sub(Tensor):
        pass

    def story(function: Function) -> Any:
        x = leaf(3)
        function(x).backward(values(3).as_subclass(Sub))
        return x.grad.as_subclass(Tensor)

    assert_same_story(lambda x: x.sin() * 2, story)


def _dead(*references: Any) -> list[bool]:
    return [reference() is None for reference in references]


def test_nothing_lives_on_when_the_results_are_dropped() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        y = (x * w).sin()
        return y, y.exp() * x

    compiled = aot.aot_function(f, checking_nop)
    warm = leaf(3)
    (gradient,) = torch.autograd.grad(compiled(non_leaf(3), warm)[1].sum(), warm, create_graph=True)
    torch.autograd.grad(gradient.sum(), warm)
    gc.collect()
    gc.disable()  # what waits for the garbage collector is kept too long
    try:
        for backward in (None, "backward", "create_graph"):
            x, w = non_leaf(3), leaf(3, start=4)
            first, second = compiled(x, w)
            references = [weakref.ref(t) for t in (x, w, first, second)]
            nodes = weakref.ref(second.grad_fn)
            if backward == "backward":
                second.sum().backward()
            elif backward == "create_graph":
                (gradient,) = torch.autograd.grad(second.sum(), w, create_graph=True)
                torch.autograd.grad(gradient.sum(), w)
                del gradient
            del x, w, first, second
            assert all(_dead(*references)), backward
            assert _dead(nodes) == [True], backward
    finally:
        gc.enable()


def test_an_argument_that_no_backward_needs_is_let_go() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x + w, (x * 2).sum()

    for function in (f, aot.aot_function(f, checking_nop)):
        root = leaf(1000)
        x = root * 1
        memory = weakref.ref(x.untyped_storage())
        alive = weakref.ref(x)
        results = function(x, leaf(1000))
        del x
        gc.collect()
        assert _dead(alive, memory) == [True, True]
        (results[0].sum() + results[1]).backward()
        assert root.grad is not None


def test_saved_memory_is_let_go_after_the_backward() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 2).exp()

    for function in (f, aot.aot_function(f, checking_nop)):
        x = leaf(1000)
        y = function(x)
        data = weakref.ref(y.untyped_storage())
        loss = y.sum()
        del y
        loss.backward()
        gc.collect()
        assert _dead(data) == [True]
