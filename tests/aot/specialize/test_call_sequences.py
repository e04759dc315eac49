"""One compiled function, called in many ways one after the other: each call is answered as eager does it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.agreement import assert_same_call, compile_counted

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]

SETTINGS = {"shift": 0.5, "names": ("sum",)}


class Noisy(nn.Module):
    """A module that does something else in training, and has a parameter that may be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 2.0))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * 3 if self.training else x - 1


MODULE = Noisy()


def answered(x: Tensor, y: Tensor, how: str, factor: Any, rest: Any) -> Any:
    """Reads its arguments, what is around it, and what it finds outside."""
    z = MODULE(x * SETTINGS["shift"])
    if factor is not None:
        z = z * factor
    if how in SETTINGS["names"]:
        z = z + y.sum()
    elif how == "write":
        y.mul_(2)
        z = z + y.mean()
    elif how == "view":
        return z, x.t(), y[..., :1]
    for value in rest.values() if isinstance(rest, dict) else rest:
        z = z + value
    return {"result": z, "of": torch.ones(2)}


class Drawn:
    """One call, drawn at random."""

    def __init__(self, draw: random.Random) -> None:
        self.size = draw.choice([(2, 3), (3, 3), (4, 5), (1, 3), (0, 2), (3, 4, 2), (6, 2)])
        self.dtype = draw.choice([torch.float32, torch.float32, torch.float64, torch.int64])
        self.layout = draw.choice(["dense", "transposed", "strided", "offset", "expanded"])
        self.together = draw.choice(["apart", "apart", "same", "view", "overlapping", "detached"])
        self.requires = draw.choice(["no", "leaf", "non-leaf"]) if self.dtype.is_floating_point else "no"
        self.how = draw.choice(["sum", "write", "view", "mean"])
        self.factor = draw.choice([None, 2, 2.5, True, -0.0, 3])
        self.rest = draw.choice([(), [1.0], {"a": 2.0}, (1.0, 2), {"b": 2.0}])
        self.grad = draw.random() < 0.8
        self.shift = draw.choice([0.5, 0.5, 1.5])
        self.names = draw.choice([("sum",), ("sum", "mean")])
        self.training = draw.random() < 0.5
        self.default = draw.choice([torch.float32, torch.float32, torch.float64])
        self.autocast = draw.random() < 0.1
        self.deterministic = draw.random() < 0.1

    def arguments(self) -> list[Any]:
        x = torch.arange(1.0, 1.0 + 4 * torch.Size(self.size).numel()).to(self.dtype)
        n = torch.Size(self.size).numel()
        if self.requires != "no":
            x = x.requires_grad_() if self.requires == "leaf" else x.requires_grad_() * 1
        shown = {
            "dense": lambda: x[:n].view(self.size),
            "transposed": lambda: x[:n].view(self.size[::-1]).permute(*reversed(range(len(self.size)))),
            "strided": lambda: x[: 2 * n].view(*self.size, 2)[..., 0],
            "offset": lambda: x[n : 2 * n].view(self.size),
            "expanded": lambda: x[:1].expand(self.size) if n else x.view(self.size),
        }[self.layout]()
        other = {
            "apart": lambda: (x.detach().clone() * 2)[:n].view(self.size),
            "same": lambda: shown,
            "view": lambda: shown.view_as(shown),
            "overlapping": lambda: x[: n + 1],
            "detached": shown.detach,
        }[self.together]()
        return [shown, other, self.how, self.factor, self.rest]

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """While this lasts, everything else is as in this call."""
        SETTINGS.update(shift=self.shift, names=self.names)
        MODULE.train(self.training)
        torch.set_default_dtype(self.default)
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            with torch.autocast("cpu", torch.bfloat16, self.autocast):
                yield
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
            SETTINGS.update(shift=0.5, names=("sum",))
            MODULE.train()


@pytest.mark.filterwarnings("ignore:.*has been compiled")
@pytest.mark.parametrize(("dynamic", "count"), [(False, 200), (True, 40)])
def test_calls_of_every_kind(dynamic: bool, count: int) -> None:
    draw = random.Random(count)
    compiled, _ = compile_counted(answered, dynamic=dynamic)
    calls = [Drawn(draw) for _ in range(count * 2 // 3)]
    calls += draw.choices(calls, k=count - len(calls))  # some come again
    refused = 0
    for call in calls:
        with call.around():
            refused += assert_same_call(answered, compiled, call.arguments, grad=call.grad)
    assert refused <= count // 20
    assert count // 4 < len(compiled.specializations) <= len(calls)
