"""The import hook that makes a fault: nothing on disk changes, and no other process sees it.

    installed = install(fault)
    import aot              # with the fault in it
    installed.reached()     # whether its lines have been run since this was last asked

Python asks the finders on `sys.meta_path` before its own ones. Ours knows one module, the fault's; its loader
takes the source from disk, puts the fault in and compiles that, past the cache of compiled modules. Before
the innermost statement that has the fault's first line it puts a call, which notes that this is reached.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType

from bench.fuzzer.seeded_bugs.seeded_bug import Fault, FaultError, make, source_of

NOTE = "_fault_is_reached"


class Installed:
    """A fault that is made as soon as its module is imported."""

    def __init__(self) -> None:
        self._reached = False

    def note(self, _: str) -> None:
        """The fault's lines are about to run."""
        self._reached = True

    def reached(self) -> bool:
        """Whether they have been run since this was last asked."""
        was, self._reached = self._reached, False
        return was


def install(fault: Fault) -> Installed:
    """From here on, the fault's module is imported with the fault in it.

    Raises:
        FaultError: a part of `aot` has been imported already; or the fault does not fit its module.
    """
    loaded = [name for name in sys.modules if name.split(".")[0] == "aot"]
    if loaded:
        raise FaultError(
            f"fault {fault.name!r} cannot be made, as {loaded[0]} has been imported; install it in a process "
            f"that has not"
        )
    make([fault], source_of(fault.module))
    installed = Installed()
    sys.meta_path.insert(0, _Finder(fault, installed))
    return installed


class _Finder(MetaPathFinder):
    def __init__(self, fault: Fault, installed: Installed) -> None:
        self._fault = fault
        self._installed = installed

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The fault's module, and no other."""
        if name != self._fault.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            raise FaultError(f"there is no source of {name} for fault {self._fault.name!r}")
        loader = _Loader(self._fault, self._installed, spec.origin)
        folders = spec.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name, spec.origin, loader=loader, submodule_search_locations=folders
        )


class _Loader(Loader):
    # (Compiled modules are cached by `importlib.abc.SourceLoader`, which this is not.)

    def __init__(self, fault: Fault, installed: Installed, path: str) -> None:
        self._fault = fault
        self._installed = installed
        self._path = path

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's source with the fault in it."""
        source = Path(self._path).read_text(encoding="utf-8")
        setattr(module, NOTE, self._installed.note)
        exec(compiled([self._fault], source, self._path), module.__dict__)


def compiled(faults: Sequence[Fault], source: str, path: str) -> CodeType:
    """The code of a module with faults in it, which calls `NOTE` with a fault's name where this is reached.

    Args:
        faults: of this module.
        source: of the module without them.
        path: where that is, for tracebacks.

    Raises:
        FaultError: a fault does not fit the source, or does not begin at a statement; or two of them change
            the same words.
    """
    faulty = make(faults, source)
    tree = ast.parse(faulty.source, path)
    for fault, line in zip(faults, faulty.lines, strict=True):
        _note_before(tree.body, line, fault.name)
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def _note_before(statements: list[ast.stmt], line: int, name: str) -> None:
    """Put the call before the innermost statement that has a line."""
    for i, one in enumerate(statements):
        if one.lineno <= line <= (one.end_lineno or one.lineno):
            blocks = list(_blocks(one))
            inner = next((b for b in blocks if b[0].lineno <= line <= (b[-1].end_lineno or 0)), None)
            if inner is None:
                call = ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(name)], []))
                statements.insert(i, ast.copy_location(call, one))
            else:
                _note_before(inner, line, name)
            return
    raise FaultError(f"line {line} of the faulty module is in no statement; let the fault begin at one")


def _blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of statements in a statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block and isinstance(block, list):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(statement, name, ()):
            yield from _blocks(part)
