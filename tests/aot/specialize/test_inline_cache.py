"""A call is known again by a test that passes for no other kind of call than the key does."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.specialize.call import analyze_arguments, flatten_arguments
from aot.specialize.inline_cache import EVERY, MISS, MOST, compile_inline_test
from aot.torch_internals import ambient_state, dispatcher, tensor_impl
from fuzz.campaign.workers.handlers import program
from fuzz.program.printer import load
from tests.support.agreement import assert_each_agrees, values

pytestmark = pytest.mark.clause("repeat")

Make = Callable[[], tuple[Any, ...]]


def with_gradient(x: Tensor) -> Tensor:
    x.grad = torch.ones_like(x)
    return x


def view_under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.view(-1)


def made_in_inference_mode(*size: int) -> Tensor:
    with torch.inference_mode():
        return values(*size)


def twice(x: Any) -> tuple[Any, Any]:
    return x, x


def both_slices(x: Tensor, first: slice, second: slice) -> tuple[Any, ...]:
    return x[first], x[second]


def parts(x: Tensor) -> tuple[Any, ...]:
    return x, x[1:], x[1:].detach()[1:]


def leaf(*size: int) -> Tensor:
    return values(*size).requires_grad_()


PAIRS: dict[str, Make] = {
    "two": lambda: (values(4), values(4)),
    "other size": lambda: (values(4), values(5)),
    "other rank": lambda: (values(4), values(4, 1)),
    "other strides": lambda: (values(4), torch.empty_strided((4,), (2,)).zero_()),
    "other dtype": lambda: (values(4), values(4, dtype=torch.float64)),
    "other device": lambda: (values(4), torch.empty(4, device="meta")),
    "offset": lambda: (values(4), values(5)[1:]),
    "room behind": lambda: (values(4), values(5)[:4]),
    "storage that is longer": lambda: (values(4), values(6).resize_(4)),
    "requires grad": lambda: (values(4), leaf(4)),
    "no leaf": lambda: (values(4), leaf(4) * 1),
    "a gradient": lambda: (values(4), with_gradient(leaf(4))),
    "parameter": lambda: (values(4), torch.nn.Parameter(values(4))),
    "parameter that does not require grad": lambda: (values(4), torch.nn.Parameter(values(4), False)),
    "inference tensor": lambda: (values(4), made_in_inference_mode(4)),
    "a number": lambda: (values(4), 1),
    "another number": lambda: (values(4), 2),
    "a float": lambda: (values(4), 1.0),
    "zero": lambda: (values(4), 0.0),
    "negative zero": lambda: (values(4), -0.0),
    "nan": lambda: (values(4), float("nan")),
    "a bool": lambda: (values(4), True),
    "text": lambda: (values(4), "1"),
    "nothing": lambda: (values(4), None),
    "a complex number": lambda: (values(4), 1j),
    "a dtype": lambda: (values(4), torch.float32),
    "another dtype": lambda: (values(4), torch.float64),
    "a device": lambda: (values(4), torch.device("cpu")),
    "one tensor": lambda: twice(values(4)),
    "one tensor with a gradient": lambda: twice(with_gradient(leaf(4))),
    "both the same part": lambda: both_slices(values(8), slice(0, 4), slice(0, 4)),
    "both parts": lambda: both_slices(values(8), slice(0, 4), slice(4, 8)),
    "both parts, the other way": lambda: both_slices(values(8), slice(4, 8), slice(0, 4)),
    "both parts of what requires grad": lambda: both_slices(leaf(8) * 1, slice(0, 4), slice(4, 8)),
    "base and view": lambda: parts(values(5))[:2],
    "base and detached": lambda: parts(values(4))[::2],
    "views of several": lambda: (values(5)[:4], values(5)[:4]),
    "views of a part": lambda: (values(6)[1:][:4], values(6)[1:][:4]),
    "views of something larger": lambda: (values(6)[:4], values(6)[:4]),
    "views of a leaf": lambda: (leaf(5)[:4], leaf(5)[:4]),
    "views of a leaf that is turned": lambda: (leaf(5, 1).t()[0][:4], leaf(5)[:4]),
    "view under no_grad": lambda: (values(4), view_under_no_grad(leaf(2, 2))),
    "view that requires grad itself": lambda: (values(4), view_under_no_grad(values(4)).requires_grad_()),
    "views of many": lambda: (values(4), values(4, 2).unbind(1)[0]),
    "views of many that require grad": lambda: (values(4), (leaf(4, 2) * 1).unbind(1)[0]),
    "conjugate": lambda: (values(4), values(4, dtype=torch.complex64).conj()),
    "complex": lambda: (values(4), values(4, dtype=torch.complex64)),
    "negative": lambda: (values(4), values(4, dtype=torch.complex64).conj().imag),
    "nothing in it": lambda: (values(4), values(0)),
    "a part of something larger": lambda: (values(8)[:4], values(4)),
}
"""Arguments that differ in one thing or another."""

MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PAIRS)
def test_the_test_of_a_key_passes_for_calls_of_this_key_alone(name: str, mode: str) -> None:
    with MODES[mode]():
        try:
            arguments = analyze_arguments(PAIRS[name]())
        except aot.errors.UnsupportedArgument:
            assert mode == "inference_mode"
            return
        passes = compile_inline_test(arguments)
        if passes is None:
            assert name == "base and detached"
            return
        again = PAIRS[name]()
        tensors = passes(*again)
        assert tensors is not None and all(
            map(lambda a, b: a is b, tensors, analyze_arguments(again).tensors)
        )
        for other in PAIRS:
            given = PAIRS[other]()
            try:
                alike = analyze_arguments(given).key == arguments.key
            except aot.errors.UnsupportedArgument:
                alike = False
            assert alike or passes(*given) is None, f"{name} is not {other}"


def test_generated_arguments_are_told_apart_as_by_their_keys() -> None:
    """Those of 400 programs, each against the later ones that have as many."""
    calls = []
    for index in range(400):
        loaded = load(program(0, index, "aliasing", "cpu"))
        args, *_ = loaded.makes[0]()
        leaves, tree = flatten_arguments(tuple(args), {})
        arguments = analyze_arguments(leaves)
        calls.append((leaves, tree, arguments, compile_inline_test(arguments)))
    made = [call for call in calls if call[3] is not None]
    assert len(made) > len(calls) / 2
    passed = 0
    for _, tree, arguments, passes in made:
        assert passes is not None
        for leaves, other_tree, other, _ in calls:
            if other_tree == tree and passes(*leaves) is not None:
                assert other.key == arguments.key
                passed += 1
    assert passed >= len(made)


def key_makings(compiled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts, from now on, the calls that made their key."""
    made: list[int] = []

    def counting(leaves: Any) -> Any:
        made.append(len(leaves))
        return analyze_arguments(leaves)

    monkeypatch.setattr("aot.frontends.function.analyze_arguments", counting)
    return made


