"""`python -m bench architectures`: what is not as in eager is told, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from bench.__main__ import main
from bench.compiler import architectures
from bench.compiler.architectures import Outcome, outcome


class Small(nn.Module):
    """Stands for an architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        return self.linear(x), {"dropped": nn.functional.dropout(x, training=self.training)}


class Noisy(Small):
    calls = 0

    def forward(self, x: Tensor) -> Any:
        Noisy.calls += 1
        return self.linear(x) * Noisy.calls


class Asking(Small):
    def forward(self, x: Tensor) -> Any:
        return self.linear(x) if x.sum().item() > 0 else x


def _compiled(change: Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]) -> Callable[..., Any]:
    """A compiler whose results are changed."""

    def compile(module: nn.Module, compiler: Any) -> Any:
        return lambda **inputs: change(module, module(**inputs))

    return compile


def _forgets_the_gradient(module: nn.Module, results: tuple[Any, ...]) -> tuple[Any, ...]:
    return results[0].detach(), *results[1:]


def _is_slightly_off(module: nn.Module, results: tuple[Any, ...]) -> tuple[Any, ...]:
    return results[0] * (1 + 1e-5), *results[1:]


def _counts_twice(module: nn.Module, results: tuple[Any, ...]) -> tuple[Any, ...]:
    module.get_buffer("count").add_(1)
    return results


def _draws(module: nn.Module, results: tuple[Any, ...]) -> tuple[Any, ...]:
    torch.rand(())
    return results


def _loses_one(module: nn.Module, results: tuple[Any, ...]) -> tuple[Any, ...]:
    return results[:1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_forgets_the_gradient, "training: gradient of linear.weight"),
        (_is_slightly_off, "training: result 0"),
        (_counts_twice, "training: buffer count"),
        (_draws, "training: random state"),
        (_loses_one, "training: 1 results, 2 in eager"),
    ],
)
def test_what_differs_from_eager_is_told(
    change: Callable[..., Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"x": torch.ones(2, 3, dtype=torch.float64)}
    monkeypatch.setattr(architectures, "_made", lambda kind: (Small().double(), inputs))
    assert outcome("small") == Outcome("small", "same")
    monkeypatch.setattr(aot, "aot_module", _compiled(change))
    found = outcome("small")
    assert (found.state, found.why) == ("differs", why)


def test_what_proves_nothing_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"x": torch.ones(2, 3, dtype=torch.float64)}
    for make, state, why in (
        (Noisy, "not run", "eager gives something else the second time"),
        (lambda: nn.Linear(4, 4), "not run", "eager raises: "),
        (lambda: nn.Linear("3", 4), "not run", "cannot be made: "),
        (Asking, "refused", "DataDependentValue: "),
    ):
        monkeypatch.setattr(architectures, "_made", lambda kind, make=make: (make().double(), inputs))
        found = outcome("small")
        assert found.state == state and found.why.startswith(why), found


@pytest.mark.nightly
def test_architectures_of_transformers_do_as_in_eager(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["architectures", "--sample", "60", "--json"]) == 0
    states, others, _ = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    assert dict(states["rows"])["same"] >= 10
    assert [row for row in others["rows"] if row[1] == "differs"] == []
