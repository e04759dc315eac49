"""The tiny compiler does what eager does: results, aliasing, writes, gradients. It refuses the rest."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "tiny_aot.py"
LIMIT = 300  # lines that are not blank


def load() -> Any:
    spec = importlib.util.spec_from_file_location("tiny_aot", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tiny = load()


def write_through_a_view(x: Tensor, w: Tensor) -> Any:
    x[1:].mul_(w)
    return x.view(-1), (x * w).sum()


def write_through_another_argument(a: Tensor, b: Tensor) -> Tensor:
    b.mul_(10)
    return a.sum()


def differentiable_write_through_another_argument(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    b.mul_(w)
    return a.sum()


def views_of_a_result(x: Tensor) -> Any:
    y = x.sin()
    y[0].mul_(2)
    return y.t(), y, y[1:]


def same_result_twice(x: Tensor) -> Any:
    y = x.sin()
    view = y[0]
    return y, y, view, view, x


def loss_and_logits(x: Tensor, w: Tensor, b: Tensor) -> Any:
    logits = torch.addmm(b, x, w).relu()
    return logits.log_softmax(-1)[:, 0].mean(), logits


def normalization(x: Tensor, w: Tensor) -> Any:
    return {"normal": nn.functional.layer_norm(x, (4,), w), "sorted": x.sort(), "number": 3}


def write_without_gradients(w: Tensor, step: Tensor) -> Tensor:
    with torch.no_grad():
        w.sub_(step)
    return (w * step).sum()


def new_tensors(x: Tensor) -> Any:
    y = torch.zeros(3, 4, device=x.device)
    y[0] = x[0]
    y.add_(torch.ones_like(x, dtype=torch.float64))
    return y * x, torch.arange(4), y.device == x.device


def random_numbers(x: Tensor) -> Any:
    return torch.where(torch.rand(3, 4) > 0.5, x, torch.rand_like(x))


def a_write_that_others_overwrite(x: Tensor) -> Any:
    x.zero_()
    x[:, 1].copy_(torch.full((3,), 2))
    return x.detach(), x


def transposed(x: Tensor) -> Any:
    x.t().add_(1)
    return x.expand(2, 3, 4), x.unfold(1, 2, 1)


def square(*shape: int, grad: bool = False) -> Tensor:
    return torch.linspace(0.5, 2, 12)[: torch.Size(shape).numel()].reshape(shape).requires_grad_(grad)


SOURCES: dict[int, Tensor] = {}  # what a tensor was computed from, by its identity


def with_history(x: Tensor) -> Tensor:
    """A tensor that is computed from another one, which gets the gradient."""
    clone = x.clone()
    SOURCES[id(clone)] = x
    return clone


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "write through a view": (write_through_a_view, lambda: (square(3, 4), square(4, grad=True))),
    "to an argument with history": (
        write_through_a_view,
        lambda: (with_history(square(3, 4, grad=True)), square(4, grad=True)),
    ),
    "to a part of a tensor": (
        lambda x, w: (x.mul_(2), (x * w).sum()),
        lambda: (square(3, 4)[1:, ::2], square(2, grad=True)),
    ),
    "write through another argument": (
        write_through_another_argument,
        lambda: (lambda a: (a, a[1:, 1:3]))(square(3, 4)),
    ),
    "differentiable, through another argument": (
        differentiable_write_through_another_argument,
        lambda: (lambda a: (a, a[1:], square(4, grad=True)))(square(3, 4)),
    ),
    "through one that comes first": (
        lambda b, a, w: (b.mul_(w), a.sum(), a.view(-1)),
        lambda: (lambda a: (a[1:], a, square(4, grad=True)))(square(3, 4)),
    ),
    "one argument twice": (lambda a, b: (a * b, a is b), lambda: (square(4, grad=True),) * 2),
    "views of a result": (views_of_a_result, lambda: (square(3, 4, grad=True),)),
    "results that are one": (same_result_twice, lambda: (square(3, 4, grad=True),)),
    "loss and logits": (
        loss_and_logits,
        lambda: (square(3, 4), square(4, 3, grad=True), square(3, grad=True)),
    ),
    "normalization": (normalization, lambda: (square(3, 4, grad=True), square(4, grad=True))),
    "optimizer": (write_without_gradients, lambda: (square(4, grad=True), square(4))),
    "new tensors": (new_tensors, lambda: (square(3, 4, grad=True),)),
    "random": (random_numbers, lambda: (square(3, 4, grad=True),)),
    "overwritten": (a_write_that_others_overwrite, lambda: (with_history(square(3, 4, grad=True)),)),
    "transposed": (transposed, lambda: (with_history(square(3, 4, grad=True)),)),
    "integers": (lambda x: (x.add_(1), x // 2), lambda: (torch.arange(4),)),
    "conv": (
        lambda x, w: nn.functional.conv2d(x, w).relu_().mean(),
        lambda: (square(1, 1, 3, 4), square(2, 1, 2, 2, grad=True)),
    ),
    "nested arguments": (
        lambda pair, named: pair[0] * named["w"],
        lambda: ((square(4), 2), {"w": square(4, grad=True)}),
    ),
}


def observe(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function, run a backward, and describe all that can be seen of both."""
    torch.manual_seed(0)
    given = tiny.tensors_in(args)
    leaves = [tensor for tensor in given if tensor.is_leaf and tensor.requires_grad]
    leaves += [SOURCES[id(tensor)] for tensor in given if not tensor.is_leaf]
    result = function(*args)
    tensors = [*given, *tiny.tensors_in(result)]
    roots = [each for each in tensors if each.requires_grad and each.grad_fn is not None]
    if roots:
        torch.autograd.backward([each.sin().sum() for each in roots])
    storages = [each.untyped_storage() for each in tensors]
    identity = [next(i for i, other in enumerate(tensors) if other is each) for each in tensors]
    shape = tiny.map_tensors(lambda tensor: ..., result)
    facts = [
        (tiny.layout_of(each), each.dtype, each.requires_grad, each.is_leaf, storages.index(storage))
        for each, storage in zip(tensors, storages, strict=True)
    ]
    values = [each.detach().clone() for each in tensors]
    return facts, identity, shape, values, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("case", CASES)
