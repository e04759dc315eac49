"""Each clause is broken by a hand-written wrong compiler, and the comparison says which and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import CLAUSES, Finding, compare, observe
from tests.support.oracles.oracle_cases import CASES, Case

WRONG: dict[str, tuple[Case, Callable[..., Any], set[tuple[str, str]]]] = {}
"""A wrong compiler: the program, what it was compiled to, and the (clause, path)s that must be found."""


def wrong(program: str, *expected: tuple[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a wrong version of a program."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        WRONG[function.__name__] = (CASES[program], function, set(expected))
        return function

    return register


class Outside(torch.autograd.Function):
    """Hides what happens inside from autograd's view tracking, as a compiled function does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


@wrong("raises", ("errors", "call"))
def error_swallowed(w: Tensor, v: Tensor) -> Tensor:
    return w


@wrong("raises", ("errors", "call"))
def error_of_another_type(w: Tensor, v: Tensor) -> Tensor:
    raise AssertionError("internal")


@wrong("sine", ("errors", "call"))
def error_invented(w: Tensor) -> Tensor:
    raise RuntimeError("unsupported")


@wrong("modified_saved", ("errors", "backward"), ("errors", "backward from out[0]"))
def backward_error_missed(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w.exp()
    return y.sin(), y * 2


@wrong("sine", ("errors", "backward"))
def backward_error_invented(w: Tensor) -> Tensor:
    y = w.exp().log()
    z = y.sin()
    y.mul_(1)
    return z


@wrong("raises", ("input-data", "arg[1]"))
def changed_before_the_error(w: Tensor, v: Tensor) -> Tensor:
    v.data.mul_(2)
    return w @ v.reshape(2, 2)


@wrong("containers", ("structure", "out[2]"))
def tuple_became_list(tree: dict[str, Any], nothing: None) -> tuple[Any, ...]:
    return {"k": [tree["a"] * 2, tree["b"][1]]}, nothing, [tree["b"][0]], 1.5, torch.float16


@wrong("containers", ("structure", "out[0]['k'][1]"))
def number_became_another_type(tree: dict[str, Any], nothing: None) -> tuple[Any, ...]:
    return {"k": [tree["a"] * 2, 3.0]}, nothing, (tree["b"][0],), 1.5, torch.float16


@wrong("containers", ("structure", "out[0]"))
def key_renamed(tree: dict[str, Any], nothing: None) -> tuple[Any, ...]:
    return {"K": [tree["a"] * 2, tree["b"][1]]}, nothing, (tree["b"][0],), 1.5, torch.float16


@wrong("new_parameter_class", ("structure", "out"))
def class_lost(w: Tensor) -> Tensor:
    return (w.detach() * 2).requires_grad_()


@wrong("container_changed", ("structure", "arg[0]"))
def argument_container_unchanged(tree: dict[str, Any], nothing: None) -> Tensor:
    return tree["a"]  # type: ignore[no-any-return]


@wrong("sine", ("values", "out"))
def one_element_off(w: Tensor) -> Tensor:
    y = w.sin()
    y.data[1, 2] += 0.01
    return y


@wrong("sine", ("values", "out"))
def other_dtype(w: Tensor) -> Tensor:
    return w.sin().double()


@wrong("sine", ("values", "out"))
def other_shape(w: Tensor) -> Tensor:
    return w.sin()[None]


@wrong("not_numbers", ("values", "out[0]"))
def nan_became_number(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = CASES["not_numbers"].function(x)
    return a.nan_to_num(0.0), b


@wrong("not_numbers", ("values", "out[1]"))
def infinity_changed_sign(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = CASES["not_numbers"].function(x)
    return a, -b


@wrong("integers", ("values", "out[2]"))
def integer_off_by_one(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, c = CASES["integers"].function(x)
    return a, b, c + 1


@wrong("expanded_result", ("strides", "out"))
def made_contiguous(w: Tensor) -> Tensor:
    return w.sum(0).expand(2, 4).contiguous()


@wrong("complex_numbers", ("strides", "out[3]"), ("aliasing", "out[3]"))
def conj_made_real(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b, c, d, e = CASES["complex_numbers"].function(x, y)
    return a, b, c, d.resolve_conj(), e


@wrong("view_of_argument", ("strides", "out[0]"), ("aliasing", "out[0]"))
def other_rows(w: Tensor) -> tuple[Tensor, Tensor]:
    return w[:2], w.detach().t()


@wrong("returns_argument", ("identity", "out[0]"), ("aliasing", "out[0]"))
def argument_copied(w: Tensor) -> tuple[Tensor, Tensor]:
    return Outside.apply(w), w * 2


@wrong("returns_argument", ("identity", "out[0]"))
def argument_became_a_view(w: Tensor) -> tuple[Tensor, Tensor]:
    return w.view_as(w), w * 2


@wrong("same_result_twice", ("identity", "out[1]"))
def results_no_longer_the_same(w: Tensor) -> list[Tensor]:
    y = w.exp()
    return [y, y.view_as(y), y.view(-1)]


@wrong("hidden_base", ("aliasing", "out['column']"))
def results_no_longer_shared(w: Tensor) -> dict[str, Any]:
    result: dict[str, Any] = CASES["hidden_base"].function(w)
    result["column"] = w.cos()[:, 1]
    return result


@wrong("broadcast", ("aliasing", "out[1]"))
def results_falsely_shared(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    buffer = torch.empty(13)
    y, s = CASES["broadcast"].function(w, v)
    first, second = buffer[:12].view(3, 4), buffer[12]
    first.data.copy_(y), second.data.copy_(s)
    y.data, s.data = first, second
    return y, s


@wrong("transposed", ("strides", "out"), ("values", "out"))
def transpose_lost(w: Tensor) -> Tensor:
    return (w * 2).reshape(4, 3)


@wrong("written", ("input-data", "arg[0]"), ("versions", "arg[0]"), ("autograd-metadata", "arg[0]"))
def write_dropped(x: Tensor) -> Tensor:
    return x.sin()


@wrong("overlapping_written", ("input-data", "tensor['root']"), ("input-data", "arg[0]"))
def write_to_hidden_elements_dropped(x: Tensor, y: Tensor) -> Tensor:
    before = x[:2].detach().clone()
    result: Tensor = CASES["overlapping_written"].function(x, y)
    x[:2].data.copy_(before)
    return result


@wrong("metadata_written", ("input-metadata", "arg[0]"))
def metadata_write_dropped(x: Tensor) -> Tensor:
    return x.t() + 1


@wrong("moved_to_other_storage", ("input-metadata", "arg[0]"), ("aliasing", "out"))
def assignment_became_a_copy(x: Tensor) -> Tensor:
    y = x * 2
    x.mul_(3)
    x.data = y[1:].clone()
    return y


@wrong("moved_to_other_storage", ("input-data", "old storage of arg[0]"))
def write_before_leaving_dropped(x: Tensor) -> Tensor:
    y = x * 2
    x.data = y[1:]
    return y


@wrong("resized", ("input-metadata", "arg[0]"))
def resize_dropped(x: Tensor) -> Tensor:
    return x.clone()


@wrong("becomes_leaf", ("input-metadata", "arg[0]"), ("autograd-metadata", "out"))
def requires_grad_dropped(x: Tensor) -> Tensor:
    return x * 2


@wrong("written_hidden", ("versions", "arg[0]"))
def version_not_moved(x: Tensor) -> Tensor:
    x.data.mul_(2)
    return x * 2


@wrong("detached_result", ("autograd-metadata", "out[1]"))
def detach_ignored(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w.tanh()
    return y, y.view_as(y)


@wrong("sine", ("autograd-metadata", "out"))
def requires_grad_lost(w: Tensor) -> Tensor:
    return w.sin().detach()


@wrong("hidden_base", ("autograd-metadata", "out['column']"))
def no_longer_views_of_one_base(w: Tensor) -> dict[str, Any]:
    result: dict[str, Any] = CASES["hidden_base"].function(w)
    result["column"] = result["column"].detach().requires_grad_() * 1
    return result


@wrong("view_without_grad", ("autograd-metadata", "out"))
def later_write_allowed(w: Tensor) -> Tensor:
    return (w * 3).view(-1)


@wrong("exponential", ("autograd-metadata", "backward after later writes"))
def saved_result_not_watched(w: Tensor) -> Tensor:
    return Outside.apply(w.exp())  # type: ignore[no-any-return]


@wrong("unbound", ("autograd-metadata", "out[0]"))
def later_write_of_one_of_many_views_allowed(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w * 2
    return y[0], y


@wrong("written", ("autograd-metadata", "arg[0]"))
def history_not_continued(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x.sin()


@wrong("duplicate_read", ("gradients", "grad of arg[0]"))
def gradient_of_duplicate_dropped(x: Tensor, y: Tensor) -> Tensor:
    return x * y.detach()


@wrong("one_unused", ("gradients", "grad of arg[1]"))
def none_became_zeros(w: Tensor, v: Tensor) -> Tensor:
    return w * w + (v * 0).sum()


@wrong("broadcast", ("gradients", "grad of arg[1] from out[0]"), ("gradients", "grad of arg[1]"))
def gradient_of_a_broadcast_not_summed(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y, s = CASES["broadcast"].function(w, v)
    v.register_hook(lambda grad: grad / 3)
    return y, s


@wrong("sine", ("gradients", "cotangents of the backward"))
def cotangent_written(w: Tensor) -> Tensor:
    y = w.sin()
    y.register_hook(lambda grad: grad.mul_(1.5) / 1.5)
    return y


@wrong("dropout", ("randomness", "random state"))
def extra_draw(w: Tensor) -> tuple[Tensor, Tensor]:
    result = CASES["dropout"].function(w)
    torch.rand(1)
    return result  # type: ignore[no-any-return]


@wrong("dropout", ("values", "out[0]"), ("values", "out[1]"), ("gradients", "grad of arg[0]"))
def other_draws(w: Tensor) -> tuple[Tensor, Tensor]:
    result = CASES["dropout"].function(w)
    state = torch.get_rng_state()
    torch.manual_seed(99)
    other: tuple[Tensor, Tensor] = CASES["dropout"].function(w)
    torch.set_rng_state(state)
    del result
    return other


@wrong("sine", ("randomness", "random state after the backward"))
def backward_draws(w: Tensor) -> Tensor:
    y = w.sin()
    y.register_hook(lambda grad: grad + 0 * torch.rand(1))
    return y


@wrong("without_grad", ("ambient", "grad mode"))
def grad_mode_left_off(w: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return w * 2


@wrong("sine", ("ambient", "default dtype"))
def default_dtype_left(w: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return w.sin()


@wrong("sine", ("ambient", "default dtype after the backward"))
def default_dtype_left_by_the_backward(w: Tensor) -> Tensor:
    def hook(grad: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return grad

    y = w.sin()
    y.register_hook(hook)
    return y


def both(name: str) -> tuple[tuple[Finding, ...], set[tuple[str, str]]]:
    case, function, expected = WRONG[name]
    found = compare(observe(case.function, case.make), observe(function, case.make))
    return found, expected


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.clause(*sorted({clause for clause, _ in expected})))
        for name, (_, _, expected) in WRONG.items()
    ],
)
def test_a_wrong_compiler_is_found_at_the_right_clause_and_path(name: str) -> None:
    found, expected = both(name)
    assert expected <= {(finding.clause, finding.path) for finding in found}, "\n".join(map(str, found))


@pytest.mark.parametrize("name", WRONG)
def test_findings_are_equal_on_every_run_and_without_addresses(name: str) -> None:
    first, second = both(name)[0], both(name)[0]
    assert first == second
    assert not any("0x" in finding.message for finding in first)
    assert all(finding.path in finding.message or finding.path == "call" for finding in first)


ONLY = [
    "error_swallowed",
    "error_of_another_type",
    "error_invented",
    "changed_before_the_error",
    "tuple_became_list",
    "number_became_another_type",
    "class_lost",
    "one_element_off",
    "nan_became_number",
    "infinity_changed_sign",
    "integer_off_by_one",
    "other_draws",
    "version_not_moved",
    "cotangent_written",
    "extra_draw",
    "default_dtype_left",
    "none_became_zeros",
    "backward_error_missed",
]


_ALONE = re.compile(r" from out\[\d\]$")


@pytest.mark.parametrize("name", ONLY)
def test_one_cause_is_found_once_in_each_backward_and_nothing_else_with_it(name: str) -> None:
    found, expected = both(name)
    seen = {(item.clause, _ALONE.sub("", item.path)) for item in found}
    assert seen == {(clause, _ALONE.sub("", path)) for clause, path in expected}


# Of steps, of memory afterwards (`test_steps`), and of several calls (`tests/fuzz/execute/test_case`).
ELSEWHERE = {"double-backward", "lifetime", "once", "refusals", "repeat", "threads"}


def test_every_clause_has_a_wrong_compiler() -> None:
    assert {clause for _, _, expected in WRONG.values() for clause, _ in expected} == {*CLAUSES} - ELSEWHERE


def test_findings_come_in_the_order_of_the_clauses() -> None:
    found, _ = both("write_dropped")
    order = [CLAUSES.index(finding.clause) for finding in found]
    assert order == sorted(order) and len(set(order)) > 2


def test_a_finding_reads_like_a_sentence() -> None:
    found, _ = both("made_contiguous")
    assert str(found[0]) == "strides: strides of out: (0, 1) in eager, (4, 1) in the target"
    found, _ = both("error_swallowed")
    assert found[0].eager.startswith("RuntimeError: ") and found[0].target == "no exception"
