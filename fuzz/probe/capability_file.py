"""Capability file: what a target supports, trait by trait, as TOML that people can edit.

A table is a group of traits, a key is a trait, and its value says what becomes of programs with it. Texts of
the target's exceptions are only in comments.

    format = 1
    target = "openvino"
    [dtype]
    "complex64" = "refused"  # NotImplementedError: complex tensors
    "float32" = "supported"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fuzz.errors import CapabilityFileError
from fuzz.features.traits import TRAITS
from fuzz.probe.ask import LEFT_OUT, STATES, Answer
from fuzz.safe_text import one_line

FORMAT = 1
MAX_BYTES = 1 << 20
_HEAD = """\
# What the target {target} takes, as `aotfuzz probe` found it with torch {torch}.
#
# Each line is a trait of programs (`aotfuzz traits` explains them), asked for by itself:
{states}
#
# `aotfuzz run --target {target} --capabilities {file}` draws no
# program that has a trait which is marked {left_out}.
# Edit a word to change that: "refused" leaves a trait out, "supported" lets it in. A line that is removed
# counts as supported.
"""


def capability_text(target: str, torch: str, answers: Sequence[Answer], file: Path) -> str:
    """The text of a capability file. Equal answers give equal text."""
    states = "\n".join(f"#   {state:10} {meaning}" for state, meaning in STATES.items())
    left_out = f"{', '.join(LEFT_OUT[:-1])} or {LEFT_OUT[-1]}"
    head = _HEAD.format(
        target=one_line(target),
        torch=one_line(torch),
        states=states,
        file=one_line(file.name),
        left_out=left_out,
    )
    lines = [head, f"format = {FORMAT}", f"target = {_quoted(target)}", f"torch = {_quoted(torch)}"]
    by_trait = {answer.trait: answer for answer in answers}
    tables: dict[str, list[str]] = {}
    for trait in TRAITS:
        if (answer := by_trait.get(trait)) is not None:
            table, _, key = trait.partition(": ")
            comment = f"  # {one_line(answer.message)}" if answer.message else ""
            tables.setdefault(table, []).append(f"{_quoted(key)} = {_quoted(answer.state)}{comment}")
    for table, rows in tables.items():
        lines += ["", f"[{table}]", *rows]
    return "\n".join(lines) + "\n"


def read_lacked_traits(file: Path) -> tuple[str, ...]:
    """The traits that a capability file excludes, in the order of `fuzz.features.traits.TRAITS`.

    Raises:
        CapabilityFileError: the file cannot be read, is no TOML, or has an unknown table, trait or word.
    """
    data = _read_toml(file)
    given = data.pop("format", None)
    if type(given) is not int or given != FORMAT:
        raise CapabilityFileError(
            file, "format", f"not a capability file of format {FORMAT}", "`aotfuzz probe` writes one"
        )
    for name in ("target", "torch"):
        if not isinstance(data.pop(name, ""), str):
            raise CapabilityFileError(file, name, "not a text", "put it between quotes, or remove the line")
    known = {trait: trait for trait in TRAITS}
    groups = dict.fromkeys(trait.partition(": ")[0] for trait in TRAITS)
    lacked = set()
    for table, rows in data.items():
        if table not in groups or not isinstance(rows, dict):
            raise CapabilityFileError(
                file, table, "no group of traits", f"there are the tables {', '.join(groups)}"
            )
        for key, state in rows.items():
            trait = f"{table}: {key}"
            if trait not in known:
                raise CapabilityFileError(file, f"{table}.{key}", "no such trait", _way_out(trait))
            if not isinstance(state, str) or state not in STATES:
                words = ", ".join(STATES)
                raise CapabilityFileError(
                    file, f"{table}.{key}", f"{state!r} says nothing of a trait", f"one of {words}"
                )
            if state in LEFT_OUT:
                lacked.add(trait)
    return tuple(trait for trait in TRAITS if trait in lacked)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise CapabilityFileError(
            file, "", f"cannot be read: {error.strerror or error}", "`aotfuzz probe` writes one"
        ) from error
    if len(raw) > MAX_BYTES:
        raise CapabilityFileError(file, "", f"larger than {MAX_BYTES} bytes", "`aotfuzz probe` writes one")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CapabilityFileError(file, "", f"not TOML: {error}", "mend that line") from error
    except RecursionError as error:
        raise CapabilityFileError(file, "", "nested too deeply", "a table holds lines alone") from error


def _way_out(trait: str) -> str:
    close = get_close_matches(trait, TRAITS, 1)
    return f"{close[0]!r} is one" if close else "`aotfuzz traits` lists them"


def _quoted(text: str) -> str:
    """A text as a basic string of TOML."""
    shown = json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)
    return shown.replace("\x7f", "\\u007F")
