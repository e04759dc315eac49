"""What graphs call instead of overloads that have no names in Python, and whose an operation is."""

from __future__ import annotations

from typing import Any

import torch

from aot.torch_internals import dispatcher, op_queries


def by_name(name: str) -> Any:
    """The ATen operation ``packet.overload``."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def call_by_name(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an ATen operation whose overload has no Python name: ``call_by_name("random.from", x, 0, 9)``."""
    return by_name(name)(*args, **kwargs)


def call_with_grad(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a kernel that looks at the grad mode, as it is called in eager while that is on."""
    with dispatcher.below_autograd(), torch.enable_grad():
        return op(*args, **kwargs)


def is_custom(op: Any) -> bool:
    """Whether it is an operation that is not torch's own."""
    return isinstance(op, op_queries.OpOverload) and op.namespace not in ("aten", "prims")
