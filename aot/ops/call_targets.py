"""Call targets: functions that graphs call instead of overloads whose names are no Python names.

An overload such as ``random.from`` has no attribute that code can name, so the graph calls `call_by_name`.
"""

from __future__ import annotations

from typing import Any

import torch

from aot.torch_internals import dispatcher, op_queries


def by_name(name: str) -> Any:
    """The ATen overload with the name ``packet.overload``."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def call_by_name(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an ATen operation whose overload has no Python name: ``call_by_name("random.from", x, 0, 9)``."""
    return by_name(name)(*args, **kwargs)


def call_with_grad(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a kernel that reads the grad mode, below autograd and with grad mode on, as eager calls it."""
    with dispatcher.below_autograd(), torch.enable_grad():
        return op(*args, **kwargs)


def is_custom(op: Any) -> bool:
    """Whether an object is an overload outside the namespaces ``aten`` and ``prims``."""
    return isinstance(op, op_queries.OpOverload) and op.namespace not in ("aten", "prims")
