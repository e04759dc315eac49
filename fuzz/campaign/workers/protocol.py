"""Protocol: the jobs that workers run, their events, and the interface of pool and cluster.

A `Job` is a lease of items. Each item gets exactly one event: an `Answer`, a `Failure` or a `Death`.
`Workers` is what a campaign needs to run its jobs: the pool of this machine, or a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A lease: items (plain data) that one worker runs one after the other.

    `limit` is the time limit of each item in seconds. `fresh` asks for a worker that has run nothing before.
    `tag` belongs to the submitter and comes back with each event. `label` describes the job in a live view.
    """

    items: tuple[Any, ...]
    limit: float
    urgent: bool = False
    fresh: bool = False
    tag: Any = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An item was handled. `value` is what the handler returned, `seconds` the wall time.

    `resident` is the worker's physical memory in bytes afterwards (`fuzz.campaign.memory_gauge`).
    """

    job: Job
    position: int
    value: Any
    seconds: float
    resident: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The handler itself raised, which is a mistake of the fuzzer, not of a target.

    `text` is the traceback.
    """

    job: Job
    position: int
    text: str


@dataclass(frozen=True, slots=True)
class Death:
    """The worker died or was killed during this item.

    `cause` names the signal, the exit status or the time limit. `stack` is the Python stack at that moment,
    if it was written. `output` has the last lines that the worker printed.
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
class WorkerStatus:
    """The state of one worker for a live view: a word, its work, and for how many seconds."""

    state: str
    label: str = ""
    seconds: float = 0.0


class Workers(Protocol):
    """What a campaign needs to run its jobs: the pool of this machine, or a cluster."""

    @property
    def backlog(self) -> int:
        """The number of jobs that are not urgent and wait for a worker."""

    @property
    def wanted(self) -> int:
        """How many such jobs should wait, so that no worker is idle."""

    @property
    def lease_seconds(self) -> float:
        """The seconds of work in a lease: enough to hide the transport, and few enough to end on time."""

    def submit(self, job: Job) -> None:
        """Queue a job. Every item gets exactly one event. This may be called from any thread."""

    def wait(self, timeout: float) -> list[Event]:
        """The events that come within `timeout` seconds."""

    def wake(self) -> None:
        """Make a `wait` in another thread return."""

    def states(self) -> list[WorkerStatus]:
        """The state of each worker."""
