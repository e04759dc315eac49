"""The pool: every item gets exactly one event, whatever its worker does."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fuzz
from fuzz.campaign.workers import process
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death, Event, Failure, Job
from fuzz.errors import PoolError


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("tests.support.fuzz.pool_handlers:handle", jobs=2) as made:
        yield made


def _run(pool: Pool, *leases: tuple[Any, ...], limit: float = 20.0) -> list[Event]:
    return list(pool.run([Job(lease, limit) for lease in leases]))


def _places(events: list[Event]) -> list[tuple[Job, int]]:
    return [(event.job, event.position) for event in events]


@pytest.mark.parametrize(
    ("item", "cause"),
    [
        ("segfault", "killed by SIGSEGV"),
        ("abort", "killed by SIGABRT"),
        ("exit", "exited with status 0"),
        ("kill", "killed by SIGKILL"),
        ("close the pipe", "broke its pipe"),
    ],
)
def test_a_death_is_blamed_on_its_item_and_the_rest_of_the_lease_is_run(
    pool: Pool, item: str, cause: str
) -> None:
    events = _run(pool, (1, 2, item, 4, 5), tuple(range(5)))
    assert len(events) == len(set(_places(events))) == 10
    (death,) = [event for event in events if not isinstance(event, Answer)]
    assert isinstance(death, Death)
    assert (death.position, death.kind, death.cause) == (2, "crash", cause)


@pytest.mark.parametrize("item", ["hang", "hang with the interpreter lock", "stop"])
def test_a_hang_is_ended_at_the_limit(pool: Pool, item: str) -> None:
    events = _run(pool, (1, item, 3), limit=1.0)
    (death,) = [event for event in events if isinstance(event, Death)]
    assert (death.position, death.kind) == (1, "timeout")
    assert len(events) == 3
    if item != "stop":
        assert "pool_handlers.py" in death.stack


def test_a_segfault_leaves_its_python_stack(pool: Pool) -> None:
    (death,) = [event for event in _run(pool, ("segfault",)) if isinstance(event, Death)]
    assert "Segmentation fault" in death.stack
    assert "pool_handlers.py" in death.stack


@pytest.mark.parametrize("item", ["unpicklable", "exit politely", "allocate"])
def test_an_exception_of_the_handler_is_text_and_the_rest_runs_elsewhere(pool: Pool, item: str) -> None:
    before, failure, after = _run(pool, (1, item, 3))
    assert isinstance(failure, Failure)
    assert isinstance(before, Answer) and isinstance(after, Answer)
    assert "Traceback" in failure.text
    assert before.value[1] != after.value[1]


def test_a_worker_that_has_given_its_last_answer_is_replaced(pool: Pool) -> None:
    events = _run(pool, (1, "last", 3, 4), ("last",))
    assert len(events) == len(set(_places(events))) == 5
    by_item = {event.value[0]: event.value[1] for event in events if isinstance(event, Answer)}
    assert by_item[1] != by_item[3] == by_item[4]


def test_kernels_lie_in_a_folder_of_the_worker_that_ends_with_it(pool: Pool) -> None:
    """Half a library that a killed worker has left is no other one's."""
    event, *_ = _run(pool, ("kernels",))
    assert isinstance(event, Answer)
    folder, was_there = Path(event.value[0]), event.value[1]
    assert (folder / "half.so").exists() and not was_there
    _run(pool, ("kill",), ("kill",))
    assert not folder.exists()


