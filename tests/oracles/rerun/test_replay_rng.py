"""Random numbers of one run, given to another in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from oracles import Arguments, Observation, Outcome, judge, observe
from oracles.rerun.replay_rng import RecordDraws, ReplayDraws

pytestmark = pytest.mark.clause("randomness")

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "in place": lambda x: x.clone().cauchy_(),
    "of nothing": lambda x: torch.randn(5, dtype=x.dtype),
    "like": torch.rand_like,
    "integers": lambda x: torch.randint(0, 100, (20,)) * torch.randperm(20),
    "bernoulli": lambda x: torch.bernoulli(x / 16),
    "dropout": lambda x: F.dropout(x, 0.5),
    "noise": lambda x: F.rrelu(x - 8, training=True),
    "several": lambda x: torch.rand_like(x) + torch.randn_like(x) * x.new_empty(16).exponential_(),
    "view": lambda x: (y := x.clone())[::2].normal_() + y[1::2],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_double_precision_draws_what_was_drawn(draw: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(16.0)
    torch.manual_seed(0)
    with RecordDraws() as noted:
        single = draw(x)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    with ReplayDraws(noted.draws):
        double = draw(x.double())
    assert torch.equal(torch.get_rng_state(), after)
    torch.testing.assert_close(double.to(single.dtype), single)
    assert double.dtype in (torch.float64, torch.int64)


def test_a_run_that_goes_another_way_draws_for_itself() -> None:
    with RecordDraws() as noted:
        torch.rand(4)
        torch.rand(4)
    torch.manual_seed(1)
    with ReplayDraws(noted.draws):
        ours = [torch.rand(5), torch.rand(4)]
    torch.manual_seed(1)
    assert all(map(torch.equal, ours, [torch.rand(5), torch.rand(4)]))


def test_a_reference_that_is_given_the_draws_tells_rounding() -> None:
    """The eager numbers have lost digits, which nobody can tell without a reference."""

    def eager(x: Tensor) -> Tensor:
        return (x + 1e4) - 1e4 + 0 * torch.rand_like(x)

    def target(x: Tensor) -> Tensor:
        return x + 0 * torch.rand_like(x)

    def look(
        function: Callable[[Tensor], Tensor], dtype: torch.dtype, *under: RecordDraws | ReplayDraws
    ) -> Observation:
        def arguments() -> Arguments:
            return Arguments((torch.tensor([0.3, 0.7], dtype=dtype),))

        return observe(function, arguments, under=under[0] if under else None)

    def outcome(*under: ReplayDraws) -> Outcome:
        seen = look(eager, torch.float32), look(target, torch.float32)
        return judge(*seen, lambda: look(eager, torch.float64, *under)).outcome

    noted = RecordDraws()
    look(eager, torch.float32, noted)
    assert outcome() is Outcome.FINDING
    assert outcome(ReplayDraws(noted.draws)) is Outcome.AGREE
