"""Random numbers: the draws of eager, the generator state that eager leaves, and a backward that agrees."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import aot
from aot import errors
from aot.torch_internals import op_queries
from tests.support.agreement import assert_agrees, checking_nop, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("randomness")]

DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "rand": lambda x: x * torch.rand(2, 3),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x + torch.randn(3),
    "randint": lambda x: x * torch.randint(0, 9, (2, 3)),
    "randperm": lambda x: x[:, torch.randperm(3)],
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x.detach(), 0.3)),
    "normal": lambda x: x + torch.normal(x.detach(), 2.0),
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(3), 2)],
    "dropout": lambda x: functional.dropout(x, 0.4),
    "dropout twice": lambda x: functional.dropout(functional.dropout(x, 0.4) * x, 0.3),
    "feature dropout": lambda x: functional.dropout1d(x, 0.5),
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.4, training=True),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "gumbel": functional.gumbel_softmax,
    "dropout in place": lambda x: functional.dropout(x * 1, 0.4, inplace=True),
    "no training": lambda x: functional.dropout(x, 0.4, training=False),
    "in turn": lambda x: (torch.rand(2), torch.randn(2), torch.rand(2), functional.dropout(x, 0.4)),
}


@pytest.fixture(params=[False, True], ids=["drawing", "functionalized"])
def functionalized(request: pytest.FixtureRequest) -> bool:
    """Whether draws are functionalized: all that is said here holds in either case."""
    given: bool = request.param
    return given


@pytest.mark.parametrize("draw", DRAWS)
def test_the_same_draws_and_the_same_state(draw: str, functionalized: bool) -> None:
    assert_agrees(DRAWS[draw], lambda: [leaf(2, 3)], functionalize_rng_ops=functionalized)


def test_draws_that_nobody_uses_are_kept(functionalized: bool) -> None:
    def f(x: Tensor) -> Tensor:
        torch.rand(5)
        torch.randn_like(x)
        functional.dropout(x, 0.5)
        torch.empty(3).uniform_()
        return x * 2

    assert_agrees(f, lambda: [leaf(3)], functionalize_rng_ops=functionalized)


def test_a_draw_into_a_temporary_that_is_dropped(functionalized: bool) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros(4)
        y[1:].normal_()
        return x + torch.rand(3)

    assert_agrees(f, lambda: [leaf(3)], functionalize_rng_ops=functionalized)


def test_draws_into_arguments(functionalized: bool) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.uniform_()
        y[1:].normal_()
        return x * y

    assert_agrees(f, lambda: [values(3), non_leaf(3)], functionalize_rng_ops=functionalized)


def test_draws_into_a_strided_argument_are_in_the_order_of_its_elements(functionalized: bool) -> None:
    def f(x: Tensor) -> Tensor:
        x.uniform_()
        return x + torch.rand(())

    assert_agrees(f, lambda: [values(4, 6).t()[::2, 1:]], functionalize_rng_ops=functionalized)
    assert_agrees(f, lambda: [values(20, 20).t()], functionalize_rng_ops=functionalized)


WITH_GAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda root: root[1:17],
    "every second column": lambda root: root.view(16, 16)[:, ::2],
    "columns": lambda root: root.view(16, 16)[:, 3:14],
    "turned columns": lambda root: root.view(16, 16)[:, 3:14].t(),
}


@pytest.mark.parametrize("lying", WITH_GAPS)
def test_what_was_written_to_is_drawn_for_as_it_lies(lying: str, functionalized: bool) -> None:
    """Kernels draw in another order for tensors of 16 elements and more that lie without gaps."""

    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        x.normal_()
        x.add_(1)
        return functional.dropout(x, 0.5) + torch.randn_like(x) + x.clone().exponential_()

    def inputs() -> list[Tensor]:
        return [WITH_GAPS[lying](torch.arange(256.0))]

    assert_agrees(f, inputs, functionalize_rng_ops=functionalized)


def test_every_call_draws_anew(functionalized: bool) -> None:
    compiled = aot.aot_function(
        lambda x: x + torch.rand(3), checking_nop, functionalize_rng_ops=functionalized
    )
    x = values(3)
    torch.manual_seed(3)
    expected = [x + torch.rand(3) for _ in range(3)]
    torch.manual_seed(3)
    got = [compiled(x) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert not torch.equal(got[0], got[1])


def test_the_backward_sees_the_draws_of_its_own_forward(functionalized: bool) -> None:
    compiled = aot.aot_function(
        lambda x: functional.dropout(x, 0.5), checking_nop, functionalize_rng_ops=functionalized
    )
    x = torch.ones(64, requires_grad=True)
    first, second = compiled(x), compiled(x)
    torch.rand(7)
    (late,) = torch.autograd.grad(second.sum(), x)
    (early,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(early, first.detach())
    assert torch.equal(late, second.detach())
    assert not torch.equal(early, late)


def test_compiling_draws_nothing(functionalized: bool) -> None:
    compiled = aot.aot_function(
        lambda x: x * torch.rand(3), checking_nop, functionalize_rng_ops=functionalized
    )
    x = values(3)
    torch.manual_seed(1)
    first = compiled(x)
    torch.manual_seed(1)
    second = compiled(x)
    assert torch.equal(first, second)


def test_a_backward_draws_nothing(functionalized: bool) -> None:
    compiled = aot.aot_function(
        lambda x: functional.dropout(x, 0.5), checking_nop, functionalize_rng_ops=functionalized
    )
    y = compiled(leaf(3))
    state = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("preserve", [True, False])
def test_checkpointed_dropout(preserve: bool, functionalized: bool) -> None:
    def f(x: Tensor) -> Tensor:
        def block(t: Tensor) -> Tensor:
            return functional.dropout(t.sin(), 0.5) * t

        y: Tensor = torch.utils.checkpoint.checkpoint(
            block, x, use_reentrant=False, preserve_rng_state=preserve
        )
        return y + torch.rand(8)

    if preserve:
        assert_agrees(f, lambda: [leaf(8)], grad=True, functionalize_rng_ops=functionalized)
    else:  # eager's backward draws anew
        with pytest.raises(aot.Unsupported, match="preserve_rng_state"):
            aot.aot_function(f, checking_nop, functionalize_rng_ops=functionalized)(leaf(8))


def _seeded(x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return torch.rand(3) + x


def test_a_seed_that_is_the_callers_own_is_seen_under_another_default_device() -> None:
    with torch.device("meta"):
        compiled = aot.aot_function(_seeded, checking_nop)
        torch.manual_seed(5)
        with pytest.raises(aot.errors.RandomStateMutation):
            compiled(torch.ones(3, device="cpu"))


def _repeated(x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return first + torch.rand(3) * x


def _forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
    return first + torch.rand(3) * x


def _drawn_on_after_a_repetition(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
    return first + torch.rand(3) * x + torch.randn(3)


def _forked_for_nothing(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        y = x * 2
    return y + torch.rand(3)


KEPT = [_repeated, _forked, _drawn_on_after_a_repetition, _forked_for_nothing]


@pytest.mark.parametrize("f", KEPT)
def test_a_draw_that_is_repeated_from_a_state_that_was_saved(
    f: Callable[[Tensor], Tensor], functionalized: bool
) -> None:
    assert_agrees(f, lambda: [leaf(3)], functionalize_rng_ops=functionalized)


def _reseeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)  # which is what the generator was seeded with
    return torch.rand(3) + x


def _left_behind(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return torch.rand(3) + x


def _another_draw(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
    return first + torch.randn(3) * x


def _another_value_drawn_before(x: Tensor) -> Tensor:
    first, second = torch.rand(3), torch.rand(3)
    state = torch.get_rng_state()
    drawn = torch.bernoulli(first)
    torch.set_rng_state(state)
    return drawn + torch.bernoulli(second) * x


def _a_foreign_state(x: Tensor) -> Tensor:
    torch.set_rng_state(torch.Generator().manual_seed(3).get_state())
    return torch.rand(3) + x


def _a_generator_of_its_own(x: Tensor) -> Tensor:
    return torch.rand(3, generator=torch.Generator().manual_seed(3)) + x


REFUSED = [
    _seeded,
    _reseeded,
    _left_behind,
    _another_draw,
    _another_value_drawn_before,
    _a_foreign_state,
    _a_generator_of_its_own,
]


@pytest.mark.parametrize("f", REFUSED)
def test_a_generator_state_that_is_set_is_refused(
    f: Callable[[Tensor], Tensor], functionalized: bool
) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    x = values(3)
    with pytest.raises(aot.Unsupported, match=r"outside|default one"):
        aot.aot_function(f, checking_nop, functionalize_rng_ops=functionalized)(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, values(3))


def test_a_draw_in_a_backward_is_refused(functionalized: bool) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * torch.rand(3))
        return y * 1

    with pytest.raises(aot.Unsupported, match="backward"):
        aot.aot_function(f, checking_nop, functionalize_rng_ops=functionalized)(leaf(3))


def test_a_function_that_raises_leaves_the_generator_to_the_caller(functionalized: bool) -> None:
    def f(x: Tensor) -> Tensor:
        torch.rand(3)
        raise ValueError("not today")

    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="not today"):
        aot.aot_function(f, checking_nop, functionalize_rng_ops=functionalized)(leaf(3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("module", ["random", "numpy.random"])
@pytest.mark.parametrize("grad", [False, True])
def test_random_numbers_that_are_not_torchs_are_refused(
    module: str, grad: bool, functionalized: bool
) -> None:
    numbers = importlib.import_module(module)

    def f(x: Tensor, draw: bool) -> Tensor:
        return x * numbers.random() if draw else x * 2

    compiled = aot.aot_function(f, checking_nop, functionalize_rng_ops=functionalized)
    x = values(3).requires_grad_(grad)
    with pytest.raises(errors.RandomStateMutation, match="pass the numbers"):
        compiled(x, True)
    assert torch.equal(compiled(x, False), x * 2)


def test_a_draw_between_two_numbers_into_a_tensor_with_gaps(functionalized: bool) -> None:
    """Its overload is called like a keyword of Python."""
    assert_agrees(
        lambda x: x.random_(2, 7), lambda: [torch.zeros(6)[::2]], functionalize_rng_ops=functionalized
    )


@pytest.mark.parametrize("draw", [torch.randn_like, torch.rand_like, lambda x: functional.dropout(x, 0.5)])
@pytest.mark.parametrize("lazy", [False, True])
def test_what_is_drawn_like_an_inference_tensor(draw: Callable[[Tensor], Tensor], lazy: bool) -> None:
    """Eager is asked how it would go, and that draws nothing that stays drawn."""

    def make() -> list[Tensor]:
        with torch.inference_mode():
            x = values(3)
        return [torch._neg_view(x) if lazy else x]

    assert_agrees(draw, make, grad=True)


def test_the_backward_of_attention_repeats_what_the_forward_drew() -> None:
    names = ("efficient", "flash", "cudnn", "fused")
    seen = 0
    for packet in (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)):
        name = getattr(packet, "__name__", "")
        if "attention" not in name or not any(kind in name for kind in names) or "quantized" in name:
            continue
        for overload in packet.overloads():
            seen += 1
            assert op_queries.may_be_random(getattr(packet, overload)) == ("backward" not in name), (
                name,
                overload,
            )
    assert seen >= 8
