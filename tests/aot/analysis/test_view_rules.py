"""The rules for outputs that are views: for each, a function of which the output is decided by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from aot.analysis import view_rules
from aot.analysis.view_rules import VIEW_RULES, ViewRule
from tests.support.agreement import Arguments, assert_agrees, leaf, non_leaf, values

pytestmark = [pytest.mark.clause("aliasing", "gradients")]


@dataclass(frozen=True, slots=True)
class Example:
    """A function whose last view a rule decides on, what makes its arguments, and how it is refused."""

    function: Callable[..., Any]
    arguments: Callable[[], Any]
    refused: type[errors.Unsupported] | None = None
    grad: bool | None = None  # the grad mode of the calls that are compared with eager's; None for both


def bits_of_a_reshaped_argument(x: Tensor) -> Any:
    y = torch.view_as_real(x)
    x.unsqueeze_(0)
    return y


def first_row_before_data_is_assigned(x: Tensor, y: Tensor) -> Any:
    row = x[0]
    x.data = y
    return row


def first_row_before_write_and_set(x: Tensor, y: Tensor) -> Any:
    row = x[0]
    x.mul_(2)
    x.set_(y)
    return row


def first_row_of_what_is_set(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    row = z[0]
    with torch.no_grad():
        z.set_(y)
    return z, row


def first_row_between_two_storages(x: Tensor, y: Tensor) -> Any:
    x.data = y * 2
    row = x[0]
    x.data = y
    return row


def view_put_elsewhere_after_a_write(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    row = z[0]
    z.mul_(3)
    row.data = y
    return z, row


def view_that_forgets(x: Tensor) -> Any:
    y = x.view(-1)
    with torch.no_grad():
        x.mul_(2)
    return y


def view_before_its_base_is_written(x: Tensor) -> Any:
    z = x * 2
    y = z[0].requires_grad_()[:1]
    with torch.no_grad():
        z.mul_(2)
    return y


def view_between_two_states(x: Tensor) -> Any:
    x.requires_grad_(False)
    y = x[0]
    x.requires_grad_()
    return y


def view_of_a_grown_argument_before_it_begins(x: Tensor) -> Any:
    x.resize_(4, 2)
    y = x[1]
    x.requires_grad_()
    return y


def reshaped_view_before_it_begins(x: Tensor) -> Any:
    y = x[1]
    x.t_()
    x.requires_grad_()
    return y


def leaf_within_a_view_before_it_begins(x: Tensor) -> Any:
    y = x[0].requires_grad_()[:1]
    x.requires_grad_()
    return y


def view_before_its_view_begins(x: Tensor) -> Any:
    y = x[1]
    x.requires_grad_()
    return y


def view_before_its_base_begins(x: Tensor) -> Any:
    y = x[1]
    x.requires_grad_()
    return x * 2, y


def view_of_a_leaf_view(x: Tensor) -> Any:
    row = (x * 2)[0].requires_grad_()
    return row[:1]


def leaf_view_of_what_is_reshaped(x: Tensor) -> Any:
    z = x * 2
    row = z[0].requires_grad_()
    z.detach_()
    with torch.no_grad():
        z.t_()
    return row


def view_before_release(x: Tensor) -> Any:
    y = x[0]
    x.requires_grad_(False)
    return y


def view_before_detach(x: Tensor) -> Any:
    z = x * 2
    y = z[0]
    z.detach_()
    return z, y


def view_before_t(x: Tensor) -> Any:
    y = x[0]
    x.t_()
    return y


def view_before_data_is_assigned(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    row = z[0]
    z.data = y
    return z, row


def strided_view_before_data_is_assigned(x: Tensor) -> Any:
    z = x * 2
    row = z.view(-1)
    z.data = z.data.t()
    return z, row


def selected_before_data_is_assigned(x: Tensor) -> Any:
    z = x * 2
    row = z[0]
    z.data = z.data.t()
    return z, row


def view_before_a_write(x: Tensor) -> Any:
    y = x[0]
    x.mul_(2)
    return y


def bits_before_a_write(x: Tensor) -> Any:
    y = torch.view_as_real(x)
    x.mul_(2)
    return y


def ordinary_view(x: Tensor) -> Any:
    return x[0]


def viewed_leaf() -> Any:
    """Its history is that of a leaf which is a view of what has none."""
    return Arguments((values(3, 3)[:2].requires_grad_()[:1],))


EXAMPLES = {
    "another dtype of a root that was changed": Example(
        bits_of_a_reshaped_argument,
        lambda: [non_leaf(2, dtype=torch.complex64)],
        errors.AutogradStateMutation,
    ),
    "taken before an argument went elsewhere": Example(
        first_row_before_data_is_assigned, lambda: [values(2, 2), values(3)]
    ),
    "on the memory that an argument lay in on entry": Example(
        first_row_before_write_and_set, lambda: [values(2, 2), values(3)]
    ),
    "with a history, of what went elsewhere": Example(
        first_row_of_what_is_set, lambda: [leaf(2, 2), values(2, 2)], errors.StorageMutation
    ),
    "of what went elsewhere": Example(
        first_row_between_two_storages, lambda: [values(2, 2), values(2, 2)], grad=True
    ),
    "derived anew, and put elsewhere": Example(
        view_put_elsewhere_after_a_write, lambda: [leaf(2, 2), values(2)], errors.StorageMutation
    ),
    "of a root that forgets its history": Example(view_that_forgets, viewed_leaf),
    "of a view with a history, whose base was changed": Example(
        view_before_its_base_is_written, lambda: [values(2, 2)], errors.AutogradStateMutation
    ),
    "cut off from its base": Example(
        view_between_two_states, lambda: [leaf(2, 2)], errors.AutogradStateMutation
    ),
    "not simply a view of a view that begins to require grad": Example(
        reshaped_view_before_it_begins, lambda: [values(4, 2)[1:]], errors.AutogradStateMutation
    ),
    "with an earlier history than a view that begins to require grad": Example(
        leaf_within_a_view_before_it_begins, lambda: [values(4, 2)[1:]], errors.AutogradStateMutation
    ),
    "not simply a view of a root that begins to require grad": Example(
        view_of_a_grown_argument_before_it_begins, lambda: [values(2, 2)], errors.AutogradStateMutation
    ),
    "taken before a view begins to require grad": Example(
        view_before_its_view_begins, lambda: [values(4, 2)[1:]]
    ),
    "taken before its root begins to require grad": Example(
        view_before_its_base_begins, lambda: [values(2, 2)]
    ),
    "of a view that was made a leaf": Example(view_of_a_leaf_view, lambda: [values(2, 2)]),
    "a leaf, by its geometry": Example(leaf_view_of_what_is_reshaped, lambda: [values(2, 2)]),
    "taken before its root was released": Example(view_before_release, lambda: [leaf(2, 2)]),
    "taken before its root was detached": Example(
        view_before_detach, lambda: [non_leaf(2, 2)], errors.AutogradStateMutation
    ),
    "taken before the metadata of an argument changed": Example(view_before_t, lambda: [values(2, 3)]),
    "with a history by strides, of what was moved past autograd": Example(
        strided_view_before_data_is_assigned, lambda: [leaf(2, 2)], errors.StorageMutation
    ),
    "with a history, of what was moved past autograd": Example(
        selected_before_data_is_assigned, lambda: [leaf(2, 2)]
    ),
    "repeated as autograd derives it": Example(
        bits_before_a_write, lambda: [non_leaf(2, dtype=torch.complex64)]
    ),
    "by its geometry": Example(view_before_a_write, lambda: [non_leaf(2, 2)]),
    "by its steps": Example(ordinary_view, lambda: [leaf(2, 2)]),
}


def deciding(function: Callable[..., Any], arguments: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rules that decide on the outputs of a call, in order; and the refusal that ends it is raised."""
    found: list[str] = []

    def noting(rule: ViewRule) -> ViewRule:
        def make(facts: Any, roots: Any) -> Any:
            found.append(rule.name)
            return rule.make(facts, roots)

        return replace(rule, make=make)

    with monkeypatch.context() as patch:
        patch.setattr(view_rules, "VIEW_RULES", tuple(map(noting, VIEW_RULES)))
        try:
            aot.aot_function(function, aot.nop)(*arguments)
        except errors.Unsupported as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("rule", [rule.name for rule in VIEW_RULES])
def test_a_rule_decides_on_an_output_as_eager_has_it(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES[rule]
    arguments = example.arguments()
    decided = deciding(example.function, getattr(arguments, "args", arguments), monkeypatch)
    assert rule in decided
    assert decided[-1] == (rule if example.refused is None else example.refused.__name__)
    if example.refused is None:
        assert_agrees(example.function, example.arguments, grad=example.grad)


def test_each_rule_has_an_example() -> None:
    assert list(EXAMPLES) and set(EXAMPLES) == {rule.name for rule in VIEW_RULES}
