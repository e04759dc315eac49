"""What the comparison holds against a target and what it does not: later writes, errors, refusals, bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import Arguments, Outcome, compare, judge, observe
from oracles.comparison.comparator import differences
from tests.support.oracles import oracle_cases as cases
from tests.support.oracles.oracle_cases import CASES


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
