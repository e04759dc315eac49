"""A campaign under attack: its target does harm, its workers are killed all the time, its driver twice.

    python -m tests.support.fuzz.chaos --cases 20000 --every 0.05       # the long form; the test runs a short
    one

Says how often what was killed, and exits with 1 unless every case is accounted for exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.campaign.configuration import Budget, Configuration
from fuzz.campaign.driver import Campaign
from fuzz.campaign.store import FILE, Store

ENDED = 40
HERE = Path(__file__).resolve().parents[1]


@dataclass
class Attack:
    """What was done, and what the campaign's file says in the end."""

    workers_killed: int = 0
    drivers_killed: int = 0
    sessions: int = 0
    status: int = -1
    indices: list[int] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    deaths: dict[int, str] = field(default_factory=dict)
    acknowledged_lost: int = 0
    output: str = ""


def attack(
    folder: Path,
    cases: int,
    *,
    every: float,
    jobs: int = 2,
    paced: bool = False,
    driver_kills: int = 2,
    programs: int = 1,
    seed: int = 0,
) -> Attack:
    """Run a campaign of so many cases and kill a worker every so many seconds, and the driver a few times.

    `paced`: no worker is killed before there is another result, or another reduced one, so that a slow
    machine comes to an end.
    `programs` is the campaign's own seed, `seed` that of the attack.
    """
    found = Attack()
    choices = random.Random(seed)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    # Not as a script: each worker would do a script's imports again, and seldom live to see the end of it.
    arguments = (
        sys.executable,
        "-c",
        "from tests.support.fuzz import chaos; chaos.main()",
        "--drive",
        str(folder),
    )
    command = [*arguments, "--cases", str(cases), "--jobs", str(jobs), "--seed", str(programs)]
    acknowledged: set[int] = set()
    progress = 0
    while True:
        found.sessions += 1
        goal = cases * found.sessions // (driver_kills + 1)
        with tempfile.TemporaryFile() as output:
            driver = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
            while driver.poll() is None:
                time.sleep(every)
                counted, reduced = _count(folder, "results"), _count(folder, "examples")
                if not paced or counted + reduced > progress:
                    progress = counted + reduced
                    found.workers_killed += _kill_a_worker(driver.pid, choices)
                if found.drivers_killed < driver_kills and counted >= goal and choices.random() < 0.2:
                    acknowledged.update(_indices(folder))
                    driver.kill()
                    driver.wait()
                    found.drivers_killed += 1
            output.seek(0)
            found.output = output.read().decode(errors="replace")
        if driver.returncode != -signal.SIGKILL:
            found.status = driver.returncode
            break
    found.indices = _indices(folder)
    found.acknowledged_lost = len(acknowledged - set(found.indices))
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        found.outcomes = Counter(word for (word,) in database.execute("select outcome from results"))
        found.deaths = dict(database.execute("select case_index, signature from results where kind != ''"))
    return found


def drive(folder: Path, cases: int, jobs: int, programs: int) -> int:
    """What is attacked: a campaign, begun or gone on with, that reduces little, which is not the point."""
    budget = Budget(evaluations=2, hang_limit=1.0)
    configuration = Configuration(
        ("tests.fuzz.bad_targets:chaos",),
        seed=programs,
        cases=cases,
        jobs=jobs,
        limit=2.0,
        memory=2 << 30,
        budget=budget,
    )
    begun = (folder / FILE).exists()
    with Store.open(folder) if begun else Store.create(folder, configuration) as store:
        summary = Campaign(configuration, store).run()
    print("\n".join(summary.troubles))
    # Not 1, which is how Python itself ends after an exception.
    return 2 if summary.troubles or summary.interrupted else ENDED


def _count(folder: Path, table: str) -> int:
    found = _asked(folder, f"select count(*) from {table}")
    return found[0] if found else 0


def _indices(folder: Path) -> list[int]:
    return _asked(folder, "select case_index from results order by 1")


def _asked(folder: Path, question: str) -> list[int]:
    """A column of the campaign's file, while it is being written; nothing if there is none yet."""
    with contextlib.suppress(sqlite3.OperationalError):
        address = f"file:{folder / FILE}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=30)) as database:
            return [number for (number,) in database.execute(question)]
    return []


def _kill_a_worker(driver: int, choices: random.Random) -> int:
    """Kill a random grandchild of the driver: a child of its fork server."""
    workers = [worker for server in _children(driver) for worker in _children(server)]
    if not workers:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(choices.choice(workers), signal.SIGKILL)
    return 1


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def main() -> None:
    """Attack a campaign, or be the one that is attacked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--every", type=float, default=0.05)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1, help="of the campaign's programs")
    parser.add_argument("--paced", action="store_true", help="kill no worker before there is another result")
    parser.add_argument("--drive", type=Path, metavar="FOLDER", help="be the campaign that is attacked")
    options = parser.parse_args()
    if options.drive is not None:
        sys.exit(drive(options.drive, options.cases, options.jobs, options.seed))
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        result = attack(
            Path(folder) / "out",
            options.cases,
            every=options.every,
            jobs=options.jobs,
            paced=options.paced,
            programs=options.seed,
        )
        print(
            f"{options.cases} cases in {time.monotonic() - start:.0f} s, {result.workers_killed} workers and "
            f"{result.drivers_killed} drivers killed, status {result.status}, {dict(result.outcomes)}"
        )
        good = result.indices == list(range(options.cases)) and not result.acknowledged_lost
        if result.status != ENDED or not good:
            sys.exit(result.output)


if __name__ == "__main__":
    main()
