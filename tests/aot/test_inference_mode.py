"""Inference mode: a call in it, a part of a function in it, arguments and results that were made there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import KINDS, checking_nop, fresh, leaf, values
from torch import Tensor

import aot
from aot import errors
from oracles import Outcome, judge, observe

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


@pytest.mark.parametrize("kind", ["requires grad", "detached"])
def test_odd_inference_tensors_are_refused(kind: str) -> None:
    x = _inference(3)
    if kind == "detached":
        x = x.detach()  # which has a version counter again
    else:
        with torch.inference_mode():
            x.requires_grad_()
    with pytest.raises(errors.UnsupportedArgument, match="clone it"):
        aot.aot_function(lambda x: x * 2, aot.nop)(x)
