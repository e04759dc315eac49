"""Count the sentences of the documentation, and the words that only this project uses.

    python -m tests.quality.prose              a table: sentences, average, longest, private words
    python -m tests.quality.prose FILE         the sentences of a file that are too long
    python -m tests.quality.prose --write      tests/quality/prose.json anew

A paragraph ends a sentence, and so do a heading, a list item and a table cell. Code is not counted, nor are
cells of up to three words. A name in backticks is one word.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[2]
LATE = ROOT / "tests" / "quality" / "prose.json"
PACKAGES = ("aot", "fuzz", "oracles", "bench")
AVERAGE = 17  # words
LONGEST = 40  # words
LABEL = 3  # words: a table cell that has no more is a label or a number, and no sentence

# Words of the glossary that have a standard term. Those that are good English elsewhere are not counted.
PRIVATE = (
    *("phantom", "imitation", "stand-in", "memoryless", "surroundings", "journal", "turned", "rehearsal"),
    *("blueprint", "vain", "poisoned", "densely", "breach", "hazard", "undone", "memberships"),
    *("kinds? of calls?", "side road", "lies? alike"),
    # What the style guide says to avoid.
    *("whereof", "of which", "as far as", "be it", "held against", "comes? by", "told", "asked"),
)
_PRIVATE = re.compile(rf"\b(?:{'|'.join(PRIVATE)})\b", re.IGNORECASE)
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|No)\.", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_`\[A-Z0-9])")


@dataclass(frozen=True)
class Count:
    """What was counted in a text."""

    sentences: tuple[str, ...]
    private: tuple[str, ...]

    @cached_property
    def lengths(self) -> list[int]:
        return [words_in(sentence) for sentence in self.sentences]

    @property
    def average(self) -> float:
        return sum(self.lengths) / len(self.lengths) if self.lengths else 0.0

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    @property
    def is_plain(self) -> bool:
        """The sentences are as short as the style guide asks for."""
        return self.average <= AVERAGE and self.longest <= LONGEST


def words_in(sentence: str) -> int:
    """How many words a sentence has. A name in backticks is one."""
    text = re.sub(r"``.+?``|`[^`]+`", "name", sentence)
    return len(re.findall(r"[^\s\w]*\w\S*", text))


def without_markup(text: str) -> str:
    """Markdown without links and pictures, of which the text stays."""
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    return re.sub(r"<!--.*?-->|<https?://\S+>|https?://\S+", "", text, flags=re.DOTALL)


def sentences_in(block: str) -> Iterator[str]:
    """Split a paragraph."""
    text = _ABBREVIATIONS.sub(lambda match: match[1].replace(".", ""), " ".join(block.split()))
    names: list[str] = []
    text = re.sub(r"``.+?``|`[^`]+`", lambda match: names.append(match[0]) or f"`{len(names) - 1}`", text)
    for sentence in _END.split(text):
        whole = re.sub(r"`(\d+)`", lambda match: names[int(match[1])], sentence)
        if words_in(whole):
            yield whole


def blocks_of_markdown(text: str) -> Iterator[str]:
    """The paragraphs, headings, list items and table cells of a page."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^( *)(```+|~~~+).*?^ *\2[^\n]*$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^:::.*(?:\n(?: +.*)?)*", "\n", text, flags=re.MULTILINE)  # of mkdocstrings
    lines: list[str] = []
    for line in [*without_markup(text).splitlines(), ""]:
        is_table = line.lstrip().startswith("|")
        starts = re.match(r"\s*(?:[*+-]|\d+\.)\s+|#+\s+|\s*>|!!!|\?\?\?", line)
        if lines and (not line.strip() or is_table or starts):
            yield " ".join(lines)
            lines = []
        if is_table:
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            yield from (cell for cell in cells if words_in(cell) > LABEL)
        elif line.strip():
            lines.append(re.sub(r"^\s*(?:[*+-]|\d+\.)\s+|^#+\s+|^\s*>", "", line).strip())
            if line.startswith("#"):
                yield lines.pop()


def blocks_of_docstring(text: str) -> Iterator[str]:
    """The paragraphs of a docstring, and the entries of its lists. What is indented below `::` is code."""
    lines: list[str] = []
    is_code = False
    for line in [*text.expandtabs().splitlines(), ""]:
        indented = bool(re.match(r" {4}", line))
        if is_code and indented:
            continue
        is_code = is_code and not line.strip()
        starts = re.match(
            r"\s*(?:[*+-]|\d+\.)\s+|\s+[\w*, ]+: |(?:In|Out|Invariant|Args|Raises|Returns): ?", line
        )
        if line.lstrip().startswith((">>>", "|", "```")):
            continue
        if lines and (not line.strip() or starts):
            yield without_markup(" ".join(lines))
            lines = []
        if line.strip():
            lines.append(re.sub(r"^\s*(?:[*+-]|\d+\.)\s+", "", line).strip())
        is_code = is_code or line.rstrip().endswith("::")


def docstrings_of(path: Path) -> Iterator[str]:
    """The docstrings of a module, of its classes and of its functions."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
        for part in ("body", "orelse", "handlers", "finalbody"):  # (Expressions have none, and are many.)
            inside = getattr(node, part, ())
            nodes += inside if isinstance(inside, list) else ()


def count(path: Path) -> Count:
    """Count a page, or the docstrings of a module."""
    if path.suffix == ".py":
        blocks = [block for text in docstrings_of(path) for block in blocks_of_docstring(text)]
    else:
        blocks = [*blocks_of_markdown(path.read_text(encoding="utf-8"))]
    found = tuple(sentence for block in blocks for sentence in sentences_in(block))
    plain = (re.sub(r"`[^`]*`", "", block) for block in blocks)  # (names have their own test)
    return Count(found, tuple(word for block in plain for word in _PRIVATE.findall(block)))


def files() -> dict[str, list[Path]]:
    """What is counted, by what the table calls it."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    groups = {str(page.relative_to(ROOT)): [page] for page in sorted(pages)}
    for package in PACKAGES:
        groups[f"{package}/ docstrings"] = sorted((ROOT / package).rglob("*.py"))
    return groups


def find_late() -> dict[str, list[str]]:
    """The files that have longer sentences than the goal, and those that have private words."""
    counts = {str(path.relative_to(ROOT)): count(path) for paths in files().values() for path in paths}
    return {
        "long": [name for name, counted in counts.items() if not counted.is_plain],
        "private": [name for name, counted in counts.items() if counted.private],
    }


def table() -> str:
    """One row for each page and each package."""
    rows = []
    for name, paths in files().items():
        counts = [count(path) for path in paths]
        whole = Count(
            tuple(sentence for one in counts for sentence in one.sentences),
            tuple(word for one in counts for word in one.private),
        )
        late = sum(not counted.is_plain for counted in counts)
        rows.append([name, len(whole.sentences), whole.average, whole.longest, len(whole.private), late])
    return tabulate(
        rows, ["", "sentences", "average", "longest", "private words", "files over the goal"], floatfmt=".1f"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.quality.prose", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="print its sentences that are too long")
    parser.add_argument("--write", action="store_true", help="write the list of files that are not done")
    options = parser.parse_args()
    if options.write:
        LATE.write_text(json.dumps(find_late(), indent=1) + "\n", encoding="utf-8")
    elif options.file:
        counted = count(options.file)
        print(f"average {counted.average:.1f}, longest {counted.longest}")
        print("private:", *sorted(set(counted.private)))
        for sentence in counted.sentences:
            if words_in(sentence) > 25:
                print(f"{words_in(sentence):3}  {sentence}")
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
