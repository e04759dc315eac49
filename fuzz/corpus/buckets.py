"""Buckets: keys that are equal for findings of the same bug.

In: findings, and the reduced program. Out: plain text. There are two keys. Both are equal on every run, and
do not depend on the target:

* `signature(findings)` is coarse. A reduction must keep it. It has the clause of the *main* finding, the kind
of place
  (`out`, `arg`, `grad of arg`), and what differs there, without numbers, names and positions of elements. The
  main finding is the first by `PRECEDENCE`: a lost write explains a wrong gradient, not the other way round.
  For exceptions it has the type and the gist of the message.
* `bucket(findings, program)` adds the operators and the pattern of the arguments of the reduced program. They
tell
  apart two bugs with the same symptom. Pointwise operators, in-place or not, count by their kind, because one
  may replace another. Views, metadata changes and all others count by name.

    input-data/arg elements/in-place:pointwise/a:float64:0d
    errors/call: RuntimeError a view of a leaf Variable/expand + in-place:pointwise/a:grad a~

In the last part, letters are storages in the order of their first use, with dtype unless float32, `0d` or
`empty`, `grad` and `nonleaf`. `a~` is a view on it, `a~detach` a hidden one, `a~:wrapped one` a wrapper
subclass of one, and `=` the same object again. Steps after the call follow, and then, after `|`, the later
calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from fuzz.ir.control_flow import enclosing_blocks
from fuzz.ir.nodes import Autocast, Block, Branch, Loop, Region, Require
from fuzz.operators import OPERATORS
from fuzz.operators.row import Kind
from fuzz.program.decode import (
    Duplicate,
    Program,
    Root,
    Scalar,
    Scenario,
    Statement,
    Storage,
    View,
    Write,
    split_calls,
)
from oracles import Finding

PRECEDENCE = (
    "errors",
    "structure",
    "input-metadata",
    "input-data",
    "values",
    "aliasing",
    "identity",
    "strides",
    "autograd-metadata",
    "gradients",
    "double-backward",
    "versions",
    "randomness",
    "ambient",
    "lifetime",
    "once",
    "repeat",
    "threads",
    "refusals",
)
NO_EXCEPTION = "no exception"
"""The side of a finding that returned, if the other one raised."""
_SILENT, _RANDOM = "/silent", "/random"
_PATH = re.compile(r"\b(arg|out|tensor|leaf)((?:\[[^\]]*\])*)")
_ITEM = re.compile(r"(?<=\bstate)((?:\.\w+)*)\S*")
_ROOTS = re.compile(r",? (from|starting at) .*")
_ELEMENTS = re.compile(r" at (the )?element\b.*")
_WHICH_CALL = re.compile(r"^in call \d+( of some in threads)?, ")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NESTED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|<[^<>]*>")
_NUMBERED = re.compile(r"\S*\d\S*")
_PLAIN = ("None", "True", "False")
_INTERCHANGEABLE = (Kind.POINTWISE, Kind.IN_PLACE)
_GIST_WORDS = 10
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def primary_finding(findings: Sequence[Finding]) -> Finding:
    """The finding from which the others follow, by their clauses. `findings` must not be empty."""
    return min(findings, key=_rank)


def _rank(finding: Finding) -> float:
    """The rank of a finding; the lowest is the main one.

    A view with other strides reaches other elements, and a tensor that shares nothing may have any strides.
    """
    if finding.clause == "aliasing" and finding.message.startswith("elements of "):
        return PRECEDENCE.index("strides") + 0.5
    return PRECEDENCE.index(finding.clause)


def signature(findings: Sequence[Finding]) -> str:
    """The coarse key of findings, which a reduction must keep.

    >>> signature([Finding("strides", "out", "(1, 2)", "(2, 1)", "strides of out: (1, 2) in eager, ...")])
    'strides/strides of out'
    """
    finding = primary_finding(findings)
    if finding.clause == "errors":
        place = _ROOTS.sub("", finding.path)
        return f"errors/{place}: {_bucket_exceptions(finding)}"
    return f"{finding.clause}/{_bucket_subject(finding)}"


def bucket(findings: Sequence[Finding], program: Program) -> str:
    """The key of a bug, from the findings of its reduced program and from that program."""
    return f"{signature(findings)}/{ingredients(program)}"


def ingredients(program: Program) -> str:
    """The operators of a program, and the arguments and steps of each call. Buckets end in it."""
    how = " | ".join(
        bucket_arguments(call) + _bucket_scenario(call.scenario) for call in split_calls(program)
    )
    return f"{operators(program) or 'nothing'}/{how}"


def _bucket_scenario(scenario: Scenario) -> str:
    """What is unusual about a call, and the steps after it: " no-grad, write a, backward double"."""
    return ",".join(f" {words}" for words in scenario_words(scenario))


def scenario_words(scenario: Scenario) -> list[str]:
    """The words of `_bucket_scenario` as a list, in the order of the call."""
    words = [*([] if scenario.grad else ["no-grad"]), *(["two threads"] if scenario.threads else [])]
    words += [] if scenario.autocast is None else ["autocast"]
    words += [*(["swapped"] if scenario.swapped else []), *(["marked"] if scenario.marked else [])]
    for step in scenario.steps:
        if isinstance(step, Write):
            words.append("write argument" if step.name[0] == "a" else "write result")
        elif isinstance(step, Require):
            words.append("require argument" if step.name[0] == "a" else "require result")
        else:
            words.append(f"{step.how}{' kept' if step.retain else ''}{'' if step.roots is None else ' part'}")
    return words


def operators(program: Program) -> str:
    """The operators of a program as a multiset, in alphabetical order.

    Two additions and an `expand` are `2 pointwise + expand`.
    """
    counts = operator_counts(program)
    return " + ".join(name if count == 1 else f"{count} {name}" for name, count in sorted(counts.items()))


def operator_counts(program: Program) -> Counter[str]:
    """The operators of a program in the words of its bucket, each with the blocks around it."""
    return Counter(_operator(statement, program.blocks) for statement in program.statements)


def bucket_arguments(program: Program) -> str:
    """The arguments and how they alias, in their order.

    Python numbers are left out, and so are storages that no argument shows.
    """
    letters: dict[int, str] = {}
    words = []
    for argument in program.arguments:
        match argument:
            case Root(number):
                words.append(_bucket_storage(letters, number, program.storages[number]))
            case View(number, size, _, _, via, dtype, leaf, wrapped, lazy, base):
                known = number in letters
                word = _bucket_storage(letters, number, program.storages[number])
                parts = wrapped and f"wrapped {wrapped}"
                of = None if base == "root" else f"of {base}"
                way = "~" if via == "view" else f"~{via}"
                kinds = (way, dtype, "leaf" if leaf else None, parts, lazy, of)
                kind = ":".join(word for word in kinds if word)
                words.append((word[0] if known else word) + kind + _extent(size))
            case Duplicate():
                words.append("=")
            case Scalar():
                pass
    return " ".join(words) or "nothing"


def death(kind: Literal["crash", "timeout"], cause: str, stack: str) -> Finding:
    """The finding of a worker's death. `cause` is in words; `stack` is the Python stack, if there is one."""
    how = "takes the process down" if kind == "crash" else "does not return"
    where = _frame(stack)
    target = f"crash, {cause}" if kind == "crash" else "timeout"
    message = f"the target {how} ({cause}{f', in {where}' if where else ''}); eager returns"
    return Finding("errors", "call", NO_EXCEPTION, target, message)