def test_it_does_what_eager_does(case: str) -> None:
    function, make = CASES[case]
    graphs = []

    def compiler(graph: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = tiny.tiny_aot(function, compiler)
    for _ in range(2):
        expected, found = observe(function, make()), observe(compiled, make())
        assert found[:3] == expected[:3]
        torch.testing.assert_close(found[3], expected[3], rtol=0, atol=0)
        torch.testing.assert_close(found[4], expected[4])  # autograd adds gradients up in another order
    assert len(graphs) == 2, "the second call was compiled again"
    for node in (node for graph in graphs for node in graph.graph.nodes):
        assert not getattr(node.target, "name", lambda: "")().split(".")[0].endswith("_"), "a graph writes"


def test_another_kind_of_call_is_compiled_again() -> None:
    graphs: list[Any] = []
    compiled = tiny.tiny_aot(lambda a, b: (a.mul_(2), b.sum()), lambda graph: graphs.append(graph) or graph)
    base = torch.ones(6)
    assert compiled(base, base[2:])[1] == 8
    assert compiled(torch.ones(6), torch.ones(4))[1] == 4
    assert compiled(base, base[3:])[1] == 12
    assert len(graphs) == 2 * 3


def test_a_model_trains_as_in_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    x, parameters = torch.randn(5, 4), dict(model.named_parameters())

    def loss(named: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, named, (x,)).square().mean()

    def train(function: Any) -> list[float]:
        copies = {name: each.detach().clone().requires_grad_() for name, each in parameters.items()}
        losses = []
        for _ in range(5):
            value = function(copies, x)
            for each, gradient in zip(
                copies.values(), torch.autograd.grad(value, [*copies.values()]), strict=True
            ):
                with torch.no_grad():
                    each.sub_(0.1 * gradient)
            losses.append(value.item())
        return losses

    losses = train(loss)
    assert losses[-1] < losses[0]
    assert train(tiny.tiny_aot(loss)) == losses


def test_a_write_before_the_backward_is_seen() -> None:
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    result = tiny.tiny_aot(lambda x, w: (x * w).sum())(x, w)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_errors_of_eager_are_raised() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        tiny.tiny_aot(lambda w: w.mul_(2))(torch.ones(3, requires_grad=True))


OUTSIDE = torch.ones(3)
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "value": (lambda x: x * x.sum().item(), (torch.ones(3),), "asks for the value"),
    "closure": (lambda x: x * OUTSIDE, (torch.ones(3),), "no argument"),
    "metadata": (lambda x: x.t_(), (torch.ones(2, 3),), "does not know"),
    "list": (lambda x: torch._foreach_add_([x], 1), (torch.ones(3),), "functional form"),
    "dropout": (
        nn.functional.dropout,
        (torch.ones(3, requires_grad=True),),
        "functional form",
    ),
    "another dtype": (lambda x: x.view(torch.int32) + 1, (torch.ones(3),), "another dtype"),
    "overlap": (lambda x: x[0].mul_(2), (torch.ones(1, 3).expand(2, 3),), "overlaps itself"),
    "aliases": (
        lambda a, b: a * b,
        (lambda a: (a, a.detach()))(torch.ones(3, requires_grad=True)),
        "arguments share memory",
    ),
    "detached": (
        lambda x: (lambda y: (y.detach(), y))(x.sin()),
        (torch.ones(3, requires_grad=True),),
        "another tensor on its memory",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_know_is_refused_before_anything_changes(case: str) -> None:
    function, args, message = REFUSED[case]
    before = [(tensor.clone(), tensor._version) for tensor in args]
    with pytest.raises(tiny.Refusal, match=message):
        tiny.tiny_aot(function)(*args)
    for tensor, (value, version) in zip(args, before, strict=True):
        assert torch.equal(tensor, value) and tensor._version == version


def test_it_can_be_read_in_one_sitting() -> None:
    text = FILE.read_text()
    assert 250 <= len([line for line in text.splitlines() if line]) <= LIMIT
    private = set(re.findall(r"torch\.(?:[a-z]+\.)*_\w+", text))
    assert private == {"torch.utils._python_dispatch"}
