"""`aotfuzz bisect` on twenty seeded faults of Inductor: what it blames, and what it leaves behind.

It is right if it names the part of the compiler and the pass, the operator or the node that the fault is in,
and if the two commands that it prints end as it says. Nothing may be left in the folder of temporary files
or in the folder that Inductor uses by default.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from bench.fuzzer.inductor_faults import FAULTS, Fault
from bench.report import Table
from fuzz.bisection.layers import Blame, find_layer
from fuzz.bisection.trial import Script
from fuzz.interpreters import find_interpreter

SCRIPT = Path(__file__).with_name("inductor_faults.py")
ENOUGH = 18 / 20


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--fault", choices=names, action="append", help="only this one (default: all)")
    parser.add_argument("--python", default=sys.executable, help="whose torch")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one run (default: 600)")


def measure(options: argparse.Namespace) -> list[Table]:
    """Bisect each fault in a folder of its own, with another folder for temporary files that is looked at."""
    interpreter = find_interpreter(options.python, torch_only=True)
    rows: list[tuple[str | float | int | None, ...]] = []
    for fault in FAULTS:
        if options.fault and fault.name not in options.fault:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as outside:
            with patch.dict(os.environ, {"TMPDIR": outside, "HOME": outside, "XDG_CACHE_HOME": outside}):
                script = Script(SCRIPT, (fault.name,))
                blame = find_layer(
                    interpreter, script, folder=Path(folder) / "bisection", limit=options.limit
                )
            left = sum(1 for _ in Path(outside).rglob("*"))
        found = " ".join(filter(None, (blame.layer, blame.part, blame.name))) or blame.said
        verdict = "right" if is_right(fault, blame) else "WRONG"
        rows.append(
            (fault.name, verdict, found[:60], blame.label, blame.runs, left, time.monotonic() - began)
        )
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    columns = ("fault", "verdict", "blamed", "label", "runs", "files left outside", "seconds")
    right = sum(row[1] == "right" for row in rows)
    note = f"{right} of {len(rows)} are right, with torch {interpreter.torch}"
    return [Table("faults of Inductor that were seeded, and what is blamed", columns, tuple(rows), (note,))]


def status(tables: list[Table]) -> int:
    """1 if too few are right, or if any file was left outside."""
    (table,) = tables
    right = sum(row[1] == "right" for row in table.rows)
    return int(right < ENOUGH * len(table.rows) or any(row[5] for row in table.rows))


def is_right(fault: Fault, blame: Blame) -> bool:
    """Whether what is blamed is where the fault is, and both commands show it."""
    return blame.part == fault.part and blame.name.startswith(fault.culprit) and blame.is_confirmed
