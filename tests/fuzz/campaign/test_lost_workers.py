"""What workers come from dies under a campaign: that is said, blames no target, and the campaign goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.cli import main

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def _running(*command: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.05)
    raise TimeoutError(found)


def _cases() -> int:
    with contextlib.suppress(sqlite3.Error):
        (count,) = (
            sqlite3.connect("file:found/campaign.sqlite?mode=ro", uri=True)
            .execute("select count(*) from results")
            .fetchone()
        )
        return int(count)
    return 0


def _server(of: int) -> int:
    """The process number of a campaign's fork server."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == of and b"multiprocessing.forkserver" in (folder / "cmdline").read_bytes():
                return int(folder.name)
    return 0


def _is_said_and_can_go_on(campaign: subprocess.Popen[str], words: str, capsys: Any, *cluster: str) -> None:
    out, err = campaign.communicate(timeout=180)
    assert campaign.returncode == 2, err
    data = json.loads(out.splitlines()[-1])
    assert data["cases"] == data["agree"] + data["poisoned"] > 0
    assert data["interrupted"]
    (trouble,) = data["troubles"]
    assert words in trouble and "`aotfuzz resume found`" in trouble
    assert "Traceback" not in err
    if not cluster:
        assert main(["resume", "found", "--cases", str(data["cases"] + 5), "--json"]) == 0
        again = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert again["cases"] == data["cases"] + 5 and again["troubles"] == []


RUN = ("run", "--target", "eager", "--cases", "100000", "--out", "found", "--json")
# Once the scheduler has answered, it is given up after fewer seconds without one.
SOON_GIVEN_UP = """
import sys
from fuzz.campaign.workers import cluster
from fuzz.cli import main

connect = cluster.Cluster._connect

def connecting(self, where, ttl):
    client = connect(self, where, ttl)
    cluster.CONNECT = 2.0
    return client

cluster.Cluster._connect = connecting
sys.exit(main())
"""


def test_a_fork_server_that_dies_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with _running("-m", "fuzz.cli", *RUN, "--jobs", "2") as campaign:
        _until(_cases)
        os.kill(_until(lambda: _server(campaign.pid)), signal.SIGKILL)
        _is_said_and_can_go_on(
            campaign, "fork server, which workers come from, has died (killed by SIG", capsys
        )


@pytest.mark.nightly
def test_a_scheduler_that_dies_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    scheduler = (
        "-m",
        "distributed.cli.dask_scheduler",
        f"--port={address.rpartition(':')[2]}",
        "--no-dashboard",
    )
    node = ("-m", "distributed.cli.dask_worker", address, "--nthreads=1", "--memory-limit=0", "--no-nanny")
    with (
        _running(*scheduler, "--host=127.0.0.1") as process,
        _running(*node, "--no-dashboard", "--preload=fuzz.campaign.workers.cluster"),
        _running("-c", SOON_GIVEN_UP, *RUN, "--jobs", "1", "--cluster", address) as campaign,
    ):
        _until(_cases)
        process.kill()
        words = f"the scheduler of the cluster at {address} is gone"
        _is_said_and_can_go_on(campaign, words, capsys, address)
