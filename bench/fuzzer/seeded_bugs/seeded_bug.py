"""What a fault is: one mistake in one module of `aot`, as a text to find and a text to put in its place."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class FaultError(Exception):
    """A fault does not fit the module that it is to be made in: that has changed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake.

    Attributes:
        name: of the fault, a few words.
        stage: which stage of `aot` it is in, as docs/explanation/overview.md has them.
        module: the module, e.g. ``aot.runtime.codegen.wrapper``.
        find: what stands there, once in the module.
        replace: what stands there instead.
        clauses: those of the contract that are broken; one of them is to be found.
        wrong: what it does, in a sentence.
        target: the target of the fuzzer that comes by there.
    """

    name: str
    stage: str
    module: str
    find: str
    replace: str
    clauses: tuple[str, ...]
    wrong: str
    target: str = "aot"

    def place(self, source: str) -> int:
        """Where the text is in the module's source.

        Raises:
            FaultError: the text is not there, or there more than once.
        """
        count = source.count(self.find)
        if count != 1:
            raise FaultError(
                f"the text of fault {self.name!r} is {count} times in {self.module}, and not once; look at "
                f"what has become of it there, and write the fault anew"
            )
        return source.index(self.find)


@dataclass(frozen=True, slots=True)
class Faulty:
    """A module's source with faults in it, and the lines that these begin in, counted from 1."""

    source: str
    lines: tuple[int, ...]


def make(faults: Sequence[Fault], source: str) -> Faulty:
    """A module's source with some of its faults in it.

    Raises:
        FaultError: one does not fit the module; or two of them change the same words.
    """
    parts: list[str] = []
    lines = {}
    done = 0
    for fault in sorted(faults, key=lambda one: one.place(source)):
        start = fault.place(source)
        if start < done:
            raise FaultError(f"fault {fault.name!r} changes words that another one changes; make one of them")
        parts.append(source[done:start])
        lines[fault] = 1 + sum(part.count("\n") for part in parts)
        parts.append(fault.replace)
        done = start + len(fault.find)
    return Faulty("".join((*parts, source[done:])), tuple(lines[fault] for fault in faults))


def overlap(one: Fault, other: Fault) -> bool:
    """Whether two faults change the same words, so that only one of them can be made at a time."""
    if one.module != other.module:
        return False
    source = source_of(one.module)
    first, second = sorted((one, other), key=lambda fault: fault.place(source))
    return second.place(source) < first.place(source) + len(first.find)


@functools.cache
def source_of(module: str) -> str:
    """The source of a module as it is on disk; the module is not imported, nor what it lies in.

    Raises:
        FaultError: there is no such module.
    """
    package, *rest = module.split(".")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise FaultError(f"there is no package {package}; install the project")
    folder = Path(found.origin).parent
    places = (folder.joinpath(*rest).with_suffix(".py"), folder.joinpath(*rest, "__init__.py"))
    for place in places:
        if rest and place.is_file():
            return place.read_text(encoding="utf-8")
    raise FaultError(f"there is no module {module}; look where it has gone, and write its faults anew")
