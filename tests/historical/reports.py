"""All reports, by repository and number."""

from __future__ import annotations

from historical import aliases, gradients, metadata, writes
from historical.report import Report

REPORTS: tuple[Report, ...] = tuple(
    sorted(
        (*writes.REPORTS, *aliases.REPORTS, *metadata.REPORTS, *gradients.REPORTS),
        key=lambda report: (report.repository, report.number),
    )
)
