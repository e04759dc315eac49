"""The error policy: the only place where two numbers that are not equal may be called the same.

The yardstick is the same program run in double precision (the *reference*). With e, t and r the element
in eager, in the target and in the reference, an element of a floating dtype agrees when

1. it is equal: bit for bit, or both NaN, or (unless `exact`) zeros of either sign; or
2. |t - r| <= FACTOR * |e - r| + ULPS * ulp(r): the target is about as far from the truth as eager is; or
3. |t - r| <= FACTOR * max |e - r| over the tensor, but never more than half of the digits of the largest
   element. Eager's own error varies from element to element, as it does after cancellation. An element that
   eager happened to hit is no better known than its neighbours; or
4. the element is a sum of terms of which some are known to be as large as `scale`, and 2 holds with the
   ulp taken there. When terms cancel, the rounding of the largest remains, whatever the order of the sum.
   Gradients are such sums, of terms that begin with the cotangents.

Without a reference only 1 and |t - e| <= ULPS * ulp(e) count. A difference of up to FACTOR times that proves
nothing, and is marked as noise. NaN and infinities must be at the same places with the same signs. A complex
number is NaN, or infinite, if one of its parts is, as in `torch.isnan` and `torch.isinf`. Integers and
booleans must be equal, always.

FACTOR is 4. Reordering a sum of n terms changes its error by a small factor with overwhelming probability,
not by n. torch's own accuracy minifier allows 2 to 10 on the root mean square, which is laxer.

ULPS is 4. Two or three correctly rounded operations in place of one fused operation differ by that much; an
error of a wrong formula is thousands of ulps. ulp(x) is eps * |x| of the value's dtype, and no less than its
smallest subnormal number. There are two exceptions:

- For a complex number x is its absolute value, because both parts are rounded in proportion to the whole
  (R. Brent, C. Percival, P. Zimmermann, Error bounds on complex floating-point multiplication, Math. Comp.
  76, 2007).
- In double precision x is the tensor's largest element, because the reference is no better than eager and
  shows no error.

A target may declare that it computes a dtype in another precision (`Arithmetic`). Then eps is that of this
precision. If it flushes denormals, the smallest number is the smallest normal one.

Where eager itself has lost more than half of its digits against the reference, its numbers are noise. A
difference there proves nothing and is marked as noise. A difference that leaves half of the digits is marked
as slight: only such a difference can be explained by rounding (`random_rounding`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from oracles.observation.records import Value

FACTOR = 4.0
ULPS = 4.0

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a target computes, where that differs from what the dtypes say.

    Attributes:
        computes_in: the dtype in which the target computes, by the name of the dtype that it is given.
        flushes_denormals: numbers below the smallest normal one may become zero.

    Raises:
        ValueError: a name is no floating dtype of torch.

    Example:
        Arithmetic({"float64": "float32"}, flushes_denormals=True)
    """

    computes_in: Mapping[str, str] = field(default_factory=dict)
    flushes_denormals: bool = False

    def __post_init__(self) -> None:
        for name in (*self.computes_in, *self.computes_in.values()):
            dtype = getattr(torch, name, None)
            if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype.is_complex):
                raise ValueError(f"{name!r} is no floating dtype of torch")

    def precision(self, dtype: torch.dtype) -> torch.finfo:
        """The precision in which numbers of a dtype are computed."""
        return torch.finfo(getattr(torch, self.computes_in.get(str(dtype).removeprefix("torch."), ""), dtype))

    @property
    def of_double(self) -> torch.finfo:
        """The precision in which double precision is computed."""
        return self.precision(torch.float64)


EXACTLY_AS_SAID = Arithmetic()
"""Each dtype is computed in its own precision."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first element that differs too much, and how many do.

    Attributes:
        index: the element's index, () for a tensor without dimensions.
        eager, target: the element on both sides, as text.
        detail: the place, the number of elements that differ, and by how much.
        noise: eager is so far from the reference that the difference proves nothing.
        slight: half of the digits agree, counted from the largest element as in rule 3.
    """

    index: tuple[int, ...]
    eager: str
    target: str
    detail: str
    noise: bool
    slight: bool = False


