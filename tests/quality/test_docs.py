"""The documentation: links lead somewhere, pages are short and listed, and what is generated is current."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.quality import figures

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LIMIT = 300  # lines of a page
SLACK = 0.1  # how far a figure may be off until it is written anew
PARTS = {"tutorial", "how-to", "reference", "explanation", "measurements"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^( *)(```+).*?^ *\2$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The anchors that a renderer of Markdown gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    text = re.sub(r"`[^`]*`", "", without_code(page.read_text(encoding="utf-8")))
    for link in re.findall(r"\]\(([^()\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = Path(os.path.normpath(page.parent / path)) if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `name`, and more\n[a](#a-name-and-more) [b](#b) [c](none.md) [d](https://x.y)\n")
    assert broken_links(page) == ["#b", "none.md"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LIMIT


def test_the_readme_is_a_first_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_every_page_is_in_one_part_and_in_the_navigation() -> None:
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert {page.split("/")[0] for page in listed} == {*PARTS, "index.md"}


def test_fragments_of_the_changelog_have_a_kind() -> None:
    """`changes/NUMBER.KIND.md` or `changes/+NAME.KIND.md`: towncrier passes over any other name."""
    names = {file.name for file in (ROOT / "changes").iterdir()} - {"README.md"}
    kinds = "added|changed|fixed|removed|security"
    assert {name for name in names if not re.fullmatch(rf"(?:\d+|\+[\w-]+)\.(?:{kinds})\.md", name)} == set()


def test_texts_name_pages_that_exist() -> None:
    """Messages, comments and docstrings that name a page of the documentation."""
    files = [
        file for name in ("aot", "fuzz", "oracles", "bench", "tests") for file in (ROOT / name).rglob("*.py")
    ]
    missing = {
        f"{name_of(file)}: {page}"
        for file in files
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text(encoding="utf-8"))
        if not (ROOT / page).exists()
    }
    assert missing == set()


def test_the_figures_are_about_right() -> None:
    """`python -m tests.quality.figures --write` counts anew."""
    now, written = figures.figures(), figures.figures_on_the_page()
    assert written.keys() == now.keys()
    assert {name: n for name, n in now.items() if abs(n - written[name]) > SLACK * n} == {}


def test_code_of_the_tutorial_is_that_of_the_file() -> None:
    source = (ROOT / "examples" / "tiny_aot.py").read_text(encoding="utf-8")
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCS / "tutorial/tiny-compiler.md").read_text(), re.M | re.S
    )
    own = [block for block in blocks if "def example(" in block]
    assert len(own) == 2 and len(blocks) >= 7
    assert [block for block in blocks if block not in own and block not in source] == []


def test_what_the_tutorial_runs_is_right(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = (DOCS / "tutorial/tiny-compiler.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(import sys\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(compile(program, "tiny-compiler.md", "exec"), {})
    printed = capfd.readouterr().out
    assert "as_strided_scatter" in printed and "mul_" not in printed.replace("mul_tensor", "")
    assert printed.endswith(
        "True tensor([[1., 1., 1.],\n        [2., 2., 2.]], grad_fn=<CopyBackwards>) tensor([5., 5., 5.])\n"
    )
