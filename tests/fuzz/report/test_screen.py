"""The screen of a campaign: 40 lines at most, worst first, and the command that shows the rest."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fuzz.corpus.recorded_cases import RecordedCase
from fuzz.report import json_output, tables
from fuzz.report.html_report import report_page
from fuzz.report.screen import HEIGHT, campaign_screen
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND, SINE, call, program
from tests.support.fuzz.summaries import TARGET, Found, raises, summary_of, wrong

SILENT = Found(wrong("input-data", "arg[0]", "arg[0] at element 0"), LOST_THROUGH_EXPAND)
LOUD = Found(raises("IndexError: Dimension out of range"), SINE, origin="torch.x.gen_alias")
DYNAMO = "torch-dynamo does it too: values/out elements"


def test_what_is_worst_comes_first_with_its_program() -> None:
    text = campaign_screen(summary_of([LOUD, SILENT], DYNAMO, "eager is unstable: values: out"))
    lines = text.splitlines()
    assert lines[0] == "5 cases in 10 s, 0.5 a second, 60 % of them proved something"
    place = lines.index("2 differences in 2 findings, worst first: 2 new, 0 recorded, 0 known")
    assert lines[place + 1].split() == [
        *("silent", "1", "NEW", "a", "write", "through", "`expand`", "to", "an", "argument"),
        *("is", "lost", "or", "wrong"),
    ]
    assert lines[place + 2].startswith("error   1  NEW  `sin` raises IndexError: Dimension out of range")
    assert "    v0 = a0.expand((3,))" in text.replace("        v0", "    v0")
    assert "Also wrong below you: 1 in torch-dynamo; 1 difference, 1 of them silent" in lines
    assert "Poisoned: 1 eager is unstable" in lines
    assert lines[-1] == "aotfuzz report --all night shows every difference, program and reason"


@pytest.mark.parametrize("width", [80, 110, 200])
@pytest.mark.parametrize("count", [1, 7, 60])
def test_it_fits_whatever_was_found(count: int, width: int) -> None:
    long = program(*(call("sin", "a0", to=f"v{number}") for number in range(30)))
    programs = (SINE, LOST_THROUGH_EXPAND, DOUBLE_IN_PLACE, long)
    found = [Found(raises(f"Error{'x' * n}: {'no ' * 90}"), programs[n % 4]) for n in range(count)]
    reasons = [f"reason {number}: why" for number in range(50)]
    names = [f"package.module:target{number}" * 9 for number in range(9)]
    summary = summary_of(found, *reasons, targets=[TARGET, *names])
    summary = replace(summary, troubles=["Traceback\n" * 30] * 9, reticent=dict.fromkeys(names, "why" * 90))
    text = campaign_screen(replace(summary, interrupted=True), width)
    lines = text.splitlines()
    assert sum(max(1, -(-len(line) // width)) for line in lines) <= HEIGHT
    assert any(line.startswith("error") for line in lines)
    assert len(lines) > 20
    assert count == 7 or ("more: " in text) is (count > 7)


def test_what_does_not_fit_is_counted_by_its_severity() -> None:
    found = [SILENT, *(replace(LOUD, finding=raises(f"E{'x' * n}: no")) for n in range(50))]
    text = campaign_screen(summary_of(found))
    (left,) = re.findall(r"^and (\d+) more: (\d+) error$", text, re.MULTILINE)
    assert left[0] == left[1] and int(left[0]) > 30
    assert text.count("\nsilent") == 1


def test_a_recorded_case_is_named_with_its_number_and_is_no_news() -> None:
    summary = summary_of([SILENT, replace(SILENT, program=DOUBLE_IN_PLACE)])
    case = RecordedCase("corpus/expanded-write-lost.json", 197448, "lost")
    (expanded,) = [bucket for bucket in summary.buckets if "expand" in bucket.name]
    summary = replace(summary, recorded={(TARGET, expanded.name): case})
    lines = campaign_screen(summary).splitlines()
    place = lines.index("2 differences in 2 findings, worst first: 1 new, 1 recorded, 0 known")
    assert "NEW" in lines[place + 1]
    assert "recorded as expanded-write-lost #197448" in lines[place + 2]
    assert "corpus/expanded-write-lost.json" in tables.campaign_table(summary)
    assert "corpus/expanded-write-lost.json" in report_page(summary)
    data = json_output.campaign_json(summary)
    assert (data["new"], data["recorded"]) == (2, 1), "the exit status stays that of what is no known issue"
    records = [bucket["recorded"] for bucket in data["buckets"]]
    assert records == [None, {"file": case.file, "issue": 197448, "note": "lost"}]


def test_tables_page_and_json_have_one_order() -> None:
    summary = summary_of([LOUD, SILENT], DYNAMO)
    data = json_output.campaign_json(summary)
    assert [bucket["severity"] for bucket in data["buckets"]] == ["silent", "error"]
    assert [cause["news"] for cause in data["causes"]] == ["NEW", "NEW"]
    assert data["buckets"][1]["origin"] == "torch.x.gen_alias"
    assert data["below"] == [
        {
            "control": "torch-dynamo",
            "signature": "values/out elements",
            "severity": "silent",
            "cases": 1,
            "first_case": 2,
            "targets": [TARGET],
        }
    ]
    assert data["poisons"] == {"torch-dynamo does it too": 1}
    names = [bucket["bucket"] for bucket in data["buckets"]]
    for text in (tables.campaign_table(summary), report_page(summary)):
        assert text.index(names[0]) < text.index(names[1])
        assert "lso wrong below you" in text
    assert "does it too" not in tables.campaign_table(summary)


def test_a_campaign_without_findings_says_so() -> None:
    assert "No differences found." in campaign_screen(summary_of([]))


def test_it_says_which_clauses_were_judged_where_these_are_not_all() -> None:
    whole = summary_of([Found(wrong())])
    some = replace(whole, configuration=replace(whole.configuration, clauses=("values", "input-data")))
    words = "Judged: values, input-data, and no other clause"
    assert words in campaign_screen(some).splitlines() and words in report_page(some)
    assert "Judged" not in campaign_screen(whole) + report_page(whole)
