"""Inference mode: a call in it, a part of a function in it, arguments and results that were made there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import aot
from aot import errors
from oracles import Outcome, judge, observe
from tests.support.agreement import KINDS, assert_agrees, checking_nop, fresh, leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("ambient")]

Function = Callable[..., Any]


def assert_agrees_in(
    function: Function, make: Callable[[], list[Any]], inference: bool
) -> aot.CompiledFunction:
    """Compare a call with eager's, twice, in inference mode or not; and one of a function whose graph writes
    to its inputs itself, where it can."""
    plain = aot.aot_function(function, checking_nop)
    keeping = aot.aot_function(function, checking_nop, keep_inference_input_mutations=True)
    scenario = {"inference": inference, "grad": not inference}
    eager = observe(function, lambda: fresh(make), **scenario)
    for compiled in (keeping, plain, plain):
        target = observe(compiled, lambda: fresh(make), **scenario)
        verdict = judge(eager, target, None, lambda: eager)
        assert verdict.outcome is Outcome.AGREE, "\n".join(map(str, verdict.findings))
    assert len(compiled.specializations) == 1 or eager.raised is not None
    return compiled


def _mutates(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x.view(-1)


def _mutates_a_view(x: Tensor) -> Tensor:
    y = x.t()
    with torch.no_grad():
        y[0].add_(1)
    return y


def _changes_metadata(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.t_()
    return x * 2


def _grad_mode(x: Tensor) -> tuple[Tensor, bool]:
    torch.set_grad_enabled(True)
    return x[1:], torch.is_grad_enabled()


# What is run as a whole in inference mode.
PROGRAMS: dict[str, Function] = {
    "values": lambda x: (x * 2, x.sum(), x.t() @ x),
    "views": lambda x: (x.t(), x[1:], x.view(-1), x.detach()),
    "views of what is made": lambda x: ((y := x * 2), y.t(), y[1:]),
    "parts": lambda x: x.chunk(2, 1),
    "itself": lambda x: x,
    "composite": lambda x: torch.nn.functional.dropout(x.reshape(-1), 0.5, training=False),
    "random": lambda x: torch.nn.functional.dropout(x, 0.5),
    "linear": lambda x: torch.nn.functional.linear(x, x),
    "imaginary parts": lambda x: torch.view_as_complex(x).conj().imag,
    "writes": _mutates,
    "writes to a view": _mutates_a_view,
    "metadata": _changes_metadata,
    "leaves grad mode on": _grad_mode,
}


def _inference(*size: int) -> Tensor:
    with torch.inference_mode():
        return values(*size) * 1


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", [*KINDS, "inference"])
def test_a_call_in_inference_mode(name: str, kind: str) -> None:
    make = _inference if kind == "inference" else KINDS[kind]
    assert_agrees_in(PROGRAMS[name], lambda: [make(3, 2)], True)


def _within(f: Function) -> Function:
    def within(x: Tensor) -> Any:
        with torch.inference_mode():
            return f(x)

    return within


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "leaves grad mode on"])
@pytest.mark.parametrize("kind", [*KINDS, "inference"])
def test_a_function_in_inference_mode(name: str, kind: str) -> None:
    make = _inference if kind == "inference" else KINDS[kind]
    assert_agrees_in(_within(PROGRAMS[name]), lambda: [make(3, 2)], False)


def _then(inside: Function, outside: Callable[[Tensor, Any], Any]) -> Function:
    def f(x: Tensor) -> Any:
        with torch.inference_mode():
            made = inside(x)
        return outside(x, made)

    return f


# A part of the function runs in inference mode, the rest in grad mode with what was made there.
PARTS: dict[str, Function] = {
    "added": _then(lambda x: x.detach() * 2, lambda x, y: x + y),
    "cloned and multiplied": _then(lambda x: x * 2, lambda x, y: x * y.clone()),
    "viewed": _then(lambda x: x * 2, lambda x, y: (y, y.t(), y[1:], y.detach())),
    "detached": _then(lambda x: x * 2, lambda x, y: y.detach()),
    "data": _then(lambda x: x * 2, lambda x, y: y.data),
    "a view": _then(lambda x: x.t(), lambda x, y: (y, y * 2)),
    "stacked": _then(lambda x: x * 2, lambda x, y: torch.stack((y, y), 1)),
    "repeated": _then(lambda x: x * 2, lambda x, y: y.repeat(2, 1)),
    "normalized": _then(lambda x: x * 2, lambda x, y: torch.nn.functional.layer_norm(y, y.shape[-1:])),
    "drawn alike": _then(lambda x: x * 2, lambda x, y: torch.randn_like(y)),
    "converted": _then(lambda x: x * 2, lambda x, y: y.to(torch.float64)),
    "written inside": _then(lambda x: x.detach().mul_(2), lambda x, y: x * 2),
    "with grad": _then(lambda x: x * 2, lambda x, y: (x * x).sum() + y.sum()),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_in_inference_mode(name: str, kind: str) -> None:
    assert_agrees_in(PARTS[name], lambda: [KINDS[kind](3, 2)], False)


# Operations whose kernels end in views, and whether that is noticed of inference tensors: autograd holds back
# a call with an undefined tensor, as of a bias that is left out, and one with any tensor that it knows.
_functional = torch.nn.functional
KERNELS: dict[str, tuple[Function, int, bool]] = {
    "stack": (lambda x: torch.stack((x, x), 1), 1, True),
    "stack beside another": (lambda x: torch.stack((x, torch.ones(2, 3, 3)), 1), 1, False),
    "convolution": (lambda x: _functional.conv1d(x, x), 1, False),
    "convolution, bias": (lambda x, b: _functional.conv1d(x, x, b[0, 0, :2]), 2, True),
    "convolution, its bias another": (lambda x: _functional.conv1d(x, x, torch.ones(2)), 1, False),
    "transposed convolution": (
        lambda x, b: _functional.conv_transpose1d(x, x.transpose(0, 1), b[0, 0, :2]),
        2,
        True,
    ),
    "padded convolution": (lambda x, b: _functional.conv1d(x, x, b[0, 0, :2], padding="same"), 2, True),
    "linear": (lambda x: _functional.linear(x, x[0]), 1, False),
    "pooling": (lambda x: _functional.avg_pool1d(x, 2), 1, True),
    "attention": (lambda x: _functional.scaled_dot_product_attention(*[x[None]] * 3), 1, True),
    "matrix exponential": (lambda x: torch.matrix_exp(x[:, :2, :2]), 1, True),
    "slice scatter": (lambda x, y: torch.slice_scatter(x, y[:1], 0, 0, 1), 2, True),
    "slice scatter of another": (lambda x: torch.slice_scatter(x, torch.ones(1, 3, 3), 0, 0, 1), 1, False),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("inside", [False, True])
def test_views_that_kernels_end_in(name: str, inside: bool) -> None:
    function, count, noticed = KERNELS[name]

    def make() -> list[Tensor]:
        return [leaf(1), *(_inference(2, 3, 3) for _ in range(count))]

    def returned(w: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        result = function(*given)
        return result, result.view(-1)

    def written(w: Tensor, *given: Tensor) -> Tensor:
        result: Tensor = function(*given)
        return result.mul_(w)

    assert function(*make()[1:])._is_view() == noticed
    if inside:
        with torch.inference_mode():
            assert not function(*make()[1:])._is_view()
        assert_agrees_in(returned, make, True)
        assert_agrees_in(written, make, True)
    else:
        assert_agrees_in(returned, make, False)
        assert_agrees_in(written, make, False)


def test_each_result_that_is_a_view() -> None:
    def f(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        normal, mean, deviation = torch.native_layer_norm(x, [3], None, None, 1e-5)
        assert (normal._is_view(), mean._is_view(), deviation._is_view()) == (False, True, True)
        return normal, mean, deviation.mul_(w)

    assert_agrees_in(f, lambda: [leaf(1), _inference(2, 3)], False)


@pytest.mark.parametrize("lazy", [Tensor.conj, lambda x: x.conj().imag])
def test_lazy_inference_tensors_outside_of_that_mode(lazy: Callable[[Tensor], Tensor]) -> None:
    def made(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x * 2

    def stacked(x: Tensor) -> Tensor:
        y = made(x)
        return torch.stack((lazy(y), lazy(y)))

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        y = made(x)
        return lazy(y) * 2, torch.cat((lazy(y), lazy(y)))

    x = values(2, dtype=torch.complex64)
    assert stacked(x)._is_view()
    with pytest.raises(errors.InferenceModeUnsupported, match="resolve_conj"):
        aot.aot_function(stacked, checking_nop)(x)
    assert_agrees_in(plain, lambda: [values(2, dtype=torch.complex64)], False)


def test_a_kernel_is_asked_about_views_without_touching_the_generator() -> None:
    compiled = aot.aot_function(torch.bernoulli, aot.nop)
    with torch.inference_mode():
        x = _inference(2, 3).sigmoid()
    state = torch.get_rng_state()
    drawn = torch.bernoulli(x)
    torch.set_rng_state(state)
    assert torch.equal(compiled(x), drawn)


# Operations that are made of others, of which some cast under autocast.
COMPOSITES: dict[str, Function] = {
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x: torch.tensordot(x, x.t(), 1),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.t(), x]),
    "linear": lambda x: torch.nn.functional.linear(x, x),
    "below autograd": torch.linalg.pinv,
    "of such a one": lambda x: torch.tensordot(x, torch.einsum("ij->ji", x), 1),
    "one in float32": lambda x: torch.nn.functional.cosine_embedding_loss(x, x, x[:, 0]),
}


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.parametrize("inference", [False, True])
def test_composite_operations_under_autocast(name: str, inference: bool) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result: Tensor = COMPOSITES[name](x)
        return result

    make = values if inference else _inference
    assert (f(make(3, 2)).dtype == torch.bfloat16) == (name != "one in float32")
    assert_agrees_in(f, lambda: [make(3, 2)], inference)
    outside = aot.aot_function(COMPOSITES[name], checking_nop)
    with torch.inference_mode(inference), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(outside(make(3, 2)), f(make(3, 2)))


@pytest.mark.parametrize("inference", [False, True])
def test_decompositions_are_below_autocast(inference: bool) -> None:
    sine = {torch.ops.aten.sin.default: COMPOSITES["einsum"]}
    compiled = aot.aot_function(torch.sin, aot.nop, decompositions=sine)
    with torch.inference_mode(inference), torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(values(3, 2)).dtype == torch.float32


@pytest.mark.parametrize("inference", [False, True])
def test_inference_tensors_beside_others(inference: bool) -> None:
    assert_agrees_in(lambda w, x: (w + x, x[1:], w.t()), lambda: [leaf(2, 2), _inference(2, 2)], inference)


def test_a_write_to_a_view_that_reads_what_was_made_there() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.inference_mode():
            made = x.detach() * 2
        x.view(-1).addcmul_(made, made)
        return made

    assert_agrees_in(f, lambda: [KINDS["non_leaf"](3)], False)


def test_views_of_one_inference_tensor() -> None:
    def make() -> list[Tensor]:
        with torch.inference_mode():
            whole = values(6) * 1
            return [whole, whole[1:4], whole[2:]]

    def f(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        y.mul_(2)
        z.add_(1)
        return x * 1, y, z[1:]

    assert_agrees_in(f, make, True)


def test_what_eager_refuses() -> None:
    def saves(w: Tensor, x: Tensor) -> Tensor:
        return w * x

    def writes(w: Tensor, x: Tensor) -> Tensor:
        return x.mul_(w.detach())

    for f in (saves, writes):
        compiled = aot.aot_function(f, aot.nop)
        with pytest.raises(RuntimeError) as eager:
            f(leaf(3), _inference(3))
        with pytest.raises(RuntimeError) as ours:
            compiled(leaf(3), _inference(3))
        assert str(ours.value) == str(eager.value)


def test_each_mode_is_compiled_for_itself() -> None:
    compiled = aot.aot_function(lambda x: x * 2, aot.nop)
    x = leaf(3)
    assert compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    assert compiled(x).requires_grad
    assert len(compiled.specializations) == 2


def test_leaving_inference_mode_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.inference_mode(False):
            return x * 2

    compiled, x = aot.aot_function(f, aot.nop), leaf(3)
    with torch.inference_mode(), pytest.raises(errors.InferenceModeUnsupported, match="no_grad"):
        compiled(x)
    assert compiled(leaf(3)).requires_grad


def test_an_inference_tensor_that_was_detached_outside_is_refused() -> None:
    x = _inference(3).detach()  # which has a version counter again
    with pytest.raises(errors.UnsupportedArgument, match="clone it"):
        aot.aot_function(lambda x: x * 2, aot.nop)(x)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("inside", [True, False])
def test_lists_of_inference_tensors_are_written_in_that_mode_only(count: int, inside: bool) -> None:
    def f(x: Tensor) -> Any:
        with torch.inference_mode():
            made = [x * (i + 2) for i in range(count)]
        with torch.inference_mode(inside):
            torch._foreach_mul_(made, -0.25)
            return sum(made).clone()

    compiled = aot.aot_function(f, checking_nop)
    if inside:
        assert torch.equal(compiled(values(3)), f(values(3)))
        return
    for function in (f, compiled):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            function(values(3))


class KeptAsAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.weight, None


KEEPING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "an attribute": KeptAsAttribute.apply,
    "a checkpoint": lambda x, weight: checkpoint(lambda y: y * weight.sin(), x, use_reentrant=False),
}


@pytest.mark.parametrize("keeping", KEEPING)
def test_a_backward_keeps_inference_tensors_that_autograd_does_not_save(keeping: str) -> None:
    """Nobody counts writes to them, so that none is watched for."""

    def make() -> list[Tensor]:
        with torch.inference_mode():
            weight = values(3)
        return [leaf(3), weight]

    assert_agrees(KEEPING[keeping], make, grad=True)


def test_a_view_of_what_was_detached_since_is_refused() -> None:
    """Eager lets one write to it in grad mode, as its base requires no grad."""

    def f(x: Tensor) -> None:
        with torch.inference_mode():
            view = x.view_as(x)
        view.mul_(2)

    def make() -> Tensor:
        whole = leaf(2) * 1
        part = whole.view(2)
        whole.detach_()
        return part

    f(make())
    with pytest.raises(aot.errors.AutogradStateMutation, match="detached in place since"):
        aot.aot_function(f, aot.nop)(make())
