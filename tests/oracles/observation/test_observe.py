"""What one snapshot holds, and that two snapshots of the same thing never differ."""

from __future__ import annotations

import gc
import weakref
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import Arguments, Outcome, compare, judge, observe
from oracles.observation.gradients import record_exception
from tests.support.oracles.oracle_cases import CASES, duplicate, inner, leaf, plain, two_leaves


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("differentiate", [None, (1,), (0, 2)])
@pytest.mark.parametrize("name", CASES)
def test_the_same_function_agrees_bit_for_bit(
    name: str, differentiate: tuple[int, ...] | None, grad: bool
) -> None:
    case = CASES[name]
    first, second = (
        observe(case.function, case.make, grad=grad, differentiate=differentiate, seed=3) for _ in range(2)
    )
    assert compare(first, second, exact=True) == ()
    assert first == second
    assert judge(first, second, None, None).outcome is Outcome.AGREE


def test_nothing_of_the_case_stays_alive() -> None:
    dead: list[weakref.ref[Tensor]] = []

    def make() -> Arguments:
        arguments = inner()
        dead.extend(weakref.ref(tensor) for tensor in arguments.tensors.values())
        return arguments

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        dead.append(weakref.ref(y))
        return y

    observation = observe(function, make)
    gc.collect()
    assert [reference() for reference in dead] == [None] * 3
    assert not list(_tensors(observation))


