"""Case file: a recorded case as a JSON file that people can read and diff.

In: a file, perhaps of a stranger. Out: a `Case`, or CorpusError with the file and the place in it. A file has
a header (what differs, on which target and torch, what is expected of which target, where the case came from)
and the program. The rendered source beside the program is for readers of the file.
`docs/reference/corpus.md` describes the format.

    case = read(Path("corpus/input-data-lost.json"))
    write_case(Path("other.json"), case)

Invariant: only the program's IR is ever run. Nothing of a truncated, hostile or foreign file is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import torch_versions
from fuzz.corpus import dates
from fuzz.corpus.dates import DATED, LAYER, Dates
from fuzz.errors import CorpusError
from fuzz.ir import json_readers, renames
from fuzz.program.decode import FORMAT, FORMATS, Program, ProgramError, from_json, to_json
from fuzz.safe_text import json_text
from oracles import CLAUSES, Finding
from oracles.object_names import encodable

MAX_BYTES = 1_000_000
MAX_LINE = 4000
DIFFERS, AGREES = dates.DIFFERS, dates.AGREES
STATES = (DIFFERS, AGREES)

_FIELDS = (
    "format",
    "bucket",
    "clause",
    "note",
    "issue",
    "torch",
    "origin",
    "expected",
    "findings",
    "program",
    "source",
)
VERSIONS = "versions"
# Optional fields.
_OPTIONAL = (VERSIONS, DATED, LAYER)
# Fields with this prefix belong to users. They are kept as texts.
EXTRA = "x-"
MOST_EXTRA = 32
_FINDING = ("clause", "path", "eager", "target", "message")
_TARGET = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_WIDTH = 160
# A surrogate as an escape in JSON.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a case was first seen: case `case` of seed `seed` under a profile, on a target.

    `case` is -1 if no campaign made the case.
    """

    target: str
    seed: int
    case: int
    profile: str


@dataclass(frozen=True, slots=True)
class Case:
    """One corpus file.

    Attributes:
        expected: for each target by name, whether it "differs" from eager or "agrees".
        versions: for which versions of torch that holds, as a range; a target without an entry means all.
        findings: what was seen on the origin's target, under the torch version `torch`.
        issue: the number of the upstream issue.
        extra: texts under names that begin with "x-".
        dated: what was seen under other versions, by target and version (`fuzz.corpus.dates`).
        layer: the layer of torch that differs, or "" if that was not determined.
    """

    program: Program
    bucket: str
    clause: str
    torch: str
    origin: Origin
    expected: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    note: str = ""
    issue: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    dated: Dates = field(default_factory=dict)
    layer: str = ""

    def state(self, target: str, torch: str) -> str | None:
        """What is expected of a target on a version of torch; None if nothing is."""
        concerned = torch_versions.includes(self.versions.get(target, ""), torch)
        return self.expected.get(target) if concerned else None


def read(file: Path) -> Case:
    """Read a corpus file.

    Raises:
        CorpusError: the file is wrong. The error says what is wrong, and where.
    """
    data = _load_case_json(file)
    try:
        return _read_case(data)
    except ProgramError as error:
        raise CorpusError(file, error.place, error.what, error.hint) from error


def write_case(file: Path, case: Case) -> None:
    """Write a corpus file, all of it or nothing.

    Raises:
        OSError: as for any file.
    """
    text = case_text(case)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def case_text(case: Case) -> str:
    """The text of a corpus file, with a line for each storage, argument and statement."""
    from fuzz.program.printer import render

    document_ = {
        "format": FORMAT,
        "bucket": case.bucket,
        "clause": case.clause,
        "note": case.note,
        "issue": case.issue,
        "torch": case.torch,
        "origin": {
            "target": case.origin.target,
            "seed": case.origin.seed,
            "case": case.origin.case,
            "profile": case.origin.profile,
        },
        "expected": dict(case.expected),
        **({VERSIONS: dict(case.versions)} if case.versions else {}),
        **({DATED: {target: dict(seen) for target, seen in case.dated.items()}} if case.dated else {}),
        **({LAYER: case.layer} if case.layer else {}),
        "findings": [finding_to_json(finding) for finding in case.findings],
        **case.extra,
        "program": to_json(case.program),
        "source": render(case.program).splitlines(),
    }
    return _pretty_case_json(document_, 0) + "\n"


