"""The judges: one snapshot of everything that a program can see, and what two snapshots disagree on.

    eager = observe(f, make)
    target = observe(compiled, make)
    verdict = judge(eager, target, reference=None, control=lambda: observe(f, make))

Knows no compiler and no generator: `f` and `compiled` are any two callables.
"""

from __future__ import annotations

from oracles.comparison.comparator import compare
from oracles.comparison.tolerance import Arithmetic
from oracles.findings import CLAUSES, Finding, Outcome, Verdict, is_judged
from oracles.observation.observer import observe
from oracles.observation.records import Arguments, Observation, Refusal
from oracles.observation.steps import Backward, Require, Step, Write
from oracles.rerun.device_neutral import as_on_cpu
from oracles.verdict import judge

__all__ = [
    "CLAUSES",
    "Arguments",
    "Arithmetic",
    "Backward",
    "Finding",
    "Observation",
    "Outcome",
    "Refusal",
    "Require",
    "Step",
    "Verdict",
    "Write",
    "as_on_cpu",
    "compare",
    "is_judged",
    "judge",
    "observe",
]
