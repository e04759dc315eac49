"""How bad a finding is: what is wrong without a word comes before all that raises."""

from __future__ import annotations

import pytest

from fuzz.corpus import buckets
from fuzz.corpus.severity import Severity, draws, severity, severity_of_signature, worst_finding
from fuzz.program.decode import Program, Ref
from oracles import CLAUSES, Finding
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, call, program


def _finding(
    clause: str, path: str = "out", eager: str = "1.0", target: str = "2.0", what: str = ""
) -> Finding:
    message = f"{what or path}: {eager} in eager, {target} in the target"
    return Finding(clause, path, eager, target, message)


NONE, ERROR = "no exception", "RuntimeError: no"


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (_finding("values"), Severity.SILENT),
        (_finding("input-data", "arg[0]"), Severity.SILENT),
        (_finding("structure", "out", "torch.Tensor", "NoneType None"), Severity.SILENT),
        (_finding("structure", "out", "torch.nn.parameter.Parameter", "torch.Tensor"), Severity.METADATA),
        (_finding("aliasing"), Severity.MEMORY),
        (buckets.death("crash", "killed by SIGSEGV", ""), Severity.CRASH),
        (buckets.death("timeout", "10 s", ""), Severity.HANG),
        (_finding("errors", "call", NONE, ERROR), Severity.ERROR),
        (_finding("errors", "after the call", "torch works", ERROR), Severity.ERROR),
        (_finding("double-backward", "double backward", NONE, ERROR), Severity.ERROR),
        (_finding("gradients", "grad of arg[0]"), Severity.GRADIENTS),
        (_finding("errors", "call", ERROR, NONE), Severity.MISSING_ERROR),
        (_finding("errors", "call", ERROR, "IndexError: no"), Severity.MISSING_ERROR),
        (_finding("autograd-metadata", "out", ERROR, NONE), Severity.MISSING_ERROR),
        (_finding("strides"), Severity.METADATA),
        (_finding("lifetime", "memory"), Severity.BOOKKEEPING),
        (_finding("repeat", "call 2: values: out"), Severity.SILENT),
        (_finding("threads", "call 1: strides: out"), Severity.METADATA),
        (_finding("refusals", "values: out"), Severity.SILENT),
        (_finding("refusals", "grad mode"), Severity.BOOKKEEPING),
        (_finding("once", "state", what="state at element 0"), Severity.SILENT),
        (_finding("once", "call"), Severity.BOOKKEEPING),
    ],
)
def test_each_finding_has_its_severity(finding: Finding, expected: Severity) -> None:
    assert severity((finding,)) is expected


def test_a_case_is_as_bad_as_its_worst_finding() -> None:
    loud, silent = _finding("errors", "backward", NONE, ERROR), _finding("values")
    assert severity((loud, silent)) is Severity.SILENT
    assert worst_finding((loud, silent)) is silent
    assert buckets.primary_finding((loud, silent)) is loud, "buckets are named as before"


@pytest.mark.parametrize("clause", CLAUSES)
def test_of_a_signature_alone_the_severity_is_known_as_well(clause: str) -> None:
    if clause == "errors":
        texts = {
            "errors/call: RuntimeError no": Severity.ERROR,
            "errors/call: nothing instead of RuntimeError no": Severity.MISSING_ERROR,
            "errors/call: crash, killed by SIGSEGV": Severity.CRASH,
            "errors/call: timeout": Severity.HANG,
        }
        assert {text: severity_of_signature(text) for text in texts} == texts
    else:
        finding = _finding(clause)
        assert severity_of_signature(buckets.signature((finding,))) is severity((finding,))


def test_what_draws_is_told_apart() -> None:
    noise: Program = program(call("rand_like", "a0", to="v0"), returns=Ref("v0"))
    assert draws(noise) and not draws(DOUBLE_IN_PLACE)
