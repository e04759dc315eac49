"""Issue evidence: the runs for a report of a case to PyTorch, and the report's text.

In: a corpus case and a target. Out: Markdown (`fuzz.repro.issue`). The reproducer runs under each of torch's
backends in processes of their own, twice under the target's, and once beside float64.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.bisection.ablation import BACKENDS, is_wrong, least_layer, run_scripts
from fuzz.bisection.forked_trial import Ending
from fuzz.bisection.layers import BACKEND_LAYERS
from fuzz.corpus import buckets
from fuzz.corpus.case_file import Case
from fuzz.errors import NoDifference
from fuzz.execute.case import execute
from fuzz.repro.issue import (
    FALLBACK_RANDOM,
    REFERENCE_MARK,
    Evidence,
    Reproducer,
    clean_output,
    issue_text,
    reproducer_for,
)
from fuzz.safe_text import one_line
from fuzz.targets.catalog import find_target
from oracles import Finding

RUNS = 2
"""How often the reproducer runs under the target's backend."""


def report_case(case: Case, target: str) -> str:
    """The report of a case on a target, as Markdown.

    Raises:
        NoDifference: the case does not differ, or its reproducer does not show it.
        ScriptError: the process that runs the reproducer ended without an answer.
        TargetError: there is no such target.
    """
    finding, made = prepare_report(case, target)
    evidence = read_evidence(made, run_scripts(evidence_scripts(made)))
    return issue_text(case, finding, made, evidence)


def prepare_report(case: Case, target: str) -> tuple[Finding, Reproducer]:
    """The finding that a report is about, and the scripts that show it.

    Raises:
        NoDifference: the case does not differ.
        TargetError: there is no such target.
    """
    finding = _finding_of(case, target)
    return finding, reproducer_for(case.program, target, finding, BACKENDS)


def _finding_of(case: Case, target: str) -> Finding:
    """The recorded finding of a target; if there is none, the finding of a run."""
    if case.findings and case.origin.target == target:
        return buckets.primary_finding(case.findings)
    compiler = find_target(target)
    compiler.prepare()
    try:
        result = execute(case.program, compiler)
    finally:
        compiler.reset()
    if not result.findings:
        raise NoDifference(
            f"{target} does not differ from eager ({result.outcome}): there is nothing to report"
        )
    return buckets.primary_finding(result.findings)


def evidence_scripts(made: Reproducer) -> list[str]:
    """The scripts to run, in the order that `read_evidence` expects."""
    return [*[made.text] * RUNS, *made.by_backend.values(), *([made.reference] if made.reference else [])]


def read_evidence(made: Reproducer, endings: Sequence[Ending]) -> Evidence:
    """The evidence in the endings of a reproducer's scripts.

    Raises:
        NoDifference: its assertion does not fail.
    """
    runs, rest = endings[:RUNS], endings[RUNS:]
    failed = [ending for ending in runs if is_wrong(ending)]
    if not failed:
        said = one_line(runs[0].said.strip().splitlines()[-1]) if runs[0].said.strip() else runs[0].kind
        terms = "torch's default tolerances" + (
            " and fallback_random" if FALLBACK_RANDOM in made.text else ""
        )
        raise NoDifference(
            f"its reproducer does not fail on the terms of PyTorch's template ({terms}), so it is no report: "
            f"{clean_output(said)}"
        )
    by_backend = dict(zip(made.by_backend, rest, strict=False))
    layer, label = least_layer(by_backend)
    if not layer and "aot_function" in made.compiled:
        layer, label = BACKEND_LAYERS["aot_eager"]
    return Evidence(
        output=failed[0].said,
        runs=RUNS,
        failed=len(failed),
        verdicts={name: _verdict(by_backend.get(name)) for name in BACKENDS},
        errors=_errors(rest[-1].said) if made.reference else None,
        layer=layer,
        label=label,
    )


def _verdict(ending: Ending | None) -> str:
    if ending is None:
        return "not run: the target is not torch.compile"
    if ending.is_right:
        return "agrees"
    if ending.kind == "raises AssertionError":
        return "differs"
    return f"differs: {ending.kind}" if is_wrong(ending) else f"ends otherwise: {ending.kind}"


def _errors(output: str) -> tuple[float, float] | None:
    """The two numbers that the reference script prints."""
    for line in output.splitlines():
        if line.startswith(REFERENCE_MARK):
            eager, target = line.removeprefix(REFERENCE_MARK).split()
            return float(eager), float(target)
    return None
