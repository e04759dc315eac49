"""Dynamo's operator for `torch.utils.checkpoint`, as the checkpoint that eager makes.

Torch's own kernel of that operator leaves random draws to the compiler behind it, and never stops a
recomputation early. Here the block goes through `torch.utils.checkpoint.checkpoint` with what its caller has
asked for. So the recomputation repeats the forward's draws, as eager's does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

from aot.capture.intercept import patches
from aot.errors import UnsupportedOperation
from aot.torch_internals import activation_checkpoint, autograd_state, higher_order_ops, plain_fakes

# Functions with which a graph of Dynamo's enters a context; another call leaves it.
_ENTERS = re.compile("_enter_|.*_increment_nesting$")
# In the `meta` of a block: which of its inputs are parameters and buffers.
_STATE = "aot_module_state"


def _traced_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, block: Any, *args: Any, **options: Any) -> Any:
        if not plain_fakes.are_fakes_allowed():
            return original(self, block, *args, **options)
        return _checkpoint(block, args, options)

    return call


def _checkpoint(block: fx.GraphModule, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What the operator's caller has asked for. The block's `meta` holds the contexts of selective
    checkpointing.

    Raises:
        UnsupportedOperation: the block writes to a tensor from outside that is no buffer of a module, and
            this version of torch would check it.
    """
    options = dict(options)
    contexts = block.meta.get("_checkpoint_context_fn")
    if contexts is not None:
        options["context_fn"] = contexts
    # (The graph would not leave what it has entered. The kind that is reentrant runs all of it again.)
    if _enters_contexts(block) or options.get("use_reentrant"):
        options["early_stop"] = False
    options["use_reentrant"] = False
    state = {i: args[i] for i in block.meta.get(_STATE, ())}
    count = len(args)
    hooks: list[tuple[Any, Any]] = []

    def run(*given: Any) -> Any:
        if not hooks:
            hooks.extend(filter(None, [autograd_state.saved_tensor_hooks()]))
        arguments = iter(given)
        return block(*(state[i] if i in state else next(arguments) for i in range(count)))

    given = [arg for i, arg in enumerate(args) if i not in state]
    counted = {i: t for i, t in enumerate(given) if isinstance(t, Tensor) and not t.is_inference()}
    before = {i: tensor._version for i, tensor in counted.items()}
    result = checkpoint(run, *given, **options)
    written = {i: tensor for i, tensor in counted.items() if tensor._version != before[i]}
    if written and torch.is_grad_enabled() and not activation_checkpoint.release_inputs(hooks[0], written):
        raise UnsupportedOperation(
            "torch.utils.checkpoint of a block that writes to a tensor from outside, other than a buffer of "
            "a module, which the backward writes to once more; make it a buffer, or take the write out of "
            "the block"
        )
    return result


def mark_module_state(graph: fx.GraphModule, state: Collection[fx.Node]) -> None:
    """Note for each checkpoint in a graph of Dynamo's which tensors its block does not get as arguments.

    The operator gets all that the block reads. Eager's checkpoint looks whether its arguments were written
    to until the backward, and not at the parameters and buffers of a module that is called in it.

    Args:
        state: the inputs of the graph that are parameters or buffers.
    """
    for node in graph.graph.nodes:
        if isinstance(node.target, higher_order_ops.TagActivationCheckpoint):
            block: Any = graph.get_submodule(str(node.args[0].target))
            inputs = block.graph.find_nodes(op="placeholder")
            read = [i for i, arg in enumerate(node.args[1:]) if arg in state]
            block.meta[_STATE] = frozenset(read)
            mark_module_state(block, {inputs[i] for i in read})


def _enters_contexts(block: fx.GraphModule) -> bool:
    targets = (node.target for node in block.graph.nodes if node.op == "call_function")
    return any(_ENTERS.match(getattr(target, "__name__", "")) for target in targets)


patches.replace(higher_order_ops.TagActivationCheckpoint, "__call__", _traced_checkpoint)
