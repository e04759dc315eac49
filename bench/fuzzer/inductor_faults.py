"""Twenty faults of Inductor, seeded by name into the torch that runs: lowerings, passes and decompositions.

As a script it seeds one fault, compiles the fault's program and compares it with eager: its exit status is 1
while they differ. It needs torch alone.

    python bench/fuzzer/inductor_faults.py sum
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import decomposition, lowering
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

aten = torch.ops.aten
LOWERINGS, DECOMPOSITION = "lowerings", "decomposition"
PRE_GRAD, JOINT, POST_GRAD = "pre_grad_passes", "joint_graph_passes", "post_grad_passes"
Program = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that Inductor does wrong.

    Attributes:
        name: what it is called here.
        part: of the compiler, as torch's bisector calls it.
        culprit: how what is to blame begins, as torch's bisector calls it: a node, a pass, an operator.
        seed: makes the fault in this process.
        program: shows it, on two tensors of 4 by 4.
        grad: whether it shows in the gradient of the first tensor.
    """

    name: str
    part: str
    culprit: str
    seed: Callable[[], None]
    program: Program
    grad: bool = False


def lower(operator: Any, wrong: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Give an operator another lowering; `wrong` gets the one that it has."""

    def seed() -> None:
        lowering.lowerings[operator] = wrong(lowering.lowerings[operator])

    return seed


def _lower_as(operator: Any, other: Any) -> Callable[[], None]:
    """Give an operator the lowering of another one."""
    return lower(operator, lambda _right: lowering.lowerings[other])


def decompose(operator: Any, wrong: Callable[..., Any]) -> Callable[[], None]:
    """Give an operator another decomposition."""

    def seed() -> None:
        decomposition.decompositions[operator] = wrong
        # The table that a compile takes is made once in a process.
        decomposition.fast_random_decomps.cache_clear()

    return seed


def _mistake(before: Any, after: Any) -> Callable[[Any], None]:
    """What a pass does wrong: it turns one operator into another one."""

    def replace(graph: Any) -> None:
        for node in getattr(graph, "graph", graph).nodes:
            if node.target == before:
                node.target = after

    return replace


def make_mistake_after_pass(module: Any, name: str, before: Any, after: Any) -> Callable[[], None]:
    """Have a pass that is a function make a mistake after it has done what it does."""
    mistake = _mistake(before, after)

    def seed() -> None:
        right = getattr(module, name)

        def wrong(*arguments: Any, **named: Any) -> Any:
            result = right(*arguments, **named)
            # The graph is the first or the last argument.
            for argument in (arguments[0], arguments[-1]):
                if isinstance(argument, (torch.fx.Graph, torch.fx.GraphModule)):
                    mistake(argument)
            return result

        setattr(module, name, wrong)

    return seed


def _patterns(patterns: Callable[[], Any], before: Any, after: Any) -> Callable[[], None]:
    """Have a pass that matches patterns make a mistake after it has done what it does."""
    mistake = _mistake(before, after)

    def seed() -> None:
        matcher = patterns()
        right = matcher.apply

        def wrong(graph: Any) -> Any:
            count = right(graph)
            mistake(graph)
            return count

        matcher.apply = wrong

    return seed


def _wrong_slice(right: Any) -> Any:
    return lambda x, dim=0, start=0, end=None, step=1: right(x, dim, 0, (end or 4) - (start or 0), step)


FAULTS = (
    Fault(
        "sine",
        LOWERINGS,
        "sin",
        _lower_as(aten.sin.default, aten.cos.default),
        lambda x, y: (x.relu() + y).sin().mul(2),
    ),
    Fault(
        "addition",
        LOWERINGS,
        "add",
        _lower_as(aten.add.Tensor, aten.sub.Tensor),
        lambda x, y: (x.exp() + y).neg(),
    ),
    Fault(
        "relu", LOWERINGS, "relu", _lower_as(aten.relu.default, aten.abs.default), lambda x, y: (x * y).relu()
    ),
    Fault(
        "sum",
        LOWERINGS,
        "sum_1",
        _lower_as(aten.sum.dim_IntList, aten.amax.default),
        lambda x, y: (x.exp() * y).sum(1).cos(),
    ),
    Fault(
        "concatenation",
        LOWERINGS,
        "cat",
        lower(aten.cat.default, lambda right: lambda tensors, dim=0: right(tensors[::-1], dim)),
        lambda x, y: torch.cat([x.mm(y), y], 1).cumsum(0),
    ),
    Fault(
        "transpose",
        LOWERINGS,
        "permute",
        lower(aten.permute.default, lambda _right: lambda x, dims: x),
        lambda x, y: x.exp().t() * y,
    ),
    Fault(
        "choice",
        LOWERINGS,
        "where",
        lower(aten.where.self, lambda right: lambda condition, x, y: right(condition, y, x)),
        lambda x, y: torch.where(x > 0, x, y.cos()),
    ),
    Fault(
        "slice",
        LOWERINGS,
        "slice_1",
        lower(aten.slice.Tensor, _wrong_slice),
        lambda x, y: x.exp()[1:3] + y[0],
    ),
    Fault(
        "padding",
        LOWERINGS,
        "constant_pad_nd",
        lower(aten.constant_pad_nd.default, lambda right: lambda x, padding, value=0: right(x, padding, 1)),
        lambda x, y: torch.nn.functional.pad(x * y, (1, 2)).cos(),
    ),
    Fault(
        "selection",
        LOWERINGS,
        "select",
        lower(aten.select.int, lambda right: lambda x, dim, index: right(x, dim, index + 1)),
        lambda x, y: x.exp().select(0, 1) + y,
    ),
    Fault(
        "sine of a gradient",
        LOWERINGS,
        "sin",
        _lower_as(aten.sin.default, aten.cos.default),
        lambda x, y: (x.cos() * y).exp(),
        grad=True,
    ),
    Fault(
        "constant folding",
        JOINT,
        "constant_fold_uniform_value",
        make_mistake_after_pass(
            joint_graph, "constant_fold_uniform_value", aten.cosh.default, aten.sinh.default
        ),
        lambda x, y: (x * torch.full((4, 4), 2.0) + y).cosh(),
    ),
    Fault(
        "joint patterns",
        JOINT,
        "pass_pattern_1",
        _patterns(lambda: joint_graph.pass_patterns[1], aten.atan.default, aten.tanh.default),
        lambda x, y: (x + y).atan().exp(),
    ),
    Fault(
        "assertions",
        POST_GRAD,
        "remove_assert_ops",
        make_mistake_after_pass(post_grad, "remove_assert_ops", aten.neg.default, aten.abs.default),
        lambda x, y: (x * y).neg().exp(),
    ),
    Fault(
        "post-grad patterns",
        POST_GRAD,
        "pass_pattern_2",
        _patterns(lambda: post_grad.pass_patterns[2], aten.sqrt.default, aten.rsqrt.default),
        lambda x, y: (x.abs() + y.exp()).sqrt(),
    ),
    Fault(
        "reinplacing",
        POST_GRAD,
        "reinplace_inplaceable_ops",
        make_mistake_after_pass(post_grad, "reinplace_inplaceable_ops", aten.exp.default, aten.expm1.default),
        lambda x, y: (x - y).exp().cos(),
    ),
    Fault(
        "group fusion",
        PRE_GRAD,
        "group_batch_fusion_passes",
        make_mistake_after_pass(pre_grad, "group_batch_fusion_passes", torch.sigmoid, torch.tanh),
        lambda x, y: torch.sigmoid(x + y).mul(3),
    ),
    Fault(
        "batch norm patterns",
        PRE_GRAD,
        "efficient_conv_bn_eval_pass",
        _patterns(lambda: pre_grad.efficient_conv_bn_eval_pass, torch.exp, torch.sin),
        lambda x, y: torch.exp(x * y) + 1,
    ),
    Fault(
        "decomposition of silu",
        DECOMPOSITION,
        "<OpOverload(op='aten.silu'",
        decompose(aten.silu.default, lambda x: x * torch.sigmoid(x) * 2),
        lambda x, y: torch.nn.functional.silu(x + y).exp(),
    ),
    Fault(
        "decomposition of addcmul",
        DECOMPOSITION,
        "<OpOverload(op='aten.addcmul'",
        decompose(aten.addcmul.default, lambda x, a, b, value=1: x - value * a * b),
        lambda x, y: torch.addcmul(torch.nn.functional.gelu(x), y, y, value=2),
    ),
)


def differs(fault: Fault) -> bool:
    """Whether the program of a fault, which is seeded in this process, differs from eager."""
    torch.manual_seed(0)
    tensors = torch.rand(4, 4) - 0.5, torch.rand(4, 4) + 1
    results: list[torch.Tensor] = []
    for function in (fault.program, torch.compile(fault.program)):
        x, y = (tensor.clone() for tensor in tensors)
        x.requires_grad_(fault.grad)
        result = function(x, y)
        if fault.grad:
            result.sum().backward()
            result = x.grad
        results.append(result)
    eager, compiled = results
    return not torch.allclose(eager, compiled, rtol=1e-3, atol=1e-4, equal_nan=True)


def main(name: str) -> int:
    """Seed a fault and give the exit status."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    fault.seed()
    return int(differs(fault))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
