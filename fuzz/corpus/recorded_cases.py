"""Recorded cases: find the recorded case that explains a finding, which is then no news."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzz.corpus import buckets
from fuzz.corpus.case_file import DIFFERS, Case
from fuzz.corpus.containment import contains
from fuzz.program.decode import Program
from oracles import Finding


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """A recorded case that explains a bucket: its file, the number of its upstream issue, and its note."""

    file: str
    issue: int | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedCase:
        """The inverse of `to_json`."""
        return cls(data["file"], data["issue"], data["note"])


def find_recorded_case(
    cases: Iterable[tuple[Path, Case]],
    targets: Sequence[str],
    torch: str,
    bucket: str,
    findings: tuple[Finding, ...],
    program: Program,
) -> RecordedCase | None:
    """Find the recorded case that explains a bucket of a target, or None.

    A case explains it in two steps. It is expected to differ on one of `targets` under that version of torch.
    And it has the same bucket, or the same signature and a program that the bucket's program contains
    (`containment.contains`). Of several, one with the same bucket comes first, then the largest.

    Args:
        cases: the recorded cases.
        targets: the target and its controls.
        torch: the version of torch.
        bucket, findings, program: the bucket's name, and the findings and the program of its reduced example.
    """
    signature = buckets.signature(findings)
    found = []
    for file, case in cases:
        if all(case.state(target, torch) != DIFFERS for target in targets):
            continue
        same = case.bucket == bucket
        if same or (_case_signature(case) == signature and contains(program, case.program)):
            found.append((not same, -len(case.program.statements), case.issue is None, file.name, file, case))
    if not found:
        return None
    *_, file, case = min(found, key=lambda one: one[:4])
    return RecordedCase(str(file), case.issue, case.note)


def _case_signature(case: Case) -> str:
    if case.findings:
        return buckets.signature(case.findings)
    return "/".join(case.bucket.split("/")[:2])
