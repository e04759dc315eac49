"""Torch difference: the result of a comparison, read from its folder.

found = read_torch_difference(Path("candidate"))
found.buckets[Kind.APPEARED], found.eager
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.campaign.ledger import Bucket
from fuzz.campaign.store import Store
from fuzz.campaign.summary import Summary, bucket_file_names, case_of_bucket, summarize
from fuzz.campaign.torch_pair.eager_pass import DIFFERS
from fuzz.campaign.torch_pair.folder import (
    SIDES,
    EagerCase,
    Request,
    read_eager,
    read_examples,
    read_request,
    write_text,
)
from fuzz.campaign.torch_pair.transitions import (
    Kind,
    Transition,
    case_pairs,
    outcome_counts,
    transition_ledgers,
    transitions,
)
from fuzz.corpus import case_file


@dataclass(frozen=True, slots=True)
class TorchDifference:
    """The differences between two versions of torch.

    Attributes:
        outcomes: for each target the number of cases by their outcomes before and after.
        buckets: for each examined kind the buckets of its cases, with the smallest example. An example
            distinguishes the two versions.
        others: what the other version does on the case of an example, in words.
        files: the corpus file and the script of each bucket that has them.
        eager: the results of the two eagers on each program.
        left: the number of examples that are still to be reduced.
    """

    folder: Path
    request: Request
    before: Summary
    after: Summary
    outcomes: Mapping[str, Counter[tuple[str, str]]]
    transitions: Sequence[Transition]
    buckets: Mapping[Kind, Sequence[Bucket]]
    others: Mapping[tuple[Kind, str, int], str]
    files: Mapping[tuple[Kind, str, str], tuple[str, str]]
    eager: Mapping[int, EagerCase]
    left: int

    def of_kind(self, kind: Kind) -> list[Transition]:
        """The transitions of one kind."""
        return [row for row in self.transitions if row.kind is kind]

    def cases(self, kind: Kind) -> int:
        """The number of cases with a transition of this kind."""
        return sum(len(row.cases) for row in self.of_kind(kind))

    @property
    def eager_counts(self) -> Counter[str]:
        """The number of programs by the result of the two eagers."""
        return Counter(case.outcome for case in self.eager.values())

    @property
    def complete(self) -> bool:
        """Whether the comparison is complete."""
        wanted = self.request.configuration.cases
        done = not (self.before.interrupted or self.after.interrupted or self.left)
        return done and len(self.eager) == wanted

    @property
    def news(self) -> bool:
        """Whether something appeared or changed: a difference, a refusal, or eager itself."""
        kinds = (Kind.APPEARED, Kind.CHANGED, Kind.REFUSAL_APPEARED)
        return any(self.cases(kind) for kind in kinds) or self.eager_counts[DIFFERS] > 0


def read_torch_difference(folder: Path) -> TorchDifference:
    """The result in a comparison's folder, as far as it has come.

    Raises:
        StoreError: the folder has no comparison or a damaged one, or a campaign of it has not begun.
    """
    request = read_request(folder)
    stored = read_examples(folder)
    with Store.read(folder / SIDES[0]) as before, Store.read(folder / SIDES[1]) as after:
        pairs = case_pairs(before, after)
        found, others, left = {}, {}, 0
        for kind, (ledger, cases) in transition_ledgers(pairs, before, after).items():
            ledger.restore(stored.get(kind, {}))
            found[kind] = ledger.buckets()
            left += sum(group.due() for group in ledger.groups.values())
            for (target, index), pair in cases.items():
                others[kind, target, index] = pair.other.seen.signature or pair.other.seen.outcome
        return TorchDifference(
            folder,
            request,
            summarize(before),
            summarize(after),
            outcome_counts(pairs),
            transitions(pairs),
            found,
            others,
            _example_files(folder, found),
            read_eager(folder),
            left,
        )


def write_example_files(difference: TorchDifference) -> None:
    """Write a corpus file and a script for each bucket.

    Raises:
        StoreError: that fails.
    """
    files = _example_paths(difference.folder, difference.buckets)
    for kind, found in difference.buckets.items():
        torch = (difference.before if kind is Kind.GONE else difference.after).versions["torch"]
        for bucket in found:
            case, script = files[kind, bucket.target, bucket.name]
            recorded = case_of_bucket(bucket, difference.request.configuration, torch)
            write_text(case, case_file.case_text(recorded))
            write_text(script, bucket.example.script)


def _example_paths(
    folder: Path, found: Mapping[Kind, Sequence[Bucket]]
) -> dict[tuple[Kind, str, str], tuple[Path, Path]]:
    files = {}
    for kind, those in found.items():
        for bucket, name in zip(those, bucket_file_names([*those]), strict=True):
            case = folder / "corpus" / f"{kind.value}-{name}.json"
            files[kind, bucket.target, bucket.name] = case, folder / "repro" / f"{kind.value}-{name}.py"
    return files


def _example_files(
    folder: Path, found: Mapping[Kind, Sequence[Bucket]]
) -> dict[tuple[Kind, str, str], tuple[str, str]]:
    return {
        key: (str(case), str(script))
        for key, (case, script) in _example_paths(folder, found).items()
        if case.is_file() and script.is_file()
    }
