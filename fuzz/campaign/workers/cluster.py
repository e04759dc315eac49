"""Cluster: run a campaign's jobs on many machines, with Dask.

A Dask cluster hands leases to nodes, and each node runs them in a pool of its own. The pool isolates crashes
and hangs, as on one machine. The cluster only carries leases and answers, as JSON texts. A lease may not come
back, if its node was killed, is frozen or cut off. Then it runs again: the scheduler repeats it when it
misses the node, and the driver does so at the latest after a deadline, under a new name. The first answer
counts.

    with Cluster("tcp://scheduler:8786", Node(...)) as workers: ...
    with Cluster("local:4", Node(...)) as workers: ...        # four nodes on this machine

It needs the extra: pip install 'aotfuzz[cluster]'.
Invariant: each item is answered once.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any

from fuzz.campaign.configuration import Configuration, campaign_versions, generator_fingerprint
from fuzz.campaign.devices import gpu_names, workers
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death, Event, Failure, Job, WorkerStatus
from fuzz.errors import ConfigurationError, PoolError, WorkersLost

LOCAL = re.compile(r"local:([1-9][0-9]{0,2})")
# The scheduler of `local:N` gives up a node that was silent for so many seconds.
TTL = 30.0
# Seconds of work in a lease. A lost node loses so much; the transport costs a few milliseconds.
LEASE_SECONDS = 5.0
# How long the driver waits for a lease, besides the time limit of one of its items.
PATIENCE = 120.0
# How long a scheduler may take to answer.
CONNECT = 30.0
# How long the driver waits for a node to end its pool.
FAREWELL = 3.0
# The attempts of a lease before its items count as failures of the fuzzer.
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Node:
    """The settings that a node gets with each lease.

    `jobs` is the number of worker processes on a node, 0 for one for each core or GPU. `memory` limits each
    of them. `torch` and `generator` are the versions that a node must have.
    """

    targets: tuple[str, ...]
    seed: int
    profile: str
    device: str
    jobs: int
    memory: int
    torch: str
    generator: str

    @classmethod
    def of(cls, configuration: Configuration, jobs_on_node: int) -> Node:
        """The settings of a campaign's nodes."""
        return cls(
            configuration.targets,
            configuration.seed,
            configuration.profile,
            configuration.device,
            jobs_on_node,
            configuration.memory,
            campaign_versions()["torch"],
            generator_fingerprint(configuration),
        )


@dataclass(slots=True, eq=False)
class _Lease:
    """A running job, as the driver knows it."""

    number: int
    job: Job
    since: float
    attempts: int = 0
    futures: tuple[Any, ...] = ()


