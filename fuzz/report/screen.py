"""Screen: a finished campaign on at most 40 lines, worst first.

In: a `Summary`. Out: text. It shows how much work was done and what that proved, the counts of each target,
and the causes as sentences with their news. Then comes the smallest program of the worst cause. One line each
has what is also wrong below the targets, why cases were poisoned or refused, and the known issues.
`fuzz.report.tables` shows everything.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from tabulate import tabulate

from fuzz.campaign.progress import duration_in_words
from fuzz.corpus.severity import Severity
from fuzz.program.printer import render
from fuzz.report.causes import NEWS, RECORDED, Cause, causes
from fuzz.safe_text import one_line, shell_command, shorten_middle

if TYPE_CHECKING:
    from fuzz.campaign.summary import Summary

HEIGHT = 40
WIDTH = 110
MIN_WIDTH = 80
_MOST_TARGETS = 5
_FEWEST_ROWS = 5
# The most warnings of one kind, and the most lines of each.
_MOST_WARNINGS, _MOST_LINES = 2, 3
_DOES_IT_TOO = " does it too"
_DOUBT = {"unreduced": "not reduced", "flaky": "FLAKY", "unconfirmed": "NOT CONFIRMED"}


def campaign_screen(summary: Summary, width: int = WIDTH, *, height: int = HEIGHT) -> str:
    """The campaign in at most `height` lines (40 or more) of at most `width` characters.

    A line that is too long is cut in its middle.
    """
    found = causes(summary)
    head = [*_work(summary), "", *_targets(summary), ""]
    tail = [*_tail(summary, width), *_warnings(summary, width), *_more(summary, found)]
    room = height - len(head) - len(tail) - 1
    program: list[str] = []
    body = ["No differences found."]
    if found:
        program = _program(summary, found[0], width)
        rows = room - 2 - _height(program, width)
        if rows < min(len(found), _FEWEST_ROWS):
            program = [program[0], *_where(summary, found[0])]
            rows = room - 2 - _height(program, width)
        body = [*_found(summary, found, rows, width), ""]
    # The program is shown unchanged; all other lines are cut.
    cut = [[shorten_middle(line, width) for line in lines] for lines in (head, body, ["", *tail])]
    return "\n".join((*cut[0], *cut[1], *program, *cut[2]))


def _work(summary: Summary) -> list[str]:
    """How many cases ran, how many proved something, and which clauses were judged if not all."""
    cases = summary.total("cases")
    useful = summary.total("agree") + summary.total("findings")
    rate = cases / summary.seconds if summary.seconds else 0.0
    share = f", {100 * useful / cases:.0f} % of them proved something" if cases else ""
    judged = summary.configuration.clauses
    return [
        f"{cases} cases in {duration_in_words(summary.seconds)}, {rate:.1f} a second{share}",
        *([f"Judged: {', '.join(judged)}, and no other clause"] if judged else []),
    ]


def _targets(summary: Summary) -> list[str]:
    counted = ("cases", "agree", "poisoned", "refused", "findings", "crashes", "timeouts")
    rows = []
    for name, tally in [*summary.tallies.items()][:_MOST_TARGETS]:
        rate = tally.cases / summary.seconds if summary.seconds else 0.0
        counts = (getattr(tally, word) for word in counted)
        rows.append((shorten_middle(name, 36), *counts, f"{rate:.1f}"))
    lines = tabulate(rows, headers=("target", *counted, "cases/s"), tablefmt="plain").splitlines()
    left = len(summary.tallies) - _MOST_TARGETS
    return [*lines, *([f"and {left} more targets"] if left > 0 else [])]


def _found(summary: Summary, found: list[Cause], most: int, width: int) -> list[str]:
    """A line about the findings, and at most `most` rows, the last of which sums up the rest."""
    shown = found if len(found) <= most else found[: most - 1]
    counted = Counter(cause.news for cause in found)
    words = ", ".join(f"{counted[news]} {news.lower()}" for news in NEWS)
    counts = f"{_count(len(found), 'difference')} in {_count(summary.total('findings'), 'finding')}"
    lines = [f"{counts}, worst first: {words}", *_rows(shown, width)]
    if len(shown) < len(found):
        left = Counter(cause.severity for cause in found[len(shown) :])
        kinds = ", ".join(f"{count} {severity.label}" for severity, count in sorted(left.items()))
        lines.append(f"and {len(found) - len(shown)} more: {kinds}")
    return lines


def _rows(found: list[Cause], width: int) -> list[str]:
    """A row for each cause, with its target if there are several."""
    states = [_state(cause) for cause in found]
    labels = max(len(cause.severity.label) for cause in found)
    counts = max(len(str(cause.count)) for cause in found)
    widest = min(max(map(len, states)), width * 2 // 5)
    room = width - labels - counts - widest - 6
    several = len({cause.target for cause in found}) > 1
    lines = []
    for cause, state in zip(found, states, strict=True):
        text = f"{cause.headline} [{cause.target}]" if several else cause.headline
        lines.append(
            f"{cause.severity.label:{labels}}  {cause.count:>{counts}}  "
            f"{shorten_middle(state, widest):{widest}}  {_cut(text, room, cause)}"
        )
    return lines


def _cut(text: str, width: int, cause: Cause) -> str:
    """A headline cut to `width`: at its end if it is of an exception, else in its middle."""
    if cause.severity in (Severity.ERROR, Severity.MISSING_ERROR) and len(text) > width:
        return f"{text[: width - 3]}..."
    return shorten_middle(text, width)


def _state(cause: Cause) -> str:
    """The news of a cause, and what is doubtful about it."""
    number = "" if cause.issue is None else f" #{cause.issue}"
    file = f" as {Path(cause.file).stem}" if cause.news == RECORDED else ""
    doubt = _DOUBT.get(cause.best.example.state, "")
    return one_line(f"{cause.news}{file}{number}{f', {doubt}' if doubt else ''}")


def _program(summary: Summary, cause: Cause, width: int) -> list[str]:
    """The program that shows a cause, without empty lines; if it is long, the command that shows it."""
    best = cause.best
    place = f"The worst, case {best.first_case} on {cause.target}: "
    title = place + shorten_middle(best.name, max(width - len(place), 20))
    source = [f"    {line}" for line in render(best.example.program).splitlines() if line.strip()]
    _, script = summary.files.get((best.target, best.name), ("", ""))
    return [
        title,
        *map(one_line, source),
        *([f"{shell_command('python', script)} shows it"] if script else []),
    ]


def _height(lines: list[str], width: int) -> int:
    """How many lines a terminal of this width needs."""
    return sum(max(1, -(-len(line) // width)) for line in lines)


def _where(summary: Summary, cause: Cause) -> list[str]:
    """The command that shows a cause's program."""
    best = cause.best
    file, _ = summary.files.get((best.target, best.name), ("", ""))
    return [f"    {shell_command('aotfuzz', 'show', file)}"] if file else []