def _tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def test_ambient_state_and_generators_are_put_back() -> None:
    def leaky(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        torch.use_deterministic_algorithms(True)
        torch.set_default_device("meta")
        return torch.rand(2, device="cpu")

    torch.manual_seed(11)
    state = torch.get_rng_state()
    seen = observe(leaky, plain).ambient
    assert (seen.grad_mode, seen.inference_mode, seen.deterministic) == (False, False, True)
    assert seen.default_dtype is torch.float64
    assert seen.default_device == torch.device("meta")
    assert seen.autocast[0][:2] == ("cpu", True)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert torch.empty(0).device == torch.device("cpu")
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_leaked_inference_mode_ends_with_the_call() -> None:
    guard = torch.inference_mode()

    def leaky(w: Tensor) -> Tensor:
        guard.__enter__()
        return w

    observation = observe(leaky, leaf)
    inside = torch.is_inference_mode_enabled()
    guard.__exit__(None, None, None)
    torch.set_grad_enabled(True)
    assert observation.ambient.inference_mode
    assert not inside
    assert observation.gradients[0].raised is None


def test_seed_decides_what_the_call_and_its_arguments_draw() -> None:
    def make() -> Arguments:
        return Arguments((torch.rand(3),))

    def function(x: Tensor) -> Tensor:
        return x + torch.rand(3)

    first, same, other = (observe(function, make, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first.drew
    assert first.states[0].value != other.states[0].value
    assert first.generator != other.generator
    assert not observe(torch.sin, make).drew


def test_grad_is_the_mode_of_the_call() -> None:
    assert observe(torch.sin, leaf).states[-1].requires_grad
    assert not observe(torch.sin, leaf, grad=False).states[-1].requires_grad


def test_paths_name_every_tensor_once() -> None:
    observation = observe(CASES["containers"].function, CASES["containers"].make)
    assert [state.path for state in observation.states] == [
        "arg[0]['a']",
        "arg[0]['b'][0]",
        "out[0]['k'][0]",
    ]
    assert observation.outputs == (
        ("out[0]['k'][0]", "out[0]['k'][0]"),
        ("out[2][0]", "arg[0]['b'][0]"),
    )
    assert ("out[0]['k'][1]", "int 3") in observation.structure
    assert ("out[3]", "float 1.5") in observation.structure
    assert ("out[4]", "torch.dtype torch.float16") in observation.structure


def test_gradients_are_taken_once_per_argument_object() -> None:
    run = observe(lambda x, y: (x * y).sum(), duplicate).gradients[0]
    values = dict(run.gradients)
    assert list(values) == ["arg[0]", "leaf['w']"]
    root = duplicate().args[0]
    cotangent = (2 * (0 % 11) - 11) / 8
    assert values["arg[0]"] is not None
    assert torch.allclose(values["arg[0]"].tensor(), 2 * root.detach() * cotangent)


def test_a_written_argument_is_a_root_and_keeps_the_gradient_of_its_old_value() -> None:
    def function(x: Tensor) -> None:
        x.mul_(3)

    observation = observe(function, inner)
    assert observation.moved == ("arg[0]",)
    (run,) = observation.gradients
    assert run.roots == ("arg[0]",)
    gradient = dict(run.gradients)["arg[0]"]
    assert gradient is not None
    assert gradient.tensor()[0, 0] == 3 * (0 - 11) / 8
    assert gradient.tensor()[0, 1] == 3 * (2 * 7 - 11) / 8


def test_unused_leaf_has_no_gradient() -> None:
    (run,) = observe(lambda w, v: w * 2, two_leaves).gradients
    assert dict(run.gradients)["arg[1]"] is None


def test_subset_of_roots_counts_modulo_and_each_alone_follows() -> None:
    def function(w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return w * 2, v * 2, w + v

    alone = [("out[0]",), ("out[1]",), ("out[2]",)]
    all_of_them = observe(function, two_leaves).gradients
    assert [run.roots for run in all_of_them] == [("out[0]", "out[1]", "out[2]"), *alone]
    some = observe(function, two_leaves, differentiate=(4, 2)).gradients
    assert [run.roots for run in some] == [("out[1]", "out[2]"), *alone]
    first = observe(function, two_leaves, differentiate=(3,)).gradients
    assert [run.roots for run in first] == alone
    assert dict(first[0].gradients)["arg[1]"] is None


def test_cotangents_of_complex_results_may_be_lazily_conjugated() -> None:
    """As a user's may be, which a compiled backward has not seen when it was traced."""
    seen: list[bool] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            seen.append(gradient.is_conj())
            return gradient

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return Look.apply(x), Look.apply(x)

    x = torch.ones(2, dtype=torch.complex64).requires_grad_()
    observe(function, lambda: Arguments((x.detach().requires_grad_(),)))
    assert {*seen} == {True, False}


def test_cotangents_differ_between_elements_and_roots() -> None:
    (run, *_) = observe(lambda w, v: (w * 1, w * 1), two_leaves).gradients
    value = dict(run.gradients)["arg[0]"]
    assert value is not None
    assert len(set(value.tensor().reshape(-1).tolist())) > 3


def test_later_writes_show_what_is_forbidden_and_what_they_reach() -> None:
    def function(w: Tensor) -> tuple[Tensor, Tensor]:
        y = w.sin()
        first, _ = y.unbind(1)[:2]
        return first, y

    unbound, whole = observe(function, leaf).later_writes
    assert unbound.raised is not None and unbound.raised.type == "RuntimeError"
    assert whole.raised is None
    assert whole.data != unbound.data


def test_a_later_write_that_autograd_cannot_notice_is_told() -> None:
    def data(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        return y.data, y

    def detached(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        return y.detach(), y

    apart, together = observe(data, leaf).later_writes, observe(detached, leaf).later_writes
    assert [write.uncounted for write in apart] == [True, True]
    assert [write.uncounted for write in together] == [False, False]
    # Of an argument, and the two results.
    assert [write.counted[-3:] for write in apart] == [(False, True, False), (False, False, True)]
    assert [write.counted[-3:] for write in together] == [(False, True, True)] * 2
    with torch.inference_mode():
        made = torch.ones(2)
    (write,) = observe(lambda x: x * 1, lambda: Arguments((made,))).later_writes
    assert write.counted == (None, True)


def test_later_gradient_is_taken_after_the_writes() -> None:
    observation = observe(lambda w: w * 3, leaf)
    before, (after,) = observation.gradients[0], observation.later_gradients
    first, second = dict(before.gradients)["arg[0]"], dict(after.gradients)["arg[0]"]
    assert first is not None and second is not None
    assert torch.equal(first.tensor() * 2, second.tensor())


def test_each_result_is_differentiated_alone() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x * n for n in range(6))

    runs = observe(function, leaf).gradients
    assert [run.roots for run in runs[1:]] == [(f"out[{n}]",) for n in range(4)]
    assert len(runs[0].roots) == 6


def test_after_the_writes_each_result_is_differentiated_alone_if_all_raise() -> None:
    observation = observe(lambda w: (w * 3, w.exp(), w * 2), leaf)
    together, *alone = observation.later_gradients
    assert together.raised is not None
    assert [run.raised is not None for run in alone] == [False, True, False]


def test_exceptions_are_plain_data_without_addresses() -> None:
    class Own(ValueError):
        pass

    def function(x: Tensor) -> None:
        raise Own(f"at {hex(id(x))}: no\nsecond line")

    raised = observe(function, plain).raised
    assert raised is not None
    assert raised.type.endswith("Own") and "ValueError" in raised.bases
    assert (raised.stage, raised.message) == ("call", "at 0x...: no")


def test_exceptions_in_the_backward_are_recorded_for_each_run() -> None:
    runs = observe(CASES["modified_saved"].function, leaf).gradients
    assert [run.raised is not None and run.raised.stage for run in runs] == ["backward"] * 3


def test_refusals_of_call_and_backward() -> None:
    def refusal(error: BaseException) -> str | None:
        return "no strings" if isinstance(error, TypeError) else None

    def refuses(x: Tensor) -> None:
        raise TypeError("strings")

    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            raise TypeError("later")

    assert observe(refuses, plain, refusal=refusal).refused == "no strings"
    assert observe(refuses, plain).refused is None
    assert observe(CASES["raises"].function, two_leaves, refusal=refusal).refused is None
    in_backward = observe(Refuses.apply, leaf, refusal=refusal)
    assert (in_backward.raised, in_backward.refused) == (None, "no strings")
    assert in_backward.later_writes == ()


def test_errors_of_make_are_not_swallowed() -> None:
    def make() -> Arguments:
        raise LookupError("no arguments")

    with pytest.raises(LookupError, match="no arguments"):
        observe(torch.sin, make)


def test_a_backward_that_writes_to_its_cotangent_is_seen_and_does_no_harm() -> None:
    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0].mul_(2)

    good = observe(CASES["sine"].function, leaf)
    bad = observe(Writes.apply, leaf)
    assert [run.cotangents_kept for run in good.gradients + bad.gradients] == [True, False]
    assert observe(CASES["sine"].function, leaf) == good


def test_storage_left_behind_is_still_watched() -> None:
    observation = observe(CASES["moved_to_other_storage"].function, plain)
    state = observation.state("arg[0]")
    assert state is not None and state.storage_kept is False
    old = observation.state("old storage of arg[0]")
    assert old is not None and old.value is not None
    assert torch.equal(old.value.tensor(), plain().args[0].reshape(-1) * 3)  # numbers, which may be rounded


def test_storage_resized_away_has_no_elements() -> None:
    state = observe(CASES["storage_freed"].function, plain).state("arg[0]")
    assert state is not None
    assert (state.value, state.storage_bytes, state.storage_kept) == (None, 0, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "backend='x' raised:\nTypeError: no such thing\n\nSet TORCH_LOGS",
            "backend='x' raised: TypeError: no such thing",
        ),
        ("one line", "one line"),
        ("first\nsecond", "first"),
        ("only this:", "only this:"),
        ("", ""),
    ],
)
def test_a_message_that_only_announces_the_next_line_is_kept_with_it(text: str, message: str) -> None:
    assert record_exception("call", RuntimeError(text)).message == message
