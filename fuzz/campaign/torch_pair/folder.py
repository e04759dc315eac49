"""Folder: the files of a comparison: its request, the two campaigns, and the results.

    DIR/comparison.json     the interpreters, the configuration, which aotfuzz
    DIR/source/             the aotfuzz that both interpreters import
    DIR/before/, after/     the two campaigns, as `aotfuzz run` makes them
    DIR/eager.jsonl         the results of the two eagers on each program
    DIR/examples.jsonl      each reduced program that distinguishes the two versions
    DIR/corpus/, repro/     the smallest of them, by bucket
    DIR/comparison.html     the page

A line of a `.jsonl` counts when it is complete, so a session can go on after one that was killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from fuzz.campaign import configuration as configurations
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import Example, example_from_json, example_to_json
from fuzz.campaign.torch_pair.transitions import Kind
from fuzz.corpus.case_file import finding_from_json, finding_to_json
from fuzz.errors import StoreError
from fuzz.program.decode import ProgramError
from oracles import Finding

T = TypeVar("T")
VERSION = 1
FILE = "comparison.json"
PAGE = "comparison.html"
SIDES = ("before", "after")
SOURCE = "source"
_EAGER = "eager.jsonl"
_EXAMPLES = "examples.jsonl"


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a comparison.

    `pythons` are the interpreters, before and after. `aotfuzz` says which aotfuzz both import.
    """

    pythons: tuple[str, str]
    configuration: Configuration
    aotfuzz: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EagerCase:
    """The result of two eagers on one program.

    `outcome` is "same bits", "within policy" (other bits, within the error policy), "differs", or
    "undecided", for which `reason` says why. In `findings`, `eager` is the side before, and `target` the side
    after.
    """

    index: int
    outcome: str
    reason: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class PairExample:
    """An investigated transition: `example` is of the side that shows the difference."""

    kind: Kind
    example: Example


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (folder / FILE).is_file()


def write_request(folder: Path, request: Request) -> None:
    """Write the request.

    Raises:
        StoreError: the folder cannot be written.
    """
    data = {
        "version": VERSION,
        "pythons": list(request.pythons),
        "configuration": configurations.to_json(request.configuration),
        "aotfuzz": dict(request.aotfuzz),
    }
    write_text(folder / FILE, json.dumps(data, indent=1) + "\n")


def read_request(folder: Path) -> Request:
    """Read the request of a comparison.

    Raises:
        StoreError: the folder has none, or a damaged one.
    """
    file = folder / FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise StoreError(f"{file} was written by another version of aotfuzz; run the comparison again")
        before, after = data["pythons"]
        configuration = configurations.from_json(data["configuration"])
        return Request((str(before), str(after)), configuration, dict(data["aotfuzz"]))
    except OSError as error:
        raise StoreError(f"{folder} holds no comparison: {error.strerror or error}") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(f"{file} is damaged: {type(error).__name__}: {error}") from error


def write_text(file: Path, text: str) -> None:
    """Write a file, all of it or nothing.

    Raises:
        StoreError: that fails.
    """
    partial = file.with_name(f".{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error


def add_eager(folder: Path, case: EagerCase) -> None:
    """Store the result of two eagers on a program."""
    data = {**asdict(case), "findings": [finding_to_json(finding) for finding in case.findings]}
    _append_line(folder / _EAGER, data)


def read_eager(folder: Path) -> dict[int, EagerCase]:
    """The stored results of two eagers, by case number."""

    def decode(data: Mapping[str, Any]) -> EagerCase:
        findings = tuple(finding_from_json(finding) for finding in data["findings"])
        return EagerCase(int(data["index"]), str(data["outcome"]), str(data["reason"]), findings)

    return {case.index: case for case in _read_lines(folder / _EAGER, decode)}


def add_example(folder: Path, found: PairExample) -> None:
    """Store an investigated transition."""
    _append_line(folder / _EXAMPLES, {"kind": found.kind.value, "example": example_to_json(found.example)})


def read_examples(folder: Path) -> dict[Kind, dict[tuple[str, int], Example]]:
    """The investigated transitions, by kind, and by target and case number."""
    found: dict[Kind, dict[tuple[str, int], Example]] = {}

    def decode(data: Mapping[str, Any]) -> PairExample:
        return PairExample(Kind(data["kind"]), example_from_json(data["example"]))

    for one in _read_lines(folder / _EXAMPLES, decode):
        suspect = one.example.suspect
        found.setdefault(one.kind, {})[suspect.target, suspect.index] = one.example
    return found


def _append_line(file: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data)
    try:
        with file.open("a+b") as lines:
            if lines.tell() and not _ends_whole(lines):
                lines.write(b"\n")  # an incomplete line of a killed session stays a separate line
            lines.write(text.encode("ascii") + b"\n")
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error


def _ends_whole(lines: Any) -> bool:
    lines.seek(-1, 2)
    return bool(lines.read(1) == b"\n")


def _read_lines(file: Path, decode: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
    """Each complete line, decoded; an incomplete one is left out.

    Raises:
        StoreError: a complete line cannot be decoded.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error
    for line in text.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        try:
            decoded = decode(data)
        except (AttributeError, LookupError, ProgramError, TypeError, ValueError) as error:
            raise StoreError(f"{file} is damaged: {type(error).__name__}: {error}") from error
        yield decoded
