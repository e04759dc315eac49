"""What a fault is: one mistake in one module of `aot`, as a text to find and a text to put in its place."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


class FaultError(Exception):
    """A fault does not fit the module that it is to be made in: that has changed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake.

    Attributes:
        name: of the fault, a few words.
        stage: which stage of `aot` it is in, as docs/architecture.md has them.
        module: the module, e.g. ``aot.runtime.codegen``.
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

    def made_in(self, source: str) -> str:
        """The module's source with the fault in it.

        Raises:
            FaultError: the text is not there, or there more than once.
        """
        count = source.count(self.find)
        if count != 1:
            raise FaultError(
                f"the text of fault {self.name!r} is {count} times in {self.module}, and not once; look at "
                f"what has become of it there, and write the fault anew"
            )
        return source.replace(self.find, self.replace)

    def first_line(self, source: str) -> int:
        """The line of the module that the fault begins in, counted from 1."""
        return source[: source.index(self.find)].count("\n") + 1


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
