"""Each clause is broken by a hand-written wrong compiler, and the comparison says which and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import oracle_cases as cases
import pytest
import torch
from oracle_cases import CASES, Case
from torch import Tensor

from oracles import CLAUSES, Arguments, Finding, Outcome, compare, judge, observe
from oracles.compare import differences

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


@pytest.mark.parametrize("name", WRONG)
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


# Of steps, of memory afterwards (`test_steps`), and of several calls (`tests/fuzz/test_execute`).
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


def test_the_backward_after_a_later_write_is_compared_where_autograd_notices_it() -> None:
    def exponential(x: Tensor) -> Tensor:
        return x.exp()

    eager = observe(exponential, lambda: Arguments((torch.ones(2, requires_grad=True),)))
    (after,) = eager.later_gradients
    assert after.raised is not None
    other = replace(eager, later_gradients=(replace(after, raised=None),))
    assert [finding.clause for finding in compare(eager, other)] == ["autograd-metadata"]
    writes = tuple(replace(write, uncounted=True) for write in eager.later_writes)
    assert not compare(replace(eager, later_writes=writes), other)


def test_which_version_counters_a_later_write_moves_is_compared() -> None:
    class Alias(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, data: bool) -> Tensor:
            return x.data if data else x.detach()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
            return gradient, None

    def function(data: bool) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 1
            return y, Alias.apply(y, data)  # type: ignore[return-value]

        return f

    def make() -> Arguments:
        return Arguments((torch.ones(2, requires_grad=True),))

    eager, other = observe(function(False), make), observe(function(True), make)
    found = compare(eager, other)
    assert {(finding.clause, finding.path) for finding in found} == {
        ("versions", "out[0]"),
        ("versions", "out[1]"),
    }
    assert found[0].eager == "moved" and found[0].target == "not moved"
    assert not compare(eager, observe(function(False), make))


def test_what_a_later_write_does_to_others_is_compared() -> None:
    case = CASES["overlapping_read"]
    eager = observe(case.function, case.make)
    write = eager.later_writes[1]
    assert write.path == "out[1]"
    data = (*write.data[:-1], bytes(len(write.data[-1] or b"")))
    flags = (not write.requires_grad[0], *write.requires_grad[1:])
    writes = (eager.later_writes[0], replace(write, data=data, requires_grad=flags))
    assert [str(finding) for finding in compare(eager, replace(eager, later_writes=writes))] == [
        "aliasing: out[1] after out[1].mul_(2) at element (0,) first, 5 of 5 elements differ, "
        "off by up to 1.62 where 5.96e-08 is allowed: -0.375 in eager, 0.0 in the target",
        "autograd-metadata: requires_grad of arg[0] after out[1].mul_(2): True in eager, False in the target",
    ]


def test_subclasses_of_an_exception_count_as_the_same() -> None:
    def narrow(w: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError("a RuntimeError too")

    make = cases.two_leaves
    eager = observe(CASES["raises"].function, make)
    assert compare(eager, observe(narrow, make)) == ()
    assert compare(observe(narrow, make), eager) == ()

    def wide(w: Tensor, v: Tensor) -> Tensor:
        raise Exception("anything")

    assert [finding.clause for finding in compare(eager, observe(wide, make))] == ["errors"]


def test_what_eager_changes_before_it_raises_is_not_held_against_the_target() -> None:
    case = CASES["written_and_raises"]

    def checks_first(x: Tensor) -> Tensor:
        return x.reshape(5)

    eager = observe(case.function, case.make)
    assert compare(eager, observe(checks_first, case.make)) == ()
    assert compare(observe(checks_first, case.make), eager) != ()

    def leaves_grad_mode_off(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return x.reshape(5)

    left, untouched = (observe(f, case.make) for f in (leaves_grad_mode_off, checks_first))
    assert compare(left, untouched) == compare(left, left) == ()
    found = compare(untouched, left)
    assert [(finding.clause, finding.path) for finding in found] == [("ambient", "grad mode")]


def test_refused_calls_are_only_judged_by_the_marks_that_they_left() -> None:
    class Unsupported(RuntimeError):
        pass

    def refuses(x: Tensor) -> Tensor:
        raise Unsupported("no")

    def refuses_late(x: Tensor) -> Tensor:
        x.mul_(2)
        raise Unsupported("no")

    case = CASES["written"]
    eager = observe(case.function, case.make)
    refusal = lambda error: "Unsupported" if isinstance(error, Unsupported) else None  # noqa: E731
    assert compare(eager, observe(refuses, case.make, refusal=refusal)) == ()
    late = compare(eager, observe(refuses_late, case.make, refusal=refusal))
    assert [(finding.clause, finding.path) for finding in late] == [("refusals", "arg[0]")]

    def refuses_and_leaves_grad_mode_off(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        raise Unsupported("no")

    left = compare(eager, observe(refuses_and_leaves_grad_mode_off, case.make, refusal=refusal))
    assert [(finding.clause, finding.path) for finding in left] == [("refusals", "grad mode")]


def test_a_refused_backward_still_shows_what_was_wrong_before() -> None:
    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1.5

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            raise TypeError("later")

    refusal = lambda error: "later" if isinstance(error, TypeError) else None  # noqa: E731
    right = observe(lambda w: w * 1.5, cases.leaf)
    assert compare(right, observe(Refuses.apply, cases.leaf, refusal=refusal)) == ()
    other = observe(lambda w: w * 2.5, cases.leaf)
    found = compare(other, observe(Refuses.apply, cases.leaf, refusal=refusal))
    assert {finding.clause for finding in found} == {"values"}


def test_exact_sees_one_bit_and_the_sign_of_zero() -> None:
    def nudged(w: Tensor) -> Tensor:
        y = w.sin()
        y.data.copy_(torch.nextafter(y.detach(), torch.tensor(9.0)))
        return y

    def negative_zero(w: Tensor) -> Tensor:
        return w.sin() * -0.0

    eager = observe(torch.sin, cases.leaf)
    assert compare(eager, observe(nudged, cases.leaf)) == ()
    assert [item.path for item in compare(eager, observe(nudged, cases.leaf), exact=True)] == ["out"]
    zero, minus = (
        observe(function, lambda: Arguments((torch.ones(2),)))
        for function in (lambda w: w * 0.0, negative_zero)
    )
    assert compare(zero, minus) == ()
    assert {item.path for item in compare(zero, minus, exact=True)} == {"out"}


def _bytes_of(x: Tensor) -> Arguments:
    return Arguments((x, x.view(torch.int8), torch.zeros(4, dtype=torch.int8)))


def test_bytes_of_numbers_that_are_rounded_otherwise_prove_nothing() -> None:
    def make() -> Arguments:
        return _bytes_of(torch.linspace(0.5, 2, 4))

    def cosine(x: Tensor, shown: Tensor, other: Tensor) -> None:
        x.cos_()

    def nudged(x: Tensor, shown: Tensor, other: Tensor) -> None:
        x.copy_(torch.nextafter(x.cos(), torch.tensor(9.0)))

    eager, target = observe(cosine, make), observe(nudged, make)
    (item,) = differences(eager, target)
    assert (item.finding.clause, item.finding.path, item.noise) == ("input-data", "arg[1]", True)
    assert judge(eager, target).outcome is Outcome.POISONED
    assert judge(eager, target, exact=True).outcome is Outcome.FINDING


@pytest.mark.parametrize("which", ["numbers", "elsewhere", "equal"])
def test_other_bytes_are_a_finding(which: str) -> None:
    """Those of numbers that differ too much, of other memory, and where the numbers are equal."""

    def make() -> Arguments:
        return _bytes_of(torch.linspace(0.5, 2, 4))

    def cosine(x: Tensor, shown: Tensor, other: Tensor) -> Tensor | None:
        x.cos_()
        return shown.clone() if which == "equal" else None

    def wrong(x: Tensor, shown: Tensor, other: Tensor) -> Tensor | None:
        cosine(x, shown, other)
        if which == "numbers":
            x.add_(1)
        if which == "elsewhere":
            x.copy_(torch.nextafter(x, torch.tensor(9.0)))
            other.add_(1)
        return shown + 1 if which == "equal" else None

    eager, target = observe(cosine, make), observe(wrong, make)
    assert judge(eager, target).outcome is Outcome.FINDING
    expected = {"numbers": "arg[0]", "elsewhere": "arg[2]", "equal": "out"}[which]
    assert expected in {item.path for item in judge(eager, target).findings}


def test_reference_widens_what_eager_itself_gets_wrong() -> None:
    def make(dtype: torch.dtype) -> Callable[[], Arguments]:
        return lambda: Arguments((cases.grid(64, dtype=dtype) * 1000 + 1,))

    def eager(x: Tensor) -> Tensor:
        return x.sum() / 3 + x.cumsum(0)[-1]

    def reordered(x: Tensor) -> Tensor:
        return x.view(8, 8).sum(0).sum() / 3 + x.flip(0).cumsum(0)[-1]

    first, second = observe(eager, make(torch.bfloat16)), observe(reordered, make(torch.bfloat16))
    double = observe(eager, make(torch.float64))
    assert compare(first, second, double) == ()
    assert compare(first, observe(lambda x: eager(x) * 1.5, make(torch.bfloat16)), double) != ()


def test_what_is_to_keep_its_gradient_is_compared() -> None:
    def keeps(x: Tensor) -> Tensor:
        y = x * 2
        y.retain_grad()
        return y

    def make() -> Arguments:
        return Arguments((torch.ones(2, requires_grad=True),))

    (finding,) = compare(observe(keeps, make), observe(lambda x: x * 2, make))
    assert (finding.clause, finding.path) == ("autograd-metadata", "out")
