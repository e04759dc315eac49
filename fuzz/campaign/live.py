"""What a campaign shows while it runs: a live table on a terminal, else a plain line now and then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fuzz.campaign.driver import Configuration, Progress

LINE_SECONDS = 10.0
_COLUMNS = ("target", "cases", "cases/s", "agree", "poisoned", "refused", "findings", "crashes", "timeouts")


@contextmanager
def watching(configuration: Configuration, stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """Yields what a `Campaign` calls with its progress.

    with watching(configuration, sys.stderr) as watch:
        Campaign(configuration, store, watch).run()
    """
    console = Console(file=stream)
    if not console.is_terminal:
        yield _Lines(configuration, stream)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield lambda progress: live.update(table(configuration, progress))


class _Lines:
    """One plain line now and then."""

    def __init__(self, configuration: Configuration, stream: TextIO) -> None:
        self._configuration = configuration
        self._stream = stream
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(line(self._configuration, progress), file=self._stream, flush=True)


def line(configuration: Configuration, progress: Progress) -> str:
    """Progress in one line of text."""
    cases = sum(tally.cases for tally in progress.tallies.values())
    findings = sum(tally.findings for tally in progress.tallies.values())
    rate = cases / progress.seconds if progress.seconds else 0.0
    return (
        f"{progress.seconds:.0f} s{_bound(configuration)}: {cases} cases ({rate:.1f}/s), "
        f"{findings} findings in {progress.buckets} buckets{', finishing' if progress.finishing else ''}"
    )


def table(configuration: Configuration, progress: Progress) -> Table:
    """Progress as a table: a row for each target, the workers below."""
    workers = ", ".join(f"{count} {state}" for state, count in sorted(Counter(progress.workers).items()))
    found = Table(title=line(configuration, progress), caption=f"workers: {workers}")
    for column in _COLUMNS:
        found.add_column(column, justify="left" if column == "target" else "right")
    for name, tally in progress.tallies.items():
        rate = tally.cases / progress.seconds if progress.seconds else 0.0
        counts = (tally.agree, tally.poisoned, tally.refused, tally.findings, tally.crashes, tally.timeouts)
        found.add_row(name, str(tally.cases), f"{rate:.1f}", *map(str, counts))
    return found


def _bound(configuration: Configuration) -> str:
    if configuration.seconds is not None:
        return f" of {configuration.seconds:g} s"
    if configuration.cases is not None:
        return f", {configuration.cases} cases for each target"
    return ""
