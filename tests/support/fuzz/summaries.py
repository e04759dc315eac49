"""Campaigns made by hand: their summaries have what a test says was found, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import Example, RunOutcome, State, Suspect
from fuzz.campaign.store import Row, Store
from fuzz.campaign.summary import Summary, summarize
from fuzz.corpus import buckets
from fuzz.program.decode import Program
from oracles import Finding
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE

TARGET = "torch-aot-eager"


@dataclass(frozen=True)
class Found:
    """A finding of one case, and what an investigation made of it; `state` "unreduced" if there was none."""

    finding: Finding
    program: Program = DOUBLE_IN_PLACE
    state: State = "shown"
    origin: str = ""
    kind: str = ""
    target: str = TARGET


def wrong(clause: str = "values", path: str = "out", what: str = "out at element 0") -> Finding:
    """Elements that differ."""
    return Finding(clause, path, "1.0", "2.0", f"{what}: 1.0 in eager, 2.0 in the target")


def raises(text: str, path: str = "call") -> Finding:
    """An exception where eager has none."""
    what = "the call" if path == "call" else path
    message = f"{what}: no exception in eager, {text} in the target"
    return Finding("errors", path, "no exception", text, message)


def summary_of(found: Sequence[Found], *reasons: str, targets: Sequence[str] = (TARGET,)) -> Summary:
    """The summary of a campaign whose first cases are these findings; then a case for each reason of a
    poisoned one on the first target, and one that agrees on each."""
    configuration = Configuration(targets=tuple(targets), seed=5, cases=len(found) + len(reasons) + 1)
    with Store.in_memory(configuration) as store:
        for target in targets:
            for index, one in enumerate(found):
                if one.target == target:
                    _add(store, index, one)
                else:
                    store.add(Row(target, index, RunOutcome("agree", "", (), "agree", 0.1), 1.0))
            for place, reason in enumerate(reasons):
                outcome = "poisoned" if target == targets[0] else "agree"
                seen = RunOutcome(outcome, "", (), reason, 0.1)
                store.add(Row(target, len(found) + place, seen, 1.0))
            last = len(found) + len(reasons)
            store.add(Row(target, last, RunOutcome("agree", "", (), "agree", 0.1), 2.0))
        store.commit(10.0)
        store.set("ended", "complete", 10.0)
        return replace(summarize(store), folder="night")


def _add(store: Store, index: int, one: Found) -> None:
    findings = (one.finding,)
    # Each has a signature of its own, so that each is an example.
    signature = f"{buckets.signature(findings)} {index}"
    seen = RunOutcome("finding", signature, findings, "it", 0.1, one.kind, origin=one.origin)
    store.add(Row(one.target, index, seen, 1.0))
    if one.state != "unreduced":
        suspect = Suspect(one.target, index, one.program, seen)
        name = buckets.bucket(findings, one.program)
        store.keep(Example(suspect, one.program, seen, name, "# script", one.state, 3))