def _tail(summary: Summary, width: int) -> list[str]:
    """One line for each other kind of information about the cases."""
    lines = []
    if summary.below:
        by_control = Counter[str]()
        for row in summary.below:
            by_control[row.control] += row.cases
        silent = sum(row.severity.is_silent for row in summary.below)
        where = ", ".join(f"{count} in {control}" for control, count in by_control.most_common())
        differences = _count(len(summary.below), "difference")
        lines.append(f"Also wrong below you: {where}; {differences}, {silent} of them silent")
    poisons: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for tally in summary.tallies.values():
        poisons += Counter({why: n for why, n in tally.poisons.items() if not below_you(why)})
        refusals += tally.refusals
    for word, reasons in (("Poisoned", poisons), ("Refused", refusals)):
        if reasons:
            said = ", ".join(f"{count} {why}" for why, count in reasons.most_common())
            # The most frequent reason comes first.
            lines += wrap(one_line(f"{word}: {said}"), width, max_lines=1, placeholder=" ...")
    unlike = sum(bucket.unlike for bucket in summary.buckets)
    if unlike:
        lines.append(f"{_count(unlike, 'silent finding')} had no time to be looked at: run it longer")
    if summary.known:
        states = Counter(one.state for one in summary.known)
        lines.append(
            f"Known issues: {', '.join(f'{count} {state}' for state, count in states.most_common())}"
        )
    return lines


def _warnings(summary: Summary, width: int) -> list[str]:
    """Warnings about the campaign itself: at most two of each kind, in full if they are short."""
    texts = [f"Too much refused: {text}." for text in list(summary.reticent.values())[:_MOST_WARNINGS]]
    if summary.interrupted:
        texts.append("Not complete: this is what was found until then.")
    last = [(text.strip().splitlines() or [""])[-1] for text in summary.troubles[:_MOST_WARNINGS]]
    texts += [f"Trouble: {one_line(text)}" for text in last]
    if len(summary.troubles) > _MOST_WARNINGS:
        texts.append(f"and {len(summary.troubles) - _MOST_WARNINGS} more troubles")
    return [line for text in texts for line in wrap(text, width, max_lines=_MOST_LINES, placeholder=" ...")]


def _more(summary: Summary, found: list[Cause]) -> list[str]:
    """The command that shows everything."""
    if not summary.folder:
        return []
    every = "every difference, program and reason" if found else "every reason"
    return [f"{shell_command('aotfuzz', 'report', '--all', summary.folder)} shows {every}"]


def below_you(reason: str) -> bool:
    """Whether a case proves nothing because a layer below the target does the same. Eager is no layer.

    >>> below_you("torch-dynamo does it too"), below_you("eager does it too")
    (True, False)
    """
    return reason.endswith(_DOES_IT_TOO) and reason != f"eager{_DOES_IT_TOO}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
