"""Several threads of a fresh process that use `aot` for the first time at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import aot.frontends.dynamo
from tests.support.versions import needs_torch

pytestmark = pytest.mark.clause("threads")

PREAMBLE = """
import threading
from importlib.metadata import entry_points

import torch


def run_at_once(*functions):
    barrier, errors = threading.Barrier(len(functions)), []

    def run(function):
        barrier.wait()
        try:
            function()
        except BaseException as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def compile_with(backend):
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: x.sin(), backend=backend)(x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def look_up(name):
    assert torch._dynamo.lookup_backend(name).__name__ == name


def load_entry_points():
    for point in entry_points(group="torch_dynamo_backends"):
        assert point.load().__name__ == point.name
"""

USES = {
    "one backend": "run_at_once(*[lambda: compile_with('aotfuzz')] * 3)",
    "both backends": """
torch._dynamo.list_backends()
run_at_once(
    *[lambda: look_up("aotfuzz"), lambda: look_up("aotfuzz_inductor")] * 4,
    load_entry_points,
)
""",
}


# Its own backends do so as well, each time.
_CRASH = needs_torch(">=2.12", "torch 2.11 dies where several threads compile first")


@pytest.mark.parametrize(
    "use", [pytest.param(use, marks=_CRASH if use == "one backend" else ()) for use in USES]
)
def test_threads_that_are_first_at_once(use: str) -> None:
    command = [sys.executable, "-c", PREAMBLE + USES[use]]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_backend_is_an_attribute_of_its_module() -> None:
    registered = torch._dynamo.lookup_backend("aotfuzz")
    assert aot.frontends.dynamo.aotfuzz is registered
    assert "aotfuzz" in torch._dynamo.list_backends()
    with pytest.raises(AttributeError, match="no attribute 'aotfuzzy'"):
        aot.frontends.dynamo.aotfuzzy  # noqa: B018
