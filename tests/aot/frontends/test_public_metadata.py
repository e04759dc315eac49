"""The public vocabulary: each member and each field, and that `explain` prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import InputAliasInfo, MutationType, OutputType
from tests.support.agreement import checking_nop, leaf, non_leaf, values
from tests.support.aot.programs import ViewAs

Function = Callable[..., Any]


def metadata(function: Function, *arguments: Any, **options: Any) -> aot.ViewAndMutationMeta:
    compiled = aot.aot_function(function, checking_nop, **options)
    compiled(*arguments)
    return compiled.specializations[0].metadata


def _without_grad(x: Tensor) -> None:
    with torch.no_grad():
        x.mul_(2)


def _assigns(x: Tensor) -> None:
    x.data = x * 2


@pytest.mark.parametrize(
    ("member", "f", "keep"),
    [
        (MutationType.NOT_MUTATED, lambda x: x * 2, True),
        (MutationType.MUTATED_IN_GRAPH, lambda x: x.mul_(2), True),
        (MutationType.MUTATED_OUT_GRAPH, lambda x: x.mul_(2), False),
        (MutationType.MUTATED_OUT_GRAPH, lambda x: x.t_(), True),
        (MutationType.MUTATED_OUT_GRAPH, _assigns, True),
    ],
)
def test_mutation_types(member: MutationType, f: Function, keep: bool) -> None:
    found = metadata(f, values(2, 3), keep_inference_input_mutations=keep)
    assert found.input_info[0].mutation_type is member
    assert found.keep_input_mutations is keep


# For each: a function, and for its last result the number of what it aliases.
OUTPUTS: dict[OutputType, tuple[Function, int | None]] = {
    OutputType.NON_ALIAS: (lambda y, x: x * 2, None),
    OutputType.ALIAS_OF_INPUT: (lambda y, x: x.t(), 1),
    OutputType.IS_INPUT: (lambda y, x: x, 1),
    OutputType.ALIAS_OF_INTERMEDIATE_SAVE_AS_OUTPUT: (lambda y, x: ((y * 2).t(), (x * 2).t()), 1),
    OutputType.ALIAS_OF_INTERMEDIATE: (lambda y, x: ((y * 2).t(), *(x * 2).chunk(2)), 1),
    OutputType.ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT: (lambda y, x: (y, (z := x * 2), z.t()), 1),
    OutputType.UNSAFE_VIEW_ALIAS: (lambda y, x: torch.ops.aten._unsafe_view(x * 2, [6]), None),
    OutputType.CUSTOM_FUNCTION_VIEW: (lambda y, x: ViewAs.apply(x), 1),
}


@pytest.mark.parametrize("make", [values, leaf, non_leaf])
@pytest.mark.parametrize("member", OutputType)
def test_output_types(member: OutputType, make: Callable[..., Tensor]) -> None:
    f, base = OUTPUTS[member]
    found = metadata(f, make(2, 3), make(2, 3)).output_info[-1]
    assert found.output_type is member
    assert found.base_idx == base
    assert found.raw_type is Tensor
    assert found.requires_grad == (make is not values)


def test_results_that_are_no_tensors() -> None:
    number, text = metadata(lambda x: (3, "no"), values(2)).output_info
    assert (number.output_type, number.raw_type, text.raw_type) == (OutputType.NON_ALIAS, int, str)
    assert not number.requires_grad


def test_detached_aliases_and_the_same_result_again() -> None:
    _, detached, same = metadata(lambda x: ((y := x * 2), y.detach(), y), leaf(2)).output_info
    assert detached.output_type is same.output_type is OutputType.ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT
    assert detached.base_idx == same.base_idx == 0
    assert (detached.requires_grad, same.requires_grad) == (False, True)


# For each field: a function of one argument and what makes it, once so that it holds and once so that not.
FIELDS: dict[str, tuple[tuple[Function, Function], tuple[Function, Function]]] = {
    "is_leaf": ((torch.sin, leaf), (torch.sin, non_leaf)),
    "mutates_data": ((lambda x: x.mul_(2), values), (lambda x: x.mul(2), values)),
    "mutates_metadata": ((lambda x: x.t_(), values), (lambda x: x.t(), values)),
    "mutates_storage_metadata": ((_assigns, values), (lambda x: x.t_(), values)),
    "mutations_hidden_from_autograd": (
        (lambda x: x.data.mul_(2), values),
        (lambda x: x.detach().mul_(2), values),
    ),
    "mutations_under_no_grad_or_inference_mode": ((_without_grad, leaf), (lambda x: x.mul_(2), non_leaf)),
    "resizes_storage": (
        (lambda x: x.resize_(9).fill_(1), values),
        (lambda x: x.resize_(4).fill_(1), values),
    ),
    "requires_grad": ((torch.sin, non_leaf), (torch.sin, values)),
    "keep_input_mutations": ((_without_grad, leaf), (lambda x: x.mul_(2), non_leaf)),
}


@pytest.mark.parametrize("field", [f.name for f in fields(InputAliasInfo)])
def test_fields(field: str) -> None:
    for expected, (f, make) in zip((True, False), FIELDS[field], strict=True):
        (info,) = metadata(f, make(2, 3), keep_inference_input_mutations=True).input_info
        assert getattr(info, field) is expected


@pytest.mark.parametrize(
    ("f", "changes"),
    [
        (lambda x: x.detach_(), non_leaf),
        (lambda x: x.requires_grad_(), values),
        (lambda x: x.requires_grad_(False), leaf),
    ],
)
def test_a_place_in_autograd_is_metadata(f: Function, changes: Function) -> None:
    (info,) = metadata(f, changes(2)).input_info
    assert info.mutates_metadata
    assert not info.mutates_data


def test_each_argument_on_a_storage_for_itself() -> None:
    """Those that overlap what is written, element by element."""

    def f(*xs: Tensor) -> None:
        xs[0].mul_(2)

    whole = values(8)
    parts = (whole[:4], whole[3:], whole[4:], whole[::2], whole[:0], whole)
    found = metadata(f, *parts).input_info
    assert [info.mutates_data for info in found] == [True, True, False, True, False, True]
    even, odd = metadata(f, whole[::2], whole[1::2]).input_info
    assert (even.mutates_data, odd.mutates_data) == (True, False)


def test_a_write_is_hidden_from_one_and_not_from_another() -> None:
    x = values(3)
    first, second = metadata(lambda x, y: x.mul_(2), x, x.data).input_info
    assert first.mutates_data
    assert second.mutates_data
    assert (first.mutations_hidden_from_autograd, second.mutations_hidden_from_autograd) == (False, True)


def test_the_whole() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = x * y
        return made.t(), made[0], (x + y).t(), y

    found = metadata(f, leaf(2, 3), values(2, 3))
    assert found.num_intermediate_bases == 2
    assert found.is_train
    assert len(found.input_info) == 2
    assert [info.base_idx for info in found.output_info] == [0, 0, 1, 1]
    with torch.no_grad():
        assert not metadata(f, leaf(2, 3), values(2, 3)).is_train


def test_explain_prints_it() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
        with torch.no_grad():
            x.mul_(2)
        return x, (y * 3).t(), 4

    compiled = aot.aot_function(f, checking_nop)
    compiled(leaf(2, 3), non_leaf(2, 3))
    _, rest = aot.explain(compiled).split("---- metadata\n")
    printed, _ = rest.split("\n\n---- forward graph")
    assert printed.splitlines() == [
        "input 0: mutated out of graph, is leaf, mutates data, mutations under no grad or inference mode, "
        "requires grad",
        "input 1: not mutated, requires grad",
        "output 0: is input 0, requires grad",
        "output 1: alias of intermediate, saved as output 0, requires grad",
        "output 2: non-alias, int",
    ]
