"""Observations cross a pipe as JSON, and what is no observation is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from oracles import Arguments, Observation, observe
from oracles.observation.serialization import observation_from_json, observation_to_json


def _seen(dtype: torch.dtype = torch.float32) -> Observation:
    def make() -> Arguments:
        root = torch.arange(6).to(dtype)
        leaf = torch.ones(2, 3, requires_grad=True)
        return Arguments((root.view(2, 3), leaf), {"leaf": leaf}, {"root": root})

    def function(a: Any, b: Any) -> Any:
        a.mul_(2)
        return a.t(), {"sum": (a * b).sum()}, None

    return observe(function, make)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_an_observation_comes_back_as_it_was(dtype: torch.dtype) -> None:
    seen = _seen(dtype)
    assert seen.states and seen.gradients and seen.later_writes
    assert observation_from_json(json.loads(json.dumps(observation_to_json(seen)))) == seen


def test_an_exception_comes_back_as_it_was() -> None:
    def raises(a: torch.Tensor) -> None:
        raise ValueError("no such size")

    seen = observe(raises, lambda: Arguments((torch.ones(2),)))
    back = observation_from_json(observation_to_json(seen))
    assert back == seen and back.raised is not None and back.raised.message == seen.raised.message  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (None, "not an observation: NoneType"),
        ([], "not an observation: tuple"),
        ({"record": "Reach", "fields": {"writer": "a", "reader": "b", "tags": {"bytes": ""}}}, "Reach"),
        ({"record": "Observation", "fields": {"raised": None}}, "not a Observation"),
        ({"record": "Popen", "fields": {"args": "ls"}}, "holds no dict"),
        ({"torch": "float7"}, "no dtype or layout 'float7'"),
        ({"torch": "load"}, "no dtype or layout 'load'"),
        ({"device": "toaster"}, "no device 'toaster'"),
        ({"bytes": "?"}, "base64|padding|char"),
        (1.5, "holds no float"),
    ],
)
def test_what_is_no_observation_is_refused(data: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        observation_from_json(data)


def test_what_no_observation_holds_is_not_written() -> None:
    with pytest.raises(TypeError, match="holds no Arguments"):
        observation_to_json(Arguments(()))  # type: ignore[arg-type]
