"""A campaign on two local nodes: what a node that is killed or frozen had in hand is run again, and once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.driver import Campaign
from fuzz.campaign.store import FILE, Store
from fuzz.campaign.summary import Summary
from fuzz.campaign.workers import cluster
from fuzz.campaign.workers.cluster import Cluster, Node
from fuzz.campaign.workers.protocol import Event, Job
from fuzz.errors import ConfigurationError, PoolError
from tests.support.fuzz.wire import Wire

CASES = 150
TTL = 8.0  # seconds in which a node that says nothing is given up
CONFIGURATION = Configuration(targets=("eager",), seed=4, cases=CASES, limit=20.0, cluster="local:2")


def _nodes(cluster: Cluster) -> list[int]:
    """The process numbers of the nodes."""
    return [nanny.pid for nanny in cluster._local.workers.values()]


class _Struck(Cluster):
    """Two nodes, one of which is struck when the first leases have come back, and soon given up."""

    def __init__(self, where: str, node: Node, strike: Callable[[Cluster], None]) -> None:
        super().__init__(where, node, ttl=TTL)
        self.strike = strike
        self.struck = False

    def wait(self, timeout: float) -> list[Event]:
        events = super().wait(timeout)
        if events and not self.struck:
            self.struck = True
            self.strike(self)
        return events


class _Campaign(Campaign):
    made: _Struck
    strike: Callable[[Cluster], None]

    def _make_workers(self) -> Cluster:
        where = self._configuration.cluster
        assert where is not None
        self.made = _Struck(where, Node.of(self._configuration, 1), self.strike)
        return self.made


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
def test_a_node_that_is_lost_in_the_middle_loses_nothing(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short leases, so that the node that is struck has one in hand and the other has had some.
    monkeypatch.setattr(cluster, "LEASE_SECONDS", 0.2)
    struck: list[int] = []

    def strike(made: Cluster) -> None:
        struck.append(_nodes(made)[0])
        os.kill(struck[0], how)

    with Store.create(tmp_path / "out", CONFIGURATION) as store:
        campaign = _Campaign(CONFIGURATION, store)
        campaign.strike = strike
        try:
            summary = campaign.run()
        finally:
            # The nanny may have put another process in the place of a frozen one.
            for pid in struck:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert struck
    _complete(summary, tmp_path / "out")


@contextlib.contextmanager
def _far_node(scheduler: int) -> Iterator[tuple[Wire, Wire]]:
    """A node that reaches the scheduler's port over one wire, and is reached over another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Wire(scheduler) as there, Wire(port) as back:
        options = {
            "nthreads": "1",
            "memory-limit": "0",
            "listen-address": f"tcp://127.0.0.1:{port}",
            "contact-address": f"tcp://127.0.0.1:{back.port}",
            "preload": cluster.__name__,
        }
        command = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{there.port}"]
        command += [f"--{name}={value}" for name, value in options.items()] + ["--no-nanny", "--no-dashboard"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield there, back
        finally:
            process.kill()
            process.wait()


@pytest.mark.nightly
def test_a_node_that_is_cut_off_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side is told: the node goes on with its lease, which another one is given meanwhile."""
    import dask.config
    import distributed

    monkeypatch.setattr(cluster, "LEASE_SECONDS", 0.2)
    kept = {"distributed.scheduler.worker-ttl": f"{TTL}s", "distributed.worker.daemon": False}
    with (
        dask.config.set(kept),
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address=None,
            preload=[cluster.__name__],
        ) as near,
        _far_node(near.scheduler.port) as wires,
        distributed.Client(near, set_as_default=False) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        far = f"tcp://127.0.0.1:{wires[1].port}"
        known: list[set[str]] = []

        def strike(made: Cluster) -> None:
            known.append(set(made._nodes()))
            for wire in wires:
                wire.cut()

        configuration = replace(CONFIGURATION, cluster=near.scheduler_address)
        with Store.create(tmp_path / "out", configuration) as store:
            campaign = _Campaign(configuration, store)
            campaign.strike = strike
            start = time.monotonic()
            summary = campaign.run()
        assert far in known[0]
        assert far not in client.scheduler_info(n_workers=-1)["workers"]
        assert time.monotonic() - start < 5 * TTL
    _complete(summary, tmp_path / "out")


def _complete(summary: Summary, folder: Path) -> None:
    assert not summary.interrupted
    assert summary.troubles == []
    assert summary.total("cases") == summary.total("agree") == CASES
    rows = sqlite3.connect(folder / FILE).execute("select case_index from results order by 1").fetchall()
    assert [index for (index,) in rows] == list(range(CASES))


@pytest.fixture(scope="module")
def node() -> Node:
    return Node.of(replace(CONFIGURATION, targets=("eager",)), 1)


@pytest.fixture(scope="module")
def two(node: Node) -> Iterator[Cluster]:
    with Cluster("local:2", node, patience=1.0) as made:
        yield made


@pytest.mark.nightly
def test_a_lease_that_is_late_is_issued_again_and_answered_once(two: Cluster) -> None:
    item = {"kind": "case", "seed": 0, "index": 1, "profile": "mixed", "device": "cpu", "target": "eager"}
    job = Job((item, item), -0.9)
    # With a deadline of a tenth of a second the first attempts are always late.
    two.submit(job)
    events = []
    end = time.monotonic() + 120
    while len(events) < 2 and time.monotonic() < end:
        events += two.wait(0.2)
    settled = time.monotonic() + 2
    while time.monotonic() < settled:
        events += two.wait(0.2)
    assert sorted(event.position for event in events) == [0, 1]
    assert two.backlog == 0


def test_another_thread_can_end_a_wait(two: Cluster) -> None:
    start = time.monotonic()
    threading.Timer(0.1, two.wake).start()
    assert two.wait(60.0) == []
    assert time.monotonic() - start < 30


def test_a_node_with_other_versions_is_refused(node: Node) -> None:
    lease = '{"node": %s, "items": [], "limit": 1, "fresh": false}'
    for change, words in (({"torch": "1.0"}, "a node has torch"), ({"generator": "x"}, "another version of")):
        text = cluster.json.dumps(cluster.asdict(replace(node, **change)))
        assert words in cluster.run_lease_on_node(lease % text)


def test_what_is_no_cluster_is_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="neither the address of a scheduler"):
        Cluster("somewhere", node)
    with pytest.raises(ConfigurationError, match="would all take the same GPU"):
        Cluster("local:2", replace(node, device="cuda"))
    monkeypatch.setattr(cluster, "CONNECT", 2.0)
    with pytest.raises(PoolError, match="no Dask cluster answers"):
        Cluster("tcp://127.0.0.1:9", node)
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(ConfigurationError, match=r"aotfuzz\[cluster\]"):
        Cluster("local:1", node)
