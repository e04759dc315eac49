"""The backend `aotfuzz_inductor` of `torch.compile`: training, options, what Inductor is told of inputs."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import compile_fx
from torch._inductor.utils import run_and_get_code

import aot
from aot import errors
from aot.frontends.dynamo import aotfuzz_inductor
from aot.inductor import Inductor
from bench.compiler.models import HUB_MODELS, Model
from bench.compiler.models import MODELS as SMALL_AND_LARGE

pytestmark = pytest.mark.usefixtures("small_inductor")


_FIRST = """
import torch, aot
x = torch.arange(16.0).reshape(1, 1, 4, 4).requires_grad_()
f = torch.compile(lambda x: torch.nn.functional.max_pool2d(torch.relu(x), 2), backend="aotfuzz_inductor")
f(x).sum().backward()
print(x.grad.sum().item())
"""


@pytest.mark.nightly
def test_the_first_compile_of_a_process_decomposes() -> None:
    ran = subprocess.run([sys.executable, "-c", _FIRST], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "4.0", ran.stderr


def train(make: Callable[[], Model], compile: Callable[[nn.Module], Any], steps: int) -> list[Tensor]:
    """Everything that training leaves behind."""
    torch.manual_seed(1)
    model = make()
    function = compile(model.module)
    optimizer = torch.optim.SGD(model.module.parameters(), 0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.loss(function(model.batch[0]), model.batch[-1])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *model.module.state_dict().values(), torch.get_rng_state()]


def assert_trains_as_eager(make: Callable[[], Model], steps: int) -> None:
    def through_inductor(module: nn.Module) -> Any:
        return torch.compile(module, backend=aotfuzz_inductor)

    expected = train(make, lambda module: module, steps)
    given, codes = run_and_get_code(train, make, through_inductor, steps)
    for value, other in zip(given, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-4)
    assert len(codes) >= 2 and all("cpp_fused" in code for code in codes)


def mlp(*layers: nn.Module) -> Model:
    module = nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 2))
    return Model(module, (torch.rand(3, 4), torch.rand(3, 2)), nn.functional.mse_loss)


@pytest.mark.nightly
def test_a_module_trains_with_eagers_random_numbers_and_statistics() -> None:
    assert_trains_as_eager(lambda: mlp(nn.BatchNorm1d(8), nn.Dropout(0.5)), 3)


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": lambda: mlp(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)),
    **{name: small for name, (small, _) in {**SMALL_AND_LARGE, **HUB_MODELS}.items()},
}


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MODELS)
def test_models_train_to_the_losses_of_eager(name: str) -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        assert_trains_as_eager(MODELS[name], 5)


def test_torch_finds_the_backend_by_its_name() -> None:
    (entry,) = entry_points(group="torch_dynamo_backends", name="aotfuzz_inductor")
    assert entry.load() is aotfuzz_inductor


def test_modes_and_options_are_passed_on() -> None:
    assert Inductor.configured("max-autotune-no-cudagraphs").settings["max_autotune"] is True
    settings = Inductor.configured(options={"max-fusion-size": 8}).settings
    assert settings["max_fusion_size"] == 8 and settings["fallback_random"] is True
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        assert Inductor.configured().settings["triton.cudagraphs"] is False


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"mode": "fastest"}, "fastest"),
        ({"options": {"fallback_random": False}}, "random numbers are eager's"),
        ({"options": {"freezing": True}}, "freezing=True"),
        ({"options": {"no_such_option": 1}}, "no option called no_such_option"),
        ({"options": {"partitioner": "best"}}, "min-cut"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.UnsupportedOption, match=reason):
        aotfuzz_inductor(torch.fx.symbolic_trace(nn.ReLU()), [torch.ones(2)], **options)


def test_cuda_graphs_are_refused_where_there_may_be_a_cuda_device() -> None:
    with pytest.raises(errors.UnsupportedOption, match=r"triton\.cudagraphs=True, of mode='reduce-overhead'"):
        Inductor.configured("reduce-overhead")


@pytest.mark.parametrize("backend", ["aotfuzz", "aotfuzz_inductor"])
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_on_a_cpu(small_inductor: None, backend: str, mode: str) -> None:
    f = torch.compile(lambda x: x.sin() * 2, backend=backend, mode=mode)
    assert torch.equal(f(torch.zeros(3)), torch.zeros(3))


def test_what_inductor_is_kept_from_is_no_implicit_fallback(small_inductor: None) -> None:
    def f(x: Tensor) -> Tensor:
        return x.expm1() + torch.rand(3) + nn.functional.dropout(x, 0.5)

    results = []
    for call in (
        f,
        torch.compile(f, backend="aotfuzz_inductor", options={"implicit_fallbacks": False}),
    ):
        torch.manual_seed(0)
        x = torch.linspace(0, 1, 3, requires_grad=True)
        result = call(x)
        result.sum().backward()
        results.append([result.detach(), x.grad])
    torch.testing.assert_close(*results)


class Layer(nn.Module):
    """A parameter that the backward reads, one that it does not, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 3))
        self.bias = nn.Parameter(torch.rand(4, 1))
        self.register_buffer("scale", torch.rand(5, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x.sin() + self.bias) * self.scale


def _told(compile: Callable[[nn.Module, Any], Any]) -> dict[str, list[tuple[int, ...]]]:
    """The sizes of the inputs of which Inductor is told that they stay where they are, by graph."""
    told: dict[str, list[tuple[int, ...]]] = {}

    def spying(graph: Any, inputs: Any, **options: Any) -> Any:
        static = options["static_input_idxs"]
        context = torch._guards.TracingContext.get()
        if options.get("is_backward"):
            which = "backward"
        else:
            assert list(context.fw_metadata.static_input_indices) == list(static)
            which = "inference" if options["is_inference"] else "forward"
        told[which] = [tuple(inputs[i].shape) for i in static]
        return aot.make_boxed_func(graph.forward)  # (What is told is all that is asked for.)

    torch._dynamo.reset()
    layer = Layer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_fx, "compile_fx_inner", spying)
        function = compile(layer, spying)
        function(torch.rand(3, requires_grad=True)).sum().backward()
        with torch.no_grad():
            function(torch.rand(3))
    return told


