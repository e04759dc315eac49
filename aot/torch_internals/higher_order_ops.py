"""Operators that take functions, and torch's registry of operators whose calls keep their order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._higher_order_ops.effects import _get_effect, _register_effectful_op, with_effects
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch._library.effects import EffectType
from torch._ops import HigherOrderOperator, OpOverload

__all__ = [
    "AUTO_FUNCTIONALIZED",
    "COND",
    "MAKE_TOKEN",
    "SINK_TOKENS",
    "WHILE_LOOP",
    "WHILE_LOOP_STACK_OUTPUT",
    "WITH_EFFECTS",
    "HigherOrderOperator",
    "TagActivationCheckpoint",
    "as_if_ordered",
    "call_auto_functionalized",
    "is_ordered",
]


def is_ordered(op: OpOverload) -> bool:
    """Whether torch's registry of effects says that calls of `op` keep their order and number."""
    return _get_effect(op) is not None


# What a graph orders by values (`aot.graph.effect_tokens`) is called by the first; the others begin and end a
# chain.
WITH_EFFECTS = with_effects
MAKE_TOKEN = torch.ops.prims._make_token.default
SINK_TOKENS = torch.ops.prims._sink_tokens.default


# The operators that call graphs of their own, as a value says.
COND = torch.ops.higher_order.cond
WHILE_LOOP = torch.ops.higher_order.while_loop
# what is carried after each turn, stacked
WHILE_LOOP_STACK_OUTPUT = torch.ops.higher_order.while_loop_stack_output


AUTO_FUNCTIONALIZED: Any = torch.ops.higher_order.auto_functionalized


def call_auto_functionalized(op: OpOverload, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What `op` returns for arguments by name, or None, and then each of those that it would write to, as it
    would leave them: in a graph, by the operator that Inductor takes apart again."""
    results: tuple[Any, ...] = AUTO_FUNCTIONALIZED(op, **arguments)
    return results


@contextlib.contextmanager
def as_if_ordered(ops: Iterable[OpOverload]) -> Iterator[None]:
    """While this lasts, torch's registry of effects says of these that their calls are to stay in order."""
    with contextlib.ExitStack() as stack:
        for op in ops:
            if _get_effect(op) is None:
                stack.callback(_register_effectful_op(op, EffectType.ORDERED).destroy)
        yield
