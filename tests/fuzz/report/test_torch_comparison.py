"""Two torches side by side: the tables, the JSON object and the page say what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import Example, RunOutcome, Suspect
from fuzz.campaign.store import Row, Store
from fuzz.campaign.torch_pair.folder import (
    EagerCase,
    PairExample,
    Request,
    add_eager,
    add_example,
    write_request,
)
from fuzz.campaign.torch_pair.torch_difference import (
    TorchDifference,
    read_torch_difference,
    write_example_files,
)
from fuzz.campaign.torch_pair.transitions import Kind
from fuzz.corpus import case_file
from fuzz.errors import StoreError
from fuzz.report.comparison_page import comparison_page
from fuzz.report.torch_comparison import (
    comparison_caveats,
    torch_comparison_json,
    torch_comparison_table,
    verdict,
)
from oracles import Finding
from tests.fuzz.report.test_report import NASTY, PageReader
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE

TARGET = "torch-aot-eager"
FINDING = Finding("values", "out", "1.0", NASTY, f"out: 1.0 in eager, {NASTY} in the target")
AGREE = RunOutcome("agree", "", (), "agree", 0.1)
REFUSED = RunOutcome("refused", "", (), "no strides", 0.1)
POISONED = RunOutcome("poisoned", "", (), "eager is unstable", 0.1)
APPEARED = RunOutcome("finding", "values/out", (FINDING,), "it", 0.1)
CRASHED = RunOutcome("finding", "errors/call: crash", (FINDING,), "it", 0.1, "crash")
#          appeared  gone     same      refusals           undecided
BEFORE = [AGREE, APPEARED, CRASHED, AGREE, REFUSED, POISONED, AGREE]
AFTER = [APPEARED, AGREE, CRASHED, REFUSED, AGREE, APPEARED, AGREE]


def _campaign(folder: Path, configuration: Configuration, outcomes: Sequence[RunOutcome], torch: str) -> None:
    with Store.create(folder, configuration) as store:
        for index, seen in enumerate(outcomes):
            store.add(Row(TARGET, index, seen, float(index)))
        store.set("versions", {**store.get("versions"), "torch": torch}, 5.0)
        store.set("ended", "complete", 5.0)


def _example(kind: Kind, index: int) -> PairExample:
    suspect = Suspect(TARGET, index, DOUBLE_IN_PLACE, APPEARED)
    name = "values/out/in-place/a"
    return PairExample(kind, Example(suspect, DOUBLE_IN_PLACE, APPEARED, name, f"# {NASTY}", "shown", 3))


def _difference(
    folder: Path, before: Sequence[RunOutcome], after: Sequence[RunOutcome], torch: str = "2.15.0"
) -> TorchDifference:
    configuration = Configuration(targets=(TARGET,), cases=len(before))
    _campaign(folder / "before", configuration, before, "2.13.0")
    _campaign(folder / "after", configuration, after, torch)
    write_request(folder, Request(("a/bin/python", "b/bin/python"), configuration, {"commit": "abc"}))
    return read_torch_difference(folder)


@pytest.fixture
def differing(tmp_path: Path) -> Iterator[TorchDifference]:
    _difference(tmp_path, BEFORE, AFTER)
    add_example(tmp_path, _example(Kind.APPEARED, 0))
    add_example(tmp_path, _example(Kind.GONE, 1))
    for index in range(len(BEFORE)):
        outcome = ("same bits", "within policy", "differs")[index] if index < 3 else "same bits"
        case = EagerCase(index, outcome)
        if outcome == "differs":
            case = EagerCase(index, outcome, FINDING.message, (FINDING,))
        add_eager(tmp_path, case)
    write_example_files(read_torch_difference(tmp_path))
    yield read_torch_difference(tmp_path)


def test_what_differs_is_counted_once_in_its_kind(differing: TorchDifference) -> None:
    assert {kind: differing.cases(kind) for kind in Kind} == dict.fromkeys(Kind, 1) | {Kind.CHANGED: 0}
    assert differing.news and differing.complete
    (bucket,) = differing.buckets[Kind.APPEARED]
    assert (bucket.name, bucket.count, bucket.first_case) == ("values/out/in-place/a", 1, 0)
    assert verdict(differing) == (
        "Differences from eager: 1 appeared (in 1 bucket), 0 changed, 1 gone (in 1 bucket). "
        "Refusals: 1 appeared, 1 gone. Eager itself differs on 1 of 7 programs."
    )


def test_the_smallest_program_of_a_bucket_is_a_corpus_file_and_a_script(differing: TorchDifference) -> None:
    files = {kind: Path(case) for (kind, _, _), (case, _) in differing.files.items()}
    assert set(files) == {Kind.APPEARED, Kind.GONE}
    assert case_file.read(files[Kind.APPEARED]).torch == "2.15.0"
    assert case_file.read(files[Kind.GONE]).torch == "2.13.0", "of the torch that shows it"
    for _, script in differing.files.values():
        assert Path(script).read_text() == f"# {NASTY}"


def test_the_table_has_each_kind(differing: TorchDifference) -> None:
    text = torch_comparison_table(differing)
    for words in (
        "a/bin/python",
        "2.15.0",
        "Differences from eager that appeared: 1 case\n",
        "Differences from eager that changed: 0 cases",
        "Refusals that appeared: 1 case\n",
        "refused: no strides",
        "Undecided: a difference on one side",
        "Eager itself, 7 programs: same bits 5, within policy 1, differs 1, undecided 0",
        "--- appeared: values/out/in-place/a on torch-aot-eager",
    ):
        assert words in text
    assert "Note:" not in text


def test_the_object_has_the_same(differing: TorchDifference) -> None:
    data = json.loads(json.dumps(torch_comparison_json(differing)))
    assert data["after"]["versions"]["torch"] == "2.15.0"
    assert data["before"]["targets"][TARGET]["crashes"] == 1
    assert data["outcomes"][TARGET]["agree -> finding"] == 1
    (bucket,) = data["appeared"]["buckets"]
    assert (bucket["other_side"], bucket["count"], bucket["state"]) == ("agree", 1, "shown")
    assert Path(bucket["corpus_file"]).is_file() and Path(bucket["repro"]).is_file()
    assert data["changed"] == {"cases": 0, "crashes": 0, "timeouts": 0, "buckets": []}
    assert data["refusals_appeared"]["transitions"] == [
        {"target": TARGET, "before": "agree", "after": "refused: no strides", "cases": [3]}
    ]
    assert data["undecided"]["cases"] == 1
    assert (data["eager"]["same_bits"], data["eager"]["differs"]) == (5, 1)
    assert data["eager"]["differences"][0]["cases"] == [2]
    assert (data["news"], data["interrupted"], data["caveats"]) == (True, False, [])


def test_the_page_stands_alone_and_nothing_in_it_runs(differing: TorchDifference) -> None:
    reader = PageReader(comparison_page(differing))
    assert reader.open == []
    assert not {"script", "img", "link", "iframe", "object"} & set(reader.tags)
    assert {reference[1:] for reference in reader.references} <= reader.ids
    assert reader.text.count(NASTY) >= 3, "what a target gave is shown as text"
    text = " ".join(reader.text.split())
    for words in (
        "torch 2.13.0 and torch 2.15.0",
        "Differences from eager that appeared: 1",
        "the other torch: agree",
        "aotfuzz compare --python a/bin/python --python b/bin/python --target torch-aot-eager --seed 0",
        "commit handed to both",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("before", "after", "news"),
    [
        ([AGREE], [AGREE], False),
        ([APPEARED], [APPEARED], False),
        ([APPEARED], [AGREE], False),
        ([REFUSED], [AGREE], False),
        ([POISONED], [APPEARED], False),
        ([AGREE], [APPEARED], True),
        ([CRASHED], [APPEARED], True),
        ([AGREE], [REFUSED], True),
    ],
)
def test_news_is_what_appeared_or_changed(
    before: list[RunOutcome], after: list[RunOutcome], news: bool, tmp_path: Path
) -> None:
    assert _difference(tmp_path, before, after).news is news


def test_an_eager_that_differs_is_news(tmp_path: Path) -> None:
    difference = _difference(tmp_path, [AGREE], [AGREE])
    assert not difference.complete, "no eager was compared"
    assert replace(difference, eager={0: EagerCase(0, "differs", "it", (FINDING,))}).news


def test_what_is_not_done_yet_is_said(tmp_path: Path) -> None:
    difference = _difference(tmp_path, BEFORE, AFTER[:5], torch="2.13.0")
    caveats = comparison_caveats(difference)
    assert any("the first ran 7 cases and the second 5" in caveat for caveat in caveats)
    assert "2 groups of cases are still to be reduced" in caveats
    assert "eager was compared on 0 of 7 programs" in caveats
    assert "both interpreters have the same version of torch" in caveats
    assert "Not complete" in comparison_page(difference)
    assert {bucket.name for bucket in difference.buckets[Kind.APPEARED]} == {"unreduced/values/out"}


def test_a_folder_without_a_campaign_is_said(tmp_path: Path) -> None:
    _difference(tmp_path, [AGREE], [AGREE])
    for file in (tmp_path / "after").glob("campaign*"):
        file.unlink()
    with pytest.raises(StoreError, match="after holds no campaign"):
        read_torch_difference(tmp_path)