def case_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The corpus files among files and folders (at any depth), in the order of their names.

    A path that does not exist is yielded unchanged, so that reading it gives the error.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(found for found in path.rglob("*.json") if not found.name.startswith("."))
        else:
            yield path


def case_slug(bucket: str, target: str) -> str:
    """A file name, without suffix, for the case of a bucket on a target.

    >>> case_slug("values/out elements/add_+expand", "torch-aot-eager")
    'torch-aot-eager-values-out-elements-add_-expand'
    """
    words = re.sub(r"[^A-Za-z0-9_]+", "-", f"{target}-{bucket}").strip("-")
    if len(words) <= 100:
        return words
    return f"{words[:90].rstrip('-')}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def finding_to_json(finding: Finding) -> dict[str, str]:
    """A finding as plain data."""
    return {name: getattr(finding, name) for name in _FINDING}


def finding_from_json(data: object, place: str = "finding") -> Finding:
    """The finding in plain data.

    Raises:
        ProgramError: the data is no finding. The error names `place`.
    """
    fields = json_readers.read_fields(data, place, _FINDING)
    json_readers.choice(fields["clause"], f"{place}.clause", CLAUSES)
    return Finding(**{name: _text(fields[name], f"{place}.{name}") for name in _FINDING})


def _load_case_json(file: Path) -> object:
    try:
        # To open a pipe in a stranger's folder would block for ever.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise CorpusError(file, "", "is no regular file")
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise CorpusError(file, "", f"cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise CorpusError(file, "", f"larger than {MAX_BYTES} bytes", "a corpus file holds one small program")
    try:
        data: object = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise CorpusError(file, f"byte {error.start}", "not UTF-8 text") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise CorpusError(file, place, f"not JSON: {error.msg}", "the file may be truncated") from error
    except RecursionError as error:
        raise CorpusError(file, "", "nested too deeply") from error
    except ValueError as error:
        raise CorpusError(file, "", f"not JSON: {error}") from error
    if _HALF.search(raw):
        _require_characters(file, data)
    return data


def _require_characters(file: Path, data: object) -> None:
    """Refuse lone surrogates, which JSON can escape and UTF-8 cannot encode."""
    ahead: list[tuple[str, object]] = [("", data)]
    while ahead:
        place, item = ahead.pop()
        if isinstance(item, dict):
            ahead += [(place, key) for key in item]
            ahead += [(f"{place}.{key}" if place else key, value) for key, value in item.items()]
        elif isinstance(item, list):
            ahead += [(f"{place}[{i}]", value) for i, value in enumerate(item)]
        elif isinstance(item, str) and encodable(item) != item:
            raise CorpusError(
                file, place, f"{json_readers.shorten(item)} holds half of a surrogate pair", "remove it"
            )


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _read_case(data: object) -> Case:
    if not isinstance(data, dict):
        raise ProgramError("", "not an object", "a corpus file is one JSON object")
    version = data.get("format")
    if type(version) is not int or version not in FORMATS:
        raise ProgramError(
            "format",
            f"found format version {json_readers.shorten(version)}, this version of aotfuzz reads {FORMAT}",
            "record the case again, or use the version that wrote it",
        )
    extra = {name: text for name, text in data.items() if name.startswith(EXTRA)}
    if len(extra) > MOST_EXTRA or any(len(name) > json_readers.MAX_TEXT for name in extra):
        raise ProgramError("", f"more or longer fields {EXTRA}... than allowed", f"keep at most {MOST_EXTRA}")
    names = (*_FIELDS, *(name for name in _OPTIONAL if name in data))
    fields = json_readers.read_fields(
        {name: value for name, value in data.items() if name not in extra}, "", names
    )
    issue = fields["issue"]
    expected = fields["expected"]
    if not isinstance(expected, dict) or not expected or len(expected) > 32:
        raise ProgramError("expected", "not an object of 1 to 32 targets", 'write {"target": "differs"}')
    for name in expected:
        if not _TARGET.fullmatch(name):
            raise ProgramError(
                "expected", f"{json_readers.shorten(name)} is not a target's name", "correct it"
            )
    for line, text in enumerate(json_readers.items(fields["source"], "source", 2000)):
        _text(text, f"source[{line}]")
    return Case(
        program=_program(fields["program"]),
        bucket=renames.bucket(_text(fields["bucket"], "bucket")),
        clause=json_readers.choice(fields["clause"], "clause", CLAUSES),
        torch=_text(fields["torch"], "torch"),
        origin=_read_case_origin(fields["origin"]),
        expected={
            name: json_readers.choice(state, f"expected.{name}", STATES) for name, state in expected.items()
        },
        findings=tuple(
            finding_from_json(item, f"findings[{i}]")
            for i, item in enumerate(json_readers.items(fields["findings"], "findings"))
        ),
        note=_text(fields["note"], "note"),
        issue=None if issue is None else json_readers.integer(issue, "issue", 1, json_readers.MAX_INTEGER),
        extra={name: _text(text, name) for name, text in extra.items()},
        versions=_read_case_versions(fields.get(VERSIONS, {}), expected),
        dated=_read_case_dates(fields.get(DATED, {})),
        layer=json_readers.choice(fields[LAYER], LAYER, dates.LAYERS) if LAYER in fields else "",
    )


def _read_case_versions(data: object, expected: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(data, dict):
        raise ProgramError(
            VERSIONS, f"expected an object, found {json_readers.shorten(data)}", "write an object here"
        )
    for name, text in data.items():
        if name not in expected:
            raise ProgramError(VERSIONS, f"nothing is expected of {json_readers.shorten(name)}", "remove it")
        place = f"{VERSIONS}.{name}"
        if (wrong := torch_versions.version_range_error(_text(text, place))) is not None:
            raise ProgramError(place, f"not a range of versions: {wrong}", 'write one such as ">=2.12"')
    return dict(data)


def _read_case_dates(data: object) -> Dates:
    dated = dates.read_dates(data)
    for name in dated:
        if not _TARGET.fullmatch(name):
            raise ProgramError(DATED, f"{json_readers.shorten(name)} is not a target's name", "correct it")
    return dated


def _program(data: object) -> Program:
    try:
        return from_json(renames.operators(data))
    except ProgramError as error:
        place = f"program.{error.place}" if error.place else "program"
        raise ProgramError(place, error.what, error.hint) from error


def _read_case_origin(data: object) -> Origin:
    fields = json_readers.read_fields(data, "origin", ("target", "seed", "case", "profile"))
    target = _text(fields["target"], "origin.target")
    if not _TARGET.fullmatch(target):
        raise ProgramError(
            "origin.target", f"{json_readers.shorten(target)} is not a target's name", "correct it"
        )
    return Origin(
        target=target,
        seed=json_readers.integer(fields["seed"], "origin.seed", 0, 2**63),
        case=json_readers.integer(fields["case"], "origin.case", -1, 2**63),
        profile=_text(fields["profile"], "origin.profile"),
    )


def _text(data: object, place: str) -> str:
    if not isinstance(data, str):
        raise ProgramError(place, f"expected a text, found {json_readers.shorten(data)}", "write a text here")
    if len(data) > MAX_LINE:
        raise ProgramError(place, f"a text of {len(data)} characters", f"stay within {MAX_LINE}")
    return data


def _pretty_case_json(data: Any, indent: int) -> str:
    """JSON with each value on one line if it fits there, except the document itself."""
    line = json_text(data, ascii_only=False)
    if not isinstance(data, (dict, list)) or not data or (indent and len(line) + indent <= _WIDTH):
        return line
    inner = " " * (indent + 1)
    if isinstance(data, dict):
        parts = [f"{json_text(key)}: {_pretty_case_json(value, indent + 1)}" for key, value in data.items()]
        opening, closing = "{", "}"
    else:
        parts = [_pretty_case_json(value, indent + 1) for value in data]
        opening, closing = "[", "]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * indent}{closing}"
