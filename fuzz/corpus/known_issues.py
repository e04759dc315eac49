"""Known issues: differences that are no news, read from `corpus/known.toml`.

    format = 1
    [[issue]]
    title = "a write through an expanded view is lost"
    targets = ["torch-aot-eager", "torch-aot-function"]
    torch = ">=2.11"                        # the versions that have it; absent: all
    upstream = 197448                       # its number in pytorch/pytorch, if it has one
    expected = "differs"                    # or "agrees": it was fixed, and is news when it comes back
    case = "expanded-write-lost.json"       # beside this file: replayed to see whether it is still there
    signature = "input-data/arg elements"   # the first two parts of the bucket; * stands for anything
    operators = ["expand"]                  # all of these are in the reduced program
    # or, instead of the last two, whole buckets:
    buckets = ["input-data/arg elements/expand + in-place/*"]

Invariant: a file is data. A mistake in it raises CorpusError with the file and the place. A case that it
names is read like any corpus file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fuzz import torch_versions
from fuzz.corpus import buckets
from fuzz.corpus.case_file import AGREES, DIFFERS, MAX_BYTES, STATES
from fuzz.errors import CorpusError
from fuzz.patterns import matches
from fuzz.program.decode import Program

FORMAT = 1
NAME = "known.toml"
MOST = 1000
MOST_TEXT = 500
_TEXTS = ("title", "torch", "expected", "case", "signature")
_LISTS = ("targets", "operators", "buckets")

State = Literal["reproduces", "gone", "unchecked", "elsewhere", "fixed", "back"]


@dataclass(frozen=True, slots=True)
class Issue:
    """One known issue, with the fields of its table in the file (see the module)."""

    title: str
    targets: tuple[str, ...]
    torch: str = ""
    upstream: int | None = None
    expected: str = DIFFERS
    case: str = ""
    signature: str = ""
    operators: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()

    def concerns(self, torch: str) -> bool:
        """Whether the issue is about this version of torch.

        >>> Issue("lost", ("aot",), torch=">=2.12").concerns("2.13.0+cpu")
        True
        """
        return torch_versions.includes(self.torch, torch)

    def covers(self, target: str, bucket: str, program: Program) -> bool:
        """Whether a bucket of a target is this issue. `program` is the bucket's reduced program."""
        if self.expected != DIFFERS or target not in self.targets:
            return False
        if any(matches(pattern, bucket) for pattern in self.buckets):
            return True
        if not self.signature:
            return False
        # A bucket's first two parts are its signature. A bucket that is not reduced has only these.
        signature = buckets.doubtful_signature(bucket, "unreduced")
        if signature is None:
            signature = "/".join(bucket.split("/")[:2])
        used = {statement.operator for statement in program.statements}
        return matches(self.signature, signature) and used.issuperset(self.operators)


@dataclass(frozen=True, slots=True)
class IssueStatus:
    """The status of a known issue on a target. `said` is one sentence.

    - "reproduces": its case still shows it; "gone": its case does not.
    - "unchecked": it names no case.
    - "elsewhere": it is about other versions of torch, and covers nothing here.
    - "fixed": it is expected to agree, and does; "back": it is expected to agree, and does not.
    """

    issue: Issue
    target: str
    state: State
    said: str

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> IssueStatus:
        """The inverse of `to_json`."""
        issue: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data["issue"].items()
        }
        return cls(Issue(**issue), data["target"], data["state"], data["said"])

    def covers(self, target: str, bucket: str, program: Program) -> bool:
        """Whether a bucket is this issue on this target, and so no news."""
        here = self.state in ("reproduces", "unchecked", "gone") and target == self.target
        return here and self.issue.covers(target, bucket, program)


def read_known_issues(file: Path) -> tuple[Issue, ...]:
    """Read the known issues of a file.

    Raises:
        CorpusError: the file is wrong. The error says what is wrong, and where.
    """
    try:
        if not file.is_file():
            raise CorpusError(file, "", "is no regular file" if file.exists() else "does not exist")
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise CorpusError(file, "", f"cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise CorpusError(file, "", f"larger than {MAX_BYTES} bytes")
    try:
        data = tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorpusError(file, "", f"not TOML: {error}") from error
    except RecursionError as error:
        raise CorpusError(file, "", "nested too deeply") from error
    _only(file, "", data, ("format", "issue"))
    if type(data.get("format")) is not int or data["format"] != FORMAT:
        raise CorpusError(file, "format", f"not a list of known issues of format {FORMAT}")
    entries = data.get("issue", [])
    if not isinstance(entries, list) or len(entries) > MOST:
        raise CorpusError(file, "issue", f"not a list of at most {MOST} tables", "write [[issue]]")
    return tuple(_read_known_issue(file, f"issue[{number}]", entry) for number, entry in enumerate(entries))


def _read_known_issue(file: Path, place: str, data: object) -> Issue:
    if not isinstance(data, dict):
        raise CorpusError(file, place, "not a table", "write [[issue]]")
    _only(file, place, data, (*_TEXTS, *_LISTS, "upstream"))
    values: dict[str, Any] = {}
    for name in _TEXTS:
        if name in data:
            values[name] = _text(file, f"{place}.{name}", data[name])
    for name in _LISTS:
        if name in data:
            items = data[name]
            if not isinstance(items, list) or len(items) > MOST:
                raise CorpusError(file, f"{place}.{name}", f"not a list of at most {MOST} texts")
            values[name] = tuple(_text(file, f"{place}.{name}", item) for item in items)
    if "upstream" in data:
        if type(data["upstream"]) is not int or data["upstream"] < 1:
            raise CorpusError(file, f"{place}.upstream", "not an issue's number")
        values["upstream"] = data["upstream"]
    for name in ("title", "targets"):
        if not values.get(name):
            raise CorpusError(file, f"{place}.{name}", "is missing")
    if not (values.get("signature") or values.get("buckets")):
        raise CorpusError(file, place, "covers nothing", "give a signature or buckets")
    if values.get("expected", DIFFERS) not in STATES:
        raise CorpusError(file, f"{place}.expected", f"is neither {DIFFERS} nor {AGREES}")
    if "/" in values.get("case", ""):
        raise CorpusError(file, f"{place}.case", "is not the name of a file beside this one")
    if (wrong := torch_versions.version_range_error(values.get("torch", ""))) is not None:
        raise CorpusError(file, f"{place}.torch", f"not a range of versions: {wrong}")
    return Issue(**values)


def _only(file: Path, place: str, data: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in data:
        if name not in names:
            raise CorpusError(file, place, f"unknown field {name[:40]!r}", f"there are {', '.join(names)}")


def _text(file: Path, place: str, data: object) -> str:
    if not isinstance(data, str) or len(data) > MOST_TEXT:
        raise CorpusError(file, place, f"not a text of at most {MOST_TEXT} characters")
    return data