def _bucket_exceptions(finding: Finding) -> str:
    """The side of a finding that raised, or both: "RuntimeError a view of a leaf"."""
    eager, target = finding.eager, finding.target
    if eager == NO_EXCEPTION:
        return gist_of(target)
    if target == NO_EXCEPTION:
        return f"nothing instead of {gist_of(eager)}"
    return f"{gist_of(target)} instead of {eager.split(':')[0]}"


def doubtful_bucket(state: str, signature: str, *, silent: bool, random: bool) -> str:
    """The name of findings that are not reduced, or not seen again: their state and signature.

    Silent findings beside a loud one have names of their own, and so have findings that draw random numbers.

    >>> doubtful_bucket("flaky", "values/out elements", silent=False, random=True)
    'flaky/values/out elements/random'
    """
    return f"{state}/{signature}{_SILENT if silent else ''}{_RANDOM if random else ''}"


def doubtful_signature(bucket: str, state: str) -> str | None:
    """The signature of findings in a bucket of that state; None if it is no such bucket.

    If something silent is beside a loud finding, the name still says so: what explains one does not explain
    the other.
    """
    signature = bucket.removeprefix(f"{state}/")
    return None if signature == bucket else signature.removesuffix(_RANDOM)


def gist_of(text: str) -> str:
    """An exception's type and the first words of its message, without parts that change from case to case.

    >>> gist_of("RuntimeError: size 3 of 'x' (a view) must match")
    'RuntimeError size of must match'
    """
    return " ".join(words_of(text))