def test_the_third_call_makes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = aot.aot_function(torch.mul, aot.nop)
    made = key_makings(compiled, monkeypatch)
    for number in range(5):
        assert torch.equal(compiled(values(4), number + values(4)), values(4) * (number + values(4)))
    assert len(made) == 2


def test_what_is_called_often_is_known_although_much_else_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    for size in range(3 * MOST):
        for _ in range(2):
            compiled(values(size))
    made = key_makings(compiled, monkeypatch)
    for _ in range(2 * EVERY):
        compiled(values(3))
    assert len(made) <= EVERY


def test_several_sizes_in_turn_make_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    sizes = [*range(MOST)] * 2
    for size in sizes:
        compiled(values(size))
    made = key_makings(compiled, monkeypatch)
    for size in sizes:
        assert torch.equal(compiled(values(size)), values(size).sin())
    assert not made


def test_what_is_read_is_looked_at_although_the_call_is_known() -> None:
    factor = 2.0

    def f(x: Tensor) -> Tensor:
        return x * factor

    compiled = aot.aot_function(f, aot.nop)
    for factor in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 2.0, 3.0):
        assert torch.equal(compiled(values(3)), values(3) * factor)
    assert len(compiled.specializations) == 2


def test_modes_are_looked_at_although_the_call_is_known() -> None:
    makes = [lambda: [values(3).requires_grad_()]] * 4
    compiled = aot.aot_function(torch.sin, aot.nop)
    for make in makes:
        assert compiled(*make()).requires_grad
    with torch.no_grad():
        assert not compiled(*makes[0]()).requires_grad
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(values(3).requires_grad_(), values(3))
        tangent = torch.autograd.forward_ad.unpack_dual(compiled(dual)).tangent
    assert tangent is not None and torch.equal(tangent, values(3) * values(3).cos())
    assert len(compiled.specializations) == 2  # a call with a tangent runs as in eager


def test_arguments_in_containers_and_by_name() -> None:
    def f(pair: tuple[Tensor, Tensor], *, by: float) -> Tensor:
        return pair[0].add_(pair[1], alpha=by)

    compiled = aot.aot_function(f, aot.nop)
    for by in (1.0, 1.0, 1.0, 2.0, 1.0, 2.0):
        x, y = values(3), values(3)
        compiled((x, y), by=by)
        assert torch.equal(x, values(3) + by * y)
    assert len(compiled.specializations) == 2


