"""History page: the history of many nights as one self-contained HTML page."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from fuzz.report.history import History, headline_of
from fuzz.report.html_report import ISSUES, page_template
from fuzz.safe_text import escape_unprintable

TEMPLATE = "history.html.jinja"
_REPORT = "report.html"


def history_page(history: History, folder: Path) -> str:
    """The text of the HTML page.

    Args:
        history: the nights.
        folder: the folder of the page. Links to the pages of the nights are relative to it. A night without a
            page has no link.
    """
    links = [_link(night.folder, folder) for night in history.nights]
    most = max((count or 0 for fault in history.faults for count in fault.counts), default=0)
    text = page_template(TEMPLATE).render(
        history=history, headline=headline_of(history), links=links, issues=ISSUES, heat=_Heat(most)
    )
    return escape_unprintable(text)


class _Heat:
    """The shade of a cell: 0 to 5, by the number of binary digits of a count."""

    def __init__(self, most: int) -> None:
        self.most = max(most.bit_length(), 1)

    def __call__(self, count: int) -> int:
        return -(-5 * count.bit_length() // self.most)


def _link(night: str, folder: Path) -> str:
    """The address of a night's page, or ""."""
    page = Path(night) / _REPORT
    return quote(os.path.relpath(page, folder)) if night and page.is_file() else ""
