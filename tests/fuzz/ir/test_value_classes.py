"""Value classes: a root has numbers of its dtype, and its twin in double precision has the same."""

from __future__ import annotations

import math

import pytest
import torch

from fuzz.ir.nodes import Program, Ref, Root, Storage
from fuzz.ir.value_classes import FORMULAS, VALUES, number_table
from fuzz.program.argument_text import root_values_text
from fuzz.program.printer import upcast

CASES = [(values, dtype) for values, dtypes in VALUES.items() for dtype in sorted(dtypes)]


def made(storage: Storage) -> torch.Tensor:
    result = eval(root_values_text(storage, ""))
    assert isinstance(result, torch.Tensor) and str(result.dtype) == f"torch.{storage.dtype}"
    return result


@pytest.mark.parametrize(("values", "dtype"), CASES)
def test_double_precision_has_the_numbers_that_were_rounded(values: str, dtype: str) -> None:
    storage = Storage(dtype, (4, 5), 3, values=values)
    twin = upcast(Program((storage,), (Root(0),), (Ref("a0"),), (), Ref("a0")))
    assert twin is not None
    one, double = made(storage), made(twin.storages[0])
    assert torch.allclose(one.to(double.dtype), double, 0, 0, equal_nan=True)
    if values not in (*FORMULAS, "plain", "special"):
        numbers = number_table(values, dtype)
        assert len({*numbers}) > 2 and all(isinstance(n, complex) or math.isfinite(n) for n in numbers)


def test_limits_are_those_of_the_dtype() -> None:
    for dtype in ("uint8", "int8", "int16", "int32", "int64"):
        info = torch.iinfo(getattr(torch, dtype))
        assert {info.min, info.max} <= {*number_table("limits", dtype)}
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        fine = torch.finfo(getattr(torch, dtype))
        held = made(Storage(dtype, (11,), 0, values="limits"))
        assert (held.max(), held.min()) == (fine.max, fine.min)
        assert (held.abs()[held != 0].min() < fine.smallest_normal) and held.isfinite().all()


def test_matrices_are_singular_or_nearly() -> None:
    assert torch.linalg.matrix_rank(made(Storage("float64", (6, 6), 2, values="singular"))) == 1
    assert torch.linalg.cond(made(Storage("float64", (6, 6), 0, values="ill-conditioned"))) > 1e6
