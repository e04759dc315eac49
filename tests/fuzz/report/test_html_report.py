"""The page of a campaign as text: what is wrong stands worst first, with links, badges and commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from fuzz import cli
from fuzz.report.causes import causes
from fuzz.report.html_report import code_words, next_steps, report_page
from tests.support.fuzz.page_campaign import HOSTILE, OTHER_TARGET, page_campaign
from tests.support.fuzz.summaries import TARGET, Found, summary_of, wrong


def _articles(text: str) -> list[str]:
    return re.findall(r"<article .*?</article>", text, re.S)


def _attributes(text: str, name: str) -> list[str]:
    return [unescape(value) for value in re.findall(rf'\b{name}="(.*?)"', text)]


def test_causes_stand_worst_first_with_their_badges(tmp_path: Path) -> None:
    text = report_page(page_campaign(tmp_path / "night"))
    heads = [re.search("<article [^>]*>", article)[0] for article in _articles(text)]  # type: ignore[index]
    kinds = [(_attributes(head, "data-severity")[0], _attributes(head, "data-state")[0]) for head in heads]
    assert kinds == [
        ("silent", "new"),
        ("silent", "recorded"),
        ("error", "known"),
        ("gradients", "new"),
        ("metadata", "new"),
    ]
    assert "3 new differences" in text
    assert "· 1 recorded · 1 known" in text
    assert text.index('<h2 id="repeat"') < text.index('<details id="features">')
    assert '<option value="silent">silent (2)</option>' in text
    rows = re.findall(r'<tr data-of="(.*?)">', text)
    order = [f"cause-{number}" for number in range(5)]
    assert rows == [*order, "cause-0", *order[1:]], "by cause, then by target"
    assert f"On {OTHER_TARGET}" in text and f"On {TARGET}" in text


def test_links_lead_to_files_wherever_the_folder_is(tmp_path: Path) -> None:
    folder = tmp_path / "a night & more #1"
    summary = page_campaign(folder)
    links = [link for link in _attributes(report_page(summary), "href") if link[0] != "#"]
    files = [unquote(link) for link in links if not link.startswith("https:")]
    assert len(files) == 10
    moved = folder.rename(tmp_path / "moved")
    assert all((moved / file).is_file() and not Path(file).is_absolute() for file in files)
    upstream = {link for link in links if link.startswith("https:")}
    assert upstream == {f"https://github.com/pytorch/pytorch/issues/{number}" for number in (197448, 198095)}


def test_links_of_a_page_elsewhere_lead_back(tmp_path: Path) -> None:
    summary = page_campaign(tmp_path / "night")
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "expanded.json").write_text("{}")
    (tmp_path / "pages").mkdir()
    links = _attributes(report_page(summary, tmp_path / "pages"), "href")
    assert "../cases/expanded.json" in links
    files = [unquote(link) for link in links if link.startswith("..")]
    assert len(files) == 11
    assert all((tmp_path / "pages" / file).is_file() for file in files)


def test_each_command_is_one_of_the_command_line(tmp_path: Path) -> None:
    summary = page_campaign(tmp_path / "a night")
    for bucket in summary.buckets:
        steps = [shlex.split(command) for _, command in next_steps(summary, bucket)]
        assert all(str(tmp_path / "a night") in " ".join(words) for words in steps)
        assert steps[0][0] == "python" and Path(steps[0][1]).is_file()
        for words in steps[1:]:
            options = cli._command_line_parser().parse_args(words[1:])
            assert Path(next(word for word in words if word.endswith(".json"))).is_file(), options
        names = [" ".join(words[1:3]) for words in steps]
        assert [name.split(" ")[0] for name in names[1:5]] == ["show", "reduce", "bisect", "repro"]
        news = summary.standing(bucket) is None and summary.record(bucket) is None
        assert ("corpus add" in names) == news


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = report_page(page_campaign(tmp_path / "night"))
    assert text.count("<script") == 1 and "<img" not in text
    assert "\ud800" not in text and "\x1b" not in text
    assert r"&lt;img src=http://example.org/x onerror=alert(2)&gt; \ud800 \x1b[2J" in text
    text.encode()
    hostile = f"`{HOSTILE}` and \" '"
    assert "<script" not in code_words(hostile) and code_words(hostile).count("<code>") == 1
    assert code_words("one ` alone <b>") == "one ` alone &lt;b&gt;"


def test_one_target_has_no_grouping_and_no_findings_no_filters() -> None:
    text = report_page(summary_of([]))
    assert 'id="filters"' not in text and "No differences found." in text
    text = report_page(summary_of([Found(wrong())]))
    assert 'id="filters"' in text and 'name="grouping"' not in text
    assert "What to do next" not in text, "it has no files"


def test_buckets_of_one_cause_stand_in_its_article(tmp_path: Path) -> None:
    summary = page_campaign(tmp_path / "night")
    (loud,) = [bucket for bucket in summary.buckets if bucket.name.startswith("errors")]
    twin = replace(loud, name=f"{loud.name} b", count=3)
    summary = replace(summary, buckets=[*summary.buckets, twin])
    assert len(causes(summary)) == 5
    (article,) = [one for one in _articles(report_page(summary)) if "errors/call" in one]
    assert "4 findings in 2 buckets" in article
    assert "3 more in <code>" in article
    assert article.count("torch.x.gen_alias") == 1
