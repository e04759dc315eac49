"""The page of a campaign in headless Chromium: filters, links, copy buttons, layout, nothing from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign.summary import Summary
from fuzz.report.html_report import report_page
from tests.support.fuzz.browser import CHROMIUM, Browser
from tests.support.fuzz.page_campaign import OTHER_TARGET, page_campaign
from tests.support.fuzz.summaries import TARGET

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (issue 48), a package of Debian's"),
]
VISIBLE = "[...document.querySelectorAll('{}')].filter(one => one.checkVisibility()).map(one => one.{})"
SHOWN, ROWS = VISIBLE.format("article", "id"), VISIBLE.format("tr[data-of]", "dataset.of")
ALL = [f"cause-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return page_campaign(tmp_path_factory.mktemp("campaign") / "a night & more")


@pytest.fixture(scope="module")
def page(summary: Summary) -> str:
    file = Path(summary.folder) / "report.html"
    file.write_text(report_page(summary), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def browser(chromium: Browser, page: str) -> Iterator[Browser]:
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(page)
    yield chromium
    assert chromium.complaints == [], "errors in the console"
    assert {address.partition("#")[0] for address in chromium.requests} <= {page, "about:blank"}


def _become(browser: Browser, expression: str, value: object) -> None:
    """Wait until an expression has a value; AssertionError if it does not within some seconds."""
    end = time.monotonic() + 10.0
    while (found := browser.evaluate(expression)) != value:
        assert time.monotonic() < end, found
        time.sleep(0.05)


def _choose(browser: Browser, name: str, value: str) -> None:
    """Choose in a list, as a user does with the keyboard: the browser sends `input` and `change`."""
    browser.evaluate(
        f"(() => {{ const list = document.getElementById('filters').elements['{name}'];"
        f"list.value = {value!r}; list.dispatchEvent(new Event('input', {{bubbles: true}})); return 0 }})()"
    )


def _seen(browser: Browser) -> tuple[Any, Any, Any]:
    said = browser.evaluate("document.getElementById('filters').elements.shown.value")
    return browser.evaluate(SHOWN), browser.evaluate(ROWS), said


def test_filters_hide_what_does_not_match(browser: Browser) -> None:
    assert _seen(browser) == (ALL, ALL, "5 of 5 shown")
    for name, value, found in (
        ("severity", "silent", ALL[:2]),
        ("state", "recorded", ALL[1:2]),
        ("target", OTHER_TARGET, ALL[:1]),
        ("severity", "metadata", ALL[4:]),
    ):
        _choose(browser, name, value)
        assert _seen(browser) == (found, found, f"{len(found)} of 5 shown"), (name, value)
        browser.click("#filters button[name=clear]")
        assert _seen(browser) == (ALL, ALL, "5 of 5 shown")
    _choose(browser, "severity", "silent")
    _choose(browser, "target", TARGET)
    assert _seen(browser)[0] == ["cause-1"], "all filters at once"
    browser.click("#filters button[name=clear]")
    browser.type_text("#filters input", "EXPAND write")
    assert _seen(browser)[0] == ["cause-1"]
    browser.call("Input.dispatchKeyEvent", type="rawKeyDown", key="Enter", windowsVirtualKeyCode=13)
    browser.call("Input.dispatchKeyEvent", type="char", text="\r")
    assert _seen(browser)[0] == ["cause-1"], "Enter sends nothing and loses nothing"


def test_causes_are_grouped_by_target(browser: Browser) -> None:
    heads = VISIBLE.format(".of-target h3", "textContent")
    assert browser.evaluate(heads) == []
    _choose(browser, "grouping", "target")
    assert browser.evaluate(heads) == [f"On {OTHER_TARGET}", f"On {TARGET}"]
    assert browser.evaluate(ROWS) == ALL
    _choose(browser, "state", "known")
    assert browser.evaluate(heads) == [f"On {TARGET}"], "a group without rows is hidden"
    assert browser.evaluate(ROWS) == ["cause-2"]


def test_links_lead_where_they_say(browser: Browser, summary: Summary) -> None:
    browser.click(".causes tr[data-of=cause-3] a")
    _become(browser, "location.hash", "#cause-3")
    top = browser.evaluate("document.getElementById('cause-3').getBoundingClientRect().top")
    assert 0 <= top < 100
    files = browser.evaluate("[...document.querySelectorAll('.files a')].map(one => one.href)")
    expected = {Path(file).as_uri() for both in summary.files.values() for file in both}
    assert set(files) == expected
    browser.click("#cause-0 .pattern a")
    _become(browser, "location.hash", "#legend")


def test_a_button_copies_program_script_and_command(browser: Browser, summary: Summary) -> None:
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    buttons = browser.evaluate("document.querySelectorAll('#cause-0 .code > button').length")
    assert buttons == browser.evaluate("document.querySelectorAll('#cause-0 .code > pre').length") == 8
    places = ["#cause-0 > .code", "#cause-0 > details > .code", "#cause-0 > .next > .code"]
    for place in places:
        browser.click(f"{place} > button")
        _become(browser, f"document.querySelector({f'{place} > button'!r}).textContent", "Copied")
        copied = browser.evaluate("navigator.clipboard.readText()")
        assert copied == browser.evaluate(f"document.querySelector({f'{place} > pre'!r}).textContent")
    script = next(script for (target, _), (_, script) in summary.files.items() if target == OTHER_TARGET)
    assert copied == f"python '{script}'"


def test_without_script_everything_is_shown(browser: Browser, page: str) -> None:
    browser.open(page, script=False)
    assert browser.evaluate(SHOWN) == ALL
    assert browser.evaluate(ROWS) == [*ALL, *ALL], "by cause, and by target"
    assert not browser.evaluate("document.getElementById('filters').checkVisibility()")
    assert browser.evaluate("document.querySelectorAll('button:not([name=clear])').length") == 0


@pytest.mark.parametrize("width", [320, 400, 700, 1000, 1280])
def test_nothing_is_cut_at_any_width(browser: Browser, page: str, width: int) -> None:
    browser.open(page, width=width)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    cut = browser.evaluate(
        "[...document.querySelectorAll('table, article, form, dl, .code')].filter(one =>"
        "one.getBoundingClientRect().right > innerWidth || one.scrollWidth > one.clientWidth + 1)"
        ".map(one => one.outerHTML.slice(0, 80))"
    )
    assert cut == []


def test_it_is_dark_where_that_is_preferred(browser: Browser, page: str) -> None:
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    assert browser.evaluate(colours) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
    browser.open(page, dark=True)
    assert browser.evaluate(colours) == ["rgb(21, 24, 28)", "rgb(228, 231, 235)"]


def test_the_policy_lets_nothing_else_run_or_load(
    chromium: Browser, summary: Summary, tmp_path: Path
) -> None:
    file = tmp_path / "injected.html"
    extra = '<script>document.title = "run"</script><img src="http://127.0.0.1:9/x.gif">'
    text = report_page(summary).replace("<header>", f"<header>{extra}")
    file.write_text(text, encoding="utf-8")
    chromium.complaints.clear()
    chromium.open(file.as_uri())
    assert chromium.evaluate("document.title") != "run"
    _become(chromium, "document.querySelector('#filters').hidden", False)
    refused = [text for text in chromium.complaints if "Content Security Policy" in text]
    assert len(refused) == len(chromium.complaints) == 2, "the browser says what it refused"
