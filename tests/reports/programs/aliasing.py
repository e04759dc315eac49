"""Reports about arguments and results that share memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from oracles import Backward
from tests.reports.report import Program, Report, Stock
from tests.support.agreement import checking_nop, leaf, non_leaf, values


def _adds_and_takes_a_row(base: Tensor, part: Tensor) -> Tensor:
    base.add_(100)
    return part[0]


def _adds_and_flattens(base: Tensor, part: Tensor) -> Tensor:
    base.add_(100)
    return part.view(-1)


def _returns_the_part(base: Tensor, part: Tensor) -> Tensor:
    part.mul_(2)
    return part


def _base_and_part() -> list[Tensor]:
    base = values(4, 6)
    return [base, base[1:]]


def _base_and_part_with_history() -> list[Tensor]:
    base = non_leaf(4, 6)
    return [base, base[1:]]


def _preconditions(*blocks: Tensor) -> None:
    for block in blocks:
        block.view(-1).mul_(2)
        block.add_(block.t() @ block)


def _blocks() -> list[Tensor]:
    whole = values(8, 2)
    return [whole[i : i + 2] for i in range(0, 8, 2)]


def _caches(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    second.mul_(2)
    first.add_(1)
    return first + 1, second + 1


def _buffer() -> list[Tensor]:
    buffer = torch.arange(64, dtype=torch.uint8)
    return [buffer[:32].view(torch.float32), buffer[16:48].view(torch.int16)]


def _with_its_detached_self(x: Tensor) -> tuple[Tensor, Tensor]:
    loss = x.mean()
    return loss, loss.detach()


def _equal_results(mode: bool) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(mode):
            first = x + 1
        with torch.set_grad_enabled(not mode):
            second = x + 1
        return first, second, first.detach()

    return f


def _parts_beside_detached(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.sin(x)
    return y[:4], y[4:], y.detach(), y * 1


def _view_without_history(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        view = y[1:]
    return y, view


def _detached_alias(a: Tensor) -> tuple[Tensor, Tensor]:
    alias = a.detach()
    a.mul_(2)
    return a, alias


def _writes_one_of_several(x: Tensor) -> tuple[Tensor, ...]:
    parts = x.unbind()
    with torch.no_grad():
        parts[0].mul_(2)
    parts[1].data.add_(1)
    return parts


def _complex_and_real(x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.view_as_complex(x + 1)
    return torch.view_as_real(z) + 1, torch.view_as_real(z + 1)


def _expanded(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(0).expand(5, 2), (x * 2).expand(3, 3, 2)


def _twice_the_same_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.view(y.shape), y.view(y.shape)


def _unsqueezed(x: Tensor) -> Tensor:
    return x.unsqueeze(-1)


def _turned_and_scaled(x: Tensor) -> Tensor:
    turned = x.t()
    turned.mul_(1.5)
    return turned


def _loss_and_view_without_history(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 3
    with torch.no_grad():
        view = y.view(-1)
    return y.sum(), view


def _expanded_sum(x: Tensor) -> Tensor:
    return x.sum(0, keepdim=True).expand_as(x)


def _negative_view_is_written(x: Tensor) -> tuple[Tensor, Tensor]:
    negative = torch._neg_view(x)
    return negative, negative.add_(3)


def _taken_apart(x: Tensor) -> tuple[Tensor, ...]:
    return x.unbind()


def _in_inference_mode(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        return (x @ w).view(-1)


def _conjugate_is_scaled(x: Tensor) -> Tensor:
    y = (x * 1j).conj()
    y.mul_(2 + 1j)
    return torch.view_as_real(y.resolve_conj())


def views_of_a_value(x: Tensor) -> tuple[Tensor, ...]:
    whole = x + x
    part = whole.split([1, 2])[1]
    row = part.unsqueeze(-1)
    return part, row * x.sum(), whole


def _aligning(module: Any, example_inputs: Any) -> Callable[..., Any]:
    """A backend that runs on clones of what does not begin at a multiple of 16 bytes."""
    run = checking_nop(module, example_inputs)

    def aligned(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and value.data_ptr() % 16 else value

    return lambda *arguments: run(*map(aligned, arguments))


def _shifted_tokens(tokens: Tensor) -> list[Tensor]:
    return [tokens[:, :-1], tokens[:, 1:]]


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x[1:], y.view(-1), x.detach(), y, (x * y).exp()


def _written_parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    return x[1:], y[0], x * y


def _unaligned_tokens() -> list[Tensor]:
    return [values(4, 5).view(-1)[1:13].view(3, 4)]


def _results_show_the_callers_memory(f: Callable[..., Any], views: int, make: Callable[..., Tensor]) -> None:
    def story(function: Callable[..., Any]) -> Any:
        base = make(4, 5)
        arguments = [base.view(-1)[1 + k : 13 + k].view(3, 4) for k in range(views)]
        results = function(*arguments)
        version = [r._version for r in results]
        told = [(r.clone(), r.stride(), r.storage_offset(), r.requires_grad) for r in results]
        shared = [r.untyped_storage().data_ptr() == base.untyped_storage().data_ptr() for r in results]
        with torch.no_grad():
            results[0].mul_(3)
        return version, told, shared, base.clone(), [r.clone() for r in results]

    expected = story(f)
    compiled = aot.aot_function(f, _aligning)
    for _ in range(2):
        assert str(story(compiled)) == str(expected)


def _a_write_to_what_a_clone_was_made_of_is_noticed() -> None:
    for function in (torch.square, aot.aot_function(torch.square, _aligning)):
        part = non_leaf(5)[1:]
        result = function(part)
        with torch.no_grad():
            part.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def _scales_and_subtracts(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(3)
    return x - y


def _apart_and_then_overlapping(function: Callable[..., Any]) -> Any:
    function(values(4), values(4, start=4))
    base = values(7)
    return function(base[:4], base[2:6]), base


def _overlap_is_a_specialization_of_its_own() -> None:
    compiled = aot.aot_function(_scales_and_subtracts, checking_nop)
    _apart_and_then_overlapping(compiled)
    assert len(compiled.specializations) == 2


REPORTS = (
    Report(
        191002,
        "a graph compiler clones what it is given, and results show the caller's memory all the same",
        Program(_shifted_tokens, _unaligned_tokens),
        None,
        checks=(
            *(
                functools.partial(_results_show_the_callers_memory, f, views, make)
                for f, views, makes in (
                    (_shifted_tokens, 1, (values, leaf, non_leaf)),
                    (_parts, 2, (values, leaf, non_leaf)),
                    (_written_parts, 2, (values, non_leaf)),
                )
                for make in makes
            ),
            _a_write_to_what_a_clone_was_made_of_is_noticed,
        ),
        also=(151799,),
    ),
    Report(
        139789,
        "arguments come apart in one call, and overlap in the next",
        Program(_scales_and_subtracts, story=_apart_and_then_overlapping),
        Stock("values", "values"),
        since=(2, 13),
        as_reported=False,
        checks=(_overlap_is_a_specialization_of_its_own,),
    ),
    Report(
        198095,
        "a row of an alias is that of the base when the base was written",
        Program(_adds_and_takes_a_row, _base_and_part),
        Stock("values", "values"),
        needs=("alias: *", "output: alias of a written argument"),
        variants=(
            Program(_adds_and_takes_a_row, _base_and_part_with_history),
            Program(_adds_and_flattens, _base_and_part),
            Program(_adds_and_flattens, _base_and_part_with_history),
        ),
    ),
    Report(
        167764,
        "an alias is written and returned, and its base is an argument too",
        Program(_returns_the_part, _base_and_part),
        Stock("identity", "right"),
        as_reported=False,
        variants=(Program(_returns_the_part, _base_and_part_with_history),),
    ),
    Report(
        113793,
        "blocks of a matrix are written through views and themselves",
        Program(_preconditions, _blocks),
    ),
    Report(
        194747,
        "parts of one buffer have several dtypes, and are written",
        Program(_caches, _buffer),
        Stock("input-data", "input-data"),
        as_reported=False,
    ),
    Report(
        100348,
        "a result and its detached self are one object",
        Program(_with_its_detached_self, lambda: [leaf(4, 4)]),
    ),
    Report(
        114344,
        "equal results of which one requires grad are one tensor",
        Program(_equal_results(True), lambda: [leaf(3)]),
        variants=(Program(_equal_results(False), lambda: [leaf(3)]),),
    ),
    Report(
        194479,
        "a detached result stands beside parts of it",
        Program(_parts_beside_detached, lambda: [leaf(8)]),
    ),
    Report(
        173926,
        "a result is a view without history of what has one",
        Program(_view_without_history, lambda: [leaf(3)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
    ),
    Report(
        128035,
        "a detached alias of an argument that is written afterwards is returned",
        Program(_detached_alias, lambda: [non_leaf(3)]),
    ),
    Report(
        195359,
        "one of several views is written without grad mode",
        Program(_writes_one_of_several, lambda: [non_leaf(2, 3)]),
        Stock("raises", "raises"),
        needs=("operator: unbind",),
        variants=(Program(_writes_one_of_several, lambda: [values(2, 3)]),),
    ),
    Report(
        122457,
        "complex numbers are shown as real ones and changed",
        Program(_complex_and_real, lambda: [leaf(3, 2)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
    ),
    Report(
        184519,
        "results are expanded",
        Program(_expanded, lambda: [leaf(3, 2)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
    ),
    Report(
        111081,
        "two results are the same view of one value",
        Program(_twice_the_same_view, lambda: [leaf(4)]),
    ),
    Report(
        95103,
        "a result is a view of an argument that is a view",
        Program(_unsqueezed, lambda: [non_leaf(4).view(2, 2)]),
        variants=(Program(_unsqueezed, lambda: [values(4).view(2, 2)]),),
    ),
    Report(
        103650,
        "an argument is written through a transposed view, which is returned",
        Program(_turned_and_scaled, lambda: [values(2, 3)]),
    ),
    Report(
        187346,
        "a loss is returned with a view without history of what it is made of",
        Program(_loss_and_view_without_history, lambda: [leaf(3, 3)]),
        Stock("autograd-metadata", "autograd-metadata"),
        older=Stock("raises", "raises"),
        as_reported=False,
    ),
    Report(
        184088,
        "a result is an expanded sum",
        Program(_expanded_sum, lambda: [leaf(4, 8)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
    ),
    Report(
        110291,
        "a negative view is written",
        Program(_negative_view_is_written, lambda: [values(5, 5)]),
        Stock("identity", "identity"),
        as_reported=False,
    ),
    Report(
        118739,
        "a backward starts at one result of `unbind`, and another one at the next",
        Program(
            _taken_apart, lambda: [leaf(2, 3)], grad=True, steps=(Backward(roots=(0,)), Backward(roots=(1,)))
        ),
        Stock("raises", "raises"),
        needs=("gradient: again",),
    ),
    Report(
        180823,
        "a view is taken in inference mode inside the function",
        Program(_in_inference_mode, lambda: [leaf(2, 3), leaf(3, 2)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
    ),
    Report(
        109023,
        "a conjugate view is written",
        Program(_conjugate_is_scaled, lambda: [values(4)]),
    ),
    Report(
        160317,
        "results show each other: nothing of them stays alive without a backward",
        Program(views_of_a_value, lambda: [leaf(3, 2)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
    ),
)