class Cluster:
    """The nodes of a Dask cluster, as `fuzz.campaign.workers.protocol.Workers`."""

    def __init__(self, where: str, node: Node, *, ttl: float = TTL, patience: float = PATIENCE) -> None:
        """Connect to a cluster. `where` is the address of a scheduler, or `local:N`.

        Raises:
            ConfigurationError: the extra is not installed.
            PoolError: there is no cluster at that address.
        """
        self._node = node
        self._patience = patience
        self._leases: dict[int, _Lease] = {}
        self._lock = threading.Lock()
        self._heard: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._count = 0
        self._local: Any = None
        self._where = where
        self._missed: float | None = None
        self._client = self._connect(where, ttl)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def backlog(self) -> int:
        """The number of leases that are not urgent and have not come back."""
        with self._lock:
            return sum(not lease.job.urgent for lease in self._leases.values())

    @property
    def wanted(self) -> int:
        """One for each node to run and one for it to find when it is done."""
        return 2 * max(1, len(self._nodes()))

    @property
    def lease_seconds(self) -> float:
        """Enough to hide the network."""
        return LEASE_SECONDS

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._lock:
            self._count += 1
            lease = _Lease(self._count, job, time.monotonic())
            self._leases[lease.number] = lease
        self._send_lease(lease)

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        self._heard.put(None)

    def wait(self, timeout: float) -> list[Event]:
        """The events of the leases that come back within `timeout` seconds.

        Raises:
            PoolError: a node cannot run the campaign.
            WorkersLost: the scheduler is gone.
        """
        self._require_scheduler()
        self._send_late_leases_again()
        events: list[Event] = []
        try:
            heard = self._heard.get(timeout=timeout)
            while True:
                if heard is not None:
                    events += self._read_node_answer(*heard)
                heard = self._heard.get_nowait()
        except queue.Empty:
            return events

    def _require_scheduler(self) -> None:
        """Check that the scheduler is there. It may be out of reach for a while."""
        if self._client.status == "running":
            self._missed = None
            return
        now = time.monotonic()
        self._missed = self._missed or now
        if self._client.status != "connecting" or now - self._missed > CONNECT:
            raise WorkersLost(f"the scheduler of the cluster at {self._where} is gone")

    def states(self) -> list[WorkerStatus]:
        """The state of each lease; the number of nodes comes first."""
        now = time.monotonic()
        with self._lock:
            leases = list(self._leases.values())
        found = [WorkerStatus(f"{len(self._nodes())} nodes")]
        found += [
            WorkerStatus("reducing" if one.job.urgent else "leased", one.job.label, now - one.since)
            for one in leases
        ]
        return found

    def close(self) -> None:
        """Leave the cluster. Its nodes end their pools when they are idle. Nodes of a local cluster end."""
        import distributed

        # The scheduler may be gone.
        with contextlib.suppress(Exception):
            farewells = [
                self._client.submit(leave, workers=[address], pure=False, priority=20)
                for address in self._nodes()
            ]
            for farewell in farewells:
                distributed.fire_and_forget(farewell)
            end = time.monotonic() + FAREWELL
            for farewell in farewells:
                farewell.result(timeout=max(0.1, end - time.monotonic()))
        with contextlib.suppress(Exception):
            self._client.close(timeout=FAREWELL)
        if self._local is not None:
            self._local.close()

    def _connect(self, where: str, ttl: float) -> Any:
        try:
            import dask.config
            import distributed
        except ImportError as error:
            raise ConfigurationError(
                f"--cluster needs Dask, which is not installed ({error}); pip install 'aotfuzz[cluster]'"
            ) from error
        local = LOCAL.fullmatch(where)
        if local is None and "://" not in where:
            raise ConfigurationError(
                f"--cluster {where!r} is neither the address of a scheduler (tcp://host:8786) nor local:N"
            )
        if local is not None and self._node.device != "cpu":
            raise ConfigurationError(
                f"--cluster {where}: its nodes would all take the same GPU; without --cluster a campaign has "
                "one worker for each GPU of this machine"
            )
        try:
            if local is not None:
                # A node starts processes, and a daemonic process must not.
                dask.config.set(
                    {"distributed.scheduler.worker-ttl": f"{ttl}s", "distributed.worker.daemon": False}
                )
                self._local = distributed.LocalCluster(
                    n_workers=int(local[1]),
                    threads_per_worker=1,
                    memory_limit=0,
                    dashboard_address=None,
                    # A node imports torch before it registers, because it cannot send heartbeats during the
                    # import.
                    preload=[__name__],
                )
            return distributed.Client(self._local or where, timeout=CONNECT, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise PoolError(f"no Dask cluster answers at {where}: {error}") from error

    def _nodes(self) -> dict[str, Any]:
        # If the scheduler is gone, a request raises, or gives a part of the answer.
        try:
            found: dict[str, Any] = self._client.scheduler_info(n_workers=-1).get("workers", {})
        except Exception:
            if self._client.status == "running":
                raise
            return {}
        return found

    def _send_lease(self, lease: _Lease) -> None:
        """Send a lease, for the first time or again."""
        lease.attempts += 1
        lease.since = time.monotonic()
        job = lease.job
        text = json.dumps(
            {"node": asdict(self._node), "items": job.items, "limit": job.limit, "fresh": job.fresh}
        )
        try:
            future = self._client.submit(
                run_lease_on_node,
                text,
                key=f"aotfuzz-{self._client.id}-{lease.number}-{lease.attempts}",
                pure=False,
                priority=10 if job.urgent else 0,
                resources={"GPU": 1} if self._node.device != "cpu" else None,
            )
        except Exception:
            # If the scheduler is gone or out of reach, `wait` notices that, and sends the lease again if it
            # can.
            if self._client.status == "running":
                raise
            return
        lease.futures = (*lease.futures, future)
        future.add_done_callback(lambda done: self._heard.put((lease.number, done)))

    def _send_late_leases_again(self) -> None:
        """Send leases again that have not come back in time, because their node may be frozen or cut off."""
        now = time.monotonic()
        with self._lock:
            late = [
                lease
                for lease in self._leases.values()
                if now - lease.since > self._patience + lease.job.limit and lease.attempts < ATTEMPTS
            ]
        for lease in late:
            self._send_lease(lease)

    def _read_node_answer(self, number: int, future: Any) -> list[Event]:
        with self._lock:
            lease = self._leases.get(number)
        if lease is None or future.status == "cancelled":
            # Another attempt was answered first.
            return []
        try:
            answer = json.loads(future.result())
        except Exception as error:
            if lease.attempts < ATTEMPTS:
                self._send_lease(lease)
                return []
            text = f"no node answered this lease in {ATTEMPTS} attempts; at last: {error!r}"
            events: list[Event] = [Failure(lease.job, place, text) for place in range(len(lease.job.items))]
        else:
            if "unfit" in answer:
                raise PoolError(answer["unfit"])
            events = [_event(lease.job, entry) for entry in answer["events"]]
        with self._lock:
            del self._leases[number]
        for other in lease.futures:
            other.release()
        return events


def _event(job: Job, entry: dict[str, Any]) -> Event:
    kinds: dict[str, Callable[..., Event]] = {"answer": Answer, "failure": Failure, "death": Death}
    return kinds[entry.pop("event")](job, **entry)


# The rest runs on a node.

_pools: dict[Node, Pool] = {}
_one_at_a_time = threading.Lock()


def run_lease_on_node(text: str) -> str:
    """Run a lease in this node's pool. `text` and the result are in the format of `Cluster`."""
    lease = json.loads(text)
    node = Node(**{**lease["node"], "targets": tuple(lease["node"]["targets"])})
    with _one_at_a_time:
        if node not in _pools:
            unfit = _why_node_is_unfit(node)
            if unfit:
                return json.dumps({"unfit": unfit})
            while _pools:
                _pools.popitem()[1].close()
            _pools[node] = Pool(
                handlers.HANDLER,
                jobs=node.jobs or workers(node.device),
                memory=node.memory,
                warm=node.targets,
                gpus=gpu_names(node.device),
            )
        try:
            events = _run_items_on_node(_pools[node], node.jobs or workers(node.device), lease)
        except BaseException:
            _pools.pop(node).close()
            raise
    return json.dumps({"events": events})


def leave() -> None:
    """End this node's pool."""
    with _one_at_a_time:
        while _pools:
            _pools.popitem()[1].close()


def _run_items_on_node(pool: Pool, share: int, lease: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the items of a lease, spread over the workers of the node."""
    items = lease["items"]
    parts = [range(first, len(items), share) for first in range(min(share, len(items)))]
    split = [
        Job(tuple(items[place] for place in part), lease["limit"], fresh=lease["fresh"], tag=part)
        for part in parts
    ]
    return [_plain(event) for event in pool.run(split)]


def _plain(event: Event) -> dict[str, Any]:
    place = event.job.tag[event.position]
    names = {Answer: "answer", Failure: "failure", Death: "death"}
    found = {name: getattr(event, name) for name in type(event).__slots__ if name not in ("job", "position")}
    return {"event": names[type(event)], "position": place, **found}


def _why_node_is_unfit(node: Node) -> str:
    """Why this machine cannot run the campaign's leases; "" if it can."""
    here = campaign_versions()["torch"]
    if here != node.torch:
        return f"a node has torch {here}, the campaign is run with {node.torch}; give all the same"
    made = generator_fingerprint(
        replace(
            Configuration(node.targets),
            seed=node.seed,
            profile=node.profile,
            device=node.device,
        )
    )
    if made != node.generator:
        return "a node has another version of aotfuzz, which makes other programs; give all the same"
    return ""
