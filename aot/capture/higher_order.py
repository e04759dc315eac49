"""Operators that take functions (`torch.cond` and its like), recorded as what they do with these.

In eager they have Dynamo capture the functions, and run them. In a trace the functions are called, as often
as the operator would call them, and what they do is recorded, with its history: so `map` and `scan` become as
many copies as there are steps. Where a condition depends on an argument, which way a call goes is not known:
`conditional` has the operator itself recorded, and its functions as graphs of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from aot import torch_internals as internals
from aot.capture.conditional import record_cond, record_while_loop
from aot.capture.recorder import Recorder
from aot.capture.replaced import takes_functions


def _unknown(value: Any) -> Recorder | None:
    """What records the trace, where a condition is not known in it."""
    recorder = internals.current_mode()
    if isinstance(value, Tensor) and isinstance(recorder, Recorder) and not recorder.knows(value):
        return recorder
    return None


def _cond(dense: Any, condition: Any, true: Any, false: Any, operands: Any) -> Any:
    recorder = _unknown(condition)
    if recorder is not None:
        return record_cond(recorder, condition, true, false, operands)
    return _apart("cond", (true if condition else false)(*operands), operands)


def _while_loop(dense: Any, condition: Callable[..., Any], body: Any, carried: Any, others: Any) -> Any:
    given = carried
    turns = False
    while True:
        asked = condition(*carried, *others)
        recorder = _unknown(asked)
        if recorder is not None:
            return record_while_loop(recorder, condition, body, carried, others)
        if not asked:
            break
        carried, turns = body(*carried, *others), True
    if not turns:
        return tuple(one.clone() if isinstance(one, Tensor) else one for one in carried)
    return _apart("while_loop", carried, (*given, *others))


def _as_it_runs(dense: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return dense(*args, **kwargs)


def _invoke_subgraph(dense: Any, function: Callable[..., Any], identifier: Any, *operands: Any) -> Any:
    return function(*operands)


def _invoke_quant(dense: Any, function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    return function(*operands)


def _apart(name: str, results: Any, operands: Any) -> Any:
    """The same; refused where a result lies in the memory of an operand, which Dynamo does not allow."""
    given = {internals.storage_key(one) for one in operands if isinstance(one, Tensor)}
    leaves, _ = internals.tree_flatten(results)
    if any(isinstance(one, Tensor) and internals.storage_key(one) in given for one in leaves):
        raise takes_functions(f"{name}, of which a result shows the memory of an operand")
    return results


internals.define_higher_order_kernels(
    {
        "cond": _cond,
        "while_loop": _while_loop,
        "map_impl": _as_it_runs,
        "scan": _as_it_runs,
        "flex_attention": _as_it_runs,
        "invoke_subgraph": _invoke_subgraph,
        "invoke_quant_packed": _invoke_quant,
    }
)
