"""Pool: worker processes that may segfault, hang, exit or be killed without losing a result.

In: jobs, which are leases of a few items. Out: exactly one event for each item, whatever happens. Items are
answered one by one over the worker's own pipe. If a worker dies, the first item of its lease without an
answer is to blame. That item gets a `Death`, and the rest of the lease is issued again.

    with Pool("fuzz.campaign.workers.handlers:handle_item", jobs=2) as pool:
        pool.submit(Job(items=({"kind": "case", ...},), limit=30.0))
        for event in pool.wait(timeout=1.0): ...

A job may be *urgent*, if it is a part of reducing or confirming a finding. Urgent jobs come first, but take
at most half of the workers' time while there is other work.
Invariant: workers share no lock or queue, which a dying one could hold.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fuzz.campaign.workers import process as processes
from fuzz.campaign.workers import worker
from fuzz.campaign.workers.process import Process
from fuzz.campaign.workers.protocol import Answer, Death, Event, Failure, Job, WorkerStatus
from fuzz.campaign.workers.scratch import scratch_folder
from fuzz.errors import PoolError

GIGABYTE = 1 << 30
# A pipe may close a moment before the exit status is known.
EXIT_SECONDS = 1.0
# A worker that cannot start reports that. If three in a row end without a report, it is no accident.
START_ATTEMPTS = 3


class Pool:
    """Worker processes and their queues.

    One thread uses a pool; only `submit` may be called from any thread.
    """

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
        """Start a pool.

        Args:
            handler: the `package.module:function` that handles items.
            jobs: the number of workers.
            memory: the limit of one worker's data in bytes; 0 for none.
            recycle: how many items a worker handles before it is replaced.
            folder: for temporary files.
            warm: targets that a fork server warms if this pool starts it. A process has only one fork server.
            gpus: devices that the workers get in turn, one each. Without any, they see none.

        Raises:
            PoolError: workers cannot start at all; also from `wait`.
            WorkersLost: they could start, and cannot any more; also from `wait`.
        """
        self._handler = handler
        self._jobs = jobs
        self._gpus = gpus
        self._memory = memory
        self._recycle = recycle
        self._folder = folder or Path.cwd()
        self._files = Path(tempfile.mkdtemp(prefix="pool-", dir=scratch_folder()))
        self._lock = threading.Lock()
        self._urgent: deque[tuple[Job, int]] = deque()
        self._normal: deque[tuple[Job, int]] = deque()
        self._seconds = {True: 0.0, False: 0.0}
        self._started = 0
        self._failed_starts = 0
        self._last_ready = time.monotonic()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._context = multiprocessing.get_context("forkserver")
        self._workers: list[Process] = []
        try:
            processes.start_server(self._context, warm, gpus=bool(gpus))
            for place in range(jobs):
                self._workers.append(self._start_worker(place))
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
        """Whether nothing runs and nothing waits."""
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

    def states(self) -> list[WorkerStatus]:
        """What each worker does, for a live view."""
        found = []
        now = time.monotonic()
        for one in self._workers:
            if not one.ready:
                found.append(WorkerStatus("starting"))
            elif one.job is None:
                found.append(WorkerStatus("idle"))
            else:
                word = "stopping" if one.dumping else "reducing" if one.job.urgent else "running"
                found.append(WorkerStatus(word, one.job.label, now - one.since))
        return found

    def submit(self, job: Job) -> None:
        """Queue a job; its events come from `wait`."""
        self._enqueue(job, 0, front=False)
        os.write(self._wake_write, b"\0")

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        os.write(self._wake_write, b"\0")

    def wait(self, timeout: float) -> list[Event]:
        """Hand out queued jobs, and return the events that come within `timeout` seconds, perhaps none."""
        self._dispatch_jobs()
        now = time.monotonic()
        deadlines = [moment for one in self._workers if (moment := one.deadline()) is not None]
        pause = max(0.0, min([timeout, *(moment - now for moment in deadlines)]))
        sources: dict[Any, Process] = {}
        for one in self._workers:
            sources[one.connection] = one
            sources[one.process.sentinel] = one
        heard = wait([self._wake_read, *sources], pause)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
        events: list[Event] = []
        for one in dict.fromkeys(sources[source] for source in heard if source in sources):
            events.extend(self._receive_from_worker(one))
        events.extend(self._enforce_time_limits())
        self._dispatch_jobs()
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
        """Drop all waiting jobs, and kill running ones, without events for them."""
        with self._lock:
            self._urgent.clear()
            self._normal.clear()
        for one in [one for one in self._workers if one.job is not None]:
            self._replace(one)

    def close(self) -> None:
        """Kill all workers and their children; remove their files."""
        for one in self._workers:
            one.kill()
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

    def _dispatch_jobs(self) -> None:
        for one in list(self._workers):
            if not one.idle:
                continue
            taken = self._take()
            if taken is None:
                return
            job, position = taken
            if one.served and (job.fresh or one.served >= self._recycle):
                one = self._replace(one)
            one.hand_lease(job, position)

    def _receive_from_worker(self, one: Process) -> list[Event]:
        """The events in a worker's pipe, and its death if it is gone."""
        events: list[Event] = []
        try:
            while one.connection.poll():
                kind, value, resident = json.loads(one.connection.recv_bytes())
                events.extend(self._read_worker_message(one, kind, value, resident))
                if kind in ("last", "failure"):
                    self._retire(one)
                    return events
        except (EOFError, OSError, ValueError):
            return [*events, *self._replace_dead_worker(one)]
        if not one.process.is_alive() and not one.connection.poll():
            events.extend(self._replace_dead_worker(one))
        return events

    def _read_worker_message(self, one: Process, kind: str, value: Any, resident: int) -> list[Event]:
        if kind == "broken":
            raise PoolError(f"a worker cannot start:\n{value}")
        if kind == "ready":
            one.ready = True
            one.since = self._last_ready = time.monotonic()
            self._failed_starts = 0
            return []
        job, position = one.job, one.position
        if job is None:
            raise ValueError("a worker without a job answered")
        seconds = self._account(one)
        one.note_answered_item()
        if kind == "failure":
            return [Failure(job, position, str(value))]
        return [Answer(job, position, value, seconds, resident)]

    def _account(self, one: Process) -> float:
        now = time.monotonic()
        seconds, one.since = now - one.since, now
        if one.job is not None:
            self._seconds[one.job.urgent] += seconds
        return seconds

    def _enforce_time_limits(self) -> list[Event]:
        """Ask workers that exceed their time for a stack, and kill those that were asked already."""
        events: list[Event] = []
        now = time.monotonic()
        for one in list(self._workers):
            moment = one.deadline()
            if moment is None or now < moment:
                continue
            if one.dumping is None and one.ready:
                one.dump(now)
            else:
                events.extend(self._replace_dead_worker(one))
        return events

    def _replace_dead_worker(self, one: Process) -> list[Event]:
        """Replace a worker that is dead, silent or over its time, and blame its present item."""
        status = one.kill(patience=0.0 if one.dumping is not None else EXIT_SECONDS)
        # If the server is gone, the exit status of its children is unknown and reported as 255.
        processes.require_server(EXIT_SECONDS if status == 255 else 0.0)
        job, position = one.job, one.position
        events: list[Event] = []
        if not one.ready:
            # A killed worker says nothing about the installation.
            self._failed_starts += status not in (None, -signal.SIGKILL)
            mute = time.monotonic() - self._last_ready > processes.START_SECONDS
            if self._failed_starts >= START_ATTEMPTS or mute:
                raise PoolError(
                    "no worker can be started: one after the other ended before it was ready "
                    f"({processes.exit_cause(status)}); last output:\n{processes.tail(one.output)}"
                )
            if job is not None:
                self._enqueue(job, position, front=True)
        elif job is not None:
            late = one.dumping is not None or status == -signal.SIGALRM
            cause = f"over the time limit of {job.limit:g} s" if late else processes.exit_cause(status)
            kind: Literal["crash", "timeout"] = "timeout" if late else "crash"
            stack, output = processes.tail(one.stack), processes.tail(one.output, 1000)
            events.append(Death(job, position, kind, cause, stack, output, self._account(one)))
            if position + 1 < len(job.items):
                self._enqueue(job, position + 1, front=True)
        self._put_another(one)
        return events

    def _retire(self, one: Process) -> None:
        """Replace a worker in which a target has broken something, so that no other item is blamed."""
        if one.job is not None:
            self._enqueue(one.job, one.position, front=True)
        self._replace(one)

    def _replace(self, one: Process) -> Process:
        one.kill()
        return self._put_another(one)

    def _put_another(self, one: Process) -> Process:
        """Start a worker in place of one that is gone, and remove that one's files."""
        for file in (one.stack, one.output):
            file.unlink(missing_ok=True)
        place = self._workers.index(one)
        self._workers[place] = self._start_worker(place)
        return self._workers[place]

    def _start_worker(self, place: int) -> Process:
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
        return processes.start_process(self._context, setup)
