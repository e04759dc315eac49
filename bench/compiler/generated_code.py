"""Generated code: record the graphs, wrappers and tests that `aot` makes, as texts that can be compared.

Graphs and wrappers come from the loggers of `aot`. The sources of its tests (guards, the inline cache, sizes)
and of the functions that `aot.nop` makes are taken where `aot` executes them, as no logger has these. Nothing
here names a module, class or function of `aot` that is not public, so that the same record can be made before
and after a refactoring.

    watch_sources()
    with CodeRecorder() as recorder:
        aot.aot_function(torch.sin, aot.nop)(torch.ones(2))
    recorder.texts()["wrapper"]
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import weakref
from contextlib import ExitStack
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import torch

import aot

GRAPHS, JOINT, WRAPPER, GUARDS, METADATA, OUTCOME = (
    *("graphs", "joint", "wrapper", "guards", "metadata", "outcome"),
)
PARTS = (GRAPHS, JOINT, WRAPPER, GUARDS, METADATA, OUTCOME)

_LOGGERS = {"aot.graphs": GRAPHS, "aot.joint": JOINT, "aot.wrapper": WRAPPER, "aot.guards": GUARDS}
_GRAPH_FILE = "<graph>"  # the name under which `aot.nop` compiles a graph
_SECTION = re.compile(r"^---- (.*)$", re.MULTILINE)
_LOGGED_SECTIONS = ("forward graph", "backward graph", "wrapper")

_COUNTER = re.compile(r"\d+")  # in titles: compiles in this process
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_HOOK = re.compile(r"(_hooks)\[\d+\]")  # torch counts the hooks of a process
_OWN_LINE = re.compile(r"# File: bench/[\w/]+\.py:\d+ in")
_FOLDERS = (Path(aot.__file__).parents[1], Path(torch.__file__).parents[1], Path(logging.__file__).parents[1])


class CodeRecorder(logging.Handler):
    """Record what `aot` generates while this is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, list[str]] = {part: [] for part in PARTS}
        self._wrappers: set[str] = set()
        self._entered = ExitStack()

    def add(self, part: str, text: str) -> None:
        """Record a text."""
        self._texts[part].append(text.strip())

    def add_error(self, error: BaseException) -> None:
        """Record an exception: its type and message."""
        self.add(OUTCOME, f"{type(error).__name__}: {error}")

    def add_explanation(self, compiled: aot.CompiledFunction) -> None:
        """Record what `aot.explain` prints, but for what is logged."""
        _, *sections = _SECTION.split(aot.explain(compiled))
        for title, text in zip(sections[::2], sections[1::2], strict=True):
            if not title.startswith(_LOGGED_SECTIONS):
                self.add(METADATA, f"# {title}{text.partition('====')[0].rstrip()}")

    def add_source(self, source: str, file: str) -> None:
        """Record a source that `aot` executes, unless it is a wrapper."""
        if source.strip() not in self._wrappers:
            self.add(GRAPHS if file == _GRAPH_FILE else GUARDS, source)

    def emit(self, record: logging.LogRecord) -> None:
        """Record what `aot` logs."""
        title, _, text = record.getMessage().partition("\n")
        part = _LOGGERS[record.name]
        if part == WRAPPER:
            self._wrappers.add(text)
        self.add(part, f"# {_COUNTER.sub('', title)}\n{text}")

    def texts(self) -> dict[str, str]:
        """The text of each part that there is."""
        return {part: normalize("\n\n".join(texts)) + "\n" for part, texts in self._texts.items() if texts}

    def __enter__(self) -> CodeRecorder:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            self._entered.callback(logger.setLevel, logger.level)
            self._entered.enter_context(patch.object(logger, "propagate", False))
            self._entered.callback(logger.removeHandler, self)
            logger.setLevel(logging.DEBUG)
            logger.addHandler(self)
        _recorders.append(self)
        self._entered.callback(_recorders.remove, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()


_recorders: list[CodeRecorder] = []
# Code that `aot` has executed, by id, with its source: it may be executed again much later.
_sources: dict[int, str] = {}
_compiled: dict[str, str] = {}  # the source that `aot` has compiled last, by file


@functools.cache
def watch_sources() -> None:
    """From here on, recorders are told of each source that `aot` executes.

    To be called before `aot` compiles anything. It is an audit hook of Python's, which stays until the
    process ends. The code that runs does not see it: a function in the place of `exec` would be looked at by
    `aot`, as all that a compiled function calls.
    """
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("compile", "exec"):
        return
    if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] != "aot":
        return
    if event == "compile":
        source, file = arguments
        if isinstance(source, bytes):  # (as the parser gets it)
            source = source.decode()
        if isinstance(source, str):
            _compiled[str(file)] = source
        return
    (code,) = arguments
    file = code.co_filename
    source = _sources.get(id(code))
    if source is None:
        source = _sources[id(code)] = _compiled.pop(file, "") or _outline(code)
        weakref.finalize(code, _sources.pop, id(code), None)
    for recorder in _recorders:
        recorder.add_source(source, file)


def _outline(code: CodeType) -> str:
    """What can be told of code that was compiled before sources were watched."""
    parts = (one for one in code.co_consts if isinstance(one, CodeType))
    return "\n".join(f"{one.co_name}: {one.co_names} {one.co_consts}" for one in parts)


def normalize(text: str) -> str:
    """A text without what may differ from one process or tree to another.

    That is addresses, folders, numbers of hooks, lines of this benchmark, and the modules that internal
    names of `aot` are qualified with, as Python prints them (`aot.package.module.name`) and as FX does
    (`aot_package_module_name`).
    """
    text = _ADDRESS.sub("0x", text)
    text = _HOOK.sub(r"\1[n]", text)
    for folder in sorted(map(str, _FOLDERS), key=len, reverse=True):  # one may lie in another
        text = text.replace(f"{folder}/", "")
    text = _OWN_LINE.sub("# File: bench, in", text)
    internal = (name for name in sys.modules if name.startswith("aot.") and name[4:] not in aot.__all__)
    return _qualifiers(frozenset(internal)).sub("aot.", text)


@functools.lru_cache(maxsize=1)
def _qualifiers(names: frozenset[str]) -> re.Pattern[str]:
    """One of these modules, before a name in it."""
    either = (re.escape(name).replace(r"\.", "[._]") for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"\b(?:{'|'.join(either)})[._](?=[A-Za-z_])")
