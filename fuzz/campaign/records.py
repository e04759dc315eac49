"""Records: the data of a case and of a finding, and their JSON form in the campaign's file.

`RunOutcome` is one run of one program on one target. `Suspect` is a case that shows a finding. `Example` is
the finding after it was investigated.
Invariant: all are plain data. An example that is read from a file equals the one that was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fuzz.corpus import buckets
from fuzz.corpus.case_file import finding_from_json, finding_to_json
from fuzz.corpus.severity import draws, severity, severity_of_signature
from fuzz.program.decode import Program, from_json, to_json
from oracles import Finding

State = Literal["shown", "confirmed", "flaky", "unconfirmed", "unreduced"]
STATES: tuple[State, ...] = ("shown", "confirmed", "flaky", "unconfirmed", "unreduced")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of one run of a program on a target.

    `signature` is "" unless there is a finding. The death of a worker is a finding too. Then `kind` is
    "crash" or "timeout" and `stack` the Python stack at that moment; otherwise both are empty. `traits` are
    the program's, if they were asked for. `origin` is the function of the target that raised, if it is known;
    earlier versions did not record it.
    """

    outcome: str
    signature: str
    findings: tuple[Finding, ...]
    reason: str
    seconds: float
    kind: str = ""
    stack: str = ""
    traits: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A finding of a campaign: case `index`, its program, and the signature that a reduction must keep."""

    target: str
    index: int
    program: Program
    seen: RunOutcome


@dataclass(frozen=True, slots=True)
class Example:
    """An investigated finding.

    `state` says how certain it is:

    - "shown": a repro script has shown it.
    - "confirmed": a worker that had run nothing else has shown it.
    - "flaky": of several such workers some have shown it, and some have not.
    - "unconfirmed": no such worker has shown it.
    - "unreduced": nothing was tried.

    If not all workers have shown it, `replays` says in words what each did. `evaluations` is the number of
    programs that the reduction ran.
    """

    suspect: Suspect
    program: Program
    seen: RunOutcome
    bucket: str
    script: str
    state: State
    evaluations: int
    replays: tuple[str, ...] = ()

    @property
    def statements(self) -> int:
        """The number of statements of the reduced program."""
        return len(self.program.statements)


def doubtful_bucket(state: State, suspect: Suspect) -> str:
    """The bucket of a finding that is not reduced, or was not seen again."""
    signature, worst = suspect.seen.signature, severity(suspect.seen.findings)
    beside = worst.is_silent and not severity_of_signature(signature).is_silent
    return buckets.doubtful_bucket(state, signature, silent=beside, random=draws(suspect.program))


def run_to_json(seen: RunOutcome) -> dict[str, Any]:
    """A run as plain data, without its traits, which are only counted."""
    return {
        "outcome": seen.outcome,
        "signature": seen.signature,
        "findings": [finding_to_json(finding) for finding in seen.findings],
        "reason": seen.reason,
        "seconds": seen.seconds,
        "kind": seen.kind,
        "stack": seen.stack,
        "origin": seen.origin,
    }


def run_from_json(data: Mapping[str, Any]) -> RunOutcome:
    """The inverse of `run_to_json`."""
    findings = tuple(finding_from_json(finding) for finding in data["findings"])
    return RunOutcome(**{**data, "findings": findings})


def example_to_json(example: Example) -> dict[str, Any]:
    """An example as plain data."""
    return {
        "target": example.suspect.target,
        "index": example.suspect.index,
        "original": to_json(example.suspect.program),
        "first": run_to_json(example.suspect.seen),
        "program": to_json(example.program),
        "seen": run_to_json(example.seen),
        "bucket": example.bucket,
        "script": example.script,
        "state": example.state,
        "evaluations": example.evaluations,
        "replays": list(example.replays),
    }


def example_from_json(data: Mapping[str, Any]) -> Example:
    """The inverse of `example_to_json`.

    Raises:
        ProgramError: a program in it is not valid any more.
    """
    first = run_from_json(data["first"])
    return Example(
        suspect=Suspect(data["target"], data["index"], from_json(data["original"]), first),
        program=from_json(data["program"]),
        seen=run_from_json(data["seen"]),
        bucket=data["bucket"],
        script=data["script"],
        state=data["state"],
        evaluations=data["evaluations"],
        replays=tuple(data["replays"]),
    )
