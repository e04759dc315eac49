"""What is read of Inductor's kernels: loops, reductions, operators, and families of patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config

from bench.fuzzer import kernel_text
from bench.fuzzer.reach import ANY_REDUCTION, FAMILIES, Reach, recording_inductor, tables

LOOP = (
    "void kernel(const at::Half* in_ptr0, int8_t* out_ptr0)\n"
    "for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>({bound}L); "
    "x0+=static_cast<int64_t>({step}L))\n"
    "at::vec::Vectorized<float> tmp0;\n"
)


@pytest.mark.parametrize(
    ("bound", "step", "seen"),
    [
        (70, 8, kernel_text.FULL_AND_TAIL),
        (64, 8, kernel_text.FULL),
        (7, 8, kernel_text.PART),
        (70, 1, kernel_text.SCALAR),
        ("ks0", 8, kernel_text.FULL_AND_TAIL),
    ],
)
def test_a_loop_is_told_by_its_bound_and_step(bound: object, step: int, seen: str) -> None:
    text = LOOP.format(bound=bound, step=step)
    assert set(kernel_text.kernel_traits(text)) == {seen, "dtype: float16", "dtype: int8"}
    assert list(kernel_text.extents(text)) == ([] if bound == "ks0" else [bound])


def families(function: Callable[..., Any], *arguments: Any) -> tuple[Reach, set[str]]:
    reach = Reach()
    torch._dynamo.reset()
    with recording_inductor(reach), torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1):
        torch.compile(function)(*arguments)
    [table, *_] = tables({"one": [reach]}, 1, 0.0)
    return reach, {str(row[0]) for row in table.rows if row[1]}


def test_what_programs_make_inductor_do_is_seen_and_no_kernel_is_compiled() -> None:
    reach, seen = families(lambda x: x.softmax(1), torch.ones(20, 70))
    assert seen == {"softmax", "chain around a reduction"}
    assert {kernel_text.FULL_AND_TAIL, ANY_REDUCTION, "reduction: sum", "dtype: float32"} <= reach.traits
    assert families(lambda x, a: torch.addmm(x, a, a).relu(), *torch.ones(2, 4, 4))[1] == {
        "addmm",
        "linear and activation",
    }
    result = torch.compile(lambda x: x + 1)(torch.ones(3))
    assert result.tolist() == [2.0, 2.0, 2.0], "kernels work again"


def test_each_family_is_shown_by_names_that_are_noted() -> None:
    begins = ("pattern: ", "extern: ", "operator: ", "counter: ", "reduction: ", "kernel: ")
    for parts in FAMILIES.values():
        assert all(name.startswith(begins) for part in parts for name in part)
