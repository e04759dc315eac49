"""What is seen on one device, compared with what is seen on another."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from oracles import Arguments, Observation, as_on_cpu, compare, observe

CUDA = torch.device("cuda", 0)


def _seen() -> Observation:
    def make() -> Arguments:
        x = torch.arange(3.0).requires_grad_()
        return Arguments((x, x.detach()), {"x": x})

    return observe(lambda x, y: (x * y, y.mul_(2)), make)


def test_only_the_devices_are_others() -> None:
    seen = _seen()
    gone: Any = dataclasses.replace(
        seen,
        states=tuple(dataclasses.replace(state, device=CUDA) for state in seen.states),
        ambient=dataclasses.replace(seen.ambient, default_device=CUDA),
        grown=512,
    )
    assert {finding.clause for finding in compare(seen, gone)} >= {"values", "ambient", "lifetime"}
    assert as_on_cpu(gone) == seen


def test_what_else_is_other_stays_so() -> None:
    seen = _seen()
    wrong = dataclasses.replace(
        seen, states=tuple(dataclasses.replace(state, device=CUDA, offset=4) for state in seen.states)
    )
    findings = compare(seen, as_on_cpu(wrong))
    assert findings
    assert not any("device" in finding.message for finding in findings)
