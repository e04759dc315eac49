"""What the oracles see of tensor subclasses that are made of other tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from oracles import Arguments, Outcome, judge, observe
from oracles.observation.gradients import observe_later_write
from oracles.observation.result_structure import result_tree_nodes, wrapper_subclass_parts
from oracles.observation.tensor_state import Known, element_reader, value_of


class Tagged(TwoTensor):
    """Two tensors, and a context."""

    tag: Any = None

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a", "b"], self.tag

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Tagged:
        return tagged(inner["a"], inner["b"], context)


def tagged(a: Tensor, b: Tensor, tag: Any) -> Tagged:
    made = Tagged(a, b)
    made.tag = tag
    return made


def two(grad: bool = False) -> Any:
    return TwoTensor(torch.arange(3.0), torch.arange(3.0) + 5).requires_grad_(grad)


def test_parts_are_nodes_of_their_own() -> None:
    tree = [tagged(torch.ones(2), torch.ones(2), 7)]
    described = [(node.path, node.description.rpartition(".")[2]) for node in result_tree_nodes(tree, "out")]
    assert described == [
        ("out", "list of 1"),
        ("out[0]", "Tagged with context 7"),
        ("out[0].a", "Tensor"),
        ("out[0].b", "Tensor"),
    ]
    assert wrapper_subclass_parts(torch.ones(2)) is None
    assert wrapper_subclass_parts(torch.nn.Parameter(torch.ones(2))) is None


def test_a_value_is_that_of_all_parts() -> None:
    value = value_of(TwoTensor(torch.ones(2), torch.zeros(2)))
    assert value is not None
    assert torch.equal(value.tensor(), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    assert value.kind.startswith("TwoTensor(a, b)")


@pytest.mark.parametrize("written", ["a part", "a root", "a wrapper"])
def test_a_write_that_a_wrapper_or_a_root_does_not_notice(written: str) -> None:
    """What a backward keeps is undefined then, and the last backward proves nothing."""
    root = torch.arange(3.0)
    wrapper: Any = TwoTensor(root.detach(), root.detach() + 5)
    known = [Known("w", wrapper, element_reader(wrapper)), Known("w.a", wrapper.a, element_reader(wrapper.a))]
    alone = observe_later_write("w", wrapper, known)
    assert (alone.raised, alone.uncounted) == (None, False)
    known.append(Known("root", root, element_reader(root)))
    target = {"a part": wrapper.a, "a root": root, "a wrapper": wrapper}[written]
    assert observe_later_write(written, target, known).uncounted


class _Halved(torch.autograd.Function):
    """The product with 2 whose gradient is wrong in one part."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        return TwoTensor(x.a * 2, x.b * 2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Tensor:
        return TwoTensor(gradient.a * 2, gradient.b)


class _Plain(torch.autograd.Function):
    """The product with 2 whose gradient is no subclass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        return TwoTensor(x.a * 2, x.b * 2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Tensor:
        return torch.ones(6)[:3] * 2


def _write(x: Any) -> Tensor:
    return x.mul_(2)


def _write_one_part(x: Any) -> Tensor:
    x.a.mul_(2)
    torch.autograd.graph.increment_version(x)
    return x


Faulty = tuple[Callable[..., Any], Callable[..., Any], Callable[[], Any], str]
FAULTS: dict[str, Faulty] = {
    "type": (lambda x: x * 2, lambda x: x.a * 2, two, "structure"),
    "context": (
        lambda x: tagged(x.a + 1, x.b + 1, 1),
        lambda x: tagged(x.a + 1, x.b + 1, 2),
        two,
        "structure",
    ),
    "elements": (lambda x: x * 2, lambda x: TwoTensor(x.a * 2, x.b * 3), two, "values"),
    "aliasing": (
        lambda x: TwoTensor(x.a, x.b),
        lambda x: TwoTensor(x.a, x.b.clone()),
        two,
        "identity",
    ),
    "shared memory": (
        lambda x: TwoTensor(x.a[:2], x.b[:2]),
        lambda x: TwoTensor(x.a[:2], x.b[:2].clone()),
        two,
        "aliasing",
    ),
    "write": (_write, _write_one_part, two, "input-data"),
    "gradient": (lambda x: x * 2, _Halved.apply, lambda: two(True), "gradients"),
    "gradient's type": (lambda x: x * 2, _Plain.apply, lambda: two(True), "gradients"),
    "requires_grad": (lambda x: x * 2, lambda x: (x * 2).detach(), lambda: two(True), "autograd-metadata"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    right, wrong, make, clause = FAULTS[name]

    def look(function: Callable[..., Any]) -> Any:
        return observe(function, lambda: Arguments((make(),)))

    def control() -> Any:
        return look(right)

    assert judge(look(right), look(right), None, control).outcome is Outcome.AGREE
    verdict = judge(look(right), look(wrong), None, control)
    assert verdict.outcome is Outcome.FINDING
    assert clause in {finding.clause for finding in verdict.findings}
