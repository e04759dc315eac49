"""Double precision once more, rounded otherwise: how many digits of an element mean anything.

A program in double precision is its own reference, so its errors show nowhere. But where digits are lost on
the way (by cancellation, or by a triangular system), the same operations in another order are right with
other digits. Results that are rounded at random show which: M. La Porte, J. Vignes, Étude statistique des
erreurs dans l'arithmétique des ordinateurs, Numer. Math. 23, 1974 (the CESTAC method).
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.observation.operation_mode import OperationMode
from oracles.rerun.dense_operands import repeats_elements, tensors

_EPS = torch.finfo(torch.float64).eps


class RandomRounding(OperationMode):
    """Moves each element that an operation computes in double precision by its last digit, up or down as a
    generator of its own has it (`seed`); all else (strides, aliases, version counters) is as without it.
    Views, and what is drawn or made of nothing, are left as they are. With another `eps` it is the last
    digit of a precision that has this one.

        with RandomRounding(0):
            torch.ones(2, dtype=torch.float64) * 3    # 3.0000000000000004, or 2.9999999999999996
    """

    def __init__(self, seed: int, eps: float = _EPS) -> None:
        super().__init__()
        self._eps = eps
        self._generator = torch.Generator().manual_seed(seed)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        results = func(*args, **kwargs)
        if func.is_view or not _LEFT.isdisjoint(func.tags) or not _has_tensors(args, kwargs):
            return results
        for result in tensors(results):
            if result.dtype in _DOUBLE and not repeats_elements(result):
                sign = torch.randint(2, result.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
                result.data.mul_(1 + self._eps * sign.to(result.device))  # which moves no version counter
        return results


def _has_tensors(*given: Any) -> bool:
    return next(tensors(given), None) is not None


_DOUBLE = {torch.float64, torch.complex128}
_LEFT = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}
