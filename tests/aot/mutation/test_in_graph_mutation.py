"""`keep_inference_input_mutations`: which writes to arguments the graph does itself, and that it does them.

(That the results are the same is compared wherever a program is compared with eager, see `agree`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import aot
from tests.support.agreement import checking_nop, leaf, non_leaf, values

pytestmark = pytest.mark.clause("input-data")

Function = Callable[..., Any]


def keeping(function: Function, *args: Any) -> tuple[list[str], aot.frontends.function.Specialization]:
    """The graph inputs that the graph writes to, in order, and the specialization for a call."""
    compiled = aot.aot_function(function, checking_nop, keep_inference_input_mutations=True)
    compiled(*args)
    (one,) = compiled.specializations
    return [n.args[0].name for n in copies(one.forward)], one


def copies(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]


def _scales(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x.detach().sum()


def _assigns(x: Tensor) -> None:
    x.data.mul_(2)


def _part(x: Tensor) -> None:
    x.detach()[1:].zero_()


def _exchanges(x: Tensor, y: Tensor) -> Tensor:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x + y


@pytest.mark.parametrize("make", [values, leaf, non_leaf])
@pytest.mark.parametrize("f", [_scales, _assigns, _part])
def test_new_data_stays_in_the_graph(f: Function, make: Callable[..., Tensor]) -> None:
    written, one = keeping(f, make(3))
    assert written == ["primals_1"]
    assert "copy_(" not in one.wrapper
    (copy,) = copies(one.forward)
    assert copy.next.op == "output", "the last thing that the graph does"
    assert copy.args[1] not in copy.next.args[0], "what is written is not returned"


def test_new_data_of_elements_with_gaps() -> None:
    whole = values(4, 3)
    expected = whole.clone()
    expected[:, 1] *= 2
    written, one = keeping(_scales, whole[:, 1])
    assert written == ["primals_1"]
    assert "copy_(" not in one.wrapper
    assert torch.equal(whole, expected)


def test_several_arguments() -> None:
    x, y = values(3), values(3, start=9)
    before = x.clone(), y.clone()
    written, one = keeping(_exchanges, x, y)
    assert written == ["primals_1", "primals_2"]
    assert "copy_(" not in one.wrapper
    assert torch.equal(x, before[1])
    assert torch.equal(y, before[0])
    assert len(one.forward.graph.output_node().args[0]) == 1


def test_without_the_option_the_wrapper_writes() -> None:
    compiled = aot.aot_function(_scales, checking_nop)
    compiled(values(3))
    (one,) = compiled.specializations
    assert copies(one.forward) == []
    assert "t0.copy_(v0)" in one.wrapper


def test_the_version_counter_moves_whatever_the_compiled_graph_does() -> None:
    def compiler(module: fx.GraphModule, example_inputs: Any) -> Any:
        def run(x: Tensor) -> list[Tensor]:
            x.data.mul_(2)  # as a kernel of a compiler's own does, which nobody counts
            return [x.sum()]

        return run

    compiled = aot.aot_function(_scales, compiler, keep_inference_input_mutations=True)
    x = values(3)
    version = x._version
    compiled(x)
    assert x._version == version + 1


def _with_history(x: Tensor) -> Tensor:
    return x.mul_(2).sum()


def _transposed(x: Tensor) -> None:
    x.mul_(2)
    x.t_()


def _grown(x: Tensor) -> None:
    x.resize_(8).fill_(1)


def _elsewhere(x: Tensor) -> None:
    x.mul_(2)
    x.data = x.clone()


def _both(x: Tensor, y: Tensor) -> None:
    x.mul_(2)


def _slices() -> list[Tensor]:
    whole = values(6)
    return [whole[:4], whole[2:]]


def _inference() -> list[Tensor]:
    with torch.inference_mode():
        return [values(3)]


def _doubles(x: Tensor) -> None:
    with torch.inference_mode(x.is_inference()):
        x.mul_(2)


@pytest.mark.parametrize(
    ("f", "make"),
    [
        pytest.param(_with_history, lambda: [non_leaf(3)], id="with a history"),
        pytest.param(_transposed, lambda: [values(2, 3)], id="and metadata"),
        pytest.param(_grown, lambda: [values(3)], id="and a larger storage"),
        pytest.param(_elsewhere, lambda: [values(3)], id="and another storage"),
        pytest.param(_both, _slices, id="of overlapping arguments"),
        pytest.param(_doubles, lambda: [values(3, dtype=torch.complex64).conj()], id="lazily conjugated"),
        pytest.param(_doubles, _inference, id="of an inference tensor"),
    ],
)
def test_what_is_more_than_new_data_is_left_to_the_wrapper(
    f: Function, make: Callable[[], list[Tensor]]
) -> None:
    expected, arguments = make(), make()
    f(*expected)
    written, one = keeping(f, *arguments)
    assert written == []
    assert "copy_(" in one.wrapper or "written(" in one.wrapper
    for mine, its in zip(arguments, expected, strict=True):
        assert torch.equal(mine, its)


def test_memory_that_the_graph_reads_by_another_input_is_left_to_the_wrapper() -> None:
    """A backend may write before it reads, as far as it can tell."""

    def f(other: Tensor, x: Tensor, alone: Tensor) -> Tensor:
        result = other.sum()
        x.mul_(2)
        alone.mul_(3)
        return result

    x = values(4)
    written, _ = keeping(f, x.data, x, values(4))
    assert written == ["primals_3"]


def test_each_of_several_arguments_for_itself() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        x.mul_(2)
        y.mul_(2)
        y.t_()

    written, one = keeping(f, values(2, 3), values(2, 3))
    assert written == ["primals_1"]
    assert "t1.copy_(" in one.wrapper
    assert "t0.copy_(" not in one.wrapper


def test_a_kind_of_call_with_a_backward_returns_its_writes() -> None:
    compiled = aot.aot_function(_with_history, checking_nop, keep_inference_input_mutations=True)
    for make in (values, non_leaf):
        compiled(make(3))
    plain, differentiated = compiled.specializations
    assert len(copies(plain.forward)) == 1
    assert copies(differentiated.forward) == []
    assert "written(" in differentiated.wrapper