def test_no_tensor_is_kept() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    x = values(3)
    for _ in range(3):
        compiled(x)
    known = weakref.ref(x)
    del x
    gc.collect()
    assert known() is None


def test_sizes_that_are_symbols() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop, dynamic=True)
    for size in [5, 6, 5, 6, 5, 6, 7]:
        assert torch.equal(compiled(values(size)), values(size).sin())
    assert len(compiled.specializations) == 1


def test_a_test_in_c_looks_at_all_that_it_says() -> None:
    test = tensor_impl.compile_tensor_test([values(3)])
    assert test(values(3))
    different = [
        values(4),
        values(3, dtype=torch.float64),
        values(3).requires_grad_(),
        values(6)[::2],
        1,
        None,
    ]
    different += [torch.nn.Parameter(values(3), False), made_in_inference_mode(3), values(3).to_sparse()]
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            assert not any(map(test, different))


def test_many_calls_agree_with_eager() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.mul_(2)
        return x + y, y.view(-1)

    makes: list[Callable[[], list[Any]]] = [
        lambda: [values(4), values(4)],
        lambda: list(both_slices(values(8), slice(0, 4), slice(2, 6))),
        lambda: list(twice(values(4))),
    ]
    assert_each_agrees(f, makes * 4, specializations=3)


AROUND: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "default device": lambda: torch.device("meta"),
    "a mode of functions": torch.overrides.BaseTorchFunctionMode,
    "forward mode": torch.autograd.forward_ad.dual_level,
    "below autograd": dispatcher.below_autograd,
    "recording": aot.errors.recording_refusals,
}


@contextlib.contextmanager
def other_default_dtype() -> Iterator[None]:
    with ambient_state.default_dtype_replaced(torch.float64):
        yield


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


AROUND |= {"default dtype": other_default_dtype, "deterministic mode": deterministic}


@pytest.mark.parametrize("inputs", [0, 1, 5])
@pytest.mark.parametrize("name", AROUND)
def test_a_test_passes_only_under_what_was_around_it(name: str, inputs: int) -> None:
    compiled = aot.aot_function(lambda *xs: sum(xs, torch.zeros(3)), aot.nop)
    given = [values(3)] * bool(inputs) + [values(3) for _ in range(inputs - 1)]
    for _ in range(3):
        compiled(*given)
    (answer,) = compiled._inline_cache.flat
    assert answer(given) is not MISS
    with AROUND[name]():
        assert answer(given) is MISS
    assert answer(given) is not MISS


def test_inside_of_a_transform_no_test_passes() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    for _ in range(3):
        compiled(values(3))
    (answer,) = compiled._inline_cache.flat
    seen = []
    torch.func.vmap(lambda x: seen.append(answer((values(3),))) or x)(values(3))
    assert seen == [MISS]


def test_a_known_call_with_a_backward_inside_of_a_transform_runs_as_it_is() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    x = values(3).requires_grad_()
    for _ in range(3):
        compiled(x)
    result = torch.func.vmap(lambda y: y * compiled(x).sum())(values(3))
    torch.testing.assert_close(result, values(3) * x.sin().sum())
    assert result.requires_grad


def test_new_data_of_several_arguments_counts_once_for_each() -> None:
    def f(x: Tensor, y: Tensor, w: Tensor) -> None:
        x.mul_(2)
        y.add_(x)
        w.sub_(y)

    compiled = aot.aot_function(f, aot.nop)
    for _ in range(3):
        theirs, ours = ([values(4), values(4), values(4).requires_grad_()] for _ in range(2))
        with torch.no_grad():
            f(*theirs)
            compiled(*ours)
        for one, other in zip(theirs, ours, strict=True):
            assert torch.equal(one, other) and one._version == other._version
            assert other.is_leaf
    assert "copy_each([t0, t1, t2], [" in compiled.specializations[0].wrapper


def test_what_lies_in_an_argument_is_written_by_itself() -> None:
    """A GPU writes to all at once, in any order."""

    def f(x: Tensor, y: Tensor, w: Tensor) -> None:
        x[1:1].fill_(2)
        y.mul_(x)
        w.add_(y)

    compiled = aot.aot_function(f, aot.nop)
    theirs, ours = ([values(4), values(4), values(4)] for _ in range(2))
    f(*theirs)
    compiled(*ours)
    assert list(map(torch.equal, theirs, ours)) == [True] * 3
    assert "copy_each([t1, t2], [" in compiled.specializations[0].wrapper
