"""The page of a campaign: it needs nothing else, shows what it is given, and can be read."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import Example, RunOutcome, Suspect
from fuzz.campaign.store import Row, Store
from fuzz.campaign.summary import Summary, summarize
from fuzz.corpus.known_issues import Issue, IssueStatus
from fuzz.features.traits import TRAITS, traits
from fuzz.report import charts, tables
from fuzz.report.diff import compare_campaigns
from fuzz.report.diff import diff_table as difference_table
from fuzz.report.html_report import ISSUES, MOST_TEXT, report_page, rerun_command
from oracles import Finding
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND

NASTY = "</pre><script>alert(1)</script><img src=http://example.org/x onerror=alert(2)>&amp;"


def _summary(buckets: int = 3, *, seed: int = 5, target: str = "torch-aot-eager") -> Summary:
    configuration = Configuration(targets=(target,), seed=seed, cases=40)
    with Store.in_memory(configuration) as store:
        for index in range(40):
            program = LOST_THROUGH_EXPAND if index % 2 else DOUBLE_IN_PLACE
            words = tuple(sorted(traits(program)))
            seen = RunOutcome("agree", "", (), "agree", 0.1, traits=words)
            if index < buckets:
                finding = Finding("values", "out", "1.0", NASTY, f"out: 1.0 in eager, {NASTY} in the target")
                seen = RunOutcome("finding", f"values/out {index}", (finding,), "it", 0.1, traits=words)
                suspect = Suspect(target, index, program, seen)
                bucket = f"values/out {index}/{'expand + ' if index % 2 else ''}in-place/a"
                replays = ("as in the campaign", "agree") if index == 2 else ()
                state = "flaky" if replays else "shown"
                store.keep(Example(suspect, program, seen, bucket, f"# {NASTY}", state, 3, replays))
            store.add(Row(target, index, seen, index / 4))
            store.cover(words)
        store.commit(10.0)
        known = Issue("a known one", (target,), upstream=197448, signature="values/out 1")
        gone = Issue("an old one", (target,), signature="nothing")
        standings = [
            IssueStatus(known, target, "reproduces", "x.json shows it"),
            IssueStatus(gone, target, "gone", "y.json no longer shows it"),
        ]
        store.set("known", [standing.to_json() for standing in standings], 10.0)
        store.set("ended", "complete", 10.0)
        return summarize(store)


class PageReader(HTMLParser):
    """Notes tags, what they refer to, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.sources: list[str] = []
        self.references: list[str] = []
        self.ids: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "input", "rect", "path", "line"):
            self.open.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), "a handler in an attribute"
            if name == "src":
                self.sources.append(value or "")
            if name == "href":
                self.references.append(value or "")
            if name == "id":
                self.ids.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "path", "line"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone_and_only_its_own_script_runs() -> None:
    text = report_page(_summary())
    reader = PageReader(text)
    assert reader.open == []
    assert not {"img", "link", "iframe", "object"} & set(reader.tags)
    assert reader.sources == []
    outside = {reference for reference in reader.references if not reference.startswith("#")}
    assert outside == {f"{ISSUES}197448"}, "a link, which nothing follows by itself"
    assert {reference[1:] for reference in set(reader.references) - outside} <= reader.ids
    assert "url(" not in text and "@import" not in text
    assert reader.text.count(NASTY) >= 3, "what a target gave is shown as text"
    # One script, and the policy lets no other one run.
    (script,) = re.findall("<script>(.*?)</script>", text, re.S)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = re.findall('http-equiv="Content-Security-Policy" content="(.*?)"', text)
    assert unescape(policy[0]).split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_page_says_what_was_found() -> None:
    summary = _summary()
    text = " ".join(PageReader(report_page(summary)).text.split())
    for words in (
        "2 new differences · 0 recorded · 1 known",
        "1 known issue no longer reproduces",
        "(pytorch #197448)",
        "Alone in fresh workers: as in the campaign; agree.",
        "an old one, on torch-aot-eager: y.json no longer shows it",
        "v0 = a0.expand((3,))",
        "aotfuzz run --target torch-aot-eager --seed 5 --profile mixed --cases 40",
        "Not met:",
    ):
        assert words in text
    assert [bucket.name.split("/")[1] for bucket in summary.new] == ["out 0", "out 2"]


def test_a_page_of_many_buckets_stays_small_and_says_what_is_left_out() -> None:
    summary = _summary(3)
    (first, *_) = summary.buckets
    long = replace(first, example=replace(first.example, script="#" * (MOST_TEXT // 10)))
    many = [replace(long, name=f"values/out/{number}/a") for number in range(400)]
    text = report_page(replace(summary, buckets=many))
    assert len(text.encode()) < 1_000_000
    shown = text.count("A script that needs torch alone")
    assert 0 < shown < 20
    assert f"{400 - shown} of the buckets are shown without differences, source and script" in text
    assert text.count("values/out/399/a") == 1, "every bucket is there"


def test_a_campaign_without_anything_has_a_page() -> None:
    configuration = Configuration(targets=("eager",), cases=1)
    with Store.in_memory(configuration) as store:
        summary = summarize(store)
    assert "Nothing new" in report_page(summary)
    assert "Not complete" in report_page(summary)
    assert "No differences found" in tables.campaign_table(summary)


def test_the_command_repeats_the_campaign() -> None:
    summary = _summary()
    configuration = replace(summary.configuration, cases=None, seconds=5.0, device="cuda")
    assert "--device cuda --cases 40" in rerun_command(replace(summary, configuration=configuration))


def test_tables_tell_news_from_what_is_known() -> None:
    text = tables.campaign_table(_summary())
    assert len(re.findall(r"\bNEW\b", text)) == 4, "two causes, each of one bucket"
    assert "#197448" in text
    assert "FLAKY" in text
    assert "alone in fresh workers: as in the campaign; agree" in text


def test_two_campaigns_are_compared_by_bucket() -> None:
    before, after = _summary(2), _summary(3, seed=6)
    found = compare_campaigns(before, after)
    assert (len(found.only_before), len(found.only_after), len(found.both)) == (0, 1, 2)
    assert any("different programs" in caveat for caveat in found.caveats)
    assert "Only in the second: 1" in difference_table(found)
    other = compare_campaigns(before, _summary(2, target="torch-aot-function"))
    assert len(other.both) == 2, "one target each: compared whatever it is called"
    assert compare_campaigns(before, before).caveats == ()


def test_squares_are_as_strong_as_frequent() -> None:
    text = charts.heat_chart(["a", "b", "c"], {("a", "b"): 1, ("a", "c"): 100}, cell=10, labels=True)
    assert re.findall(r'class="heat(\d)" d="(.*?)"', text) == [
        ("0", "M1 2h1"),
        ("1", "M0 1h1"),
        ("5", "M0 2h1"),
    ]
    assert "2 of 3 met" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str) -> None:
    styles = re.findall(r":root \{(.*?)\}", report_page(_summary()), re.S)
    colours = dict(re.findall(r"--(\w+): (#\w{6})", styles[0 if scheme == "light" else 1]))
    for ground in ("ground", "panel"):
        for text in ("text", "faint", "accent", "bad", "good", "warn"):
            assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def _contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.1 (relative luminance, section 1.4.3)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_traits_are_named_in_one_table() -> None:
    for program in (DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND):
        assert traits(program) <= set(TRAITS)
    assert "operator: expand" in traits(LOST_THROUGH_EXPAND)
