"""What is run in workers and what comes of it: jobs, their events, and whoever runs them.

A `Job` is a lease of items; each of its items gets exactly one event, an `Answer`, a `Failure` or a `Death`.
`Workers` is what a campaign needs of whoever runs its jobs: the pool of this machine or a cluster of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol


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
    """An item was handled: `value` is what the handler returned; `seconds` on the wall.

    `resident` is how many bytes of physical memory the worker has after it (`fuzz.campaign.memory_gauge`).
    """

    job: Job
    position: int
    value: Any
    seconds: float
    resident: int


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
class WorkerStatus:
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

    def states(self) -> list[WorkerStatus]:
        """What each worker does."""
