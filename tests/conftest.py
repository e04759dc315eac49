"""Each test runs with one torch thread, from a known random state, and leaves the ambient state alone."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aot import config as aot_config
from bench.fuzzer.cases import forked
from oracles.findings import CLAUSES
from oracles.observation.mode_stacks import recording_leaked_modes

torch.set_num_threads(1)
# pytest listens to loggers that do not propagate: each graph of each test would be written out.
logging.getLogger("torch.__trace").propagate = True
os.environ.pop("AOTFUZZ_CACHE_DIR", None)  # nothing is written but to folders of tests


@pytest.fixture(scope="session", autouse=True)
def cache_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The key of caches is not the user's."""
    os.environ["AOTFUZZ_CACHE_KEY"] = str(tmp_path_factory.mktemp("key") / "cache-key")


@pytest.fixture(scope="session", autouse=True)
def refusals_are_raised() -> Iterator[None]:
    """No test passes because a function that is refused ran as in eager, where it has not asked for that."""
    with aot_config.patch(on_unsupported="raise"):
        yield


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more worker than there are cores: campaigns, scripts and hang guards are mostly waited for."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--clause",
        choices=CLAUSES,
        help="run the tests that are marked with this clause of the contract alone",
    )
    parser.addoption("--rewrite-golden", action="store_true", help="write the golden files anew")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is the same on each device on each."""
    marked = metafunc.definition.get_closest_marker
    if marked("both_devices") and not marked("cpu"):
        devices = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
        metafunc.fixturenames.append("default_device")
        metafunc.parametrize("default_device", devices, indirect=True)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of a clause. Skip what needs a GPU where there is none; pytest's summary counts it.
    Begin with campaigns, of which some take a minute, so that no worker is left with one at the end."""
    if clause := config.getoption("clause"):
        others = [item for item in items if clause not in clauses_of(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if clause in clauses_of(item)]
    _leave_to_the_night(items)
    items.sort(key=lambda item: not item.nodeid.startswith("tests/fuzz/"))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device (issue 11)"))


def _leave_to_the_night(items: list[pytest.Item]) -> None:
    """Mark what a `sampled` test leaves out of each run: all but one of n of its parameters."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            if seen[name] % mark.args[0]:
                item.add_marker(pytest.mark.nightly)
            seen[name] += 1


def clauses_of(item: pytest.Item) -> set[str]:
    """The clauses of the contract that a test is marked with."""
    return {clause for mark in item.iter_markers("clause") for clause in mark.args}


@pytest.fixture(autouse=True, scope="module")
def older_heap() -> None:
    """Collections look at what a module's tests leave, and not at the million objects that are there for
    ever: torch, its compilers and the tests themselves. Every look at what a failed call has left behind is a
    full collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def ambient_state() -> Iterator[None]:
    """A test that leaks grad mode or a default dtype fails itself, not the next one. (A generated program may
    enter a mode of torch's for good: where a test runs one, the mode ends with the test.)"""
    torch.manual_seed(0)
    with recording_leaked_modes():
        yield
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    assert grad, "the test left grad mode off"
    assert dtype == torch.float32, "the test left another default dtype"


@pytest.fixture
def default_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device that a test's tensors are made on."""
    device: str = request.param
    if device != "cpu":
        torch.set_default_device(device)
    yield device
    torch.set_default_device(None)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo knows no function, and has none left afterwards."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def small_inductor(fresh_dynamo: None) -> Iterator[None]:
    """Inductor as a few small graphs want it: to compile the headers once takes longer than to read them."""
    settings = {"compile_threads": 1, "fx_graph_cache": False, "cpp_cache_precompile_headers": False}
    with torch._inductor.config.patch(settings):
        yield


@pytest.fixture(scope="module")
def forkable() -> None:
    """Skip a module whose forks cannot use what tests before have used: a GPU, or autograd's threads."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        pytest.skip("tests before have used CUDA, which no fork can then: run this file alone (issue 47)")
    _, failure, _ = forked(_run_backward)
    if "autograd's threading" in failure:
        pytest.skip("tests before have started autograd's threads: run this file alone (issue 47)")
    assert not failure


def _run_backward(_: object) -> None:
    torch.ones(2, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


@pytest.fixture
def helpers_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of campaigns find targets beside the tests, such as `bad_targets`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fuzz"))


@pytest.fixture
def in_an_empty_folder(helpers_are_importable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write where nothing is."""
    monkeypatch.chdir(tmp_path)
