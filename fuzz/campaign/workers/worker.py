"""One worker process: takes leases of items from its pipe, answers each item, and may die at any moment.

What happens to a process that runs strangers' compilers is arranged here: its own process group (so that one
signal takes its children too), a file for the Python stack of a segfault or of a hang, a memory limit, an
alarm that ends it even when the parent is gone and native code holds the interpreter lock, and its output
kept away from the campaign's. Messages are JSON (a kind, a value, the bytes of memory that this process has):
nothing that a target makes is ever pickled.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzz.campaign.memory_gauge import resident_memory
from fuzz.campaign.workers.scratch import use_scratch_folder

PRELOAD = "fuzz.campaign.workers.preload"
# The environment variable by which Inductor knows where its kernels are to lie.
KERNELS = "TORCHINDUCTOR_CACHE_DIR"
# The environment variable with the names of the targets that the fork server warms.
WARM = "AOTFUZZ_WARM"

# A target that prints for ever must not fill the disk; only the end of its output is ever shown.
OUTPUT_LIMIT = 1 << 20
# The parent's own deadline comes first and leaves a stack behind; the alarm is for when there is no parent.
ALARM_GRACE = 5


@dataclass(frozen=True, slots=True)
class Last:
    """What a handler answers with when nothing else is to run in its process."""

    value: Any


Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is told at its start.

    `handler` is `module:function`, called with one item (plain data) and answering plain data, or `Last` of
    it; `memory` is the limit on the process's data in bytes, 0 for none; `folder` and `path` are the
    campaign's current directory and import path; `stack` and `output` are the worker's own files; `gpu` is
    the one device that it sees ("" for all of them).
    """

    handler: str
    folder: str
    path: tuple[str, ...]
    memory: int
    stack: str
    output: str
    gpu: str = ""


def kernel_folder(stack: Path) -> Path:
    """The folder that a worker compiles kernels in, beside the file of its stack."""
    return stack.with_suffix(".kernels")


def serve(connection: Connection, setup: Setup) -> None:
    """The whole life of a worker: greet, then answer leases until the pipe closes."""
    os.setpgid(0, 0)
    # A target finds the start method that is the default, and not the one of its worker, whose locks are
    # semaphores that somebody has to remove: a worker that is killed does not.
    multiprocessing.set_start_method(None, force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        handler = _prepare_worker(setup)
    except Exception:
        connection.send_bytes(_message("broken", traceback.format_exc()))
        return
    own = os.getpid()
    connection.send_bytes(_message("ready", own))
    try:
        while True:
            lease = json.loads(connection.recv_bytes())
            _answer_item(connection, handler, lease["items"], lease["limit"], own)
    except (EOFError, OSError):
        # The campaign is over. Interpreter shutdown would run the exit hooks of whatever was under test.
        os._exit(0)


def _prepare_worker(setup: Setup) -> Handler:
    if not getattr(sys.modules.get(PRELOAD), "WARM", False):
        raise RuntimeError(
            f"the fork server has not loaded {PRELOAD}: install the package (pip install -e . or a wheel), "
            "and use no other fork server in this process"
        )
    output = os.open(setup.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    stack = os.open(setup.stack, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    faulthandler.enable(file=stack)
    # The parent asks for the stack of a hang by this signal; the C handler answers whoever holds the GIL.
    faulthandler.register(signal.SIGUSR1, file=stack)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if setup.memory:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = setup.memory if hard == resource.RLIM_INFINITY else min(setup.memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    if setup.gpu:
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            raise RuntimeError("this process began with workers that see no GPU; use another one for GPUs")
        # Read when CUDA starts, which it has not in this process, nor in the one that it was forked from.
        os.environ["CUDA_VISIBLE_DEVICES"] = setup.gpu
    _check_autograd()
    use_scratch_folder(Path(setup.stack).parent)
    # A worker that is killed while it compiles leaves half a library behind, which nobody else must load.
    os.environ[KERNELS] = str(kernel_folder(Path(setup.stack)))
    os.chdir(setup.folder)
    sys.path[:] = setup.path
    module, _, name = setup.handler.partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)
    return handler


def _check_autograd() -> None:
    """Say it at once if backwards do not work in a fork: all cases would raise in eager, and so agree."""
    import torch

    try:
        tensor = torch.ones((), requires_grad=True)
        torch.autograd.grad(tensor.neg(), tensor)
    except RuntimeError as error:
        raise RuntimeError(f"autograd does not work in processes forked from {PRELOAD}: {error}") from error


def _answer_item(connection: Connection, handler: Handler, items: list[Any], limit: float, own: int) -> None:
    for item in items:
        signal.alarm(math.ceil(limit) + ALARM_GRACE)
        try:
            value = handler(item)
            last = isinstance(value, Last)
            message = _message("last", value.value) if last else _message("answer", value)
        except BaseException:
            last = True
            message = _message("failure", traceback.format_exc())
        if os.getpid() != own:
            # A fork that a target has made and let go on: its parent answers.
            os._exit(0)
        # A target may have closed it.
        with contextlib.suppress(OSError):
            if os.fstat(1).st_size > OUTPUT_LIMIT:
                os.ftruncate(1, 0)
        connection.send_bytes(message)
        if last:
            # The rest of the lease is for another worker.
            break
    signal.alarm(0)


def _message(kind: str, value: Any) -> bytes:
    # Halves of surrogate pairs go no further: neither the campaign's file nor a page takes them.
    return json.dumps([kind, value, resident_memory()], ensure_ascii=False).encode("utf-8", "replace")
