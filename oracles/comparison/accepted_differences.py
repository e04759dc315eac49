"""Differences from eager that are accepted, each with its reason.

A row is a statement: "this is not a bug, because". `compare` drops the findings that a row accepts, so
each row needs a test with a program that shows the difference, which fails when the row no longer has
anything to accept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oracles.findings import Finding
from oracles.observation.records import Observation


@dataclass(frozen=True, slots=True)
class Divergence:
    """One accepted difference: its name, why it is accepted, and which findings it covers.

    `accepts(finding, eager, target)` sees the finding and both snapshots.
    """

    name: str
    reason: str
    accepts: Callable[[Finding, Observation, Observation], bool]


DIVERGENCES: tuple[Divergence, ...] = ()
"""All accepted differences. There are none: the contract is observed as it is written."""


def is_accepted(finding: Finding, eager: Observation, target: Observation) -> bool:
    """Whether a row of the table accepts this finding."""
    return any(row.accepts(finding, eager, target) for row in DIVERGENCES)
