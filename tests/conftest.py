"""Each test runs with one torch thread, from a known random state, and leaves the ambient state alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)
os.environ.pop("AOTFUZZ_CACHE_DIR", None)  # nothing is written but to folders of tests


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more worker than there are cores: campaigns, scripts and hang guards are mostly waited for."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; pytest's summary counts it. Begin with campaigns, of which
    some take a minute, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.path.parent.name != "fuzz")
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device (issue 11)"))


@pytest.fixture(autouse=True, scope="module")
def older_heap() -> None:
    """Collections look at what a module's tests leave, and not at the million objects that are there for
    ever: torch, its compilers and the tests themselves. Every look at what a failed call has left behind is a
    full collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def ambient_state() -> Iterator[None]:
    """A test that leaks grad mode or a default dtype fails itself, not the next one."""
    torch.manual_seed(0)
    yield
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    assert grad, "the test left grad mode off"
    assert dtype == torch.float32, "the test left another default dtype"
