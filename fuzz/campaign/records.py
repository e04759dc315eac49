"""What a campaign remembers of a case and of a finding, and the JSON form of it in the campaign's file.

`RunOutcome` is one run of one program on one target. `Suspect` is a case that shows a finding, `Example` the
same finding after it has been investigated. All are plain data: an example that is read from a file is equal
to the one that was written.
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
    """What one run of a program on a target showed.

    `signature` is "" unless there is a finding. A dead worker is a finding too: `kind` is then "crash" or
    "timeout" and `stack` the Python stack at that moment, and otherwise they are empty. `traits` are the
    program's, where they were asked for. `origin` is the target's function that raised what was found, if it
    is known: earlier versions did not keep it.
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
    """A finding that a campaign made: case `index`, its program, and the signature to hold on to."""

    target: str
    index: int
    program: Program
    seen: RunOutcome


@dataclass(frozen=True, slots=True)
class Example:
    """An investigated finding.

    `state` says how sure it is: a repro script "shown" to show it; "confirmed" by a worker that had run
    nothing else; "flaky" when of several such workers some showed it and some did not; "unconfirmed" when
    none did; "unreduced" when nothing has been tried. `replays` says in words what each of those workers
    showed, where they did not all show the finding. `evaluations` is how many programs the reduction ran.
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
        """Of the reduced program."""
        return len(self.program.statements)


def doubtful_bucket(state: State, suspect: Suspect) -> str:
    """The bucket of a finding that is not reduced, or not seen again."""
    signature, worst = suspect.seen.signature, severity(suspect.seen.findings)
    beside = worst.is_silent and not severity_of_signature(signature).is_silent
    return buckets.doubtful_bucket(state, signature, silent=beside, random=draws(suspect.program))


def run_to_json(seen: RunOutcome) -> dict[str, Any]:
    """A run as plain data, without the traits (they are counted, not kept)."""
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
    """The run that `run_to_json` gave."""
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
    """The example that `example_to_json` gave; ProgramError if its programs are not valid any more."""
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
