"""The page docs/measurements/historical.md, written from the reports.

python -m tests.reports.page > docs/measurements/historical.md
"""

from __future__ import annotations

from tests.reports.report import RAISES, RIGHT, TARGETS, Report, Stock
from tests.reports.table import REPORTS
from tests.reports.unaided import CAMPAIGNS, searched

_VERSIONS = ("2.13", "2.11")

_TEXT = """\
# Public reports

Programs of ours after {count} public reports on torch's own AOTAutograd, by number: what torch makes of each
today, and whether `aot` is right. The programs are in `tests/reports`; a test holds each state against the
torch that is installed, and goes red when torch mends a report as well as when `aot` breaks one. Reports of
the same thing share a row. Where a report takes several calls to show (a hook that comes later, a buffer that
is given again), the state is that of what the story returns.

A state is *right*; *raises*, where eager does not; or the clause of [the contract](../reference/contract.md)
that is broken. *function* is torch's `aot_function`, *eager* is `torch.compile` with the backend
`aot_eager`. An asterisk stands where the program is wrong in another way than was reported, or where that is
not known: many a crash is mended, and something smaller is left, such as the base of a result that is a
view. Where *eager* alone is right, Dynamo did not give the program to AOTAutograd as a whole. Under *aot*,
*refused* is a typed error, raised before anything has changed. "-" stands for torch where neither way has
what the report is about (a partitioner that computes again, a graph compiler that copies). Where nothing
stands, that torch was not tried.

*Found* says in how many of its cases a campaign shows, unaided, what is still wrong as reported: with the
signature that the report's own program has, in a program that has, when it is reduced, the traits that the
report is about. "-" stands where the generator writes no such program (custom functions with state,
`torch.autograd.grad` inside, running statistics). The campaigns, made before later calls could be in
inference mode or hide views otherwise (some 2 % of the programs are others now):

{campaigns}

Of {rows} rows torch 2.13 gets {wrong} not right, in one of the two ways to compile.
Still wrong as reported: {reported}. The generator could write {possible} of those, and the campaigns found
{found}.

"""


def page() -> str:
    """The whole page."""
    reported = {report.name: report for target in TARGETS for report in searched(target)}
    head = _TEXT.format(
        count=sum(len(report.numbers) for report in REPORTS),
        rows=len(REPORTS),
        wrong=sum(report.stock not in (Stock(), None) for report in REPORTS),
        reported=len(reported),
        possible=sum(report.needs is not None for report in reported.values()),
        found=len({name for campaign in CAMPAIGNS for name in campaign.shown}),
        campaigns="\n".join(
            f"* `aotfuzz run --target {c.target} --seed {c.seed} --seconds {c.seconds} --jobs 1`,"
            f" torch {c.torch}: {c.cases} cases"
            for c in CAMPAIGNS
        ),
    )
    columns = [f"{version} {kind}" for version in _VERSIONS for kind in ("function", "eager")]
    titles = ["report", "what", *columns, "aot", "found, function", "found, eager"]
    lines = [_line(titles), _line(["---"] * len(titles)), *map(_line, map(_row, REPORTS))]
    return head + "\n".join(lines) + "\n"


def _row(report: Report) -> list[str]:
    return [
        ", ".join(_link(report, number) for number in report.numbers),
        report.title,
        *(_word(report, version, target) for version in _VERSIONS for target in TARGETS),
        "refused" if report.program.refused else RIGHT,
        *(_found(report, target) for target in TARGETS),
    ]


def _link(report: Report, number: int) -> str:
    name = f"{report.repository.removeprefix('pytorch/')}#{number}"
    return f"[{name}](https://github.com/{report.repository}/issues/{number})"


def _word(report: Report, version: str, target: str) -> str:
    stock = report.expected(version)
    if stock is None:
        return "-" if report.stock is None else ""
    state = stock.of(target)
    word = state if state in (RIGHT, RAISES) else f"`{state}`"
    return word if state == RIGHT or report.as_reported or stock is report.older else f"{word} \\*"


def _found(report: Report, target: str) -> str:
    if report not in searched(target):
        return ""
    if report.needs is None:
        return "-"
    return " + ".join(str(c.shown.get(report.name, 0)) for c in CAMPAIGNS if c.target == target)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
