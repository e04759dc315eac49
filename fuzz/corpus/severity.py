"""Severity: how bad a finding is for a user who trusts the compiler, worst first.

In: the findings of a case, and how its worker died if it did. Out: a `Severity`, which orders tables, the
page, JSON, and what a campaign reduces first.

A silent wrong result is worse than any exception, because nobody looks for it. So a crash comes after wrong
memory, and an exception before wrong gradients. A finding in a later call, in two threads, or in the eager
call after a refusal (`repeat`, `threads`, `refusals`) is as bad as the inner finding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

from fuzz.corpus.buckets import NO_EXCEPTION, PRECEDENCE
from fuzz.operators import OPERATORS
from fuzz.program.decode import Program
from oracles import CLAUSES, Finding


class Severity(IntEnum):
    """The kinds of findings; a smaller number is worse. `label` is the name in JSON, `words` the title."""

    SILENT = 0
    MEMORY = 1
    CRASH = 2
    HANG = 3
    ERROR = 4
    GRADIENTS = 5
    MISSING_ERROR = 6
    METADATA = 7
    BOOKKEEPING = 8

    @property
    def label(self) -> str:
        """The name in JSON.

        >>> Severity.MISSING_ERROR.label
        'missing error'
        """
        return self.name.lower().replace("_", " ")

    @property
    def words(self) -> str:
        """The title in tables and on the page."""
        return _WORDS[self]

    @property
    def is_silent(self) -> bool:
        """Whether data is wrong without an exception."""
        return self <= Severity.MEMORY


_WORDS = {
    Severity.SILENT: "wrong values or lost writes, without an error",
    Severity.MEMORY: "memory that is not the tensor's, without an error",
    Severity.CRASH: "crashes",
    Severity.HANG: "hangs",
    Severity.ERROR: "errors where eager has none",
    Severity.GRADIENTS: "wrong gradients and history",
    Severity.MISSING_ERROR: "no error, or another one, where eager raises",
    Severity.METADATA: "wrong metadata",
    Severity.BOOKKEEPING: "bookkeeping: versions, lifetimes, random and ambient state",
}
_OF_CLAUSE = {
    "values": Severity.SILENT,
    "input-data": Severity.SILENT,
    "aliasing": Severity.MEMORY,
    "gradients": Severity.GRADIENTS,
    "double-backward": Severity.GRADIENTS,
    "autograd-metadata": Severity.GRADIENTS,
    "structure": Severity.METADATA,
    "input-metadata": Severity.METADATA,
    "strides": Severity.METADATA,
    "identity": Severity.METADATA,
}
# The path of a finding of these clauses begins with the inner clause: "call 2: values: out", "values: out".
_INNER = re.compile(rf"(?:call \d+: )?({'|'.join(CLAUSES)}): ")
_OUTER = ("repeat", "threads", "refusals")
_ELEMENTS = re.compile(r" at (the )?element\b")
# If one side of a result is one of these, it is no tensor there, or has another value.
_PLAIN = ("NoneType", "bool", "int", "float", "complex", "str", "bytes", "tuple", "list", "dict")


def severity(findings: Sequence[Finding]) -> Severity:
    """The severity of a case, which is that of its worst finding. `findings` must not be empty.

    >>> severity([Finding("values", "out", "1.0", "2.0", "out at element 0: 1.0 in eager, ...")])
    <Severity.SILENT: 0>
    """
    return min(map(severity_of_finding, findings))


def worst_finding(findings: Sequence[Finding]) -> Finding:
    """The finding that represents a case: the worst, and of equally bad ones the first by `PRECEDENCE`."""
    return min(findings, key=lambda finding: (severity_of_finding(finding), PRECEDENCE.index(finding.clause)))


def severity_of_finding(finding: Finding) -> Severity:
    """The severity of one finding."""
    clause = inner_clause(finding)
    if finding.eager == NO_EXCEPTION:
        if finding.target.startswith("crash, "):
            return Severity.CRASH
        return Severity.HANG if finding.target == "timeout" else Severity.ERROR
    if finding.target == NO_EXCEPTION:
        return Severity.MISSING_ERROR
    if clause == "errors":
        of_eager = finding.path.startswith(("after the call", "reset"))
        return Severity.ERROR if of_eager else Severity.MISSING_ERROR
    if clause == "structure" and {text.split(" ")[0] for text in (finding.eager, finding.target)} & {*_PLAIN}:
        return Severity.SILENT
    if clause == "once" and _ELEMENTS.search(finding.message):
        return Severity.SILENT  # the tensor outlives the call
    return _OF_CLAUSE.get(clause, Severity.BOOKKEEPING)


def severity_of_signature(signature: str) -> Severity:
    """The severity of a finding, from its signature only.

    >>> severity_of_signature("errors/call: RuntimeError shape is invalid").label
    'error'
    """
    clause, _, rest = signature.partition("/")
    if clause == "errors":
        _, _, said = rest.partition(": ")
        if said.startswith("crash"):
            return Severity.CRASH
        if said.startswith("timeout"):
            return Severity.HANG
        missing = said.startswith("nothing instead of ") or " instead of " in said
        return Severity.MISSING_ERROR if missing else Severity.ERROR
    return _OF_CLAUSE.get(clause, Severity.BOOKKEEPING)


def inner_clause(finding: Finding) -> str:
    """The clause of a finding; for a later call, threads or a refusal that of the inner finding.

    >>> inner_clause(Finding("repeat", "call 2: values: out", "1", "2", "in call 2, out: 1 in eager, ..."))
    'values'
    """
    found = _INNER.match(finding.path) if finding.clause in _OUTER else None
    return finding.clause if found is None else found[1]


def draws(program: Program) -> bool:
    """Whether a program draws random numbers, so that only the numbers may be wrong."""
    return any(OPERATORS[statement.operator].random for statement in program.statements)
