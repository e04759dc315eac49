"""Differential oracles: observe a call in eager and in a target, compare both, and give a verdict.

In: two callables that should do the same, and a function that makes fresh arguments. Out: a `Verdict`.

    eager = observe(f, make)
    target = observe(compiled, make)
    verdict = judge(eager, target, reference=None, control=lambda: observe(f, make))

Modules in reading order:

- `findings`: the clauses of the contract, findings and verdicts.
- `observation`: one call becomes an immutable `Observation`.
- `comparison`: two observations become findings.
- `verdict`: the decision, and which reruns it asks for.
- `rerun`: eager in double precision, on dense operands, or rounded at random.
- `object_names`: names of classes and messages as safe text.

Invariant: no module here imports a compiler or the generator. `f` and `compiled` are any two callables.
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
