"""A pool of worker processes that may segfault, hang, exit or be killed without losing a result.

Work comes as jobs: leases of a few items each, answered one by one over the worker's own pipe. When a worker
dies, the first item of its lease without an answer is the one to blame; that item gets a `Death`, the rest of
the lease is issued again. So every item of every job gets exactly one event, whatever happens.

    with Pool("fuzz.campaign.jobs:handle", jobs=2) as pool:
        pool.submit(Job(items=({"kind": "case", ...},), limit=30.0))
        for event in pool.wait(timeout=1.0): ...

There is no lock or queue shared between workers that a dying one could hold. A job is *urgent* (part of
reducing or confirming a finding) or not; urgent ones go first, but never take more than half of the workers'
time while there is other work.
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
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from fuzz.campaign import worker
from fuzz.errors import PoolError

GIGABYTE = 1 << 30
# One OpenMP thread, or the fork server has a second thread that its children lack; CUDA looked at through
# NVML, because a CUDA context does not survive a fork; a fixed hash seed, so that sets iterate alike always.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
# How long a worker that is over its time gets to write its stack before it is killed.
DUMP_SECONDS = 0.2
# A pipe that closes may be the first sign of an exit whose status comes a moment later.
EXIT_SECONDS = 1.0
START_SECONDS = 120.0
# A worker that cannot even start says so itself; three in a row without a word is no accident.
START_ATTEMPTS = 3
# One that somebody killed says little about the installation: so many of these count as one that failed.
KILLED_STARTS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A lease: items (plain data) to be run one after the other in one worker.

    `limit` is seconds for each item. `fresh` asks for a worker that has run nothing before. `tag` is the
    submitter's own and comes back with each event; `label` says in a live view what the job is.
    """

    items: tuple[Any, ...]
    limit: float
    urgent: bool = False
    fresh: bool = False
    tag: Any = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An item was handled: `value` is what the handler returned; `seconds` on the wall."""

    job: Job
    position: int
    value: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """The handler itself raised: a mistake in the fuzzer, not in a target. `text` is the traceback."""

    job: Job
    position: int
    text: str


@dataclass(frozen=True, slots=True)
class Death:
    """The worker died or was killed during this item.

    `cause` names the signal or exit status or the time limit; `stack` is the Python stack at that moment
    where one could be had, `output` the last lines that the worker printed.
    """

    job: Job
    position: int
    kind: Literal["crash", "timeout"]
    cause: str
    stack: str
    output: str
    seconds: float


Event = Answer | Failure | Death


@dataclass(frozen=True, slots=True)
class Doing:
    """What one worker does, for a live view: a word, what at, and for how many seconds."""

    state: str
    label: str = ""
    seconds: float = 0.0


class Workers(Protocol):
    """What a campaign needs of whoever runs its jobs: the pool of this machine, or a cluster of them."""

    @property
    def backlog(self) -> int:
        """Jobs that are not urgent and wait for a worker."""

    @property
    def wanted(self) -> int:
        """How many such jobs should wait, so that no worker is idle."""

    @property
    def lease_seconds(self) -> float:
        """How much work a lease holds: long enough to hide the way there, short enough to end on time."""

    def submit(self, job: Job) -> None:
        """Queue a job; every item of it gets exactly one event. May be called from any thread."""

    def wait(self, timeout: float) -> list[Event]:
        """The events that come within `timeout` seconds."""

    def wake(self) -> None:
        """Make a `wait` in another thread return."""

    def states(self) -> list[Doing]:
        """What each worker does."""


@dataclass(slots=True, eq=False)
class _Worker:
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

    @property
    def idle(self) -> bool:
        return self.ready and self.job is None

    def deadline(self) -> float | None:
        """When to look at this worker again if nothing is heard from it."""
        if self.dumping is not None:
            return self.dumping + DUMP_SECONDS
        if not self.ready:
            return self.since + START_SECONDS
        return None if self.job is None else self.since + self.job.limit

    def tail(self, file: Path, size: int = 4000) -> str:
        try:
            return file.read_bytes()[-size:].decode(errors="replace").strip()
        except OSError:
            return ""


class Pool:
    """Worker processes and their queues; used from one thread, but `submit` may be called from any."""

    def __init__(
        self,
        handler: str,
        *,
        jobs: int,
        memory: int = 4 * GIGABYTE,
        recycle: int = 500,
        folder: Path | None = None,
        warm: Sequence[str] = (),
        gpus: Sequence[str] = (),
    ) -> None:
        """`memory`: bytes of data of one worker (0: no limit); `recycle`: items before it is replaced.

        `warm` names the targets that a fork server warms if this pool starts it: a process has only one.
        `gpus` are the devices that the workers are given in turn, one to each.

        Raises PoolError from here or from `wait` if workers cannot start at all.
        """
        self._handler = handler
        self._jobs = jobs
        self._gpus = gpus
        self._memory = memory
        self._recycle = recycle
        self._folder = folder or Path.cwd()
        self._files = Path(tempfile.mkdtemp(prefix="aotfuzz-pool-"))
        self._lock = threading.Lock()
        self._urgent: deque[tuple[Job, int]] = deque()
        self._normal: deque[tuple[Job, int]] = deque()
        self._seconds = {True: 0.0, False: 0.0}
        self._started = 0
        self._failed_starts = 0.0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._context = multiprocessing.get_context("forkserver")
        self._workers: list[_Worker] = []
        try:
            _start_server(self._context, warm)
            for place in range(jobs):
                self._workers.append(self._start(place))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def backlog(self) -> int:
        """Jobs that are not urgent and wait for a worker."""
        return len(self._normal)

    @property
    def quiet(self) -> bool:
        """Nothing runs and nothing waits."""
        with self._lock:
            waiting = bool(self._urgent or self._normal)
        return not waiting and all(one.job is None for one in self._workers)

    @property
    def wanted(self) -> int:
        """One lease waits for each worker."""
        return self._jobs

    @property
    def lease_seconds(self) -> float:
        """A quarter of a second hides the pipe."""
        return 0.25

    def states(self) -> list[Doing]:
        """What each worker does, for a live view."""
        found = []
        now = time.monotonic()
        for one in self._workers:
            if not one.ready:
                found.append(Doing("starting"))
            elif one.job is None:
                found.append(Doing("idle"))
            else:
                word = "stopping" if one.dumping else "reducing" if one.job.urgent else "running"
                found.append(Doing(word, one.job.label, now - one.since))
        return found

    def submit(self, job: Job) -> None:
        """Queue a job; its events come from `wait`."""
        self._enqueue(job, 0, front=False)
        os.write(self._wake_write, b"\0")

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        os.write(self._wake_write, b"\0")

    def wait(self, timeout: float) -> list[Event]:
        """Hand out queued jobs, then the events that came within `timeout` seconds (perhaps none)."""
        self._dispatch()
        now = time.monotonic()
        deadlines = [moment for one in self._workers if (moment := one.deadline()) is not None]
        pause = max(0.0, min([timeout, *(moment - now for moment in deadlines)]))
        sources: dict[Any, _Worker] = {}
        for one in self._workers:
            sources[one.connection] = one
            sources[one.process.sentinel] = one
        heard = wait([self._wake_read, *sources], pause)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
        events: list[Event] = []
        for one in dict.fromkeys(sources[source] for source in heard if source in sources):
            events.extend(self._listen(one))
        events.extend(self._enforce())
        self._dispatch()
        return events

    def run(self, jobs: list[Job]) -> Iterator[Event]:
        """Submit jobs and yield their events until each item has one."""
        left = sum(len(job.items) for job in jobs)
        for job in jobs:
            self.submit(job)
        while left:
            for event in self.wait(1.0):
                left -= 1
                yield event

    def cancel(self) -> None:
        """Forget what waits, and kill what runs, without an event for it."""
        with self._lock:
            self._urgent.clear()
            self._normal.clear()
        for one in [one for one in self._workers if one.job is not None]:
            self._replace(one)

    def close(self) -> None:
        """Kill all workers and their children; remove their files."""
        for one in self._workers:
            self._kill(one)
        self._workers.clear()
        for end in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(end)
        shutil.rmtree(self._files, ignore_errors=True)

    def _enqueue(self, job: Job, position: int, *, front: bool) -> None:
        with self._lock:
            queue = self._urgent if job.urgent else self._normal
            if front:
                queue.appendleft((job, position))
            else:
                queue.append((job, position))

    def _take(self) -> tuple[Job, int] | None:
        with self._lock:
            fair = self._seconds[True] <= self._seconds[False]
            if self._urgent and (fair or not self._normal):
                return self._urgent.popleft()
            return self._normal.popleft() if self._normal else None

    def _dispatch(self) -> None:
        for one in list(self._workers):
            if not one.idle:
                continue
            taken = self._take()
            if taken is None:
                return
            job, position = taken
            if one.served and (job.fresh or one.served >= self._recycle):
                one = self._replace(one)
            self._hand(one, job, position)

    def _hand(self, one: _Worker, job: Job, position: int) -> None:
        """Send a lease; a worker that is still starting finds it in its pipe."""
        one.job, one.position = job, position
        if one.ready:
            one.since = time.monotonic()
        lease = json.dumps({"items": job.items[position:], "limit": job.limit}).encode()
        # If it is dead already, its sentinel says so in the next `wait`.
        with contextlib.suppress(OSError):
            one.connection.send_bytes(lease)

    def _listen(self, one: _Worker) -> list[Event]:
        """Everything a worker has said; then, if it is gone, its death."""
        events: list[Event] = []
        try:
            while one.connection.poll():
                kind, value = json.loads(one.connection.recv_bytes())
                events.extend(self._understand(one, kind, value))
        except (EOFError, OSError, ValueError):
            return [*events, *self._bury(one)]
        if not one.process.is_alive() and not one.connection.poll():
            events.extend(self._bury(one))
        return events

    def _understand(self, one: _Worker, kind: str, value: Any) -> list[Event]:
        if kind == "broken":
            raise PoolError(f"a worker cannot start:\n{value}")
        if kind == "ready":
            one.ready, one.since = True, time.monotonic()
            self._failed_starts = 0.0
            return []
        job, position = one.job, one.position
        if job is None:
            raise ValueError("a worker without a job answered")
        seconds = self._account(one)
        one.served += 1
        one.position += 1
        if one.dumping is not None:
            one.dumping = None
            os.truncate(one.stack, 0)
        if one.position == len(job.items):
            one.job = None
        if kind == "answer":
            return [Answer(job, position, value, seconds)]
        return [Failure(job, position, str(value))]

    def _account(self, one: _Worker) -> float:
        now = time.monotonic()
        seconds, one.since = now - one.since, now
        if one.job is not None:
            self._seconds[one.job.urgent] += seconds
        return seconds

    def _enforce(self) -> list[Event]:
        """Ask workers that are over their time for a stack; kill those that were asked already."""
        events: list[Event] = []
        now = time.monotonic()
        for one in list(self._workers):
            moment = one.deadline()
            if moment is None or now < moment:
                continue
            if one.dumping is None and one.ready:
                one.dumping = now
                with contextlib.suppress(OSError):
                    os.kill(one.process.pid, signal.SIGUSR1)
            else:
                events.extend(self._bury(one))
        return events

    def _bury(self, one: _Worker) -> list[Event]:
        """Replace a worker that is dead, mute or over its time, and blame the item that it was at."""
        status = self._kill(one, patience=0.0 if one.dumping is not None else EXIT_SECONDS)
        job, position = one.job, one.position
        events: list[Event] = []
        if not one.ready:
            self._failed_starts += 1 / KILLED_STARTS if status == -signal.SIGKILL else 1
            if self._failed_starts >= START_ATTEMPTS:
                raise PoolError(
                    "no worker can be started: one after the other ended before it was ready "
                    f"({_cause(status)}); last output:\n{one.tail(one.output)}"
                )
            if job is not None:
                self._enqueue(job, position, front=True)
        elif job is not None:
            late = one.dumping is not None or status == -signal.SIGALRM
            cause = f"over the time limit of {job.limit:g} s" if late else _cause(status)
            kind: Literal["crash", "timeout"] = "timeout" if late else "crash"
            stack, output = one.tail(one.stack), one.tail(one.output, 1000)
            events.append(Death(job, position, kind, cause, stack, output, self._account(one)))
            if position + 1 < len(job.items):
                self._enqueue(job, position + 1, front=True)
        self._put_another(one)
        return events

    def _replace(self, one: _Worker) -> _Worker:
        self._kill(one)
        return self._put_another(one)

    def _put_another(self, one: _Worker) -> _Worker:
        """Start a worker in the place of one that is gone, and forget that one's files."""
        for file in (one.stack, one.output):
            file.unlink(missing_ok=True)
        place = self._workers.index(one)
        self._workers[place] = self._start(place)
        return self._workers[place]

    def _start(self, place: int) -> _Worker:
        self._started += 1
        stack, output = (self._files / f"{self._started}.{kind}" for kind in ("stack", "output"))
        path = tuple(str(self._folder) if entry == "" else entry for entry in sys.path)
        setup = worker.Setup(
            self._handler,
            str(self._folder),
            path,
            self._memory,
            stack=str(stack),
            output=str(output),
            gpu=self._gpus[place % len(self._gpus)] if self._gpus else "",
        )
        parent, child = self._context.Pipe()
        process = self._context.Process(target=worker.serve, args=(child, setup), daemon=False)
        try:
            process.start()
        except (EOFError, OSError) as error:
            raise PoolError(f"the fork server died while it loaded {worker.PRELOAD}: {error!r}") from error
        child.close()
        return _Worker(process, parent, stack, output, time.monotonic())

    def _kill(self, one: _Worker, patience: float = 0.0) -> int | None:
        """End a worker with all its children; its own exit status, if it comes within `patience` seconds."""
        one.process.join(patience)
        status: int | None = one.process.exitcode
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.process.pid, signal.SIGKILL)
        if status is None:
            # It may not have made its group yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.process.pid, signal.SIGKILL)
        one.process.join()
        one.process.close()
        one.connection.close()
        return status


def _start_server(context: multiprocessing.context.ForkServerContext, warm: Sequence[str]) -> None:
    """Start the process's fork server, if it has none yet, with the preload and a tame environment."""
    context.set_forkserver_preload([worker.PRELOAD])
    environment = {
        **ENVIRONMENT,
        worker.WARM: " ".join(warm),
        # Python 3.11's server does not take over the path: it would preload an installed copy of this package
        # where another one is used.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _cause(status: int | None) -> str:
    """An exit status in words.

    >>> _cause(-11), _cause(3)
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
