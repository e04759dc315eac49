"""Which reports a campaign on torch's own compilers finds by itself, and in how many of its cases.

    python -m tests.reports.unaided DIR ...

prints what `CAMPAIGNS` is to hold for the campaigns in these folders, which have to have been run by the same
generator as the one that is here.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fuzz.campaign.configuration import generator_fingerprint
from fuzz.campaign.store import Store
from fuzz.campaign.workers.handlers import program
from fuzz.corpus.buckets import signature
from fuzz.execute.case import execute
from fuzz.features.traits import traits
from fuzz.patterns import matches
from fuzz.program.decode import Program
from fuzz.reduce import ReductionError, reduce
from fuzz.targets.catalog import find_target
from tests.reports.report import RIGHT, TARGETS, Report, findings
from tests.reports.table import REPORTS


@dataclass(frozen=True, slots=True)
class Campaign:
    """What `aotfuzz run --target TARGET --seed SEED --seconds SECONDS --jobs 1` did: how many cases it ran on
    which torch, and how many of them show a report by its name. Those that none shows are left out."""

    target: str
    seed: int
    seconds: int
    torch: str
    cases: int
    shown: Mapping[str, int]


CAMPAIGNS: tuple[Campaign, ...] = (
    Campaign(
        target="torch-aot-function",
        seed=3,
        seconds=300,
        torch="2.13.0",
        cases=4121,
        shown={
            "pytorch/pytorch#118739": 1,
            "pytorch/pytorch#131794": 219,
            "pytorch/pytorch#165409": 4,
            "pytorch/pytorch#195422": 5,
            "pytorch/pytorch#198095": 2,
            "pytorch/pytorch#198102": 2,
            "pytorch/pytorch#90507": 24,
            "pytorch/pytorch#91469": 23,
            "pytorch/pytorch#97921": 10,
            "pytorch/pytorch#99455": 2,
            "pytorch/torchdynamo#1102": 219,
        },
    ),
    Campaign(
        target="torch-aot-eager",
        seed=3,
        seconds=300,
        torch="2.13.0",
        cases=947,
        shown={
            "pytorch/pytorch#131794": 52,
            "pytorch/pytorch#90507": 4,
            "pytorch/pytorch#91469": 9,
            "pytorch/torchdynamo#1102": 52,
        },
    ),
)


def searched(target: str) -> list[Report]:
    """The reports that a campaign on that target might show: torch 2.13 is still wrong there as reported."""
    return [r for r in REPORTS if r.as_reported and r.stock is not None and r.stock.of(target) != RIGHT]


def count(folder: Path) -> Iterator[Campaign]:
    """What a campaign shows of the reports, for each of `TARGETS` that it ran.

    A case shows a report if it has the signature of the report's program, and, reduced by that signature, the
    traits that the report needs.
    Raises ValueError if the generator no longer makes the campaign's programs.
    """
    with Store.read(folder) as store:
        configuration = store.configuration
        versions = store.get("versions")
        if versions["generator"] != generator_fingerprint(configuration):
            raise ValueError(f"{folder}: another generator made these cases; run the campaign again")
        rows = list(store.rows())
    for target in TARGETS:
        if target not in configuration.targets:
            continue
        by_signature: dict[str, list[Report]] = {}
        for report in searched(target):
            if report.needs is not None:
                by_signature.setdefault(signature(findings(report.program, target)), []).append(report)
        mine = [row for row in rows if row.target == target]
        shown: Counter[str] = Counter()
        for row in mine:
            for report in by_signature.get(row.seen.signature, ()):
                case = program(configuration.seed, row.index, configuration.profile)
                if shows(case, report.needs or (), target, row.seen.signature):
                    shown[report.name] += 1
        yield Campaign(
            target,
            configuration.seed,
            int(configuration.seconds or 0),
            versions["torch"].split("+")[0],
            len(mine),
            dict(sorted(shown.items())),
        )


def shows(case: Program, needs: tuple[str, ...], target: str, wanted: str) -> bool:
    """Whether a case has the traits, and still has them when all is gone that its signature does not need."""

    def same(smaller: Program) -> bool:
        found = execute(smaller, find_target(target)).findings
        return bool(found) and signature(found) == wanted

    if not needs or not _has(case, needs):
        return not needs
    try:
        return _has(reduce(case, same).program, needs)
    except ReductionError:
        return False  # it is not seen outside of the campaign's workers


def _has(case: Program, needs: tuple[str, ...]) -> bool:
    found = traits(case)
    return all(any(matches(pattern, trait) for trait in found) for pattern in needs)


if __name__ == "__main__":
    for campaign in (campaign for folder in sys.argv[1:] for campaign in count(Path(folder))):
        print(f"    {campaign!r},")
