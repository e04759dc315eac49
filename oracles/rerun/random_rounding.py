"""Random rounding: run a program again with each result rounded at random, to see which digits are right.

A program in double precision is its own reference, so its errors do not show. Digits may be lost on the way,
by cancellation or by a triangular system. Then the same operations in another order are right, with other
digits. Results that are rounded at random show which digits these are (M. La Porte, J. Vignes, Étude
statistique des erreurs dans l'arithmétique des ordinateurs, Numer. Math. 23, 1974: the CESTAC method).
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.observation.operation_mode import OperationMode
from oracles.rerun.dense_operands import repeats_elements, tensors

_EPS = torch.finfo(torch.float64).eps


class RandomRounding(OperationMode):
    """Move each element that an operation computes in double precision by its last digit, up or down.

    A generator of its own with this `seed` chooses the direction. Strides, aliases and version counters are
    as without it. Views, random numbers, and results of operations without tensors (such as `zeros`) are left
    as they are. `eps` is the size of the last digit; another `eps` stands for another precision. If it is
    None, floating results of every dtype are moved, each by the last digit of its dtype, as if eager had used
    kernels that round otherwise.

        with RandomRounding(0):
            torch.ones(2, dtype=torch.float64) * 3    # 3.0000000000000004, or 2.9999999999999996
    """

    def __init__(self, seed: int, eps: float | None = _EPS) -> None:
        super().__init__()
        self._eps = eps
        self._generator = torch.Generator().manual_seed(seed)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.is_view or not _LEFT.isdisjoint(func.tags) or not _has_tensors(args, kwargs):
            return func(*args, **kwargs)
        inside = self._rounded_inside(func, args, kwargs)
        results = func(*args, **kwargs)
        for result, other in zip(tensors(results), inside or tensors(results), strict=True):
            if self._is_rounded(result) and not repeats_elements(result):
                if other is not result:
                    result.data.copy_(other)  # which moves no version counter, as below
                result.data.mul_(1 + self._signs(result))
        return results

    def _rounded_inside(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[torch.Tensor] | None:
        """The results of a sum for operands that are moved by their last digit; None for other operations.

        If terms of a sum cancel, their rounding remains. It may be much more than the last digit of the
        result.
        """
        if func not in _SUMS:
            return None
        return list(tensors(func(*self._moved(args), **self._moved(kwargs))))

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (value * (1 + self._signs(value))).to(value.dtype) if self._is_rounded(value) else value
        if isinstance(value, dict):
            return {key: self._moved(part) for key, part in value.items()}
        return type(value)(map(self._moved, value)) if isinstance(value, (list, tuple)) else value

    def _is_rounded(self, tensor: torch.Tensor) -> bool:
        if self._eps is None:
            return tensor.dtype.is_floating_point or tensor.dtype.is_complex
        return tensor.dtype in _DOUBLE

    def _signs(self, tensor: torch.Tensor) -> torch.Tensor:
        """The last digit of each element as a fraction of it, with a random sign."""
        eps = torch.finfo(tensor.dtype).eps if self._eps is None else self._eps
        signs = torch.randint(2, tensor.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        return (signs * eps).to(tensor.device)


def _has_tensors(*given: Any) -> bool:
    return next(tensors(given), None) is not None


_DOUBLE = {torch.float64, torch.complex128}
_LEFT = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}
_ATEN = torch.ops.aten
# Operations that sum terms which appear in no other operation. If these cancel, their rounding remains.
_SUMS = {
    *(_ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN.mean.default, _ATEN.mean.dim, _ATEN.trace.default),
    *(_ATEN.dot.default, _ATEN.vdot.default, _ATEN.mv.default, _ATEN.mm.default, _ATEN.bmm.default),
    *(_ATEN.addmm.default, _ATEN.addmv.default, _ATEN.baddbmm.default),
    _ATEN.binary_cross_entropy_with_logits.default,
}
