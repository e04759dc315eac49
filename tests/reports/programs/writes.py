"""Reports about writes to arguments, and to what shares memory with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.reports.report import Program, Report, Stock
from tests.support.agreement import PARTITIONERS, Make, checking_nop, leaf, non_leaf, values


def _writes_through_expand(x: Tensor) -> Tensor:
    wide = x.expand(3, 4)
    wide.zero_()
    return x + 1


def _writes_one_of_equal_elements(x: Tensor) -> Tensor:
    wide = x[0].expand(3)
    wide[-1] = 3
    return wide


def _writes_a_corner(x: Tensor) -> Tensor:
    twice = x.expand(2, 3, 2)
    twice[0, 0] = 5
    return twice


def _writes_through_dropout(x: Tensor) -> Tensor:
    same = torch.nn.functional.dropout(x, 0.5, training=False)
    same += same
    return same


def _writes_with_gaps(x: Tensor) -> Tensor:
    windows = x.unfold(1, 1, 5)
    windows.add_(windows)
    return x


def _writes_overlapping_windows(x: Tensor) -> Tensor:
    return (x + x).unfold(0, 3, 2).abs_()


def _writes_the_diagonal(x: Tensor) -> Tensor:
    x.diagonal().add_(1)
    return x


def _writes_an_element_and_reads_a_view(x: Tensor) -> Tensor:
    part = x[0:1]
    scalar = part.squeeze()
    part[0] = 0
    part[0] = 2
    return scalar


def _fills_with_an_ellipsis(x: Tensor) -> None:
    x[...] = 0


def _updates_a_parameter(parameter: Tensor, step: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(False)
        parameter.add_(step)
    finally:
        torch.set_grad_enabled(before)
    return step


def _scales_in_place(x: Tensor, y: Tensor) -> Tensor:
    x *= y
    return torch.sin(x)


def _divides_a_transposed_view(x: Tensor, w: Tensor) -> Tensor:
    turned = (x @ w).view(2, 3, -1).transpose(-1, -2)
    turned /= 2
    return turned


def _adds(x: Tensor) -> Tensor:
    return x.add_(1)


def _under_no_grad(x: Tensor) -> None:
    with torch.no_grad():
        x.add_(1)


def _through_detach(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x + 1


def _through_data(x: Tensor) -> Tensor:
    x.data.mul_(2)
    return x * x


def _doubles_a_column(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def _writes_views_in_turn(x: Tensor) -> Tensor:
    part = x[:].as_strided([2, 2], [4, 2], 0)
    part.add_(1)
    x.mul_(2)
    part[1:] = 3
    return part[1::2]


def _writes_by_strides_of_the_storage(x: Tensor) -> Tensor:
    x.diagonal().as_strided((2,), (1,), 0).add_(1)
    return x


def _as_its_own_dtype(x: Tensor, y: Tensor) -> None:
    x.view(torch.float32).copy_(y)


def _shifts(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    return x * 1


def _turns_and_adds(x: Tensor) -> Tensor:
    view = x.t()
    view.add_(1)
    return view


Access = Callable[[Tensor], Tensor]

BY_STRIDES: tuple[Access, ...] = (
    lambda x: torch.as_strided_copy(x, (2, 2), (3, 1)),
    lambda x: torch.as_strided_copy(x, (2,), (3,), 4),
    lambda x: torch.as_strided_scatter(x, torch.full((2,), 7.0), (2,), (2,)),
    lambda x: torch.as_strided_scatter(x, torch.full((2,), 7.0), (2,), (2,), 4),
)


def _by_strides(
    access: Callable[[Tensor], Tensor], written: bool
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        if written:
            x.add_(1)
        own = x + 3
        own.mul_(2)
        return access(x), torch.as_strided_copy(own, (2,), (2,))

    return f


LAYOUTS: tuple[Access, ...] = (
    lambda x: x.view(-1)[::2],
    lambda x: x[:, 1:3],
    lambda x: x[:, 2],
    lambda x: x[1:3].t(),
    lambda x: x.view(-1)[3:8],
)


def _laid_out(make: Callable[..., Tensor], layout: Access) -> Make:
    return lambda: [layout(make(4, 5))]


def _first_element(x: Tensor) -> Tensor:
    x[0] = x[0] + 1
    return x


def _relu_of_a_view(x: Tensor) -> Tensor:
    return torch.relu_((x * 2).view(1, 3, 2))


def _writes_a_view_and_its_like(x: Tensor) -> Tensor:
    y = x.clone()[:, 1]
    y.masked_fill_(torch.ones_like(y, dtype=torch.bool), 0)
    return y


def _in_place(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return activation(x.exp()), x * 2

    return f


_relu, _leaky, _silu = (
    torch.nn.ReLU(inplace=True),
    torch.nn.LeakyReLU(inplace=True),
    torch.nn.SiLU(inplace=True),
)


def _overwrites(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
    result = x @ w
    buffer.copy_(w.sum(0))
    return result


def _averages(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
    result = x @ w
    buffer.detach().mul_(0.5)
    with torch.no_grad():
        buffer.add_(result.sum(0) * 0.5)
    return result + buffer


def _accumulates(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
    buffer.mul_(0.5).add_(w.sum(0))
    return x @ w


def _three_steps_with_one_buffer(function: Callable[..., Any]) -> Any:
    buffer, w = torch.zeros(2), leaf(3, 2)
    told = []
    for step in range(3):
        function(values(4, 3, start=step), w, buffer).square().sum().backward()
        assert w.grad is not None
        told.append((buffer.clone(), buffer.requires_grad, w.grad.clone()))
    return told


def _whole(buffer: Tensor) -> Tensor:
    return buffer


def _row(buffer: Tensor) -> Tensor:
    return buffer[1:2]


def _turned(buffer: Tensor) -> Tensor:
    return buffer.t()


def _reads_and_writes_a_buffer(view: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def f(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
        y = (x + view(buffer)).sin()
        buffer.mul_(3)
        return (y @ w).cos()

    return f


def _two_calls_and_a_write(function: Callable[..., Any]) -> Any:
    x, w, buffer = leaf(4, 4), leaf(4, 4, start=3), values(4, 4, start=8)
    first = function(x, w, buffer)
    second = function(x, w, buffer)
    buffer.zero_()
    (first * 2 + second).sum().backward()
    return x.grad, w.grad, buffer


def _what_is_written_is_not_read_again(view: Callable[[Tensor], Tensor], budget: float) -> None:
    """In the forward, by the caller, or by the next call."""
    f = _reads_and_writes_a_buffer(view)
    partition = functools.partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    expected = _two_calls_and_a_write(f)
    got = _two_calls_and_a_write(aot.aot_function(f, checking_nop, partition_fn=partition))
    for mine, its in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, its)


KEEPING_OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "its result": lambda x: (x * 2 + 1).sigmoid().exp(),
    "a view of its result": lambda x: x.view(-1)[2:].tanh(),
    "indices": lambda x: x.max(0).values * 3,
    "nothing": lambda x: torch.cat([x + x.detach(), x.relu()]),
}


def _keeps_the_argument(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (3,))


def _the_caller_writes_to_what_he_gave(function: Callable[..., Any]) -> Tensor:
    root = leaf(4, 3)
    x = root * 1
    result = function(x)
    with torch.no_grad():
        x.mul_(3)
    (gradient,) = torch.autograd.grad(result.sum(), root)
    return gradient


def _does_not_complain_of_a_write(kept: str, partitioner: str) -> None:
    f = KEEPING_OTHERS[kept]
    compiled = aot.aot_function(f, checking_nop, partition_fn=PARTITIONERS[partitioner])
    got, expected = map(_the_caller_writes_to_what_he_gave, (compiled, f))
    torch.testing.assert_close(got, expected)


def _complains_of_a_write(partitioner: str) -> None:
    f = _keeps_the_argument
    compiled = aot.aot_function(f, checking_nop, partition_fn=PARTITIONERS[partitioner])
    for function in (f, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            _the_caller_writes_to_what_he_gave(function)


REPORTS = (
    Report(
        140707,
        "a buffer is given again after a backward, written with what has a history by then",
        Program(_overwrites, story=_three_steps_with_one_buffer),
        Stock("raises", "raises"),
        since=(2, 13),
        as_reported=False,
        variants=(
            Program(_averages, story=_three_steps_with_one_buffer),
            Program(_accumulates, story=_three_steps_with_one_buffer),
        ),
    ),
    Report(
        197039,
        "a backward that computes again reads a buffer that was written in between",
        Program(_reads_and_writes_a_buffer(_whole), story=_two_calls_and_a_write),
        None,
        checks=tuple(
            functools.partial(_what_is_written_is_not_read_again, view, budget)
            for view in (_whole, _row, _turned)
            for budget in (0, 0.5, 1)
        ),
    ),
    Report(
        185497,
        "whether a backward complains of a write does not depend on what is kept for it",
        Program(KEEPING_OTHERS["its result"], story=_the_caller_writes_to_what_he_gave),
        since=(2, 13),
        checks=(
            *(
                functools.partial(_does_not_complain_of_a_write, kept, partitioner)
                for kept in KEEPING_OTHERS
                for partitioner in PARTITIONERS
            ),
            *(functools.partial(_complains_of_a_write, partitioner) for partitioner in PARTITIONERS),
        ),
    ),
    Report(
        197448,
        "a write through an expanded view is lost",
        Program(_writes_through_expand, lambda: [values(1, 4)]),
        Stock("input-data", "input-data"),
        needs=("operator: expand*",),
    ),
    Report(
        152425,
        "one of several elements that are one in memory is written",
        Program(_writes_one_of_equal_elements, lambda: [values(2)]),
    ),
    Report(
        114302,
        "a write after `expand` is added up",
        Program(_writes_a_corner, lambda: [values(3, 2)]),
    ),
    Report(
        195422,
        "a write through what `dropout` returns in eval mode is lost",
        Program(_writes_through_dropout, lambda: [values(2, 2)]),
        Stock("input-data", "input-data"),
        newer=((2, 14), Stock()),
        needs=("operator: dropout_eval",),
        variants=(Program(_writes_through_dropout, lambda: [non_leaf(2, 2)]),),
    ),
    Report(
        198102,
        "a write through windows with gaps zeroes what lies between them",
        Program(_writes_with_gaps, lambda: [values(4, 6)]),
        Stock("input-data", "input-data"),
        needs=("operator: unfold",),
        variants=(Program(_writes_with_gaps, lambda: [non_leaf(4, 6)]),),
    ),
    Report(
        165409,
        "a write to overlapping windows raises",
        Program(_writes_overlapping_windows, lambda: [values(5)]),
        Stock("raises", "raises"),
    ),
    Report(
        104463,
        "a write to the diagonal of an argument",
        Program(_writes_the_diagonal, lambda: [values(2, 4)]),
        variants=(Program(_writes_the_diagonal, lambda: [non_leaf(2, 4)]),),
    ),
    Report(
        97083,
        "a view is read that was taken before two writes",
        Program(_writes_an_element_and_reads_a_view, lambda: [values(3)]),
    ),
    Report(
        135441,
        "a write under an ellipsis moves the version counter",
        Program(_fills_with_an_ellipsis, lambda: [values(4)]),
    ),
    Report(
        93682,
        "a step of an optimizer on a leaf, with grad mode switched by hand",
        Program(_updates_a_parameter, lambda: [leaf(4), values(4)]),
    ),
    Report(
        288,
        "a product in place of an argument with a history",
        Program(_scales_in_place, lambda: [non_leaf(4), leaf(4, start=3)]),
        Stock("right", "raises"),
        newer=((2, 15), Stock()),
        as_reported=False,
        repository="pytorch/torchdynamo",
    ),
    Report(
        102564,
        "a division in place of a transposed view of a value",
        Program(_divides_a_transposed_view, lambda: [values(2, 2), leaf(2, 6)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
    ),
    Report(
        93363,
        "every other element of an argument is written",
        Program(_adds, lambda: [non_leaf(4)[::2]]),
        Stock("raises", "raises"),
        as_reported=False,
        variants=(Program(_adds, lambda: [values(4)[::2]]),),
    ),
    Report(
        90844,
        "a leaf is written under no_grad",
        Program(_under_no_grad, lambda: [leaf(3)]),
        variants=(
            Program(_under_no_grad, lambda: [values(3)]),
            Program(_under_no_grad, lambda: [non_leaf(3)]),
        ),
    ),
    Report(
        95167,
        "an argument is written through `detach` or `data`",
        Program(_through_detach, lambda: [leaf(3)]),
        variants=(
            Program(_through_detach, lambda: [values(3)]),
            Program(_through_detach, lambda: [non_leaf(3)]),
            Program(_through_data, lambda: [values(3)]),
            Program(_through_data, lambda: [leaf(3)]),
            Program(_through_data, lambda: [non_leaf(3)]),
        ),
    ),
    Report(
        106456,
        "a column is written",
        Program(_doubles_a_column, lambda: [non_leaf(2, 2)[:, 0]]),
        Stock("raises", "raises"),
        as_reported=False,
        variants=(Program(_doubles_a_column, lambda: [values(2, 2)[:, 0]]),),
    ),
    Report(
        92129,
        "a view of a view is written in turn with its base",
        Program(_writes_views_in_turn, lambda: [values(2, 4)]),
        Stock("raises", "raises"),
        as_reported=False,
        variants=(Program(_writes_views_in_turn, lambda: [non_leaf(2, 4)]),),
    ),
    Report(
        104505,
        "`as_strided` of a diagonal goes by the storage",
        Program(_writes_by_strides_of_the_storage, lambda: [values(2, 4)]),
        Stock("raises", "raises"),
        as_reported=False,
        variants=(Program(_writes_by_strides_of_the_storage, lambda: [non_leaf(2, 4)]),),
    ),
    Report(
        136064,
        "a write through a view as the dtype that it has",
        Program(_as_its_own_dtype, lambda: [values(4, 4), values(4, 4, start=3)]),
        variants=(Program(_as_its_own_dtype, lambda: [non_leaf(4, 4), non_leaf(4, 4, start=3)]),),
    ),
    Report(
        197829,
        "an argument is shifted by one",
        Program(_shifts, lambda: [values(5)]),
        variants=(Program(_shifts, lambda: [non_leaf(5)]),),
    ),
    Report(
        111417,
        "a transposed view of an argument is written and returned",
        Program(_turns_and_adds, lambda: [values(2, 3)]),
        variants=(Program(_turns_and_adds, lambda: [non_leaf(2, 3)], grad=True),),
    ),
    Report(
        133512,
        "what is written lies in memory as before, where strides are asked for",
        Program(_by_strides(BY_STRIDES[0], True), lambda: [values(4, 5)[1:3].t()]),
        variants=tuple(
            Program(_by_strides(access, written), _laid_out(make, layout))
            for number, access in enumerate(BY_STRIDES)
            for written in (True, False)
            for layout in LAYOUTS
            # (In eager, the scatters have no derivative there.)
            for make in ((values, non_leaf) if number < 2 else (values,))
        ),
    ),
    Report(
        153861,
        "an element is written of an argument with a stride of zero",
        Program(_first_element, lambda: [values(2, 2).as_strided((2, 1), (1, 0))]),
        variants=(Program(_first_element, lambda: [non_leaf(2, 2).as_strided((2, 1), (1, 0))]),),
    ),
    Report(
        514,
        "an activation in place of a view of a value",
        Program(_relu_of_a_view, lambda: [leaf(3, 2)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
        repository="pytorch/functorch",
    ),
    Report(
        142118,
        "strides of a column that was filled in place",
        Program(_writes_a_view_and_its_like, lambda: [values(4, 4)]),
    ),
    Report(
        104943,
        "an activation in place of what a backward needs raises in that backward",
        Program(_in_place(_relu), lambda: [leaf(3)], grad=True, backward_raises=True),
        Stock("raises", "raises"),
        as_reported=False,
        variants=(
            *(
                Program(_in_place(activation), lambda: [leaf(3)], grad=True, backward_raises=True)
                for activation in (_leaky, _silu, Tensor.sigmoid_)
            ),
            *(
                Program(_in_place(activation), lambda: [leaf(3)], grad=False)
                for activation in (_relu, _leaky, _silu, Tensor.sigmoid_)
            ),
        ),
    ),
)
