"""Results rounded at random: what moves, what does not, and what a target is forgiven for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import Arguments, Observation, Outcome, judge, observe
from oracles.rerun.random_rounding import RandomRounding

pytestmark = pytest.mark.clause("values")

DOUBLE = torch.float64
EPS = torch.finfo(DOUBLE).eps


@pytest.mark.parametrize("dtype", [DOUBLE, torch.complex128])
def test_computed_elements_move_by_their_last_digit(dtype: torch.dtype) -> None:
    x = torch.arange(1, 101).to(dtype)
    with RandomRounding(0):
        y = x * 3
    moved = (y / (x * 3)).real - 1
    assert moved.abs().max() <= 2 * EPS
    assert (moved > 0).any() and (moved < 0).any()


def test_seeds_round_otherwise_and_each_as_before() -> None:
    def rounded(seed: int) -> list[float]:
        with RandomRounding(seed):
            return (torch.ones(20, dtype=DOUBLE) * 3).tolist()

    assert rounded(0) == rounded(0)
    assert rounded(0) != rounded(1)


def test_all_else_is_as_without() -> None:
    torch.manual_seed(0)
    plain = torch.rand(3, dtype=DOUBLE)
    torch.manual_seed(0)
    single = torch.ones(3)
    with RandomRounding(0):
        drawn = torch.rand(3, dtype=DOUBLE)
        made = torch.ones(3, dtype=DOUBLE)
        view = made[1:]
        expanded = made.expand(2, 3)
        whole = (torch.arange(3) + 1, single * 3)
        version = made._version
        made.add_(1)
    assert drawn.equal(plain)
    assert whole[0].tolist() == [1, 2, 3] and whole[1].tolist() == [3, 3, 3]
    assert made._version == version + 1
    assert view.tolist() == made[1:].tolist() and expanded[1].tolist() == made.tolist()
    assert made.tolist() != [2, 2, 2] and made.tolist() == pytest.approx([2, 2, 2])


def arguments() -> Arguments:
    leaf = torch.tensor([0.3, 0.7, 1.1], dtype=DOUBLE).requires_grad_()
    return Arguments((leaf,), {"leaf": leaf})


def eager(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x + 1e6) - 1e6, x * 2


def verdict(target: Callable[[Tensor], object], rounded: Callable[[int], Observation] | None) -> Outcome:
    def again(**asked: bool) -> Observation:
        return observe(eager, arguments, **asked)  # type: ignore[arg-type]

    seen = observe(target, arguments)
    return judge(again(), seen, again, lambda: again(terms=True), None, rounded).outcome


def rounded(seed: int) -> Observation:
    return observe(eager, arguments, under=RandomRounding(seed))


def test_lost_digits_may_be_others() -> None:
    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x * 2

    assert verdict(target, None) is Outcome.FINDING
    assert verdict(target, rounded) is Outcome.AGREE


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (x * 1, x * (2 + 1e-12)),  # where no digits are lost
        lambda x: (x * (1 + 1e-8), x * 2),  # more than are lost
        lambda x: (x * 1, x.detach() * 2),
    ],
)
def test_other_differences_stay_findings(wrong: Callable[[Tensor], object]) -> None:
    assert verdict(wrong, rounded) is Outcome.FINDING


def test_nothing_is_rounded_for_a_large_difference() -> None:
    def never(seed: int) -> Observation:
        raise AssertionError("nobody needed this run")

    assert verdict(lambda x: (x * 2, x * 2), never) is Outcome.FINDING


def test_what_rounding_stands_before_is_told() -> None:
    """A backward after a write to the result, which is not looked at where gradients differ."""

    def lossy(x: Tensor) -> tuple[Tensor, Tensor]:
        return ((x + 1e6) - 1e6).square(), x.exp() * 1

    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 1).square(), x.exp()

    def again(**asked: Any) -> Observation:
        return observe(lossy, arguments, **asked)

    found = judge(
        again(),
        observe(target, arguments),
        again,
        lambda: again(terms=True),
        None,
        lambda seed: again(under=RandomRounding(seed)),
    )
    assert found.outcome is Outcome.FINDING
    assert {finding.clause for finding in found.findings} == {"autograd-metadata"}


def _loss(x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(x, y)


def _loss_in_another_order(x: Tensor, y: Tensor) -> Tensor:
    """As older versions of torch have it, with the logarithm of a number next to 1."""
    least = torch.clamp(-x, min=0)
    return ((1 - y) * x + least + torch.log(torch.exp(-least) + torch.exp(-x - least))).mean()


def _sum_in_another_order(x: Tensor, y: Tensor) -> Tensor:
    return (x.flip(0) * y.flip(0)).cumsum(0)[-1].clone()


def _off(function: Callable[..., Tensor], error: float) -> Callable[..., Tensor]:
    return lambda x, y: function(x, y) + error


@pytest.mark.parametrize(
    ("function", "other", "x", "y"),
    [
        (_loss, _loss_in_another_order, [-0.75, -0.5], [-0.5, -1.0]),
        (torch.dot, _sum_in_another_order, [0.9, -0.2, 1.5, -1.4], [1.4, -1.7, -0.7, 0.4]),
    ],
)
def test_a_sum_that_cancels_is_rounded_as_its_terms_are(
    function: Callable[..., Tensor], other: Callable[..., Tensor], x: list[float], y: list[float]
) -> None:
    """Off by 5.5e-17 where four units in the last place of the result, 0.0070, are 6.2e-18."""

    def make() -> Arguments:
        given = torch.tensor(x, dtype=DOUBLE), torch.tensor(y, dtype=DOUBLE)
        return Arguments(given, {}, {"x": given[0], "y": given[1]})

    eager = observe(function, make)

    def outcome(compiled: Callable[..., Tensor]) -> Outcome:
        def rounded(seed: int) -> Observation:
            return observe(function, make, under=RandomRounding(seed))

        def again() -> Observation:
            return observe(function, make)

        return judge(eager, observe(compiled, make), again, again, None, rounded).outcome

    assert function(*make().args) != other(*make().args)
    assert outcome(other) is Outcome.AGREE
    assert outcome(_off(function, 1e-14)) is Outcome.FINDING