def first_mismatch(
    eager: Value,
    target: Value,
    reference: Value | None = None,
    *,
    exact: bool = False,
    scale: float | Value = 0.0,
    arithmetic: Arithmetic = EXACTLY_AS_SAID,
) -> Mismatch | None:
    """Find the first element that disagrees, or None when the two values agree.

    Args:
        eager, target: values of the same dtype and shape.
        reference: the value in double precision. It is not used if its shape differs, or if only one of both
            is complex.
        exact: ask for equality bit for bit (NaN equal to NaN), and ignore the reference.
        scale: the magnitude of terms that are summed into the elements: one number, or float64 of the same
            shape.
        arithmetic: in which precision the target computes; digits are counted in it.

    Raises:
        ValueError: the values differ in dtype or shape, which is a finding of its own.
    """
    if eager.dtype != target.dtype or eager.shape != target.shape:
        raise ValueError(
            f"cannot compare elements of {eager.dtype}{list(eager.shape)} "
            f"with {target.dtype}{list(target.shape)}: compare dtype and shape first"
        )
    if eager.data == target.data:
        return None
    floating = eager.dtype.is_floating_point or eager.dtype.is_complex
    if not floating:
        left, right = eager.tensor().reshape(-1), target.tensor().reshape(-1)
        wrong = (left != right).numpy()
        noise = reference is not None and not exact and _integers_are_noise(eager, reference)
        return _first_difference(eager, target, wrong, "", noise)
    if exact:
        return _first_difference(eager, target, _exact_differences(eager, target), "", False)
    if reference is not None and (
        reference.shape != eager.shape or reference.dtype.is_complex != eager.dtype.is_complex
    ):
        reference = None
    return _compare_within_tolerance(eager, target, reference, _tolerance_scales(scale, eager), arithmetic)


def _compare_within_tolerance(
    eager: Value, target: Value, reference: Value | None, scale: float | _Array, arithmetic: Arithmetic
) -> Mismatch | None:
    e, t = _parts(eager), _parts(target)
    info = arithmetic.precision(eager.dtype)
    least = info.smallest_normal * (1.0 if arithmetic.flushes_denormals else info.eps)
    special = ~np.isfinite(e) | ~np.isfinite(t)
    same_special = (np.isnan(e) & np.isnan(t)) | (e == t)
    if eager.dtype.is_complex:
        same_special |= _alike_as_a_whole(e, t)
    wrong = special & ~same_special
    noise = False
    slight = False
    detail = ""
    with np.errstate(all="ignore"):
        if reference is None:
            distance = np.abs(t - e)
            allowed = ULPS * _ulp(np.maximum(_magnitude(e, eager), scale), info.eps, least)
            # Without a reference nobody knows whether eager or the target has this small error.
            undecided = same_special | (~special & (distance <= FACTOR * allowed))
            noise = bool(undecided.all())
        else:
            r = _parts(reference)
            error, distance = np.abs(e - r), np.abs(t - r)
            known = np.isfinite(e) & np.isfinite(r)
            half = _half_of_the_digits(r, info)
            largest = float(np.max(error, where=known, initial=0.0))
            magnitude = _magnitude(r, eager)
            if torch.finfo(eager.dtype).eps == torch.finfo(torch.float64).eps:
                magnitude = np.full_like(r, _largest(r))
            magnitude = np.maximum(magnitude, scale)
            allowed = np.maximum(
                FACTOR * error + ULPS * _ulp(magnitude, info.eps, least), min(FACTOR * largest, half)
            )
            # Where the reference has no number there is nothing to measure against but eager.
            distance = np.where(np.isfinite(r), distance, np.abs(t - e))
            allowed = np.where(np.isfinite(r), allowed, ULPS * _ulp(_magnitude(e, eager), info.eps, least))
            noise = bool(np.any(np.isfinite(e) != np.isfinite(r))) or largest > half
        far = ~special & ~(e == t) & ~(distance <= allowed)
        wrong |= far
        if far.any():
            worst = float(np.max(np.where(far, np.abs(t - e), 0.0)))
            at_most = float(allowed[far].min())
            detail = f", off by up to {worst:.3g} where {at_most:.3g} is allowed"
            slight = not (special & ~same_special).any() and worst <= _half_of_the_digits(e, info)
    if not wrong.any():
        return None
    return _first_difference(eager, target, _elements(wrong, eager), detail, noise, slight)