def words_of(text: str) -> list[str]:
    """The first words of a message, without quoted and nested parts, and without words that have a digit."""
    text = _QUOTED.sub(" ", text)
    while (shorter := _NESTED.sub(" ", text)) != text:
        text = shorter
    return _NUMBERED.sub(" ", text).replace(":", " ").split()[:_GIST_WORDS]


def _bucket_subject(finding: Finding) -> str:
    """What differs: the subject of the finding's sentence, with kinds of places in place of places."""
    subject = _WHICH_CALL.sub("", finding.message.split(f": {finding.eager} in eager")[0])
    subject = _ITEM.sub(r"\1", subject.split(f": {finding.eager} before the refused call")[0])
    subject, elements = _ELEMENTS.subn(" elements", subject)
    subject = _PATH.sub(r"\1", _ROOTS.sub("", subject))
    subject = " ".join(_NUMBERED.sub("", subject).split())
    sides = [side for side in map(_side, (finding.eager, finding.target)) if side]
    if elements or len(sides) < 2 or sides[0] == sides[1]:
        return subject
    return f"{subject} {sides[0]}, not {sides[1]}"


def _side(text: str) -> str:
    """A side of a finding if it is one of a few words; "" if it has values."""
    if text in _PLAIN:
        return text
    return "a tensor" if text.startswith("a tensor ") else ""


def _operator(statement: Statement, blocks: Sequence[Block]) -> str:
    kind = OPERATORS[statement.operator].kind
    name = str(kind) if kind in _INTERCHANGEABLE else statement.operator
    return "@".join(
        (name, *(_bucket_block(blocks[number]) for number in enclosing_blocks(blocks, statement.block)))
    )


def _bucket_block(block: Block) -> str:
    match block:
        case Region(mode):
            return mode
        case Autocast(_, enabled):
            return "autocast" if enabled else "autocast off"
        case Branch(_, _, holds):
            return "if" if holds else "else"
        case Loop():
            return "for"


def _bucket_storage(letters: dict[int, str], number: int, storage: Storage) -> str:
    if number in letters:
        return letters[number]
    letters[number] = _LETTERS[len(letters) % len(_LETTERS)]
    words = [letters[number]]
    if storage.dtype != "float32":
        words.append(storage.dtype)
    if storage.requires_grad:
        words.append("grad")
    if not storage.leaf:
        words.append("detached" if storage.detached else "nonleaf")
    if storage.values != "plain":
        words.append(storage.values)
    if storage.inference:
        words.append("inference")
    return ":".join(words) + _extent(storage.size)


def _extent(size: tuple[int, ...]) -> str:
    if not size:
        return ":0d"
    return ":empty" if 0 in size else ""


def _frame(stack: str) -> str:
    """The innermost frame of a faulthandler stack, as file name and function."""
    found = re.search(r'File "([^"]*)", line \d+ in (\S+)', stack)
    return f"{found[1].rsplit('/', 1)[-1]}:{found[2]}" if found else ""
