"""The backend `aotfuzz` of `torch.compile`."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot import errors
from aot.frontends.dynamo import aotfuzz
from aot.torch_internals import mode_stacks

pytestmark = [pytest.mark.both_devices, pytest.mark.usefixtures("fresh_dynamo")]


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="aotfuzz", **options)


def test_a_graph_that_raises_in_a_mode_of_its_own_leaves_none_behind() -> None:
    """Dynamo's graphs enter inference mode by one call and leave it by another."""

    def f(x: Tensor) -> Tensor:
        with torch.inference_mode(), torch.enable_grad():
            x.relu_()
        return x

    collecting = gc.isenabled()
    gc.disable()  # what is left must not wait for it
    try:
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            compiled(f)(torch.ones(3).expand(2, 3))
        assert torch.empty(2).sin().shape == (2,)
        assert not torch.is_inference_mode_enabled()
    finally:
        if collecting:
            gc.enable()


MODULES: list[tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = [
    (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), lambda: torch.rand(3, 4)),
    (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), lambda: torch.rand(2, 3, 6, 6)),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16), lambda: torch.rand(5, 2, 8)),
]


@pytest.mark.parametrize("make, inputs", MODULES)
@pytest.mark.parametrize("options", [{}, {"options": {"partitioner": "min-cut"}}, {"dynamic": True}])
def test_modules_train_as_in_eager(
    make: Callable[[], nn.Module], inputs: Callable[[], Tensor], options: dict[str, Any]
) -> None:
    states = []
    for compile in (lambda module: module, lambda module: compiled(module, **options)):
        torch.manual_seed(1)
        module = make()
        function = compile(module)
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            function(inputs()).square().sum().backward()
            optimizer.step()
        states.append(module.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_graph_breaks_and_writes() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        torch._dynamo.graph_break()
        return x.t(), y.add_(x)

    arguments = [(torch.ones(2, 3), torch.ones(2, 3)) for _ in range(2)]
    (a, b), (c, d) = f(*arguments[0]), compiled(f)(*arguments[1])
    assert torch.equal(a, c) and torch.equal(b, d)
    assert d is arguments[1][1]
    assert c._base is arguments[1][0]


@pytest.mark.parametrize("dynamic", [True, None])
def test_gradients_that_are_taken_inside(dynamic: bool | None) -> None:
    """Dynamo goes on compiling what is called after it has given up on the gradient: ours is not for it."""

    def f(w: Tensor, x: Tensor) -> Tensor:
        loss = (x @ w).tanh().sum()
        (gradient,) = torch.autograd.grad(loss, w)
        return w - gradient

    g = torch.compile(f, backend="aotfuzz", dynamic=dynamic)
    for size in (3, 4, 5):
        w, x = torch.rand(3, requires_grad=True), torch.rand(size, 3)
        assert torch.equal(f(w, x), g(w, x))


def _compiles(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of each compile below Dynamo."""
    return [record.getMessage() for record in caplog.records if record.name == "aot.guards"]


@pytest.mark.parametrize("dynamic", [True, None])
def test_symbols_of_dynamos_are_symbols_below(dynamic: bool | None, caplog: pytest.LogCaptureFixture) -> None:
    """Sizes, strides and numbers, in views, results and the backward."""

    def f(x: Tensor, n: int, t: Tensor) -> tuple[Any, ...]:
        shown = x.transpose(0, 1)[:, :n]
        return shown * t, x.shape[0] + n, x.view(-1, 2), shown, 2 * n, torch.zeros(n, x.shape[1])

    function = compiled(f, dynamic=dynamic)
    caplog.set_level(logging.DEBUG, logger="aot.guards")
    for rows, columns, n in [(4, 3, 2), (5, 3, 4), (9, 6, 5), (8, 7, 2), (11, 5, 6), (13, 4, 9), (6, 7, 3)]:
        x = torch.rand(rows, columns, 2, requires_grad=True)
        t = torch.rand(columns, 1, 2)
        results, expected = function(x, n, t), f(x, n, t)
        for result, one in zip(results, expected, strict=True):
            assert torch.equal(result, one) if isinstance(one, Tensor) else result == one
        assert results[2]._base is x and results[3].data_ptr() == x.data_ptr()
        gradients = [torch.autograd.grad(values[0].sum(), x)[0] for values in (results, expected)]
        assert torch.equal(*gradients)
    assert len(_compiles(caplog)) <= (2 if dynamic else 4)


def test_only_sizes_that_are_symbols_in_the_graph_are_symbols(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="aot.guards")
    function = compiled(lambda x: x.view(-1, x.shape[1]) * x.shape[0])
    for rows in (3, 4, 5):
        x = torch.rand(rows, 6)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(function(x), x * rows)
    (said,) = _compiles(caplog)
    assert "t0.shape[1] == 6" in said and "t0.shape[0] ==" not in said


def test_numbers_that_are_tested_are_compiled_for_what_they_are() -> None:
    function = compiled(lambda x, n: x * n + (n if n > 7 else -n), dynamic=True)
    x = torch.rand(3)
    for n in (2, 5, 9, 0, 1, -1, -3, 9, 5):
        assert torch.equal(function(x, n), x * n + (n if n > 7 else -n))


def test_stock_backends_work_beside_it() -> None:
    x = torch.rand(3, requires_grad=True)
    for backend in ("aotfuzz", "aot_eager", "aotfuzz"):
        y = torch.compile(lambda x: x.sin() * 2, backend=backend)(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(gradient, x.cos() * 2)


@pytest.mark.parametrize(
    "options",
    [{"mode": "fastest"}, {"options": {"partitioner": "best"}}, {"options": {"fast": True}}],
)
def test_what_it_does_not_know_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.UnsupportedOption, match=r"the backend aotfuzz|has the modes"):
        aotfuzz(torch.fx.symbolic_trace(nn.ReLU()), [torch.ones(2)], **options)


def test_refusals_come_through() -> None:
    def f(x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, lambda x: torch.rand(3), lambda x: x * 3, (x,))
        return result

    with pytest.raises(Exception, match="takes functions") as caught:
        compiled(f, fullgraph=True)(torch.ones(3))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), aot.Unsupported)


def test_assigned_data_is_assigned_and_moves_no_version() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        x.data = y
        return x * z

    results = []
    for function in (f, compiled(f, fullgraph=True)):
        x, y = torch.ones(2, requires_grad=True), torch.tensor([3.0, 4.0])
        version = x._version
        out = function(x, y)
        out.sum().backward()
        assert x._version == version and x.data_ptr() == y.data_ptr()
        results.append((out.detach(), x.grad))
    assert all(map(torch.equal, *results))


def test_graphs_are_compiled_for_the_mode_that_they_are_called_in() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y.mul_(x)  # of an inference tensor

    with torch.inference_mode():
        assert torch.equal(compiled(f)(torch.full((2,), 3.0)), torch.full((2,), 18.0))


def test_random_states_are_left_alone_while_a_graph_is_traced() -> None:
    """Another thread that Dynamo compiles for saves and restores them meanwhile."""
    seen: list[bool] = []

    @torch.library.custom_op("aotfuzz_tests::looks_at_states", mutates_args=())
    def looks(x: Tensor) -> Tensor:
        return x.clone()

    @looks.register_fake
    def _(x: Tensor) -> Tensor:
        with mode_stacks.dispatch_modes_off():
            seen.append(torch.equal(torch.default_generator.get_state(), before))
        return torch.empty_like(x)

    def f(x: Tensor) -> Tensor:
        return looks(x) * 2

    before = torch.get_rng_state()
    assert torch.equal(torch.compile(f, backend="aotfuzz")(torch.ones(3)), torch.full((3,), 2.0))
    assert seen and all(seen)
    seen.clear()
    aot.aot_function(f, aot.nop)(torch.ones(4))
    assert seen and not all(seen)  # as it may seed them with what they have been seeded with


def test_nothing_is_done_and_nothing_comes_back() -> None:
    """What is computed for nobody is dropped, and the wrapper of such a graph does nothing."""

    def f(x: Tensor) -> None:
        x * x

    compiled = torch.compile(f, backend="aotfuzz")
    for _ in range(3):
        assert compiled(torch.ones(3)) is None
