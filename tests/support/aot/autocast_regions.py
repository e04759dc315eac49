"""Autocast regions around calls, and stories of what comes of them in eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import aot
from tests.support.agreement import checking_nop


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    return torch.autocast("cpu", dtype=dtype, **options)


def compiled_by_dynamo(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="aotfuzz", fullgraph=True, **options)


FRONT_ENDS: dict[str, Callable[[Any], Any]] = {
    "aot": lambda f: (aot.aot_module if isinstance(f, nn.Module) else aot.aot_function)(f, checking_nop),
    "dynamic": lambda f: (aot.aot_module if isinstance(f, nn.Module) else aot.aot_function)(
        f, checking_nop, dynamic=True
    ),
    "torch.compile": compiled_by_dynamo,
}


def seen(value: Any) -> Any:
    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return str(leaf.dtype), leaf.requires_grad, leaf.tolist()
        return leaf

    return pytree.tree_map(one, value)


def assert_story(story: Callable[[Callable[[Any], Any]], Any], make: Callable[[Any], Any]) -> None:
    """What a story sees is the same to the bit with compiled functions, the second time too, when nothing is
    compiled any more."""
    expected = seen(story(lambda function: function))
    made: dict[int, Any] = {}

    def kept(function: Any) -> Any:
        if isinstance(function, nn.Module):
            return make(function)
        return made.setdefault(id(function), make(function))

    assert seen(story(kept)) == expected
    assert seen(story(kept)) == expected


def linear(w: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, w)


def train(function: Callable[..., Any], w: Tensor, x: Tensor, steps: int = 3) -> list[Any]:
    """Steps of gradient descent."""
    found = []
    for _ in range(steps):
        w.grad = None
        loss = function(w, x).float().square().mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.5 * w.grad
        found += [loss, w.grad]
    return [*found, w]
