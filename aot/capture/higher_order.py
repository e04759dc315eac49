"""Operators that take functions (`torch.cond` and its like), recorded as what they do with these.

In eager they have Dynamo capture the functions, and run them. In a trace the functions are called, as often
as the operator would call them, and what they do is recorded, with its history: so `map` and `scan` become as
many copies as there are steps, and a condition that depends on an argument cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from aot import torch_internals as internals
from aot.capture.recorder import Recorder
from aot.capture.replaced import takes_functions


def _condition(name: str, value: Any) -> bool:
    """The value of a condition, if it is known in a trace."""
    recorder = internals.current_mode()
    if isinstance(value, Tensor) and isinstance(recorder, Recorder) and not recorder.knows(value):
        raise takes_functions(f"{name}, whose condition depends on an argument's values")
    return bool(value)


def _cond(dense: Any, condition: Any, true: Any, false: Any, operands: Any) -> Any:
    return _apart("cond", (true if _condition("cond", condition) else false)(*operands), operands)


def _while_loop(dense: Any, condition: Callable[..., Any], body: Any, carried: Any, others: Any) -> Any:
    def known(*values: Any) -> Any:
        asked = condition(*values)
        _condition("while_loop", asked)
        return asked

    return _apart("while_loop", dense(known, body, carried, others), (*carried, *others))


def _as_it_runs(dense: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return dense(*args, **kwargs)


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
    }
)