def test_children_of_a_dead_worker_are_gone(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    _run(pool, (["child", str(file)],))
    child = int(file.read_text())
    for _ in range(200):
        if not _alive(child):
            return
        time.sleep(0.05)
    pytest.fail("the child of a dead worker still runs")


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_workers_run_the_same_copy_of_the_code(pool: Pool) -> None:
    (answer,) = _run(pool, ("where",))
    assert isinstance(answer, Answer)
    assert answer.value == fuzz.__file__


def test_workers_are_forked_from_one_thread_that_sees_no_gpu_and_run_backwards(pool: Pool) -> None:
    server, backward = _run(pool, ("server", "backward"))
    assert isinstance(server, Answer) and isinstance(backward, Answer)
    assert server.value == [1, ""]
    assert backward.value == pytest.approx([math.cos(1.0)] * 2)


def test_a_server_without_gpus_has_none_to_give() -> None:
    with Pool("tests.support.fuzz.pool_handlers:handle", jobs=1) as pool:
        _run(pool, (1,))
    with (
        pytest.raises(PoolError, match="began with workers that see no GPU"),
        Pool("tests.support.fuzz.pool_handlers:handle", jobs=1, gpus=("0",)) as pool,
    ):
        _run(pool, (1,))


def test_output_of_workers_stays_away_from_ours(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    _run(pool, ("print",))
    assert "noise" not in "".join(capfd.readouterr())


def test_a_fresh_job_gets_a_worker_that_has_run_nothing(pool: Pool) -> None:
    used = {event.value[1] for event in _run(pool, *[(k,) for k in range(20)]) if isinstance(event, Answer)}
    jobs = [Job((k,), 20.0, urgent=True, fresh=True) for k in range(6)]
    fresh = [event.value[1] for event in pool.run(jobs) if isinstance(event, Answer)]
    assert len(set(fresh)) == 6
    assert not used & set(fresh)


def test_workers_are_replaced_after_their_share() -> None:
    with Pool("tests.support.fuzz.pool_handlers:handle", jobs=1, recycle=3) as pool:
        events = _run(pool, *[(k,) for k in range(9)])
    assert len({event.value[1] for event in events if isinstance(event, Answer)}) == 3


def test_each_worker_sees_a_gpu_of_its_own_and_keeps_it() -> None:
    """In a process of its own: the fork server of this one is without GPUs."""
    code = """
import json
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Job
with Pool("tests.support.fuzz.pool_handlers:handle", jobs=2, recycle=1, gpus=("4", "7")) as pool:
    print(json.dumps([event.value for event in pool.run([Job(("gpu",), 20.0)] * 12)]))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seen = json.loads(done.stdout)
    assert len(seen) == 12
    assert {device for _, device in seen} == {"4", "7"}
    assert not any(started for started, _ in seen), "the fork server has touched CUDA"


def test_urgent_jobs_go_first_but_not_always(pool: Pool) -> None:
    order: list[bool] = []
    jobs = [Job((k,), 20.0) for k in range(40)] + [Job((k,), 20.0, urgent=True) for k in range(40)]
    for event in pool.run(jobs):
        order.append(event.job.urgent)
    assert any(order[:4]), "urgent jobs waited for all that was there before them"
    assert not all(order[:40]), "urgent jobs starved the others"


def test_killing_workers_at_random_loses_nothing(pool: Pool) -> None:
    for job in (jobs := [Job(tuple(range(10)), 20.0) for _ in range(40)]):
        pool.submit(job)
    events: list[Event] = []
    kills = 0
    while len(events) < 400:
        events += pool.wait(1.0)
        if kills < 15 and len(events) > 20 * kills:
            kills += 1
            victim = next(event for event in reversed(events) if isinstance(event, Answer))
            try:
                os.kill(victim.value[1], 9)
            except ProcessLookupError:
                continue
    assert kills == 15
    assert sorted(map(_key, events)) == [(place, item) for place in range(40) for item in range(10)]
    assert {event.job for event in events} == set(jobs)


def _key(event: Event) -> tuple[int, int]:
    return (_ORDER.setdefault(event.job, len(_ORDER)), event.position)


_ORDER: dict[Job, int] = {}


def test_closing_ends_every_worker() -> None:
    with Pool("tests.support.fuzz.pool_handlers:handle", jobs=2) as pool:
        pids = {event.value[1] for event in _run(pool, (1,), (2,)) if isinstance(event, Answer)}
        pool.submit(Job(("hang",), 20.0))
        pool.wait(0.1)
    assert not any(_alive(pid) for pid in pids)


def test_workers_that_are_all_killed_at_their_start_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_SECONDS", 2.0)
    with (
        pytest.raises(PoolError, match=r"no worker can be started.*killed by SIGKILL"),
        Pool("tests.support.fuzz.pool_dies_at_start:handle", jobs=1) as pool,
    ):
        _run(pool, (1,))


def test_a_handler_that_cannot_be_imported_is_said_at_once() -> None:
    with (
        pytest.raises(PoolError, match="no_such_module"),
        Pool("no_such_module:handle", jobs=1) as pool,
    ):
        _run(pool, (1,))
