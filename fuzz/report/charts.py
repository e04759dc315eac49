"""Charts: the drawings of the report's page, as inline SVG with colours of the page's style sheet.

Each function returns the text of one `<svg>` element. Labels are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from math import log10

WIDTH, HEIGHT, MARGIN = 640, 120, 34
# The number of strengths of a heat map's cells, by orders of magnitude.
STRENGTHS = 5
_OUTCOMES = ("agree", "poisoned", "refused", "findings")


def bars_chart(values: Sequence[float], unit: str, end: str, label: str) -> str:
    """Bars from zero, one for each stretch of a time axis that ends at `end`."""
    top = max(values, default=0.0) or 1.0
    step = (WIDTH - MARGIN) / max(len(values), 1)
    parts = [
        f'<rect x="{MARGIN + place * step:.1f}" y="{HEIGHT * (1 - value / top):.1f}" '
        f'width="{max(step - 1, 0.5):.1f}" height="{HEIGHT * value / top:.1f}"/>'
        for place, value in enumerate(values)
        if value
    ]
    return _framed_chart("".join(parts), f"{top:.3g} {unit}", end, label, "bars")


def steps_chart(values: Sequence[float], unit: str, end: str, label: str) -> str:
    """A step line of a count that only grows, over a time axis that ends at `end`."""
    top = max(values, default=0.0) or 1.0
    step = (WIDTH - MARGIN) / max(len(values), 1)
    points = f"M{MARGIN} {HEIGHT}"
    for place, value in enumerate(values):
        points += f"V{HEIGHT * (1 - value / top):.1f}H{MARGIN + (place + 1) * step:.1f}"
    return _framed_chart(f'<path d="{points}"/>', f"{top:.3g} {unit}", end, label, "steps")


def _framed_chart(inside: str, top: str, end: str, label: str, kind: str) -> str:
    return (
        f'<svg class="chart {kind}" viewBox="0 -14 {WIDTH} {HEIGHT + 32}" role="img" '
        f'aria-label="{escape(label)}">'
        f'<line class="axis" x1="{MARGIN}" y1="0" x2="{WIDTH}" y2="0"/>'
        f'<line class="axis" x1="{MARGIN}" y1="{HEIGHT}" x2="{WIDTH}" y2="{HEIGHT}"/>{inside}'
        f'<text x="{MARGIN}" y="-3">{escape(top)}</text><text x="{MARGIN}" y="{HEIGHT + 14}">0 s</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{escape(end)}</text></svg>'
    )


def shares_chart(counts: Mapping[str, int], label: str) -> str:
    """One bar with a part for each outcome of a target's cases. `counts` has the outcomes and `cases`."""
    total = counts["cases"] or 1
    parts, left = [], 0.0
    for name in _OUTCOMES:
        width = 100 * counts[name] / total
        if width:
            parts.append(
                f'<rect class="{name}" x="{left:.2f}" y="0" width="{width:.2f}" height="6">'
                f"<title>{name}: {counts[name]} of {counts['cases']}</title></rect>"
            )
        left += width
    return (
        f'<svg class="shares" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def heat_strength(count: int, most: int) -> int:
    """The strength of a cell: 0 for none, else 1 to STRENGTHS by the logarithm of its count.

    >>> heat_strength(0, 1000), heat_strength(1, 1000), heat_strength(1000, 1000)
    (0, 1, 5)
    """
    if count <= 0:
        return 0
    if most <= 1:
        return STRENGTHS
    return 1 + min(STRENGTHS - 1, int((STRENGTHS - 1) * log10(count) / log10(most) + 1e-9))


def heat_chart(names: Sequence[str], pairs: Mapping[tuple[str, str], int], *, cell: int, labels: bool) -> str:
    """A heat map with a square for each pair of `names`, as strong as the pair is frequent.

    `pairs` has each pair once, in alphabetical order; a pair that never occurred is empty. A square is `cell`
    wide. With `labels`, rows and columns are named.
    """
    most = max((pairs.get(_pair(a, b), 0) for y, a in enumerate(names) for b in names[:y]), default=0)
    # One horizontal stroke for neighbours of equal strength needs few characters.
    strokes: dict[int, str] = {}
    reached = 0
    for y, a in enumerate(names):
        row = [heat_strength(pairs.get(_pair(a, b), 0), most) for b in names[:y]]
        reached += sum(kind > 0 for kind in row)
        x = 0
        for kind, run in groupby(row):
            length = len(list(run))
            strokes[kind] = strokes.get(kind, "") + f"M{x} {y}h{length}"
            x += length
    drawn = "".join(f'<path class="heat{kind}" d="{path}"/>' for kind, path in sorted(strokes.items()))
    left, above, right = (190, 120, 130) if labels else (0, 0, 0)
    side = cell * len(names)
    words = "".join(_label(name, place * cell, cell) for place, name in enumerate(names) if labels)
    possible = len(names) * (len(names) - 1) // 2
    return (
        f'<svg class="map" viewBox="{-left} {-above} {left + side + right} {above + side}" '
        f'style="width:{left + side + right}px" role="img" '
        f'aria-label="pairs of {len(names)}: {reached} of {possible} met">'
        f'<g transform="scale({cell}) translate(0 0.5)">{drawn}</g>{words}</svg>'
    )


def _label(name: str, place: int, cell: int) -> str:
    """The label of a row, on its left, and of a column, above its first square."""
    text = escape(name)
    return (
        f'<text x="-4" y="{place + 0.8 * cell:.1f}" text-anchor="end">{text}</text>'
        f'<text transform="translate({place + 0.7 * cell:.1f} {place + cell - 3}) rotate(-45)">{text}</text>'
    )


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
