"""The comparison with torch's operator database: what programs contain, and a reason for each gap."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from bench.fuzzer.operator_coverage import REASONS, Recorded, compare, record_rows
from fuzz.operators import OPERATORS


@pytest.fixture(scope="module")
def few() -> Recorded:
    """What programs with three rows call and dispatch to."""
    return record_rows([OPERATORS[name] for name in ("mm_kernel", "t_copy", "sin")])


def test_a_program_is_recorded_forward_and_backward(few: Recorded) -> None:
    assert {torch.mm, torch.t_copy} <= few.functions
    assert {"aten.mm", "aten.t_copy"} <= few.packets
    assert "aten.cos" in few.packets  # of the backward of `sin`


def test_operators_are_called_made_of_others_or_missing(few: Recorded) -> None:
    """`mv` and its like dispatch to what no program with these rows does."""
    called, composed, gaps = compare(few)
    assert {"mm", "t_copy"} <= set(called) and "erfinv" in gaps
    assert len(called) + len(composed) + len(gaps) == len(op_db)


def test_reasons_are_for_operators_of_the_database() -> None:
    names = {f"{info.name}.{info.variant_test_name}".rstrip(".") for info in op_db}
    assert set(REASONS) - names <= {name for name in REASONS if "cross_entropy" in name}  # not in torch 2.11


@pytest.mark.nightly
def test_each_gap_has_a_reason_that_holds() -> None:
    _, _, gaps = compare(record_rows(list(OPERATORS.values())))
    assert set(gaps) <= set(REASONS)
    assert {name for name in REASONS if "cross_entropy" not in name} <= set(gaps)
