"""Verdicts: agree, poisoned or finding, and which further runs are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import Arguments, Observation, Outcome, judge, observe
from oracles.rerun.dense_operands import DenseOperands
from tests.support.oracles.oracle_cases import CASES, grid, inner, leaf, plain, two_leaves


class Asked:
    """An observation on demand that counts how often it was asked for."""

    def __init__(self, function: Callable[..., Any], make: Callable[[], Arguments]) -> None:
        self.times = 0
        self._function = function
        self._make = make

    def __call__(self) -> Observation:
        self.times += 1
        return observe(self._function, self._make)


def never() -> Observation:
    raise AssertionError("nobody needed this run")


@pytest.mark.parametrize("name", CASES)
def test_equal_snapshots_agree_without_any_further_run(name: str) -> None:
    case = CASES[name]
    eager, target = (observe(case.function, case.make) for _ in range(2))
    verdict = judge(eager, target, never, never)
    assert (verdict.outcome, verdict.findings, verdict.reason) == (Outcome.AGREE, (), "agree")


def test_finding_is_confirmed_by_one_control_run() -> None:
    control = Asked(torch.sin, leaf)
    verdict = judge(observe(torch.sin, leaf), observe(torch.cos, leaf), None, control)
    assert verdict.outcome is Outcome.FINDING
    assert verdict.findings[0].clause == "values"
    assert verdict.reason == str(verdict.findings[0])
    assert control.times == 1


def test_findings_that_are_not_about_elements_need_no_reference() -> None:
    control = Asked(CASES["transposed"].function, leaf)
    eager = observe(CASES["transposed"].function, leaf)
    target = observe(lambda w: (w * 2).t().contiguous(), leaf)
    assert judge(eager, target, never, control).outcome is Outcome.FINDING


def test_unstable_values_are_poisoned() -> None:
    calls = iter(range(100))

    def unstable(x: Tensor) -> Tensor:
        return x + next(calls)

    eager, target = observe(unstable, plain), observe(unstable, plain)
    verdict = judge(eager, target, None, lambda: observe(unstable, plain))
    assert verdict.outcome is Outcome.POISONED
    assert verdict.findings == ()
    assert verdict.reason.startswith("eager is unstable: values: ")


def test_errors_that_come_and_go_are_poisoned() -> None:
    calls = iter(range(100))

    def sometimes(x: Tensor) -> Tensor:
        if next(calls) % 2 == 0:
            raise RuntimeError("now and then")
        return x

    eager, target = observe(sometimes, plain), observe(lambda x: x, plain)
    next(calls)
    assert judge(eager, observe(sometimes, plain), None, None).outcome is Outcome.AGREE
    verdict = judge(eager, target, None, lambda: observe(sometimes, plain))
    assert verdict.outcome is Outcome.POISONED


def test_unstable_aliasing_is_poisoned() -> None:
    calls = iter(range(100))

    def sometimes(x: Tensor) -> Tensor:
        return x if next(calls) else x.clone()

    eager, target = observe(sometimes, plain), observe(sometimes, plain)
    assert judge(eager, target, None, lambda: observe(sometimes, plain)).outcome is Outcome.POISONED


def test_the_same_error_on_both_sides_agrees() -> None:
    case = CASES["raises"]
    eager, target = observe(case.function, case.make), observe(case.function, case.make)
    assert eager.raised is not None
    assert judge(eager, target, never, never).outcome is Outcome.AGREE


class Unsupported(RuntimeError):
    """What a compiler raises when it refuses."""


def reason(error: BaseException) -> str | None:
    return type(error).__name__ if isinstance(error, Unsupported) else None


def test_refusal_is_poisoned_with_its_reason() -> None:
    def refuses(x: Tensor) -> Tensor:
        raise Unsupported("no")

    target = observe(refuses, inner, refusal=reason)
    verdict = judge(observe(CASES["written"].function, inner), target, never, never)
    assert (verdict.outcome, verdict.reason) == (Outcome.POISONED, "refused: Unsupported")


def test_refusal_that_left_a_mark_is_a_finding() -> None:
    def refuses_late(x: Tensor) -> Tensor:
        x.mul_(2)
        raise Unsupported("no")

    case = CASES["written"]
    target = observe(refuses_late, case.make, refusal=reason)
    verdict = judge(observe(case.function, case.make), target, None, Asked(case.function, case.make))
    assert verdict.outcome is Outcome.FINDING
    assert [(item.clause, item.path) for item in verdict.findings] == [("refusals", "arg[0]")]


def test_an_unstated_exception_is_a_finding() -> None:
    def breaks(x: Tensor) -> Tensor:
        raise Unsupported("no")

    verdict = judge(observe(torch.sin, leaf), observe(breaks, leaf), None, Asked(torch.sin, leaf))
    assert [item.clause for item in verdict.findings] == ["errors"]


def numbers(dtype: torch.dtype) -> Callable[[], Arguments]:
    return lambda: Arguments((grid(64, dtype=dtype) * 100 + 1,))


def summed(x: Tensor) -> Tensor:
    return x.cumsum(0)


def summed_by_halves(x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    first = x[:half].flip(0).cumsum(0)[-1]
    return torch.cat([x[:half].cumsum(0), x[half:].cumsum(0) + first])


def test_reference_excuses_another_order_of_rounding() -> None:
    eager, target = observe(summed, numbers(torch.float16)), observe(summed_by_halves, numbers(torch.float16))
    reference = Asked(summed, numbers(torch.float64))
    without = judge(eager, target, None, Asked(summed, numbers(torch.float16)))
    assert without.outcome is Outcome.FINDING
    verdict = judge(eager, target, reference, never)
    assert (verdict.outcome, reference.times) == (Outcome.AGREE, 1)
    assert "double precision" in verdict.reason
    assert judge(eager, target, never, Asked(summed, numbers(torch.float16)), exact=True).findings


def test_reference_does_not_excuse_a_wrong_formula() -> None:
    eager = observe(summed, numbers(torch.float16))
    target = observe(lambda x: summed(x) * 1.02, numbers(torch.float16))
    verdict = judge(
        eager, target, Asked(summed, numbers(torch.float64)), Asked(summed, numbers(torch.float16))
    )
    assert verdict.outcome is Outcome.FINDING


def cancels(x: Tensor) -> Tensor:
    return (x * 1e4 + 1e-3) - x * 1e4


def test_noise_in_eager_is_poisoned() -> None:
    eager = observe(cancels, numbers(torch.float32))
    target = observe(lambda x: torch.zeros_like(x) + 7e-3, numbers(torch.float32))
    reference = Asked(cancels, numbers(torch.float64))
    control = Asked(cancels, numbers(torch.float32))
    verdict = judge(eager, target, reference, control)
    assert verdict.outcome is Outcome.POISONED
    assert "noise" in verdict.reason


def test_noise_does_not_hide_findings_beside_it() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return cancels(x), x * 2

    def wrong(x: Tensor) -> tuple[Tensor, Tensor]:
        return cancels(x) + 5e-3, x * 3

    eager, target = observe(both, numbers(torch.float32)), observe(wrong, numbers(torch.float32))
    reference, control = Asked(both, numbers(torch.float64)), Asked(both, numbers(torch.float32))
    verdict = judge(eager, target, reference, control)
    assert verdict.outcome is Outcome.FINDING
    assert {item.path for item in verdict.findings} == {"out[1]"}


def _cancelling(w: Tensor) -> Tensor:
    """A sum that float32 loses three digits of, and whose error another order of it has not."""
    return (w + 1000) - 1000


def _in_another_order(w: Tensor) -> Tensor:
    return w + (torch.full_like(w, 1000) - 1000)


def _thirds() -> Arguments:
    return Arguments((torch.arange(6.0) / 3 + 0.1,))


def _thirds_in_double() -> Arguments:
    return Arguments((_thirds().args[0].double(),))


def test_a_call_that_draws_has_a_reference_that_draws_the_same() -> None:
    def drawing(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda w: function(w) * (torch.bernoulli(torch.full((6,), 0.5)) + 1)

    eager, target = observe(drawing(_cancelling), _thirds), observe(drawing(_in_another_order), _thirds)
    control = Asked(drawing(_cancelling), _thirds)
    assert judge(eager, target, None, control).outcome is Outcome.FINDING
    reference = Asked(drawing(_cancelling), _thirds_in_double)
    assert judge(eager, target, reference, control).outcome is Outcome.AGREE
    assert reference.times == 1


def test_a_reference_that_draws_something_else_does_not_count() -> None:
    def drawing(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda w: function(w) * (torch.rand_like(w) + 1)

    eager, target = observe(drawing(_cancelling), _thirds), observe(drawing(_in_another_order), _thirds)
    reference = Asked(drawing(_cancelling), _thirds_in_double)
    verdict = judge(eager, target, reference, Asked(drawing(_cancelling), _thirds))
    assert verdict.outcome is Outcome.FINDING
    assert reference.times == 1


class _Terms(torch.autograd.Function):
    """Hands on a gradient, with two terms that cancel."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, more: Tensor, less: Tensor) -> Tensor:
        return w.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gradient, gradient * 1e6 / 3, gradient * -1e6 / 3


