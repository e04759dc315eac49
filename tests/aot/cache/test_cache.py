"""The cache on disk: what is read from it answers calls as what was traced does, and as eager does."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import aot
from aot.cache.__main__ import main
from fuzz.choices import SeededChoices
from fuzz.execute.case import execute
from fuzz.generate import generate
from fuzz.targets.target import Target
from oracles import Arguments, Outcome, judge, observe
from tests.support.agreement import leaf, non_leaf, values
from tests.support.aot.saved_values import Kept


@pytest.fixture(autouse=True)
def folder(fresh_dynamo: None, folder: Path) -> Iterator[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", aot.CacheWarning)
        yield folder


def simplified(function: Any, *args: Any, **options: Any) -> Callable[..., Any]:
    """A graph of a front end, compiled."""
    graph = fx.symbolic_trace(function)
    return aot.aot_module_simplified(graph, args, options.pop("compiler", aot.nop), **options)


def refusal(error: BaseException) -> str | None:
    return type(error).__name__ if isinstance(error, aot.Unsupported) else None


def writes_and_aliases(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * w
    x.mul_(2)
    x.unsqueeze_(0)
    return x, x.view(-1), y, y[0], (y * w).sum()


def draws(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.rand_like(x) * w, torch.nn.functional.dropout(x * w, 0.5), torch.randn(3)


def second_derivatives(x: Tensor, w: Tensor) -> Tensor:
    return (x.sin() * w).exp().sum() + (x * w).tanh().sum()


def under_modes(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        kept = x * 2
        x.add_(1)
    return kept, x.detach(), x * w


def constants(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return x * scale, (w + scale).unbind(), {"size": 3, "kinds": [torch.float64, None, 0.5, 2j]}


def chunks(x: Tensor, w: Tensor) -> list[Tensor]:
    parts = list(x.split(1))
    parts[0].add_(1)
    return [*parts, *(w * 2).unbind(1)]


PROGRAMS = (writes_and_aliases, draws, second_derivatives, under_modes, constants, chunks)


@pytest.mark.parametrize("partition", [aot.default_partition, aot.min_cut_rematerialization_partition])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_read_is_what_was_traced(program: Any, partition: Any, folder: Path) -> None:
    def make() -> Arguments:
        x = values(2, 2)
        return Arguments((x, leaf(2, 2, start=3)), tensors={"x": x})

    traced = aot.aot_function(program, aot.nop, partition_fn=partition)
    kept = Kept(program, folder, partition_fn=partition)
    wanted = observe(traced, make)
    assert wanted.raised is None
    for _ in range(2):
        verdict = judge(wanted, observe(kept, make), None, lambda: observe(traced, make), exact=True)
        assert verdict.outcome is Outcome.AGREE, verdict.findings
    assert kept.read == len(kept.specializations) == 1
    verdict = judge(observe(program, make), observe(kept, make), None, lambda: observe(program, make))
    assert verdict.outcome is Outcome.AGREE, verdict.findings


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))]
)
@pytest.mark.parametrize("profile", ["mixed", "aliasing", "autograd", "metadata"])
def test_generated_programs(seed: int, profile: str, folder: Path) -> None:
    made: list[Kept] = []

    def compile(function: Any) -> Any:
        made.append(Kept(function, folder / str(len(made))))
        return made[-1]

    target = Target("kept", "what is read from the cache", compile, refusal=refusal)
    outcomes: collections.Counter[str] = collections.Counter()
    for case in range(8):
        program = generate(SeededChoices(f"cache {seed} {case} {profile}"), profile)
        result = execute(program, target)
        outcomes[result.outcome] += 1
        assert result.outcome != "finding", (result.reason, program)
    assert outcomes["agree"] >= 3
    assert sum(one.read for one in made) >= 2  # of custom functions nothing is kept


def test_a_second_derivative_records_the_function_when_it_is_asked_for() -> None:
    for _ in range(2):
        x, w = leaf(3), leaf(3, start=5)
        compiled = simplified(second_derivatives, x, w)
        found, wanted = [], []
        for function, to in ((compiled, found), (second_derivatives, wanted)):
            with torch.autocast("cpu", enabled=False):
                (first,) = torch.autograd.grad(function(x, w), w, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
            to += [first, second, *torch.autograd.grad(second.sum(), (x, w))]
        torch.testing.assert_close(found, wanted)
    assert (aot.cache.stats().hits, aot.cache.stats().misses) == (1, 1)


def test_a_second_derivative_takes_the_ambient_state_of_the_call() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin() + torch.ones(2, 2)

    for _ in range(2):
        x, w = leaf(2, 2), leaf(2, 2, start=5)
        torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                compiled = simplified(f, x, w)
                y = compiled(x, w)
                wanted = f(x, w)
        finally:
            torch.set_default_dtype(torch.float32)
        assert y.dtype == wanted.dtype
        results = [torch.autograd.grad(one.sum(), x, create_graph=True)[0] for one in (y, wanted)]
        second = [torch.autograd.grad(one.sum(), w)[0] for one in results]
        torch.testing.assert_close(second[0], second[1], rtol=0, atol=0)
    assert aot.cache.stats().hits == 1


def test_a_gradient_that_is_there_and_a_view_are_recorded_again_as_they_were() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        y.mul_(2)
        return (x * y).exp().sum()

    seen = []
    for _ in range(3):
        x = leaf(4)
        x.grad = torch.ones(4)
        y = non_leaf(8)[2:6]
        function = simplified(f, x, y) if seen else f
        (first,) = torch.autograd.grad(function(x, y), x, create_graph=True)
        seen.append((first, *torch.autograd.grad(first.sum(), x)))
    for one in seen[1:]:
        torch.testing.assert_close(one, seen[0], rtol=0, atol=0)
    assert aot.cache.stats().hits == 1


def test_modules_train_from_the_cache() -> None:
    states = []
    for backend in (None, "aotfuzz", "aotfuzz"):
        torch._dynamo.reset()
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        function = module if backend is None else torch.compile(module, backend=backend)
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            function(torch.rand(3, 4)).square().sum().backward()
            optimizer.step()
        states.append(module.state_dict())
    for other in states[1:]:
        assert all(torch.equal(value, other[name]) for name, value in states[0].items())
    # (The second call finds other gradients in place: it is of another kind.)
    stats = aot.cache.stats()
    assert stats.hits == stats.misses == stats.entries > 0


def test_graphs_that_call_modules_keep_their_state() -> None:
    outputs = []
    for _ in range(2):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        compiled = simplified(module, torch.ones(2, 4))
        outputs.append([compiled(values(2, 4)), *module.state_dict().values()])
        assert module[1].num_batches_tracked == 1
    torch.testing.assert_close(*outputs, rtol=0, atol=0)
    assert aot.cache.stats().hits == 1


def test_graph_compilers_get_the_graph_with_its_values() -> None:
    seen: list[tuple[str, list[Any]]] = []

    def compiler(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        assert all("val" in node.meta for node in module.graph.nodes if node.op == "call_function")
        modes = {id(example.fake_mode) for example in example_inputs}
        shapes = [(tuple(one.shape), one.stride(), one.dtype, one.device) for one in example_inputs]
        seen.append((module.code, [shapes, aot.static_inputs(module), len(modes)]))
        return module.forward

    for _ in range(2):
        module = nn.Linear(4, 2)
        simplified(module, torch.ones(3, 4), compiler=compiler)(torch.ones(3, 4)).sum().backward()
    assert seen[:2] == seen[2:]
    assert aot.cache.stats().hits == 1


def test_explain_shows_what_was_read() -> None:
    texts = []
    for _ in range(2):
        compiled = simplified(second_derivatives, leaf(3), leaf(3)).compiled  # type: ignore[attr-defined]
        texts.append((aot.explain(compiled), aot.explain(compiled, html=True)))
    assert "forward graph" in texts[0][0]
    assert texts[0][0].split("---- wrapper")[0] == texts[1][0].split("---- wrapper")[0]
    assert ("f32" in texts[0][1]) == ("f32" in texts[1][1])


def test_the_assumptions_of_what_was_read_are_checked_on_request() -> None:
    simplified(writes_and_aliases, values(2, 2), leaf(2, 2))

    def wrong(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return lambda *args: [one.double() for one in module.forward(*args)]

    with aot.config.patch(debug_assert=True):
        right = simplified(writes_and_aliases, values(2, 2), leaf(2, 2))
        right(values(2, 2), leaf(2, 2))
        compiled = simplified(writes_and_aliases, values(2, 2), leaf(2, 2), compiler=wrong)
        with pytest.raises(aot.AssumptionViolated, match="dtype"):
            compiled(values(2, 2), leaf(2, 2))
    assert aot.cache.stats().hits == 2


def test_a_compiler_that_fails_is_not_the_entry_s_fault() -> None:
    def failing(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        raise RuntimeError("no kernels today")

    simplified(second_derivatives, leaf(3), leaf(3))
    with pytest.raises(RuntimeError, match="no kernels today"):
        simplified(second_derivatives, leaf(3), leaf(3), compiler=failing)
    assert aot.cache.stats().dropped == 0


def test_inductor_starts_from_what_was_read() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin().sum()

    gradients = []
    for _ in range(2):
        torch._dynamo.reset()
        w = leaf(8)
        torch.compile(f, backend="aotfuzz_inductor")(values(8), w).backward()
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert aot.cache.stats().hits == 1


def test_nothing_is_kept_unless_it_is_asked_for(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, named = tmp_path / "home" / "aotfuzz", tmp_path / "named"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AOTFUZZ_CACHE_DIR", raising=False)
    for setting in (None, False):
        with aot.config.patch(cache=setting):
            simplified(second_derivatives, leaf(3), leaf(3))
            assert aot.cache.configured_store() is None
    assert not usual.exists()
    with aot.config.patch(cache=True):
        simplified(second_derivatives, leaf(3), leaf(3))
        assert aot.cache.stats().folder == str(usual)
    assert len(list(usual.glob("*.aot"))) == 1
    monkeypatch.setenv("AOTFUZZ_CACHE_DIR", str(named))
    with aot.config.patch(cache=None):
        simplified(second_derivatives, leaf(3), leaf(3))
    assert len(list(named.glob("*.aot"))) == 1
    with aot.config.patch(cache=False):
        assert aot.cache.configured_store() is None
    assert not folder.exists()


def partition_of_mine(*args: Any, **options: Any) -> Any:
    return aot.default_partition(*args, **options)


def test_the_command_tells_and_clears(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simplified(second_derivatives, leaf(3), leaf(3))
    simplified(second_derivatives, leaf(3), leaf(3))
    simplified(second_derivatives, leaf(3), leaf(3), partition_fn=partition_of_mine)
    assert main(["--folder", str(folder), "stats"]) == 0
    text = capsys.readouterr().out
    assert "entries   1," in text and "hits      1" in text and "1 a partitioner of the user's" in text
    assert main(["--folder", str(folder), "stats", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["misses"] == 1 and known["uncached"] == {"a partitioner of the user's": 1}
    assert main(["--folder", str(folder), "clear"]) == 0
    assert aot.cache.stats().entries == aot.cache.stats().hits == 0
    command = [sys.executable, "-m", "aot.cache", "--folder", str(folder), "stats"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "entries   0," in told.stdout


SCRIPT = """
import sys, torch, aot
def f(x, w):
    x.mul_(2)
    return (x * w).sin().sum(), x.view(-1)
