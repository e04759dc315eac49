"""All reports, by repository and number."""

from __future__ import annotations

from tests.reports.programs import aliasing, custom_functions, gradients, metadata, subclasses, writes
from tests.reports.report import Report

REPORTS: tuple[Report, ...] = tuple(
    sorted(
        (
            *writes.REPORTS,
            *aliasing.REPORTS,
            *metadata.REPORTS,
            *gradients.REPORTS,
            *custom_functions.REPORTS,
            *subclasses.REPORTS,
        ),
        key=lambda report: (report.repository, report.number),
    )
)
