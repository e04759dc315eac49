"""Modes of the caller's that are on around a compiled call: of torch functions, and of operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import aot
from tests.support.agreement import assert_functional, values

pytestmark = pytest.mark.clause("ambient")

Function = Callable[..., Any]
STEPS = {"by": 3.0}


class Cosines(TorchFunctionMode):
    """Turns `sin` into `cos`."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.cos if function is torch.sin else function)(*args, **(kwargs or {}))


class Adding(TorchFunctionMode):
    """Adds one to whatever tensor a function of torch's returns: what asks it twice adds twice."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        is_tensor = isinstance(result, Tensor) and function.__name__ != "__get__"
        return result + 1 if is_tensor else result


class Scaling(TorchFunctionMode):
    """Multiplies sines by its attribute."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * self.by if function is torch.sin else result


class SlottedScaling(Scaling):
    """The same, with what is not in its ``__dict__``."""

    __slots__ = ("more",)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * self.more if function is torch.sin else result


class ScalingByAGlobal(TorchFunctionMode):
    """Multiplies sines by what it reads elsewhere."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * STEPS["by"] if function is torch.sin else result


def slotted(more: float) -> SlottedScaling:
    mode = SlottedScaling(2.0)
    mode.more = more
    return mode


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "none": contextlib.nullcontext,
    "cosines": Cosines,
    "adding": Adding,
    "two": lambda: Scaling(2.0),
    "three": lambda: Scaling(3.0),
    "slot of two": lambda: slotted(2.0),
    "slot of three": lambda: slotted(3.0),
    "global": ScalingByAGlobal,
    "nothing": BaseTorchFunctionMode,
}


class Module(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


FRONT_ENDS: dict[str, Callable[[], Function]] = {
    "aot_function": lambda: aot.aot_function(torch.sin, aot.nop),
    "dynamic": lambda: aot.aot_function(torch.sin, aot.nop, dynamic=True),
    "aot_module": lambda: aot.aot_module(Module(), aot.nop),
    "torch_compile": lambda: torch.compile(torch.sin, backend="aotfuzz"),
}


def answers(function: Function, modes: list[str]) -> list[list[float]]:
    """What calls give, one under each mode, and then their gradients."""
    found = []
    for name in modes:
        x = values(3).requires_grad_()
        with MODES[name]():
            result = function(x)
        result.sum().backward()
        assert x.grad is not None
        found.append([*result.tolist(), *x.grad.tolist()])
    return found


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_call_is_answered_as_its_mode_says(front_end: str) -> None:
    torch._dynamo.reset()
    order = [*MODES, *reversed(MODES)]
    expected = answers(torch.sin, order)
    torch.testing.assert_close(answers(FRONT_ENDS[front_end](), order), expected)
    assert expected[0] != expected[1]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("how", ["alone", "in a list", "by keyword", "of a module"])
def test_a_mode_is_seen_after_calls_that_were_known_again(how: str, dynamic: bool) -> None:
    class Sine(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x)

    def function(x: Tensor) -> Tensor:
        return torch.sin(x)

    call: Function
    if how == "of a module":
        call = aot.aot_module(Sine(), lambda graph, *_: graph, dynamic=dynamic)
    elif how == "in a list":
        listed = aot.aot_function(lambda xs: function(xs[0]), lambda graph, *_: graph, dynamic=dynamic)
        call = lambda x: listed([x])  # noqa: E731
    else:
        alone = aot.aot_function(function, lambda graph, *_: graph, dynamic=dynamic)
        call = alone if how == "alone" else lambda x: alone(x=x)
    x = values(3)
    for _ in range(4):
        assert torch.equal(call(x), x.sin())
    with Cosines():
        changed = call(x)
    assert torch.equal(changed, x.cos())
    assert torch.equal(call(x), x.sin())


@contextlib.contextmanager
def _device_set() -> Iterator[None]:
    """A default device leaves a trace of itself in its thread."""
    torch.set_default_device("cpu")
    torch.set_default_device(None)
    yield


@contextlib.contextmanager
def _device_kept() -> Iterator[None]:
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


AROUND = {
    "a default device": _device_kept,
    "one that was set": _device_set,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_a_mode_is_seen_whatever_else_was_around_known_calls(
    around: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    with around():
        for _ in range(3):
            assert torch.equal(compiled(values(3)), values(3).sin())
        with Cosines():
            assert torch.equal(compiled(values(3)), values(3).cos())
        assert torch.equal(compiled(values(3)), values(3).sin())


def test_a_mode_like_an_earlier_one_is_not_compiled_for() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    answers(compiled, ["two", "two", "none", "none", "two"])
    assert len(compiled.specializations) == 2
    assert "torch function modes" in compiled.specializations[1].why


def test_the_order_of_modes_counts() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    for first, second in (("adding", "two"), ("two", "adding")):
        with MODES[first](), MODES[second]():
            torch.testing.assert_close(compiled(values(3)), torch.sin(values(3)))


def test_an_attribute_of_a_mode_changes() -> None:
    compiled, mode = aot.aot_function(torch.sin, aot.nop), Scaling(2.0)
    for by in (2.0, 5.0, 2.0):
        mode.by = by
        with mode:
            torch.testing.assert_close(compiled(values(3)), torch.sin(values(3)))


def test_what_a_mode_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    for by in (3.0, 7.0, 3.0):
        monkeypatch.setitem(STEPS, "by", by)
        with ScalingByAGlobal():
            torch.testing.assert_close(compiled(values(3)), torch.sin(values(3)))


def test_a_mode_that_changes_what_it_reads_does_so_at_each_call() -> None:
    class Counting(Scaling):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.by += 1
            return super().__torch_function__(function, types, args, kwargs)

    found = []
    for function in (torch.sin, aot.aot_function(torch.sin, aot.nop)):
        mode = Counting(1.0)
        with mode:
            results = [function(values(3)) for _ in range(3)]
        found.append(([result.tolist() for result in results], mode.by))
    assert found[0] == found[1]


def test_a_mode_sees_the_users_calls_alone() -> None:
    seen: list[str] = []

    class Noting(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    def f(x: Tensor) -> Tensor:
        return torch.prod(torch.sin(x) * 2)

    def run(function: Function) -> list[str]:
        seen.clear()
        x = values(3).requires_grad_()
        with Noting():
            result = function(x)
        result.backward()
        return [*seen]

    expected = run(f)
    assert run(aot.aot_function(f, aot.nop)) == expected == ["sin", "mul", "prod"]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.mul(gradient, x * 2)


@pytest.mark.parametrize("function", [torch.sin, Squared.apply])
def test_no_mode_is_asked_about_a_backward(function: Function) -> None:
    found = []
    for one in (function, aot.aot_function(function, aot.nop)):
        x, gradient = values(3).requires_grad_(), torch.ones(3)
        result = one(x)
        with Adding():
            torch.autograd.backward([result], [gradient])
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_a_mode_that_the_function_enters_is_part_of_it() -> None:
    def f(x: Tensor) -> Tensor:
        with Cosines():
            y = torch.sin(x)
        return y + torch.sin(x)

    compiled = aot.aot_function(f, aot.nop)
    for mode in ("none", "adding", "none"):
        with MODES[mode]():
            torch.testing.assert_close(compiled(values(3)), f(values(3)))


def test_a_mode_that_is_left_on_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        Adding().__enter__()
        return torch.sin(x)

    compiled = aot.aot_function(f, aot.nop)
    with Cosines(), pytest.raises(aot.Unsupported, match="leaves a torch function mode on"):
        compiled(values(3))
    assert not torch._C._len_torch_function_stack()


def test_default_devices_are_modes_as_before() -> None:
    compiled = aot.aot_function(lambda x: torch.ones(x.shape), aot.nop)
    for device in ("meta", "cpu", "meta"):
        with torch.device(device):
            assert compiled(values(3)).device.type == device
        with Cosines(), torch.device(device):
            assert compiled(values(3)).device.type == device


def test_torch_functions_that_are_off() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    for off in (torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass):
        with Cosines(), off():
            torch.testing.assert_close(compiled(values(3)), torch.sin(values(3)))
        torch.testing.assert_close(compiled(values(3)), torch.sin(values(3)))


class CosinesOfOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        is_sine = function is torch.ops.aten.sin.default
        return (torch.ops.aten.cos.default if is_sine else function)(*args, **(kwargs or {}))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_dispatch_mode_sees_what_runs(dynamic: bool) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        assert_functional(graph)
        graphs.append(graph)
        return graph

    compiled = aot.aot_function(lambda x: torch.sin(x) * x.shape[0], compiler, dynamic=dynamic)
    x = values(3)
    for _ in range(2):
        with CosinesOfOperations() as mode:
            result = compiled(x)
        torch.testing.assert_close(result, torch.cos(values(3)) * 3)
        assert mode.seen == ["aten.sin.default", "aten.mul.Tensor"]
    torch.testing.assert_close(compiled(values(3)), torch.sin(values(3)) * 3)
    assert len(graphs) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_flops_are_counted_once_and_are_numbers(dynamic: bool) -> None:
    compiled = aot.aot_function(lambda x, y: x @ y, aot.nop, dynamic=dynamic)
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            compiled(torch.ones(2, 3), torch.ones(3, 4))
        total = counter.get_total_flops()
        assert type(total) is int and total == 2 * 2 * 3 * 4
