"""Worker: the inside of a worker process, which answers the items of leases and may die at any moment.

A process that runs strangers' compilers is prepared here. It has a process group of its own, so that one
signal reaches its children too. It has a file for the Python stack of a segfault or a hang, and a memory
limit. An alarm ends it even if the parent is gone and native code holds the interpreter lock. Its output is
separate from the campaign's. Invariant: messages are JSON (a kind, a value, the bytes of memory of this
process). No object of a target is pickled.
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
# The environment variable with the folder of Inductor's kernels.
KERNELS = "TORCHINDUCTOR_CACHE_DIR"
# The environment variable with the names of the targets that the fork server warms.
WARM = "AOTFUZZ_WARM"

# A target that prints for ever must not fill the disk. Only the end of its output is shown.
OUTPUT_LIMIT = 1 << 20
# The parent's deadline comes first and leaves a stack. The alarm is for a worker without a parent.
ALARM_GRACE = 5


@dataclass(frozen=True, slots=True)
class Last:
    """A handler's answer after which nothing else may run in the process."""

    value: Any


Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a worker.

    `handler` is `module:function`. It gets one item (plain data) and returns plain data, or a `Last` of it.
    `memory` is the limit of the process's data in bytes, 0 for none. `folder` and `path` are the campaign's
    current directory and import path. `stack` and `output` are the worker's own files. `gpu` is the one
    device that it sees, or "" for all.
    """

    handler: str
    folder: str
    path: tuple[str, ...]
    memory: int
    stack: str
    output: str
    gpu: str = ""


def kernel_folder(stack: Path) -> Path:
    """The folder of a worker's kernels, beside the file of its stack."""
    return stack.with_suffix(".kernels")


def serve(connection: Connection, setup: Setup) -> None:
    """Run a worker: greet, then answer leases until the pipe closes."""
    os.setpgid(0, 0)
    # A target gets Python's default start method. With the worker's method, locks would be semaphores, which
    # a killed worker does not remove.
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
        # The campaign is over. Interpreter shutdown would run exit hooks of targets.
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
    # The parent asks for the stack of a hang by this signal. The C handler works whoever holds the GIL.
    faulthandler.register(signal.SIGUSR1, file=stack)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if setup.memory:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = setup.memory if hard == resource.RLIM_INFINITY else min(setup.memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    if setup.gpu:
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            raise RuntimeError("this process began with workers that see no GPU; use another one for GPUs")
        # CUDA reads it when it starts. It has started neither here nor in the parent of this fork.
        os.environ["CUDA_VISIBLE_DEVICES"] = setup.gpu
    _check_autograd()
    use_scratch_folder(Path(setup.stack).parent)
    # A worker that is killed while it compiles leaves half a library, which no other process must load.
    os.environ[KERNELS] = str(kernel_folder(Path(setup.stack)))
    os.chdir(setup.folder)
    sys.path[:] = setup.path
    module, _, name = setup.handler.partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)
    return handler


def _check_autograd() -> None:
    """Raise if backwards do not work in a fork. Otherwise all cases would raise in eager, and so agree."""
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
            # A target has forked and let the child continue here. Its parent answers.
            os._exit(0)
        # A target may have closed the pipe.
        with contextlib.suppress(OSError):
            if os.fstat(1).st_size > OUTPUT_LIMIT:
                os.ftruncate(1, 0)
        connection.send_bytes(message)
        if last:
            # Another worker gets the rest of the lease.
            break
    signal.alarm(0)


def _message(kind: str, value: Any) -> bytes:
    # Lone surrogates are replaced: neither the campaign's file nor a page can hold them.
    return json.dumps([kind, value, resident_memory()], ensure_ascii=False).encode("utf-8", "replace")
