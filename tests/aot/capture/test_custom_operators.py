"""Custom operators (`torch.library`): what they write to and return, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.custom_op_db import custom_op_db
from torch.utils import _pytree as pytree

import aot
from aot import errors
from aot.inductor import Inductor
from tests.support.agreement import assert_agrees, checking_nop, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("input-data")]

OPS = torch.ops.aot_custom
LIBRARY = torch.library.Library("aot_custom", "FRAGMENT")


@torch.library.custom_op("aot_custom::scale", mutates_args={"x"})
def scale(x: Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("aot_custom::bump", mutates_args={"x", "other"})
def bump(x: Tensor, other: Tensor | None) -> Tensor:
    x.add_(1)
    if other is not None:
        other.add_(x.sum())
    return x.sin()


@bump.register_fake
def _(x: Tensor, other: Tensor | None) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("aot_custom::spread", mutates_args={"xs"})
def spread(xs: list[Tensor], y: Tensor) -> Tensor:
    for i, x in enumerate(xs):
        x.add_(y.sum() * (i + 1))
    return y.clone()


@spread.register_fake
def _(xs: list[Tensor], y: Tensor) -> Tensor:
    return torch.empty_like(y)


@torch.library.custom_op("aot_custom::mixed", mutates_args=())
def mixed(x: Tensor, count: int) -> tuple[Tensor, list[Tensor], int]:
    return x * 2, [x + i for i in range(count)], count + x.dim()


@mixed.register_fake
def _(x: Tensor, count: int) -> tuple[Tensor, list[Tensor], int]:
    return torch.empty_like(x), [torch.empty_like(x) for _ in range(count)], count + x.dim()


mixed.register_autograd(
    lambda ctx, double, shifted, number: (double * 2 + sum(g for g in shifted if g is not None), None)
)


@torch.library.custom_op("aot_custom::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    raise AssertionError("it runs where the caller calls it, and nowhere else")


@torch.library.custom_op("aot_custom::returns_itself", mutates_args=())
def returns_itself(x: Tensor) -> Tensor:
    return x


@returns_itself.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, kernel, "CPU")
    LIBRARY.impl(name, fake, "Meta")


def _add(x: Tensor, y: Tensor) -> None:
    x.add_(y)


def _write_all(xs: Sequence[Tensor | None]) -> None:
    for x in xs:
        if x is not None:
            x.add_(1)


def _fill(x: Tensor, *, out: Tensor) -> None:
    out.copy_(x)


_define("plain_add(Tensor(a!) x, Tensor y) -> ()", _add, lambda x, y: None)
_define("returned(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.add_(y), lambda x, y: x)
_define("all_of(Tensor(a!)?[] xs) -> ()", _write_all, lambda xs: None)
_define("into(Tensor x, *, Tensor(a!) out) -> ()", _fill, lambda x, out: None)
_define("flat(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1), lambda x: x.view(-1))
_define("count(Tensor x) -> SymInt", lambda x: x.numel(), lambda x: x.numel())
_define("place(Tensor x) -> Tensor", lambda x: x.argmax(), lambda x: x.argmax())
_define("double(Tensor x) -> Tensor", lambda x: x * 2, torch.empty_like)
LIBRARY.define("composed(Tensor x) -> Tensor")
LIBRARY.impl("composed", lambda x: x.sin() * x, "CompositeImplicitAutograd")
# An operator may be called like another one and not compute what that does.
_define("misnamed(Tensor x) -> Tensor", lambda x: x * 3, torch.empty_like)
_define("misnamed_(Tensor(a!) x) -> ()", lambda x: _add(x, x), lambda x: None)


def scaled(x: Tensor) -> Tensor:
    y = x * 2
    OPS.scale(y, 3.0)
    return y.sin()


def bumped(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    OPS.bump(x, y)
    return OPS.bump(x, None), x.cos(), y


def spread_out(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = x * 3
    return OPS.spread([x, z], y), z


def spread_to_views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    OPS.spread([x[0], x[1:]], y)
    return x.sum(0), x[0]


def added(x: Tensor, y: Tensor) -> Tensor:
    OPS.plain_add(x, y)
    return x * 2


def given_back(x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
    result = OPS.returned(x, y)
    return result, result is x


def some(x: Tensor, y: Tensor) -> Tensor:
    OPS.all_of([x, None, y])
    return x + y


def filled(x: Tensor, y: Tensor) -> None:
    OPS.into(x, out=y)


def transposed(x: Tensor) -> Tensor:
    OPS.scale(x.t(), 2.0)
    return x[0]


WRITING: list[tuple[Callable[..., Any], int]] = [
    (scaled, 1),
    (bumped, 2),
    (spread_out, 2),
    (spread_to_views, 2),
    (added, 2),
    (given_back, 2),
    (some, 2),
    (filled, 2),
    (transposed, 1),
]


@pytest.mark.parametrize(("function", "count"), WRITING, ids=lambda case: getattr(case, "__name__", ""))
def test_what_they_write_to(function: Callable[..., Any], count: int) -> None:
    assert_agrees(function, lambda: [values(2, 3, start=i) for i in range(count)], grad=False)


@pytest.mark.parametrize(
    ("function", "count"), [(scaled, 1), (transposed, 1)], ids=lambda case: getattr(case, "__name__", "")
)
def test_a_write_without_a_derivative(function: Callable[..., Any], count: int) -> None:
    """Autograd counts what is written, and knows nothing of it, as in eager."""
    assert_agrees(function, lambda: [non_leaf(2, 3, start=i) for i in range(count)])


def test_the_graph_has_the_operator() -> None:
    compiled = aot.aot_function(spread_out, checking_nop)
    compiled(values(2, 3), values(2, 3))
    (specialization,) = compiled.specializations
    called = [node.args[0] for node in specialization.forward.graph.nodes if node.op == "call_function"]
    assert OPS.spread.default in called


def test_results_of_all_kinds() -> None:
    def f(x: Tensor) -> tuple[Any, ...]:
        double, shifted, number = OPS.mixed(x, 3)
        return double * number, shifted[0] + shifted[2] * 2, number

    assert_agrees(f, lambda: [leaf(2, 3)])
    assert_agrees(lambda x: OPS.mixed(x, 2), lambda: [leaf(2, 3)])
    assert_agrees(lambda x: x * OPS.count(x), lambda: [leaf(2, 3)])
    assert_agrees(OPS.composed, lambda: [leaf(2, 3)])
    assert_agrees(lambda x: (x * 2, OPS.place(x)), lambda: [leaf(2, 3)])


def test_sizes_among_results_are_those_of_each_call() -> None:
    def f(x: Tensor) -> tuple[Any, ...]:
        number = OPS.count(x)
        return x * number, x.new_ones(number + 1), number

    compiled = aot.aot_function(f, aot.nop, dynamic=True)
    for rows in (4, 7):
        x = values(rows, 3)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0)
    assert len(compiled.specializations) == 1


def test_names_say_nothing() -> None:
    def f(x: Tensor) -> Tensor:
        OPS.misnamed_(x)
        return x + OPS.misnamed(x)

    assert_agrees(f, lambda: [values(2, 3)], grad=False)


def refused(function: Callable[..., Any], *args: Any, match: str) -> None:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    before = [(tensor.detach().clone(), tensor._version) for tensor in tensors]
    with pytest.raises(errors.UnsupportedOperation, match=match):
        aot.aot_function(function, aot.nop)(*args)
    for tensor, (value, version) in zip(tensors, before, strict=True):
        assert torch.equal(tensor, value) and tensor._version == version


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (OPS.double, "double"),
        (lambda x: OPS.plain_add(x * 1, x), "plain_add"),
    ],
    ids=["pure", "write"],
)
def test_what_autograd_has_not_been_told_of(call: Callable[[Tensor], Any], name: str) -> None:
    """Eager differentiates what the kernel happens to call; the graph would have no gradient."""
    refused(call, leaf(2, 3), match=f"{name}.* register")
    with torch.no_grad():
        assert_agrees(call, lambda: [leaf(2, 3)], grad=False)


def test_views() -> None:
    """torch refuses some of them itself; nothing tells whether eager's is one for autograd."""
    refused(OPS.flat, values(2, 3), match="returns a view")
    assert_agrees(OPS.returns_itself, lambda: [values(2, 3)], raises=RuntimeError)


