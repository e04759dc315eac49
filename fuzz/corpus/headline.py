"""Headline: a finding and its reduced program as one plain sentence.

    a write through `unsafe_chunk` to an argument is lost or wrong
    `permute` raises IndexError: Dimension out of range; arguments share memory

The operators are those that distinguish the program. Pointwise ones are named only if there are no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fuzz.corpus import buckets
from fuzz.corpus.buckets import NO_EXCEPTION
from fuzz.corpus.severity import Severity, inner_clause, severity_of_finding
from fuzz.operators import OPERATORS
from fuzz.operators.row import Kind
from fuzz.program.decode import Duplicate, Program, Root, View
from fuzz.safe_text import one_line
from oracles import Finding

_MOST_NAMES = 3
_LONGEST_SIDES = 40
_LONGEST_EXCEPTION = 80
# The sides of a finding in a signature, which a headline says in its own words.
_SIDES = re.compile(r" (None|True|False|a tensor), not (None|True|False|a tensor)$")
_GENERIC = (Kind.POINTWISE, Kind.IN_PLACE)
_VIEWS = (Kind.VIEW, Kind.MULTI_VIEW)
_PLACES = (
    ("grad of ", "the gradient of "),
    ("old storage of ", "the storage that was left by "),
    ("arg", "an argument"),
    ("out", "a result"),
    ("tensor", "memory beside an argument"),
    ("leaf", "a leaf"),
)
_WITHIN = re.compile(r"^(call \d+): ")
_BACKWARD = re.compile(r"^(double backward|backward)\b")
_RAISED = re.compile(r"^\S*BackendCompilerFailed: backend=.*? raised: ")
_DOTTED = re.compile(r"^[\w.]*\.(\w+)")


def headline(finding: Finding, program: Program) -> str:
    """The finding of a reduced program as one line, without a full stop."""
    text = _sentence(finding, program)
    later = _WITHIN.match(finding.path)
    if finding.clause == "threads":
        text = f"in two threads at once: {text}"
    elif finding.clause == "repeat":
        text = f"in {later[1] if later else 'a later call'}: {text}"
    elif finding.clause == "refusals":
        text = f"after a refused call: {text}"
    raised = NO_EXCEPTION in (finding.eager, finding.target)
    return one_line("; ".join((text, *([] if raised else _circumstances(program)))))


def _sentence(finding: Finding, program: Program) -> str:
    kind, clause = severity_of_finding(finding), inner_clause(finding)
    done, count = _operators(program)
    path = _inner_path(finding)
    place = _place(path)
    backward = _BACKWARD.match(path)
    of_backward = "" if backward is None else f"the {backward[0]} of "
    if kind is Severity.CRASH:
        return f"{done} {_verb('takes', count)} the process down ({finding.target.removeprefix('crash, ')})"
    if kind is Severity.HANG:
        return f"{done} {_verb('does', count)} not return"
    if kind is Severity.ERROR:
        subject = f"{of_backward}{done}" if backward is not None else done
        return f"{subject} {_verb('raises', 1 if backward else count)} {exception_in_short(finding.target)}"
    if kind is Severity.MISSING_ERROR:
        missing = finding.target == NO_EXCEPTION
        what = "no exception" if missing else exception_in_short(finding.target)
        return f"{of_backward}{done}: {what} where eager raises {exception_in_short(finding.eager)}"
    subject = _subject(finding)
    elements = subject.endswith(" elements")
    if clause == "input-data" and elements:
        return f"{_write(program)} to {place} is lost or wrong"
    if clause == "values" and elements:
        return f"{place} of {done} has wrong elements"
    if clause == "aliasing":
        return f"{place} of {done} shares other memory than in eager"
    if clause in ("gradients", "double-backward") and elements:
        return f"{place} is wrong: {done}"
    if clause == "identity":
        return f"{place} of {done} is another object than in eager"
    what = _in_words(_SIDES.sub("", subject))
    sides = f"{finding.target}, not {finding.eager}"
    wrong = f"is {sides}" if len(sides) <= _LONGEST_SIDES else "differs"
    return f"{what} of {done} {wrong}" if path.startswith("out") else f"{what} {wrong} after {done}"


def exception_in_short(text: str) -> str:
    """The beginning of an exception, without its module, and without exceptions that only pass it on.

    >>> exception_in_short("torch._dynamo.exc.BackendCompilerFailed: backend='mine' raised: a.b.Error: no")
    'Error: no'
    """
    short = _DOTTED.sub(r"\1", _RAISED.sub("", text))
    return short if len(short) <= _LONGEST_EXCEPTION else f"{short[: _LONGEST_EXCEPTION - 3]}..."


def _inner_path(finding: Finding) -> str:
    path = _WITHIN.sub("", finding.path)
    clause = inner_clause(finding)
    return path.removeprefix(f"{clause}: ") if clause != finding.clause else path


def _place(path: str) -> str:
    for prefix, words in _PLACES:
        if path.startswith(prefix):
            return words + (_place(path[len(prefix) :]) if words.endswith(" ") else "")
    return path


def _subject(finding: Finding) -> str:
    return buckets.signature((finding,)).partition("/")[2]


def _in_words(subject: str) -> str:
    """The subject of a signature with places in words: "strides of out" becomes "strides of a result"."""
    names = {"out": "a result", "arg": "an argument", "tensor": "memory beside an argument"}
    text = " ".join(names.get(word, word) for word in subject.split(" "))
    return text.replace("grad of", "the gradient of", 1)


def _operators(program: Program) -> tuple[str, int]:
    """The operators that distinguish a program, in words, and their number."""
    used = _distinct(statement.operator for statement in program.statements)
    names = [name for name in used if not _is_generic(name)] or used
    writes = any(OPERATORS[name].writes for name in used)
    words = [f"`{name}`" for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        words.append(f"{len(names) - _MOST_NAMES} more")
    if writes and not any(OPERATORS[name].writes for name in names):
        words.append("a write")
    return _listing(words) or "a call without operators", len(words) or 1


def _write(program: Program) -> str:
    """The writes of a program in words: their operators, and the views that they go through."""
    rows = [OPERATORS[name] for name in _distinct(statement.operator for statement in program.statements)]
    views = [row.name for row in rows if row.kind in _VIEWS]
    writers = [row.name for row in rows if row.writes and row.kind not in _GENERIC]
    others = [row.name for row in rows if row.kind not in (*_VIEWS, *_GENERIC) and not row.writes]
    text = "a write"
    for word, names in (("by", writers), ("through", views), ("beside", [] if views else others)):
        if names:
            text += f" {word} {_listing([f'`{name}`' for name in names[:_MOST_NAMES]])}"
    return text


def _circumstances(program: Program) -> list[str]:
    found = []
    storages = [argument.storage for argument in program.arguments if isinstance(argument, Root | View)]
    if len(storages) > len(set(storages)):
        found.append("arguments share memory")
    if any(isinstance(argument, Duplicate) for argument in program.arguments):
        found.append("one argument is passed twice")
    if any(isinstance(argument, View) and argument.wrapped for argument in program.arguments):
        found.append("with a wrapper subclass")
    if not program.scenario.grad:
        found.append("without grad")
    return found


def _is_generic(name: str) -> bool:
    return name in OPERATORS and OPERATORS[name].kind in _GENERIC


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _listing(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else " and ".join((", ".join(words[:-1]), words[-1])) if words else ""


def _verb(singular: str, count: int) -> str:
    plural = {"takes": "take", "does": "do", "raises": "raise"}
    return singular if count == 1 else plural[singular]
