"""Progress: what a campaign shows while it runs: a live table on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import Progress as ProgressBars
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.driver import Progress

LINE_SECONDS = 10.0
# The most workers with a line of their own; more are summed up.
SHOWN_WORKERS = 16
_COLUMNS = ("target", "cases", "/s", "agree", "poisoned", "refused", "findings", "crashes", "timeouts")


@contextmanager
def progress_shown(configuration: Configuration, stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """While it lasts, progress is shown. Yields the function that a `Campaign` calls with it.

    with progress_shown(configuration, sys.stderr) as watch:
        Campaign(configuration, store, watch).run()
    """
    console = Console(file=stream)
    if not console.is_terminal:
        yield _Lines(configuration, stream)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield lambda progress: live.update(progress_view(configuration, progress))


@contextmanager
def count_shown(what: str, total: int, stream: TextIO) -> Iterator[Callable[[int], None]]:
    """While it lasts, a count is shown, as a bar on a terminal, else as a line now and then.

    Yields the function that gets how many of `total` are done.

        with count_shown("runs", 100, sys.stderr) as watch:
            watch(1)
    """
    console = Console(file=stream)
    if console.is_terminal:
        with ProgressBars(console=console, transient=True) as bars:
            bar = bars.add_task(what, total=total)
            yield lambda done: bars.update(bar, completed=done)
        return
    last = time.monotonic()

    def tell(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS:
            last = now
            with contextlib.suppress(BrokenPipeError):  # nobody reads the log any more
                print(f"{done} of {total} {what}", file=stream, flush=True)

    yield tell


class _Lines:
    """Shows progress as a plain line now and then."""

    def __init__(self, configuration: Configuration, stream: TextIO) -> None:
        self._configuration = configuration
        self._stream = stream
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            try:
                print(progress_line(self._configuration, progress), file=self._stream, flush=True)
            except BrokenPipeError:
                # The reader of the log is gone; the campaign goes on.
                self._last = float("inf")


def progress_line(configuration: Configuration, progress: Progress) -> str:
    """Progress in one line of text."""
    cases = sum(tally.cases for tally in progress.tallies.values())
    findings = sum(tally.findings for tally in progress.tallies.values())
    rate = cases / progress.seconds if progress.seconds else 0.0
    parts = [
        f"{progress.seconds:.0f} s{_bound(configuration)}: {cases} cases ({rate:.1f}/s)",
        f"{findings} findings in {progress.buckets} buckets",
    ]
    if progress.finishing:
        parts.append("finishing")
    elif progress.left is not None:
        parts.append(f"{duration_in_words(progress.left)} left")
    return ", ".join(parts)


def progress_view(configuration: Configuration, progress: Progress) -> Group:
    """Progress on a terminal: the results so far, a row for each target, and the state of each worker."""
    # The table has no lines, so that it fits in 80 columns.
    targets = Table(box=None, padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        targets.add_column(column, justify="left" if column == "target" else "right")
    for name, tally in progress.tallies.items():
        rate = tally.cases / progress.seconds if progress.seconds else 0.0
        counts = (tally.agree, tally.poisoned, tally.refused, tally.findings, tally.crashes, tally.timeouts)
        targets.add_row(name, str(tally.cases), f"{rate:.4g}", *map(str, counts))
    workers = Table.grid(padding=(0, 2))
    for number, one in enumerate(progress.workers[:SHOWN_WORKERS]):
        seconds = f"{one.seconds:.1f} s" if one.label else ""
        workers.add_row(f"worker {number}", one.state, one.label, seconds)
    if len(progress.workers) > SHOWN_WORKERS:
        workers.add_row(f"and {len(progress.workers) - SHOWN_WORKERS} more", "", "", "")
    # A bar alone would not end its line.
    bar = Padding(ProgressBar(total=1.0, completed=_share(progress), width=60), 0)
    hint = Text("Ctrl-C ends it; the report is written, and aotfuzz resume goes on.", style="dim")
    return Group(Text(progress_line(configuration, progress)), bar, targets, workers, hint)


def duration_in_words(seconds: float) -> str:
    """Seconds in words.

    >>> duration_in_words(7.2), duration_in_words(754), duration_in_words(7500)
    ('7 s', '12 min 34 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _share(progress: Progress) -> float:
    if progress.left is None:
        return 0.0
    return progress.seconds / max(progress.seconds + progress.left, 1e-9)


def _bound(configuration: Configuration) -> str:
    if configuration.seconds is not None:
        return f" of {configuration.seconds:g} s"
    if configuration.cases is not None:
        return f", {configuration.cases} cases for each target"
    return ""