def _thirds_that_require_grad() -> Arguments:
    return Arguments(((torch.arange(6.0) / 3 + 0.1).requires_grad_(),))


def test_terms_that_cancel_in_a_gradient_leave_their_rounding() -> None:
    def cancelling(w: Tensor) -> Tensor:
        result: Tensor = _Terms.apply(w, w, w)
        return result

    def wrong(w: Tensor) -> Tensor:
        return w.clone() + (w - w.detach()) * 10

    def judged(target: Callable[[Tensor], Tensor]) -> Outcome:
        eager = observe(cancelling, _thirds_that_require_grad)
        control = observe(cancelling, _thirds_that_require_grad, terms=True)
        ((path, terms),) = control.gradients[0].terms
        assert path == "arg[0]"
        assert terms.tensor().max() > 1e5
        return judge(eager, observe(target, _thirds_that_require_grad), None, lambda: control).outcome

    assert judged(torch.clone) is Outcome.AGREE
    assert judged(wrong) is Outcome.FINDING


def test_terms_of_a_root_count_for_the_leaf_that_its_gradient_comes_to() -> None:
    def scaled_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1
        return y, y * 1000 - y * 1000

    seen = observe(scaled_twice, _thirds_that_require_grad, terms=True)
    paths = [path for path, _ in seen.gradients[0].terms]
    assert paths == ["arg[0]"]
    assert seen.gradients[0].terms[0][1].tensor().min() >= 1000


