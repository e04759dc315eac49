"""DTensors and collectives, in two processes that hold what is compiled against eager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.aot.distributed_programs import PROGRAMS

SCRIPT = Path(__file__).parents[2] / "support" / "aot" / "distributed_programs.py"


def test_two_processes_do_as_in_eager(tmp_path: Path) -> None:
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as out:
            command = [sys.executable, str(SCRIPT), str(rank), str(tmp_path)]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
            ranks.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT))
    try:
        # (One that waits for ever for the other is ended, and the test with it.)
        statuses = [process.wait(timeout=300) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert statuses == [0, 0], "\n".join(log.read_text()[-4000:] for log in logs)
    for rank in range(2):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told.keys() > PROGRAMS.keys()
        assert {name: difference for name, difference in told.items() if difference} == {}
