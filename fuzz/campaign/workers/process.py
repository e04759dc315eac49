"""Process: one worker process as the pool sees it, forked by a warm server and killed with its children.

start_server(context, warm=("aot",))
process = start_process(context, worker.Setup(...))
process.hand_lease(job, position=0)
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.forkserver
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzz.campaign.workers import worker
from fuzz.campaign.workers.protocol import Job
from fuzz.campaign.workers.scratch import scratch_folder, temporary_files_in_scratch
from fuzz.errors import PoolError, WorkersLost

# One OpenMP thread, or the fork server has a second thread that its children lack; CUDA looked at through
# NVML, because a CUDA context does not survive a fork; a fixed hash seed, so that sets iterate alike always.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
# What every server is warmed with: it fills the caches that the first compilation in a process pays for.
TOY_TARGET = "torch-aot-function"
# How long a worker that is over its time gets to write its stack before it is killed.
DUMP_SECONDS = 0.2
START_SECONDS = 120.0


@dataclass(slots=True, eq=False)
class Process:
    """A worker process and its present job.

    `position` is the first item of the job without an answer. `since` is when it began with that item, or
    when it was started until it is `ready`. `dumping` is when it was asked for its stack. `served` counts its
    items.
    """

    process: Any
    connection: Connection
    stack: Path
    output: Path
    since: float
    ready: bool = False
    served: int = 0
    job: Job | None = None
    position: int = 0
    dumping: float | None = None
    ended: bool = False

    @property
    def idle(self) -> bool:
        """Whether it waits for a job."""
        return self.ready and self.job is None

    def deadline(self) -> float | None:
        """When to look at this worker again, if it sends nothing."""
        if self.dumping is not None:
            return self.dumping + DUMP_SECONDS
        if not self.ready:
            return self.since + START_SECONDS
        return None if self.job is None else self.since + self.job.limit

    def hand_lease(self, job: Job, position: int) -> None:
        """Send a lease, from an item on. A worker that is still starting finds it in its pipe."""
        self.job, self.position = job, position
        if self.ready:
            self.since = time.monotonic()
        lease = json.dumps({"items": job.items[position:], "limit": job.limit}).encode()
        # If it is dead already, its sentinel shows that to `wait`.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(lease)

    def dump(self, now: float) -> None:
        """Ask for the stack of the present item, which exceeds its time."""
        self.dumping = now
        with contextlib.suppress(OSError):
            os.kill(self.process.pid, signal.SIGUSR1)

    def note_answered_item(self) -> None:
        """Record that the present item was answered."""
        self.served += 1
        self.position += 1
        if self.dumping is not None:
            self.dumping = None
            os.truncate(self.stack, 0)
        if self.job is not None and self.position == len(self.job.items):
            self.job = None

    def kill(self, patience: float = 0.0) -> int | None:
        """Kill the process with its children, and return its exit status.

        The status is None if it does not come within `patience` seconds. Later calls do nothing.
        """
        if self.ended:
            return None
        self.ended = True
        self.process.join(patience)
        status: int | None = self.process.exitcode
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if status is None:
            # It may not have made its group yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.process.close()
        self.connection.close()
        shutil.rmtree(worker.kernel_folder(self.stack), ignore_errors=True)
        return status


def start_process(context: multiprocessing.context.ForkServerContext, setup: worker.Setup) -> Process:
    """Fork a worker.

    Raises:
        PoolError: the server cannot be started.
        WorkersLost: the server was there, and is gone.
    """
    require_server()
    parent, child = context.Pipe()
    process = context.Process(target=worker.serve, args=(child, setup), daemon=False)
    try:
        process.start()
    except (EOFError, OSError) as error:
        raise PoolError(f"the fork server died while it loaded {worker.PRELOAD}: {error!r}") from error
    child.close()
    return Process(process, parent, Path(setup.stack), Path(setup.output), time.monotonic())


def start_server(
    context: multiprocessing.context.ForkServerContext, warm: Sequence[str], *, gpus: bool = False
) -> None:
    """Start the fork server of this process, if it has none yet, with the preload and a fixed environment.

    Without `gpus` it is warmed, and neither it nor its workers see a GPU. With them nothing may run in it:
    the first backward of a process starts autograd's thread for each device, and a fork would lose the
    threads.
    """
    context.set_forkserver_preload([worker.PRELOAD])
    environment = {
        **ENVIRONMENT,
        worker.KERNELS: str(scratch_folder() / "server.kernels"),
        worker.WARM: "" if gpus else " ".join((TOY_TARGET, *warm)),
        **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
        # Python 3.11's server does not take over the path: it would preload an installed copy of this package
        # where another one is used.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with temporary_files_in_scratch():  # its socket
            multiprocessing.forkserver.ensure_running()
        _server.append(_running_server())
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_server: list[int | None] = []  # the process numbers of the servers that have been started, the last one last


def _running_server() -> int | None:
    server: Any = multiprocessing.forkserver._forkserver
    found: int | None = server._forkserver_pid
    return found


def require_server(patience: float = 0.0) -> None:
    """Check that the fork server is alive. Its end may show up to `patience` seconds later.

    The standard library would silently start another one, which is not warm and has another environment.
    Workers of a dead server count as ended.

    Raises:
        WorkersLost: it has died.
    """
    end = time.monotonic() + patience
    while _server and (pid := _server[-1]) is not None:
        died = "ended" if _running_server() != pid else _how_process_died(pid)
        if died:
            raise WorkersLost(f"the fork server, which workers come from, has died ({died})")
        if time.monotonic() >= end:
            return
        time.sleep(0.01)


def _how_process_died(pid: int) -> str:
    """How a child of this process ended, for which nobody has waited; "" if it runs."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "ended"
    if found is None:
        return ""
    return exit_cause(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)


def exit_cause(status: int | None) -> str:
    """An exit status in words.

    >>> exit_cause(-11), exit_cause(3)
    ('killed by SIGSEGV', 'exited with status 3')
    """
    if status is None:
        return "broke its pipe"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def tail(file: Path, size: int = 4000) -> str:
    """The end of a text file; "" if there is no file."""
    try:
        return file.read_bytes()[-size:].decode(errors="replace").strip()
    except OSError:
        return ""