def test_what_does_not_say_what_it_returns() -> None:
    refused(OPS.without_fake, values(2), match="without_fake.*register_fake")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: OPS.plain_add(x, x),
        lambda x: OPS.plain_add(x[1:], x[:1]) or OPS.spread([x[0], x], x * 2),
        lambda x: OPS.plain_add(x[:, :2], x[:, 1:]),
        lambda x: OPS.scale(x[:1].expand(2, 3), 2.0),
    ],
    ids=["one tensor", "a list", "a part", "itself"],
)
def test_arguments_that_overlap(call: Callable[[Tensor], Any]) -> None:
    refused(call, values(2, 3), match="memory|shows elements several times")


def test_objects_of_torchscript() -> None:
    weight = torch.quantize_per_tensor(values(3, 3), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    refused(
        lambda x: torch.ops.quantized.linear_dynamic(x, packed),
        values(2, 3),
        match="ScriptObject of class .*LinearPackedParamsBase",
    )
    with pytest.raises(errors.UnsupportedArgument, match="ScriptObject"):
        aot.aot_function(torch.ops.quantized.linear_dynamic, aot.nop)(values(2, 3), packed)


def arguments_of(sample: Any) -> tuple[Any, Any]:
    def fresh(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    args: tuple[Any, Any] = pytree.tree_map(fresh, ((sample.input, *sample.args), sample.kwargs))
    return args


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("info", custom_op_db, ids=lambda info: info.name)
@pytest.mark.filterwarnings("ignore:.*create_unbacked_symint.*:FutureWarning")
def test_torchs_own(info: Any, requires_grad: bool) -> None:
    def run(function: Callable[..., Any], sample: Any) -> Any:
        args, kwargs = arguments_of(sample)
        outputs = pytree.tree_leaves(function(*args, **kwargs))
        wanted = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
        results = [t for t in outputs if isinstance(t, Tensor) and t.requires_grad]
        gradients = (
            torch.autograd.grad([t.sum() for t in results], wanted, allow_unused=True)
            if results and wanted and info.supports_autograd
            else ()
        )
        return outputs, gradients

    samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=requires_grad))
    assert samples
    for sample in samples:
        compiled = aot.aot_function(info.op, checking_nop)
        if info.name in ("NumpyNonzeroCustomOp", "NumpyNMSCustomOp"):
            with pytest.raises(errors.DataDependentValue, match="depends on its argument"):
                run(compiled, sample)
            continue
        torch.testing.assert_close(run(compiled, sample), run(info.op, sample), rtol=0, atol=0)


@pytest.fixture
def inductor() -> Iterator[Inductor]:
    yield Inductor.configured()
    gc.collect()


def test_below_inductor(inductor: Inductor) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x * 2
        OPS.bump(z, y)
        return OPS.spread([z, y], x), z, y

    compiled = aot.aot_function(f, inductor.forward, inductor.backward, inference_compiler=inductor.inference)
    args, expected = ([values(2, 3), values(2, 3, start=7)] for _ in range(2))
    torch.testing.assert_close((compiled(*args), args), (f(*expected), expected))
    with pytest.raises(errors.UnsupportedOperation, match="returned"):
        aot.aot_function(given_back, inductor.forward)(*args)