def test_inductor_is_told_which_inputs_stay_where_they_are() -> None:
    by_torch = _told(
        lambda layer, inner: torch.compile(layer, backend=partial(compile_fx.compile_fx, inner_compile=inner))
    )
    ours = _told(lambda layer, _: torch.compile(layer, backend="aotfuzz_inductor"))
    state = {(4, 3), (4, 1), (5, 1, 1)}
    for which in ("forward", "inference"):
        assert sorted(ours[which]) == sorted(by_torch[which]) == sorted(state)
    # Torch's counts on the forward's results to stay where they are as well, in a CUDA graph of the forward.
    assert set(ours["backward"]) == set(by_torch["backward"]) & state == {(4, 3), (5, 1, 1)}


def test_inputs_that_are_marked_stay_where_they_are_and_others_do_not() -> None:
    told: list[list[tuple[int, ...]]] = []

    def compiler(module: Any, example_inputs: Any) -> Any:
        told.append([tuple(example_inputs[i].shape) for i in aot.static_inputs(module)])
        return module.forward

    def backend(graph: Any, example_inputs: Any) -> Any:
        return aot.aot_module_simplified(graph, example_inputs, compiler)

    x, y = torch.rand(2), torch.rand(3, 1)
    torch._dynamo.mark_static_address(y)
    assert torch.equal(torch.compile(lambda x, y: x * y, backend=backend)(x, y), x * y)
    assert told == [[(3, 1)]]
    aot.aot_function(lambda x, y: x * y, compiler, num_params_buffers=1)(x, y)
    aot.aot_function(lambda x, y: x * y, compiler)(x, y)
    assert told[1:] == [[(2,)], []]


@pytest.mark.nightly
def test_sizes_that_are_symbols(caplog: pytest.LogCaptureFixture) -> None:
    """Also what Inductor assumes of them (the length of a diagonal), from its cache as well as anew."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        joined = (x * y).softmax(-1)
        return joined.diagonal() * y.sum(), joined.t() * 2, x.unsqueeze(1).expand(-1, 3, -1)

    def run(function: Any, rows: int, columns: int) -> list[Tensor]:
        torch.manual_seed(0)
        x, y = torch.rand(rows, columns), torch.rand(rows, columns, requires_grad=True)
        results = function(x, y)
        assert results[2]._base is x
        (gradient,) = torch.autograd.grad(results[0].sum() + results[1].square().sum(), y)
        return [x, *results, gradient]

    caplog.set_level(logging.DEBUG, logger="aot.guards")
    for _ in range(2):
        torch._dynamo.reset()
        function = torch.compile(f, backend="aotfuzz_inductor", dynamic=True)
        with torch._inductor.config.patch(fx_graph_cache=True):
            for rows, columns in [(4, 7), (5, 9), (19, 3), (6, 10), (8, 3)]:
                given, expected = run(function, rows, columns), run(f, rows, columns)
                for value, other in zip(given, expected, strict=True):
                    torch.testing.assert_close(value, other)
                    assert value.stride() == other.stride()
    compiles = [record for record in caplog.records if record.name == "aot.guards"]
    assert len(compiles) == 4  # rows up to the columns, and more, twice
    assert not any("each size" in record.getMessage() for record in compiles)
