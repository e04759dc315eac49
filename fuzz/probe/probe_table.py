"""Probe table: what a target supports, on one screen: counts by group, and unsupported traits, worst
first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from textwrap import shorten

from tabulate import tabulate

from fuzz.probe.ask import STATES, Answer
from fuzz.safe_text import one_line, shorten_middle

HEIGHT = 40
WIDTH = 110
_WORST = ("crash", "hang", "wrong", "raises", "refused", "unclear")
_SUMMARY = 9  # lines around the rows
_NAMES, _MESSAGE = 40, 52
# Groups of traits, each with one line of the summary.
_GROUPS = {
    "operator": "operators",
    "dtype": "dtypes",
    "rank": "ranks and sizes",
    "argument": "arguments and aliases",
    "alias": "arguments and aliases",
    "module": "arguments and aliases",
    "subclass": "arguments and aliases",
    "data": "writes",
    "metadata": "changes of metadata",
    "view": "views and results",
    "output": "views and results",
    "gradient": "gradients and modes",
    "mode": "gradients and modes",
    "flow": "control flow",
    "repeat": "later calls",
}


def probe_table(answers: Sequence[Answer], *, everything: bool = False, width: int = WIDTH) -> str:
    """The answers as text, in at most `HEIGHT` lines, or with a line for each that is not "supported"."""
    counts: dict[str, Counter[str]] = {}
    for answer in answers:
        group = _GROUPS.get(answer.trait.partition(":")[0], "all else")
        if answer.trait in ("argument: 0-d", "argument: empty", "argument: size 1"):
            group = "ranks and sizes"
        counts.setdefault(group, Counter())[answer.state] += 1
    states = [state for state in STATES if any(count[state] for count in counts.values())]
    summary = [
        (group, count.total(), *(count[state] or "" for state in states)) for group, count in counts.items()
    ]
    text = [tabulate(summary, ("", "asked", *states), tablefmt="simple", disable_numparse=True)]
    rows = [answer for state in _WORST for answer in answers if answer.state == state]
    if not rows:
        return f"{text[0]}\n\nAll of it is supported.\n"
    if everything:
        lines: list[tuple[str, str, str]] = [(one.state, one.trait, one_line(one.message)) for one in rows]
    else:
        lines = _clusters(rows, width)
        room = HEIGHT - len(counts) - _SUMMARY
        if len(lines) > room:
            left = len(lines) - room
            lines = lines[:room]
            lines.append(("...", f"{left} more lines, with --all each trait", ""))
    text.append(tabulate(lines, ("", "what", "why"), tablefmt="simple", disable_numparse=True))
    return "\n\n".join(text) + "\n"


def _clusters(rows: Sequence[Answer], width: int) -> list[tuple[str, str, str]]:
    """Traits with the same state for the same reason, in one line."""
    alike: dict[tuple[str, str], list[Answer]] = {}
    for answer in rows:
        # Remove what differs between similar messages: names, numbers, and which result it is.
        reason = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|[0-9]+", "", answer.message)[:30]
        alike.setdefault((answer.state, reason), []).append(answer)
    names_width, message_width = _NAMES, width - _NAMES - 16
    return [
        (state, _named(same, names_width), shorten_middle(one_line(same[0].message), message_width))
        for (state, _), same in alike.items()
    ]


def _named(same: Sequence[Answer], width: int) -> str:
    if len(same) == 1:
        return shorten_middle(same[0].trait, width)
    names = ", ".join(answer.trait.partition(": ")[2] for answer in same)
    return f"{len(same)}: {shorten(names, width - 5, placeholder=' ...')}"
