"""Dense rerun: run eager again with dense operands for each operation.

ATen has several loops for one operation: for dense tensors, and for tensors with gaps or in another order.
These need not compute the same. `erf`, and functions that are made of it (`gelu`), differ in the last digit,
which becomes many digits after cancellation. Gradients of NaN and infinities differ between the loops of
`hardtanh`, `hardshrink` and `elu`. The rerun shows what depends on the layout of operands, and on nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from oracles.observation.operation_mode import OperationMode


class DenseOperands(OperationMode):
    """Give each operation dense copies of its operands, and write the elements to its usual results.

    Strides, aliases and version counters are as without it. Views, operations that draw, `inplace_view`
    operations, and the two operations that take strides are left as they are.

        with DenseOperands():
            torch.erf(x[::2])    # equal to torch.erf(x[::2].contiguous()), bit for bit
    """

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        has_gaps = any(not operand.is_contiguous() for operand in tensors((args, kwargs)))
        left = func.is_view or func in _BY_STRIDES or not _LEFT.isdisjoint(func.tags)
        if left or not has_gaps:
            return func(*args, **kwargs)
        dense_args, dense_kwargs = _dense((args, kwargs))
        results = func(*args, **kwargs)
        others = func(*dense_args, **dense_kwargs)
        for result, other in zip(tensors(results), tensors(others), strict=True):
            if not repeats_elements(result):
                result.data.copy_(other)  # which moves no version counter
        return results


_BY_STRIDES = {torch.ops.aten.as_strided_copy.default, torch.ops.aten.as_strided_scatter.default}
_LEFT = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}


def repeats_elements(tensor: torch.Tensor) -> bool:
    """Whether an expanded dimension shows elements several times, so that torch refuses to write to it."""
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in tuples, lists and dicts, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def _dense(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {key: _dense(part) for key, part in value.items()}
    return type(value)(map(_dense, value)) if isinstance(value, (list, tuple)) else value