def _alike_as_a_whole(e: _Array, t: _Array) -> npt.NDArray[np.bool_]:
    """Whether two complex numbers are both NaN, or both infinite, for each of their parts.

    A product with a number that is infinite in one part is NaN in one part or in both, depending on the order
    of the terms.
    """
    same = np.zeros(len(e) // 2, np.bool_)
    for test in (np.isnan, np.isinf):
        same |= test(e).reshape(-1, 2).any(axis=1) & test(t).reshape(-1, 2).any(axis=1)
    return np.repeat(same, 2)


def _tolerance_scales(scale: float | Value, value: Value) -> float | _Array:
    """The scale of each element, or of each part of a complex one."""
    if not isinstance(scale, Value):
        return scale
    if scale.shape != value.shape:
        return 0.0
    numbers = np.nan_to_num(_parts(scale), nan=0.0, posinf=0.0)
    return np.repeat(numbers, 2) if value.dtype.is_complex else numbers


def _parts(value: Value) -> _Array:
    """The elements as float64 in one dimension; the real and imaginary part of each follow each other."""
    tensor = value.tensor().reshape(-1)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.to(torch.complex128)).reshape(-1)
    array: _Array = tensor.to(torch.float64).numpy()
    return array


def _magnitude(parts: _Array, value: Value) -> _Array:
    """The magnitude by which each element is rounded; for parts of a complex number that of the whole."""
    if not value.dtype.is_complex:
        return np.abs(parts)
    pairs = parts.reshape(-1, 2)
    return np.repeat(np.hypot(pairs[:, 0], pairs[:, 1]), 2)


def _elements(wrong: npt.NDArray[np.bool_], value: Value) -> npt.NDArray[np.bool_]:
    if not value.dtype.is_complex:
        return wrong
    pairs = wrong.reshape(-1, 2)
    return np.logical_or(pairs[:, 0], pairs[:, 1])


def _ulp(numbers: _Array, eps: float, least: float) -> _Array:
    ulps: _Array = np.maximum(np.abs(np.where(np.isfinite(numbers), numbers, 0.0)) * eps, least)
    return ulps


def _half_of_the_digits(reference: _Array, info: torch.finfo) -> float:
    return max(_largest(reference) * math.sqrt(info.eps), ULPS * float(info.smallest_normal))


def _largest(numbers: _Array) -> float:
    finite: _Array = np.abs(numbers[np.isfinite(numbers)])
    largest: float = finite.max(initial=0.0)
    return largest


def _integers_are_noise(eager: Value, reference: Value) -> bool:
    """Whether integers in double precision differ from eager's, as after a comparison of nearly equal
    numbers."""
    if reference.shape != eager.shape or reference.dtype.is_floating_point or reference.dtype.is_complex:
        return False
    return bool((eager.tensor() != reference.tensor()).any())


def _exact_differences(eager: Value, target: Value) -> npt.NDArray[np.bool_]:
    count = 1
    for length in eager.shape:
        count *= length
    left = np.frombuffer(eager.data, np.uint8).reshape(count, -1)
    right = np.frombuffer(target.data, np.uint8).reshape(count, -1)
    differ: npt.NDArray[np.bool_] = (left != right).any(axis=1)
    e, t = _parts(eager), _parts(target)
    # A NaN is a NaN, whatever its payload; for complex numbers only if the other part is equal too.
    both_nan = np.isnan(e) & np.isnan(t)
    equal = both_nan | ((e == t) & (np.signbit(e) == np.signbit(t)))
    return differ & _elements(~equal, eager)


def _first_difference(
    eager: Value,
    target: Value,
    wrong: npt.NDArray[np.bool_],
    detail: str,
    noise: bool,
    slight: bool = False,
) -> Mismatch | None:
    if not wrong.any():
        return None
    flat = int(np.argmax(wrong))
    index = tuple(int(i) for i in np.unravel_index(flat, eager.shape)) if eager.shape else ()
    where = f"element {index}" if index else "the element"
    count = f"{int(wrong.sum())} of {wrong.size} elements differ"
    return Mismatch(
        index=index,
        eager=_show(eager, flat),
        target=_show(target, flat),
        detail=f"{where} first, {count}{detail}",
        noise=noise,
        slight=slight,
    )


def _show(value: Value, flat: int) -> str:
    return str(value.tensor().reshape(-1)[flat].item())
