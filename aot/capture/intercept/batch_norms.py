"""`torch.batch_norm` with a momentum that depends on values: running statistics moved by tensors.

A kernel takes its momentum as a number, and no symbol (`nn.BatchNorm2d(momentum=None)` has one that follows
from a counter). So the kernel gives the statistics of this batch, and the trace moves the running ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aot.capture.intercept.patches import replace
from aot.tensors.symbolic_sizes import SYMBOLIC


def _with_symbolic_momentum(original: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
    @functools.wraps(original)
    def batch_norm(
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: Any,
        *options: Any,
        **named: Any,
    ) -> Any:
        running: list[Tensor] = [one for one in (running_mean, running_var) if one is not None]
        if not (training and isinstance(momentum, SYMBOLIC) and len(running) == 2):
            known = 0.0 if isinstance(momentum, SYMBOLIC) else momentum  # (Nothing reads it.)
            return original(
                input, weight, bias, running_mean, running_var, training, known, *options, **named
            )
        share: Any = momentum
        batch = [torch.zeros_like(one, requires_grad=False) for one in running]
        result = original(input, weight, bias, *batch, training, 1.0, *options, **named)
        with torch.no_grad():
            for one, new in zip(running, batch, strict=True):
                moved = share * new.double() + (1 - share) * one.double()
                one.data.copy_(moved)  # of which autograd counts no write, as none of the kernel's
        return result

    return batch_norm


replace(torch, "batch_norm", _with_symbolic_momentum)
