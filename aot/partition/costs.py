"""Costs: what it costs to recompute an operation, and which operations are never recomputed.

In: a node with ``meta["val"]``. Out: a class (`Recompute`) and an estimated time. There are three classes:

- NEVER: the operation draws random numbers from a generator, has an effect, returns uninitialized memory, or
  is declared nondeterministic. An operation outside ATen is one too, because nobody knows what a second run
  does.
- CHEAP: its time is that of reading its arguments and writing its result. These are operations tagged
  ``pointwise``, draws from a given state, and the views, fills, copies, gathers, reductions and
  normalizations listed here.
- EXPENSIVE: all others, above all matrix products and convolutions.

The unit of time is one byte moved, by the roofline model (Williams, Waterman and Patterson, "Roofline: an
insightful visual performance model for multicore architectures", CACM 52(4), 2009). An operation takes as
long as the slower of its memory traffic and its arithmetic. Arithmetic is counted by the formulas of
``torch.utils.flop_counter``.
"""

from __future__ import annotations

import enum
import math
import operator
from typing import Any

import torch
from torch import fx
from torch.utils import flop_counter

from aot.capture.recorder.functional_rng import is_functional_op
from aot.graph.purity import is_impure, is_random_node
from aot.ops.classify import call_on_clones, operation_of
from aot.partition.tensor_bytes import element_bytes
from aot.tensors.symbolic_sizes import Computed, with_hints
from aot.tensors.views import may_alias
from aot.torch_internals import op_queries

# Floating point operations in the time of one byte: 67 TFLOP/s to 3.35 TB/s are 20 on an H100 and 19.5 to
# 1.56 are 12.5 on an A100 (float32, by NVIDIA's data sheets).
FLOPS_PER_BYTE = 16


class Recompute(enum.IntEnum):
    """Whether an operation may run a second time, in the backward."""

    CHEAP = 0
    EXPENSIVE = 1
    NEVER = 2


def recompute_class(node: fx.Node) -> Recompute:
    """The class of a node. Placeholders and constants are never recomputed."""
    if node.op != "call_function":
        return Recompute.NEVER
    if node.target is _GETITEM:
        (source,) = node.all_input_nodes
        return recompute_class(source)
    op = operation_of(node)
    if op is not None and is_functional_op(op):
        return Recompute.CHEAP
    if op is None or op.namespace not in ("aten", "prims") or is_impure(node):
        return Recompute.NEVER
    if torch.Tag.nondeterministic_bitwise in op.tags or is_random_node(node):
        return Recompute.NEVER
    name = op._opname
    if name in _UNINITIALIZED:
        overwritten = all(_is_free_overwrite(user, node) for user in node.users)
        return Recompute.CHEAP if overwritten and node.users else Recompute.NEVER
    if node.target is not op and node.target is not call_on_clones:
        return Recompute.EXPENSIVE
    if op.is_view or may_alias(op) or torch.Tag.pointwise in op.tags or name in _CHEAP:
        return Recompute.CHEAP
    return Recompute.EXPENSIVE


def _is_free_overwrite(user: fx.Node, node: fx.Node) -> bool:
    """Whether `user` overwrites all of `node`, in functional form, and reads only its layout."""
    if user.target is torch.ops.aten.copy.default:
        return user.args[0] is node and node not in user.args[1:]
    op = operation_of(user)
    if op is None or not is_functional_op(op) or op._opname not in _DRAWN_INTO:
        return False
    return user.args[1] is node and node not in (user.args[0], *user.args[2:])


def is_free(node: fx.Node) -> bool:
    """Whether a node moves no data, because it is a view or one of several results."""
    target = node.target
    return target is _GETITEM or (isinstance(target, op_queries.OpOverload) and may_alias(target))


def cost(node: fx.Node) -> float:
    """The estimated time of running a node once, in bytes moved."""
    if node.op != "call_function" or is_free(node):
        return 0.0
    moved: float = element_bytes(node) + sum(element_bytes(n) for n in node.all_input_nodes)
    return max(moved, _recompute_flops(node) / FLOPS_PER_BYTE)


def _recompute_flops(node: fx.Node) -> float:
    op = operation_of(node)
    if op is None:
        return 0.0
    formula = flop_counter.flop_registry.get(op.overloadpacket)
    if formula is not None and node.target is op:
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), _value)
        return float(with_hints(formula(*args, **kwargs, out_val=node.meta.get("val"))))
    if recompute_class(node) is Recompute.CHEAP:
        return 0.0
    # There is no formula, so it counts as a matrix product of its largest input.
    largest: float = max((element_bytes(n) for n in node.all_input_nodes), default=0)
    return largest * math.sqrt(largest)


def _value(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        return argument.meta.get("val")
    return argument.value if isinstance(argument, Computed) else argument


_GETITEM: Any = operator.getitem

_UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
)

# Draws from a given state that read only the layout of their first argument.
_DRAWN_INTO = frozenset(
    """
    bernoulli_Tensor bernoulli_p cauchy exponential geometric log_normal normal_functional random random_from
    random_to uniform
    """.split()  # noqa: SIM905  # as below
)

# In this order: creation, copies, gathers, reductions, normalizations, pooling and resizing.
_CHEAP = frozenset(
    """
    zeros ones full scalar_tensor arange linspace eye zeros_like ones_like full_like new_zeros new_ones
    new_full

    clone copy _to_copy contiguous cat stack repeat flip roll tril triu constant_pad_nd reflection_pad1d
    reflection_pad2d replication_pad1d replication_pad2d select_scatter slice_scatter as_strided_scatter
    diagonal_scatter pixel_shuffle pixel_unshuffle

    gather index index_select embedding take where masked_fill

    sum mean amax amin aminmax max min all any argmax argmin prod var std var_mean std_mean norm
    linalg_vector_norm logsumexp count_nonzero nansum

    _softmax _log_softmax native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training _fused_rms_norm cudnn_batch_norm

    avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d max_pool2d_with_indices upsample_nearest1d
    upsample_nearest2d upsample_bilinear2d glu
    """.split()  # noqa: SIM905  # one name on each line would be a hundred lines
)
