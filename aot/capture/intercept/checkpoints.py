"""Dynamo's operator for `torch.utils.checkpoint`, as the checkpoint that eager makes.

Torch's own kernel of that operator leaves random draws to the compiler behind it, and never stops a
recomputation early. Here the block goes through `torch.utils.checkpoint.checkpoint` with what its caller has
asked for. So the recomputation repeats the forward's draws, as eager's does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

from aot.capture.intercept import patches
from aot.errors import UnsupportedOperation
from aot.torch_internals import higher_order_ops, plain_fakes, pytree

# Functions with which a graph of Dynamo's enters a context; another call leaves it.
_ENTERS = re.compile("_enter_|.*_increment_nesting$")


def _traced_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, block: Any, *args: Any, **options: Any) -> Any:
        if not plain_fakes.are_fakes_allowed():
            return original(self, block, *args, **options)
        given = [arg for arg in args if isinstance(arg, Tensor)]
        before = [arg._version for arg in given if not arg.is_inference()]
        result = _checkpoint(block, args, options)
        after = [arg._version for arg in given if not arg.is_inference()]
        if before != after and torch.is_grad_enabled():
            leaves, _ = pytree.tree_flatten(result)
            if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
                raise UnsupportedOperation(
                    "torch.utils.checkpoint of a block that writes to a tensor from outside (a buffer, the "
                    "statistics of a batch norm, a counter), which the backward writes to once more; take "
                    "the write out of the block, or do not checkpoint it"
                )
        return result

    return call


def _checkpoint(block: fx.GraphModule, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What the operator's caller has asked for. The block's `meta` holds the contexts of selective
    checkpointing."""
    options = {**options, "use_reentrant": False}
    contexts = block.meta.get("_checkpoint_context_fn")
    if contexts is not None:
        options["context_fn"] = contexts
    if _enters_contexts(block):
        options["early_stop"] = False  # the graph would not leave what it has entered
    return checkpoint(block, *args, **options)  # type: ignore[no-untyped-call]


def _enters_contexts(block: fx.GraphModule) -> bool:
    targets = (node.target for node in block.graph.nodes if node.op == "call_function")
    return any(_ENTERS.match(getattr(target, "__name__", "")) for target in targets)


patches.replace(higher_order_ops.TagActivationCheckpoint, "__call__", _traced_checkpoint)
