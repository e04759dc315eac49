"""Leaves that were made in inference mode and require grad: modules made there, state loaded there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from tests.support.agreement import checking_nop, leaf, values

pytestmark = pytest.mark.clause("ambient")

Function = Callable[..., Any]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def inference_leaf(*size: int) -> Tensor:
    with torch.inference_mode():
        return values(*size).requires_grad_()


def made_there(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.inference_mode():
        return make()


def loaded_there() -> nn.Module:
    module = nn.Linear(3, 2)
    with torch.inference_mode():
        state = {name: value.clone() for name, value in module.state_dict().items()}
        module.load_state_dict(state, assign=True)
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: made_there(lambda: nn.Linear(3, 2)),
    "loaded": loaded_there,
    "normalized": lambda: made_there(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()),
    "normalizing": lambda: made_there(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))),
    "mixed": lambda: nn.Sequential(made_there(lambda: nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 2)),
}
CONTEXTS = {
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "grad": torch.enable_grad,
}
FRONT_ENDS: dict[str, Callable[[nn.Module], Function]] = {
    "aot_module": lambda module: aot.aot_module(module, aot.nop),
    "torch.compile": lambda module: torch.compile(module, backend="aotfuzz"),
}


def outcome(module: nn.Module, call: Function, context: Callable[[], Any], requires_grad: bool) -> list[Any]:
    """What a call, and a backward of it, makes of the arguments and of the state; or its error (before which
    eager's batch norm has counted)."""
    x = (leaf if requires_grad else values)(2, 3)
    found: list[Any] = []
    try:
        with context():
            result = call(x)
        found += [result.detach().clone(), result.requires_grad, result.is_inference(), result.is_leaf]
        if result.requires_grad:
            result.sum().backward()
    except RuntimeError as error:
        return [str(error).splitlines()[0][:60]]
    state = [*module.parameters(), *module.buffers()]
    found += [None if t.grad is None else t.grad.clone() for t in (x, *state) if t.is_leaf]
    return [*found, *(t.detach().clone() for t in state)]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["input", "input that requires grad"])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_modules(fresh_dynamo: None, front_end: str, name: str, context: str, requires_grad: bool) -> None:
    module, twin = (seeded(MODULES[name]) for _ in range(2))
    call = FRONT_ENDS[front_end](twin)
    for _ in range(2):
        expected = outcome(module, module, CONTEXTS[context], requires_grad)
        found = outcome(twin, call, CONTEXTS[context], requires_grad)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other) if isinstance(other, Tensor) else one == other


def results(value: Any) -> Iterator[Any]:
    """What there is to see of a result, and of what is in it."""
    if isinstance(value, tuple):
        for one in value:
            yield from results(one)
    elif isinstance(value, Tensor):
        yield from (value.detach().clone(), value.requires_grad, value.is_inference(), value.is_leaf)
        yield value.grad_fn is None
    else:
        yield value


def _asks(x: Tensor) -> tuple[Tensor, bool, bool]:
    return x * 2, x.requires_grad, x.is_leaf


def _writes(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * 3


PROGRAMS: dict[str, Function] = {
    "value": lambda x: (x * 2).exp(),
    "asks": _asks,
    "views": lambda x: (x.t(), x[1:], x.detach()),
    "view of a value": lambda x: (x * 2).view(-1),
    "itself": lambda x: (x, x + 1),
    "writes": _writes,
    "saves": lambda x: x * x,
    "view, then value": lambda x: x.view(-1) + 1,
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, context: str) -> None:
    function = PROGRAMS[name]
    compiled = aot.aot_function(function, checking_nop)
    seen = []
    for call in (function, compiled, compiled):
        x = inference_leaf(3, 2)
        found: list[Any] = []
        try:
            with CONTEXTS[context]():
                result = call(x)
            found += results(result)
            first = result[0] if isinstance(result, tuple) else result
            if first.grad_fn is not None:
                first.sum().backward()
        except RuntimeError as error:
            seen.append([str(error).splitlines()[0][:60]])  # (eager may have written by then)
            continue
        seen.append(
            [*found, x.detach().clone(), torch.zeros(()) if x.grad is None else x.grad, x._base is None]
        )
    eager, *others = seen
    for other in others:
        assert len(other) == len(eager)
        for one, expected in zip(other, eager, strict=True):
            assert torch.equal(one, expected) if isinstance(expected, Tensor) else one == expected
