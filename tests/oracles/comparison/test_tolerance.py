"""The error policy, number by number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from oracles.comparison.tolerance import FACTOR, ULPS, Arithmetic, first_mismatch
from oracles.observation.records import Value
from oracles.observation.tensor_state import value_of

pytestmark = pytest.mark.clause("values")

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def value(data: object, dtype: torch.dtype = torch.float32) -> Value:
    found = value_of(data if isinstance(data, Tensor) else torch.tensor(data, dtype=dtype))
    assert found is not None
    return found


def ulps_up(number: float, count: float, dtype: torch.dtype) -> Value:
    return value(torch.tensor(number, dtype=torch.float64).add(count * torch.finfo(dtype).eps).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_few_units_in_the_last_place_agree_without_a_reference(dtype: torch.dtype) -> None:
    one = value(1.0, dtype)
    assert first_mismatch(one, ulps_up(1.0, 1, dtype)) is None
    assert first_mismatch(one, ulps_up(1.0, ULPS, dtype)) is None
    assert first_mismatch(one, ulps_up(1.0, 2 * ULPS, dtype)) is not None


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_sees_one_unit_in_the_last_place(dtype: torch.dtype) -> None:
    found = first_mismatch(
        value([1.0, 1.0], dtype), value([1.0, 1 + torch.finfo(dtype).eps], dtype), exact=True
    )
    assert found is not None
    assert found.index == (1,)


def test_one_in_a_thousand_is_wrong_in_single_precision() -> None:
    found = first_mismatch(value([[1.0, 2.0], [3.0, 4.0]]), value([[1.0, 2.0], [3.003, 4.0]]))
    assert found is not None
    assert found.index == (1, 0)
    assert (found.eager, found.target) == ("3.0", str(torch.tensor(3.003).item()))
    assert found.detail.startswith("element (1, 0) first, 1 of 4 elements differ, off by up to 0.003")
    assert not found.noise


@pytest.mark.parametrize("exact", [True, False])
def test_zeros_of_either_sign_differ_only_exactly(exact: bool) -> None:
    found = first_mismatch(value([0.0, 1.0]), value([-0.0, 1.0]), exact=exact)
    assert (found is not None) == exact


@pytest.mark.parametrize("exact", [True, False])
def test_not_a_number_is_itself_whatever_its_bits(exact: bool) -> None:
    other = value(torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32))
    assert first_mismatch(value([math.nan, 1.0]), other, exact=exact) is None
    assert first_mismatch(value([math.nan, 1.0]), value([1.0, math.nan]), exact=exact) is not None
    assert first_mismatch(value([1.0]), value([math.nan]), value([1.0], torch.float64)) is not None


@pytest.mark.parametrize("exact", [True, False])
def test_infinities_keep_place_and_sign(exact: bool) -> None:
    infinity = value([math.inf, 1.0])
    assert first_mismatch(infinity, value([math.inf, 1.0]), exact=exact) is None
    assert first_mismatch(infinity, value([-math.inf, 1.0]), exact=exact) is not None
    assert first_mismatch(infinity, value([3e38, 1.0]), exact=exact) is not None
    assert first_mismatch(value([3e38, 1.0]), infinity, exact=exact) is not None


def test_infinities_in_the_reference_do_not_excuse_others() -> None:
    reference = value([math.inf, 1.0], torch.float64)
    assert first_mismatch(value([math.inf, 1.0]), value([math.inf, 1.1]), reference) is not None


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_and_booleans_are_exact(dtype: torch.dtype) -> None:
    ones, other = value([1, 1], dtype), value([1, 0], dtype)
    assert first_mismatch(ones, ones) is None
    found = first_mismatch(ones, other)
    assert found is not None and found.index == (1,)


def test_integers_that_double_precision_decides_otherwise_are_noise() -> None:
    eager, target = value([1, 0], torch.int64), value([1, 1], torch.int64)
    found = first_mismatch(eager, target, value([1, 1], torch.int64))
    assert found is not None and found.noise
    found = first_mismatch(eager, target, value([1, 0], torch.int64))
    assert found is not None and not found.noise


def test_target_may_be_a_small_factor_further_from_the_reference_than_eager() -> None:
    error = 1e-5
    reference = value([1.0], torch.float64)
    eager = value([1.0 + error])
    assert first_mismatch(eager, value([1.0 - 0.9 * FACTOR * error]), reference) is None
    assert first_mismatch(eager, value([1.0 - 1.2 * FACTOR * error]), reference) is not None


def test_error_of_the_neighbours_counts_after_cancellation() -> None:
    reference = value([1e-3, 1e-3, 1.0], torch.float64)
    eager = value([1e-3, 1e-3 + 2e-6, 1.0])
    assert first_mismatch(eager, value([1e-3 + 3e-6, 1e-3, 1.0]), reference) is None
    assert first_mismatch(eager, value([1e-3 + 2e-5, 1e-3, 1.0]), reference) is not None


def test_noisy_elements_excuse_only_half_of_the_digits() -> None:
    reference = value([0.0, 1.0], torch.float64)
    eager = value([0.2, 1.0])
    found = first_mismatch(eager, value([0.2, 1.5]), reference)
    assert found is not None
    assert found.index == (1,)
    assert found.noise


def test_single_precision_within_its_error_is_no_noise() -> None:
    reference = value([1.0, 2.0], torch.float64)
    found = first_mismatch(value([1.0 + 1e-6, 2.0]), value([1.0, 2.1]), reference)
    assert found is not None and not found.noise


def test_double_precision_rounds_at_the_size_of_the_largest_element() -> None:
    eager = value([1e-8, 1e4], torch.float64)
    assert first_mismatch(eager, value([1e-8 + 1e-12, 1e4], torch.float64), eager) is None
    assert first_mismatch(eager, value([2e-8, 1e4], torch.float64), eager) is not None
    assert first_mismatch(eager, value([1e-8 + 1e-12, 1e4], torch.float64)) is not None


def test_reference_of_another_shape_is_not_used() -> None:
    reference = value([1.0, 1.0, 1.0], torch.float64)
    assert first_mismatch(value([1.0, 1.0]), value([1.0, 1.5]), reference) is not None
    assert first_mismatch(value([1.0, 1.0]), value([1.0, 1.0000001]), reference) is None


@pytest.mark.parametrize("exact", [True, False])
def test_complex_numbers_are_compared_part_by_part(exact: bool) -> None:
    eager = value([1 + 2j, 3 + 4j], torch.complex64)
    found = first_mismatch(eager, value([1 + 2j, 3 + 4.01j], torch.complex64), exact=exact)
    assert found is not None
    assert found.index == (1,)
    assert "1 of 2 elements" in found.detail
    assert first_mismatch(eager, value([1 + 2j, 3 + 4j], torch.complex64), exact=exact) is None


def test_a_complex_number_is_rounded_as_a_whole() -> None:
    eager = value([1000 + 1j], torch.complex64)
    assert first_mismatch(eager, value([1000 + 1.0001j], torch.complex64)) is None
    assert first_mismatch(eager, value([1000 + 1.001j], torch.complex64)) is not None
    real = value([1000.0, 1.0])
    assert first_mismatch(real, value([1000.0, 1.0001])) is not None


def test_a_complex_number_is_nan_or_infinite_as_a_whole() -> None:
    nan, infinite = complex(math.nan, 1), complex(math.inf, 1)
    one = value([nan, infinite], torch.complex64)
    assert (
        first_mismatch(one, value([complex(2, math.nan), complex(math.nan, -math.inf)], torch.complex64))
        is None
    )
    assert first_mismatch(one, value([1 + 1j, infinite], torch.complex64)) is not None
    assert first_mismatch(one, value([nan, 1 + 1j], torch.complex64)) is not None
    assert first_mismatch(one, value([infinite, nan], torch.complex64)) is not None


def test_complex_reference_in_double_precision() -> None:
    reference = value([1 + 2j], torch.complex128)
    eager = value([1.00001 + 2j], torch.complex64)
    assert first_mismatch(eager, value([0.99998 + 2j], torch.complex64), reference) is None
    assert first_mismatch(eager, value([0.99998 + 2.1j], torch.complex64), reference) is not None


def test_a_single_number_and_no_number() -> None:
    found = first_mismatch(value(1.0), value(2.0))
    assert found is not None
    assert (found.index, found.detail[:11]) == ((), "the element")
    empty = value(torch.empty(0, 3))
    assert first_mismatch(empty, value(torch.empty(0, 3)), exact=True) is None


def test_subnormal_numbers_are_not_compared_relatively_to_zero() -> None:
    smallest = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    assert first_mismatch(value([0.0]), value([2 * smallest])) is None
    assert first_mismatch(value([0.0]), value([100 * smallest])) is not None


@pytest.mark.parametrize("other", [value([1, 1], torch.int32), value([1.0]), value([[1.0, 1.0]])])
def test_other_dtypes_and_shapes_are_refused(other: Value) -> None:
    with pytest.raises(ValueError, match="compare dtype and shape first"):
        first_mismatch(value([1.0, 1.0]), other)


def test_a_target_that_computes_in_single_precision_has_its_digits() -> None:
    numbers = torch.tensor([1.0, 3.0, 1e-3], dtype=torch.float64)
    eager, target = value(numbers / 3), value(numbers.float().div(3).double())
    single = Arithmetic({"float64": "float32"})
    assert first_mismatch(eager, target, eager) is not None
    assert first_mismatch(eager, target, eager, arithmetic=single) is None
    wrong = value(numbers / 3 * (1 + 1e-5))
    found = first_mismatch(eager, wrong, eager, arithmetic=single)
    assert found is not None and found.slight
    assert first_mismatch(eager, target, eager, exact=True, arithmetic=single) is not None


def test_denormals_may_be_zeros_where_a_target_flushes_them() -> None:
    eager, target = value(torch.tensor([1e-40, 1.0])), value(torch.tensor([0.0, 1.0]))
    assert first_mismatch(eager, target, eager) is not None
    assert first_mismatch(eager, target, eager, arithmetic=Arithmetic(flushes_denormals=True)) is None
    small = value(torch.tensor([1e-36, 1.0]))
    assert first_mismatch(small, target, small, arithmetic=Arithmetic(flushes_denormals=True)) is not None


@pytest.mark.parametrize("names", [{"float64": "int32"}, {"double precision": "float32"}, {"float64": "nn"}])
def test_a_precision_that_is_none_is_said(names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is no floating dtype of torch"):
        Arithmetic(names)
