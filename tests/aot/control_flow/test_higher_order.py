"""Operators that take functions (`torch.cond` and its like): what is recorded, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch._higher_order_ops.out_dtype import out_dtype
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

import aot
from aot import errors
from oracles import Backward
from tests.support.agreement import KINDS, assert_agrees, checking_nop, values
from tests.support.versions import needs_torch

pytestmark = [pytest.mark.both_devices, pytest.mark.usefixtures("fresh_dynamo")]


def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def cond_of_a_known_condition(x: Tensor) -> Tensor:
    return torch.cond(len(x) > 2, lambda x: x.sin(), lambda x: x.cos(), (x,))


def returns_an_operand(x: Tensor) -> Tensor:
    return torch.cond(torch.ones(2).sum() > 1, lambda x: x.view(-1), lambda x: x.view(-1), (x,))


def endless(x: Tensor) -> Tensor:
    return while_loop(lambda x: x.sum() < 30, lambda x: (x.abs() * 2,), (x,))[0]


def chosen(x: Tensor) -> Tensor:
    return torch.cond(torch.arange(3).sum() == 3, lambda x: x.sin(), lambda x: x.cos(), (x,))


def loop(x: Tensor) -> Tensor:
    return while_loop(lambda i, x: i.sum() < 3, lambda i, x: (i + 1, x * 2), (torch.zeros(1), x))[1]


def scanned(x: Tensor) -> Tensor:
    return scan(lambda carry, y: (carry + y, carry * y), x[0].clone(), x)[1]


def scanned_backwards(x: Tensor) -> Tensor:
    carry, y = scan(lambda c, y: (c * y.sin(), c + y), x[0].clone(), x, reverse=True)
    return carry.sum() * y


def mapped_with_others(x: Tensor) -> Tensor:
    y = x * 2
    return map(lambda a, b: a * y.sum() + b, x, x.sum())


def scanned_associatively(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def mapped(x: Tensor) -> Tensor:
    return map(lambda y: y * 2, x)


def attention(x: Tensor) -> Tensor:
    q = x.detach().expand(1, 1, 16, len(x))
    return flex_attention(q, q, q)


def of_another_dtype(x: Tensor) -> Tensor:
    small = torch.ones(3, 3, dtype=torch.int8)
    return x.sum() + out_dtype(torch.ops.aten.mm.default, torch.int32, small, small)


def marked_region(x: Tensor) -> Tensor:
    return mark_compile_region(lambda x: x * 2)(x)


def compiled_region(x: Tensor) -> Tensor:
    return torch.compile(lambda x: x * 2, backend="eager")(x)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (returns_an_operand, "cond"),
        (of_another_dtype, "out_dtype"),
    ],
)
def test_they_are_refused_by_name(function: Callable[[Tensor], Tensor], name: str, grad: bool) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
        return function(x)

    x = values(3).requires_grad_(grad)
    if function is not returns_an_operand:  # which Dynamo refuses as well
        function(x.clone())
    with pytest.raises(errors.UnsupportedOperation, match=name):
        aot.aot_function(f, checking_nop)(x)
    assert torch.equal(x, values(3))
    assert x._version == 0
    if function is not returns_an_operand:
        function(x.clone())  # as ever


RECORDED = [
    cond,
    chosen,
    loop,
    scanned,
    scanned_backwards,
    mapped,
    mapped_with_others,
    attention,
    cond_of_a_known_condition,
    scanned_associatively,
    marked_region,
    compiled_region,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", RECORDED, ids=lambda function: function.__name__)
def test_what_is_recorded(function: Callable[[Tensor], Tensor], grad: bool) -> None:
    compiled = aot.aot_function(function, checking_nop)
    results = []
    for one in (function, compiled, compiled):
        x = values(16 if function is attention else 3).requires_grad_(grad)
        y = one(x)
        results.append([y.detach(), *(torch.autograd.grad(y.sum(), x) if y.requires_grad else ())])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
    assert len(compiled.specializations) == 1


# What comes back is what autograd knows in eager: results of one node, and of `map` views of what nobody has.
AS_IN_EAGER: dict[str, Callable[[Tensor], Any]] = {
    "mapped": lambda x: map(lambda row: row.sin() * 2, x),
    "mapped to several": lambda x: map(lambda row: (row * 2, row.sin(), row.sum()), x),
    "mapped and a part": lambda x: (y := map(lambda row: row * 2, x), y[0], y.t() * 3),
    "scanned": lambda x: scan(lambda carry, row: (carry + row, carry * row), x[0] * 0, x),
    "scanned, of which one is dropped": lambda x: scan(lambda c, row: (c + row, c * row), x[0] * 0, x)[0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["plain", "leaf", "non_leaf"])
@pytest.mark.parametrize("function", AS_IN_EAGER)
def test_results_are_what_eager_gives(function: str, kind: str) -> None:
    assert_agrees(AS_IN_EAGER[function], lambda: [KINDS[kind](3, 2)])
    if function.startswith("mapped to"):
        steps = (Backward((0,), "double", True), Backward((1,), "double", True))
        assert_agrees(AS_IN_EAGER[function], lambda: [KINDS[kind](3, 2)], steps=steps)


@pytest.mark.filterwarnings("ignore")
def test_where_one_result_of_a_scan_gets_a_gradient_the_other_gets_zeros() -> None:
    """Which shows where they are multiplied by infinity."""

    def make() -> list[Tensor]:
        x = values(3, 2)
        x[1, 0] = torch.inf
        return [x.requires_grad_()]

    x = make()[0]
    (gradient,) = torch.autograd.grad(AS_IN_EAGER["scanned"](x)[0].sum(), x)
    assert gradient.isnan().any()
    assert_agrees(AS_IN_EAGER["scanned"], make, differentiate=(0,))


@pytest.mark.filterwarnings("ignore")
def test_second_derivatives_of_a_scan_are_those_of_the_loop() -> None:
    def written_out(x: Tensor) -> tuple[Tensor, Tensor]:
        carry, rows = x[0] * 0, []
        for row in x:
            rows.append(carry * row)
            carry = carry + row
        return carry, torch.stack(rows)

    results = []
    for function in (aot.aot_function(AS_IN_EAGER["scanned"], aot.nop), written_out):
        x = values(3, 2).requires_grad_()
        (first,) = torch.autograd.grad((function(x)[1] * values(3, 2)).sum(), x, create_graph=True)
        results.append(torch.autograd.grad((first * values(3, 2)).sum(), x)[0])
    torch.testing.assert_close(*results)
    assert results[0].abs().min() > 0


@torch.compiler.nested_compile_region
def region(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    return (x * z).sin(), x.cos()


def regions(x: Tensor, z: Tensor) -> Tensor:
    a, b = region(x, z)
    c, d = region(b, z)
    return a + c * d


@pytest.mark.parametrize("backend", ["aotfuzz", "aotfuzz_inductor"])
def test_nested_regions_below_torch_compile(backend: str) -> None:
    compiled = torch.compile(regions, backend=backend, fullgraph=True)
    results = []
    for function in (regions, compiled, compiled):
        x, z = values(3, 3).requires_grad_(), values(3, start=1).requires_grad_()
        y = function(x, z)
        results.append([y, *torch.autograd.grad(y.sum(), (x, z))])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@needs_torch(">=2.15", "what map's function may write to its rows is of torch 2.15")
@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.clone(), Tensor.t], ids=["it", "a copy", "a view"])
def test_a_mapped_function_writes_to_its_rows(of: Callable[[Tensor], Tensor]) -> None:
    def written(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = of(x)
        return map(lambda row: row.mul_(2).sin(), rows), rows.sum()

    with torch.no_grad():
        expected, x, y = values(3, 2), values(3, 2), values(3, 2)
        for got, wanted in zip(aot.aot_function(written, checking_nop)(x), written(y), strict=True):
            assert torch.equal(got, wanted)
        assert torch.equal(x, y)
        assert of is not Tensor.t or not torch.equal(x, expected)


# What of torch's own programs is refused, why, and with which words.
REFUSED = {
    "while_loop_stack_output": (errors.UnsupportedOperation, "while_loop_stack_output"),
    "register_hook": (errors.UnsupportedHook, "hook"),
    "flex_gemm": (errors.UnsupportedOperation, "flex_gemm"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("info", hop_db, ids=lambda info: f"{info.name}-{info.variant_test_name}")
def test_torchs_own(info: Any, requires_grad: bool) -> None:
    if torch.float32 not in info.supported_dtypes("cpu"):
        pytest.skip("torch has it for CUDA devices alone (issue 10)")
    if requires_grad and info.name.startswith("flex_attention"):
        pytest.skip("torch has its backward for CUDA devices alone (issue 10)")

    def run(function: Callable[..., Any], sample: Any) -> Any:
        args, kwargs = pytree.tree_map(
            lambda v: v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v,
            ((sample.input, *sample.args), sample.kwargs),
        )
        outputs = pytree.tree_leaves(function(*args, **kwargs))
        wanted = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
        results = [t.sum() for t in outputs if isinstance(t, Tensor) and t.requires_grad]
        return outputs, torch.autograd.grad(results, wanted, allow_unused=True) if results and wanted else ()

    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=requires_grad):
        # (What is no data is no argument: flex_attention's score_mod and mask, in torch 2.11.)
        given = [isinstance(one, (Tensor, int, float, bool, tuple, list, NoneType)) for one in sample.args]
        rest = [one for one, is_data in zip(sample.args, given, strict=True) if not is_data]
        sample.args = tuple(one for one, is_data in zip(sample.args, given, strict=True) if is_data)

        def op(first: Any, *args: Any, given: Any = given, rest: Any = rest, **kwargs: Any) -> Any:
            data, others = iter(args), iter(rest)
            return info.op(first, *(next(data if is_data else others) for is_data in given), **kwargs)

        compiled = aot.aot_function(op, checking_nop)
        if info.name in REFUSED:
            kind, words = REFUSED[info.name]
            with pytest.raises(kind, match=words):
                run(compiled, sample)
        else:
            torch.testing.assert_close(run(compiled, sample), run(op, sample))


@pytest.mark.parametrize("dynamic", [False, True])
def test_hints_say_nothing_of_what_is_computed(fresh_dynamo: None, dynamic: bool) -> None:
    def hinted(x: Tensor, w: Tensor) -> Tensor:
        (product,) = hints_wrapper(
            lambda x, w: ((x * w).sin(),), (x, w), {}, hints={"outer_loop_fusion": True}
        )
        result: Tensor = product * 2
        return result

    compiled = torch.compile(hinted, backend="aotfuzz", dynamic=dynamic)
    for size in (3, 4):
        x, w = values(size), values(size).requires_grad_()
        result = compiled(x, w)
        assert torch.equal(result, (x * w).sin() * 2)
        (gradient,) = torch.autograd.grad(result.sum(), w)
        torch.testing.assert_close(gradient, (x * w).cos() * 2 * x)
