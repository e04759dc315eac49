"""Twenty-two faults of Inductor's kernels, seeded by name: of vector loops, dtypes, edges and lowerings.

Each is like one that was reported: a tail that is not masked, a NaN that is dropped, an integer in too few
bits. Those of `bench.fuzzer.inductor_faults` show in nearly every program with their operator; most of these
do for some sizes, dtypes or values alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import async_compile, lowering
from torch._inductor.fx_passes import post_grad

from bench.fuzzer.inductor_faults import (
    DECOMPOSITION,
    LOWERINGS,
    POST_GRAD,
    Fault,
    decompose,
    lower,
    make_mistake_after_pass,
)

aten = torch.ops.aten
KERNELS = "kernels"


def _rewrite(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Callable[[], None]:
    """Have the text of each kernel be another one, wherever a regular expression is found in it."""

    def seed() -> None:
        owner: Any = async_compile.AsyncCompile
        right = owner.cpp_pybinding

        def wrong(self: Any, argtypes: list[str], source: str, *more: Any) -> Any:
            return right(self, argtypes, re.sub(pattern, replacement, source), *more)

        owner.cpp_pybinding = wrong

    return seed


def _low(name: str) -> Callable[..., Any]:
    """The lowering of an operator of any overload."""
    found: Callable[..., Any] = lowering.lowerings[getattr(aten, name)]
    return found


def _lowering(operator: Any, wrong: Callable[..., Any]) -> Callable[[], None]:
    return lower(operator, lambda _right: wrong)


def _without_alpha(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        return right(x, y)

    return wrong


def _in_32_bits(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(x: Any, y: Any) -> Any:
        result = right(x, y)
        if result.get_dtype() != torch.int64:
            return result
        return lowering.to_dtype(lowering.to_dtype(result, torch.int32), torch.int64)

    return wrong


def _with_a_sign(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(x: Any, dtype: torch.dtype) -> Any:
        return right(right(x, torch.int8) if x.get_dtype() == torch.uint8 else x, dtype)

    return wrong


def _all_but_last(right: Callable[..., Any]) -> Callable[..., Any]:
    """A concatenation of more than two parts has the second one in place of the last one."""
    return lambda tensors, dim=0: right([*tensors[:-1], tensors[1]] if len(tensors) > 2 else tensors, dim)


_MASK = r"(\w+_vec), (\w+), static_cast<int64_t>\(\d+L*\)\)"
F = torch.nn.functional

KERNEL_FAULTS = (
    Fault(
        "the tail of a sum is not masked",
        KERNELS,
        "sum",
        _rewrite(rf"sum_masked_reduce\({_MASK}", r"\1 + \2"),
        lambda x, y: x.flatten()[:13].exp().sum(),
    ),
    Fault(
        "the tail of a maximum is not masked",
        KERNELS,
        "amax",
        _rewrite(rf"max_masked_reduce\({_MASK}", r"at::vec::maximum(\1, \2)"),
        lambda x, y: (-y.flatten()[:13]).amax(),
    ),
    Fault(
        "the tail of a minimum is not masked",
        KERNELS,
        "amin",
        _rewrite(rf"min_masked_reduce\({_MASK}", r"at::vec::minimum(\1, \2)"),
        lambda x, y: (y.flatten()[:13] * 2).amin(),
    ),
    Fault(
        "the tail's last element is not loaded",
        KERNELS,
        "load",
        _rewrite(
            r"(::loadu\(in_ptr\d+ \+ [^;]*, static_cast<int64_t>\()(\d+)L\)",
            lambda found: f"{found[1]}{int(found[2]) - 1})",
        ),
        lambda x, y: y.flatten()[:13] * 2 + 1,
    ),
    Fault(
        "a maximum drops NaN",
        LOWERINGS,
        "maximum",
        _lowering(aten.maximum.default, lambda x, y: _low("where")(_low("gt")(x, y), x, y)),
        lambda x, y: torch.maximum((-y).sqrt(), y),
    ),
    Fault(
        "relu drops NaN",
        LOWERINGS,
        "relu",
        _lowering(aten.relu.default, lambda x: _low("where")(_low("gt")(x, 0), x, 0.0)),
        lambda x, y: torch.relu((-y).sqrt()),
    ),
    Fault(
        "an integer division truncates",
        LOWERINGS,
        "div",
        _lowering(aten.div.Tensor_mode, lambda x, y, rounding_mode=None: lowering.div_prim(x, y)),
        lambda x, y: torch.div((x * 20).int() - 9, (y * 3).int(), rounding_mode="floor"),
    ),
    Fault(
        "a remainder has the sign of what is divided",
        LOWERINGS,
        "remainder",
        _lowering(aten.remainder.Tensor, _low("fmod")),
        lambda x, y: torch.remainder(x - 3, y),
    ),
    Fault(
        "8 bits without a sign have one",
        LOWERINGS,
        "convert_element_type",
        lower(torch.ops.prims.convert_element_type.default, _with_a_sign),
        lambda x, y: (y * 100).to(torch.uint8).flatten().sort()[0].float() + 1,
    ),
    Fault(
        "64-bit integers are computed in 32 bits",
        LOWERINGS,
        "mul",
        lower(aten.mul.Tensor, _in_32_bits),
        lambda x, y: (y.long() + 2**33) * 3,
    ),
    Fault(
        "a mean divides by one too few",
        LOWERINGS,
        "mean",
        lower(
            aten.mean.dim, lambda right: lambda x, *more, **named: _low("mul")(right(x, *more, **named), 1.02)
        ),
        lambda x, y: (x + y).mean(1).cos(),
    ),
    Fault(
        "a scale of what is added is forgotten",
        LOWERINGS,
        "add",
        lower(aten.add.Tensor, _without_alpha),
        lambda x, y: torch.add(x, y, alpha=3).exp(),
    ),
    Fault(
        "of three tensors that are joined the second comes twice",
        LOWERINGS,
        "cat",
        lower(aten.cat.default, _all_but_last),
        lambda x, y: torch.cat([x, y, x * y], 1) * 2,
    ),
    Fault(
        "what is accumulated into an index is put there",
        LOWERINGS,
        "index_put",
        lower(
            aten.index_put.default,
            lambda right: lambda x, indices, values, accumulate=False: right(x, indices, values, False),
        ),
        lambda x, y: x.index_put((torch.tensor([0, 0, 1]),), y[:3] * 2, accumulate=True),
    ),
    Fault(
        "a padding is not positive",
        LOWERINGS,
        "constant_pad_nd",
        lower(
            aten.constant_pad_nd.default,
            lambda right: lambda x, padding, value=0: right(x, padding, min(value, 0)),
        ),
        lambda x, y: F.pad(x + y, (1, 2), value=3.5) * 2,
    ),
    Fault(
        "a clamp ignores its upper bound where it has a lower one",
        DECOMPOSITION,
        "<OpOverload(op='aten.clamp'",
        decompose(
            aten.clamp.default,
            lambda x, low=None, high=None: (
                torch.where(x > high, high, x) if low is None else torch.where(x < low, low, x)
            ),
        ),
        lambda x, y: torch.clamp(x * 4, -0.5, 0.5) + y,
    ),
    Fault(
        "halves are rounded up",
        LOWERINGS,
        "round",
        _lowering(aten.round.default, lambda x: _low("floor")(_low("add")(x, 0.5))),
        lambda x, y: torch.round((x * 4).floor() / 2),
    ),
    Fault(
        "the sign of a zero is lost",
        LOWERINGS,
        "neg",
        _lowering(aten.neg.default, lambda x: _low("sub")(0, x)),
        lambda x, y: torch.copysign(y, torch.neg(y - y)),
    ),
    Fault(
        "a softmax does not subtract the maximum",
        DECOMPOSITION,
        "<OpOverload(op='aten._softmax'",
        decompose(
            aten._softmax.default, lambda x, dim, half: torch.exp(x) / torch.exp(x).sum(dim, keepdim=True)
        ),
        lambda x, y: torch.softmax(x * 900 + 100, 1),
    ),
    Fault(
        "a variance is of the whole",
        DECOMPOSITION,
        "<OpOverload(op='aten.native_layer_norm'",
        decompose(
            aten.native_layer_norm.default,
            lambda x, shape, weight, bias, eps: (
                (x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=1) + eps),
                x.mean(-1, True),
                torch.rsqrt(x.var(-1, keepdim=True) + eps),
            ),
        ),
        lambda x, y: F.layer_norm(x * 3, (4,)).exp(),
    ),
    Fault(
        "a pass takes a product for a maximum",
        POST_GRAD,
        "pass_pattern_2",
        make_mistake_after_pass(post_grad, "remove_noop_ops", aten.mul.Tensor, aten.maximum.default),
        lambda x, y: (x.mm(y) * x + y).neg(),
    ),
    Fault(
        "a strict comparison is one that is not",
        LOWERINGS,
        "gt",
        _lowering(aten.gt.Tensor, _low("ge")),
        lambda x, y: (x > x.clone().flip(0).flip(0)).float() + y,
    ),
)
