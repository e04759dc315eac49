"""All reports, by repository and number."""

from __future__ import annotations

from tests.reports.programs import aliasing, gradients, metadata, writes
from tests.reports.report import Report

REPORTS: tuple[Report, ...] = tuple(
    sorted(
        (*writes.REPORTS, *aliasing.REPORTS, *metadata.REPORTS, *gradients.REPORTS),
        key=lambda report: (report.repository, report.number),
    )
)
