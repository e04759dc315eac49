"""A `torch.compile` backend that is slightly wrong: it computes equal calls once, even where they write.

    aotfuzz run --target slightly_wrong_backend:compile --seconds 60        # in this folder

Merging `x.sin()` with an earlier `x.sin()` is what every compiler does. It is right as long as nothing writes
to `x` between the two, and the second of two calls of `x.mul_(2)` must not go away at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fuzz import Target


def merge_equal_calls(module: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The backend: what Dynamo calls with a graph."""
    seen: dict[Any, fx.Node] = {}
    for node in list(module.graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        key = (node.op, node.target, repr(node.args), repr(node.kwargs))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            module.graph.erase_node(node)
        else:
            seen[key] = node
    module.recompile()
    return module.forward


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """What aotfuzz calls: a function in, the function compiled out."""
    return torch.compile(function, backend=merge_equal_calls)


# The same, saying what it cannot do: programs that draw random numbers are not run, and count as refused.
target = Target("slightly-wrong", "merges equal calls", compile, lacks=("random",))
