"""Sentences are short, and use the field's terms. A list has the files that are late, and only shrinks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.quality.prose import LATE, blocks_of_docstring, blocks_of_markdown, count, find_late, sentences_in


@pytest.fixture(scope="module")
def late() -> dict[str, list[str]]:
    return find_late()


@pytest.mark.parametrize("kind", ["long", "private"])
def test_only_files_of_the_list_are_late(kind: str, late: dict[str, list[str]]) -> None:
    """`python -m tests.quality.prose FILE` shows what is too long."""
    listed = json.loads(LATE.read_text(encoding="utf-8"))[kind]
    assert sorted(set(late[kind]) - set(listed)) == []


@pytest.mark.parametrize("kind", ["long", "private"])
def test_the_list_shrinks(kind: str, late: dict[str, list[str]]) -> None:
    """`python -m tests.quality.prose --write` takes out what is done."""
    listed = json.loads(LATE.read_text(encoding="utf-8"))[kind]
    assert sorted(set(listed) - set(late[kind])) == []


def test_a_page_has_paragraphs_items_cells_and_headings() -> None:
    page = """# A heading

A paragraph
in two lines. [A link](https://example.com) ends it.

* one item,
  which goes on
* another

| cell | a cell that says something |
| --- | :-: |
| more of `x \\| y` than that | |

```sh
not counted
```
"""
    blocks = [block.strip() for block in blocks_of_markdown(page)]
    assert blocks == [
        "A heading",
        "A paragraph in two lines. A link ends it.",
        "one item, which goes on",
        "another",
        "a cell that says something",
        "more of `x \\| y` than that",
    ]


def test_a_sentence_ends_before_a_capital_and_outside_of_names() -> None:
    text = "It is so (e.g. here). `a. B` says more? Version 2.13 is new. 3 are left"
    found = [*sentences_in(text)]
    assert found == ["It is so (eg here).", "`a. B` says more?", "Version 2.13 is new.", "3 are left"]


def test_docstrings_have_entries_and_code() -> None:
    text = "First line.\n\nArgs:\n    one: this.\n    two: that,\n        and more.\n\nAs in::\n\n    code\n"
    assert [*blocks_of_docstring(text)] == [
        "First line.",
        "Args:",
        "one: this.",
        "two: that, and more.",
        "As in::",
    ]


def test_long_sentences_and_private_words_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("word " * 41 + ".\n")
    assert not count(page).is_plain and count(page).longest == 41
    page.write_text("word " * 18 + ".\n\n" + "word " * 17 + ".\n")
    assert not count(page).is_plain and count(page).average == 17.5
    page.write_text("The phantom was told.\n")
    assert count(page).is_plain and count(page).private == ("phantom", "told")