torch.manual_seed(0)
x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
compiled = aot.aot_module_simplified(torch.fx.symbolic_trace(f), [x, w], aot.nop)
total, flat = compiled(x, w)
total.backward()
print(total.item().hex(), flat.data_ptr() == x.data_ptr(), w.grad.sum().item().hex(), aot.cache.stats().hits)
"""


def test_other_processes_start_hot_and_write_at_once(folder: Path) -> None:
    environment = os.environ | {"AOTFUZZ_CACHE_DIR": str(folder)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error::aot.CacheWarning", "-c", SCRIPT],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    together = [start() for _ in range(3)]
    first = [process.communicate(timeout=250)[0].split() for process in together]
    assert all(process.returncode == 0 for process in together)
    later = start()
    last = later.communicate(timeout=250)[0].split()
    assert {tuple(words[:3]) for words in (*first, last)} == {tuple(last[:3])}
    assert int(last[3]) >= 1
    assert aot.cache.stats().entries == 1 and not list(folder.glob(".begun-*"))


def test_threads_write_and_read_at_once() -> None:
    results: list[Any] = []
    # (While torch traces, calls of modules in other threads are taken for parts of that.)
    graphs = [fx.symbolic_trace(writes_and_aliases) for _ in range(4)]

    def work(graph: fx.GraphModule) -> None:
        x, w = values(2, 2), leaf(2, 2)
        compiled = aot.aot_module_simplified(graph, (values(2, 2), leaf(2, 2)), aot.nop)
        results.append(compiled(x, w)[4].item())

    threads = [threading.Thread(target=work, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [writes_and_aliases(values(2, 2), leaf(2, 2))[4].item()] * 4