def test_terms_of_an_argument_count_for_the_leaf_that_it_comes_from() -> None:
    def thirds() -> Arguments:
        made = (torch.arange(6.0) / 3 + 0.1).requires_grad_()
        return Arguments((made * 2,), {"leaf": made})

    seen = observe(lambda x: x * 1000 - x * 1000, thirds, terms=True)
    terms = {path: value.tensor() for path, value in seen.gradients[0].terms}
    assert terms["leaf['leaf']"].min() == terms["arg[0]"].max() == 1375
    assert not observe(lambda x: x * 2, thirds).gradients[0].terms


def test_reference_of_another_structure_is_not_used() -> None:
    eager = observe(torch.sin, leaf)
    target = observe(lambda w: w.sin() * 1.001, leaf)
    for useless in (lambda w: [w.sin()], CASES["raises"].function, lambda w: w.sin()[0]):
        make = two_leaves if useless is CASES["raises"].function else leaf
        verdict = judge(eager, target, Asked(useless, make), Asked(torch.sin, leaf))
        assert verdict.outcome is Outcome.FINDING


@pytest.mark.parametrize("special", [True, False])
def test_a_gradient_that_depends_on_how_cotangents_lie_in_eager(special: bool) -> None:
    """The kernel of `hardtanh`'s backward takes NaN for a number within the limits where a cotangent lies in
    steps, and for one outside where it does not: both are right, and nothing else is excused by that."""

    def arguments() -> Arguments:
        x = torch.full((8, 8), math.nan if special else 0.5).requires_grad_()
        return Arguments((x,))

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.nn.functional.hardtanh(x)

    def compiled(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, _InRows.apply(x)

    def judged(target: Callable[[Tensor], Any]) -> Outcome:
        eager, seen = observe(f, arguments), observe(target, arguments)
        control, densely = ({"terms": True}, {"under": DenseOperands()})
        further = [lambda asked=asked: observe(f, arguments, **asked) for asked in (control, densely)]
        return judge(eager, seen, None, *further).outcome

    assert judged(compiled) is Outcome.AGREE
    assert judged(lambda x: (x * 3, _InRows.apply(x))) is Outcome.FINDING


class _InRows(torch.autograd.Function):
    """`hardtanh` that differentiates with the cotangent in row-major order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.hardtanh(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ops.aten.hardtanh_backward(gradient.contiguous(), ctx.saved_tensors[0], -1.0, 1.0)
