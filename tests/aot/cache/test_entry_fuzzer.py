"""The fuzzer of entries of the cache: it finds nothing, and it can."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.cache import graph_codec
from aot.cache.entry import CacheEntry
from tests.support.aot import entry_fuzzer, entry_mutator
from tests.support.aot.entry_fuzzer import Worker, fuzz


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    return Worker(tmp_path_factory.mktemp("caches"))


@pytest.fixture
def worker(one_worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.chdir(tmp_path)
    one_worker.counts.clear()
    one_worker.findings.clear()
    return one_worker


def test_nothing_is_found_in_entries_that_are_changed(worker: Worker) -> None:
    for seed in range(40):
        worker.one(seed)
    assert worker.findings == []
    assert worker.counts["mutations"] > 30
    assert worker.counts["sealed: dropped"] > worker.counts["sealed: taken"] > 0
    assert worker.counts["strange: dropped"] > 4


def find(worker: Worker, problem: str, change: Any, case: str = "differentiates") -> bool:
    """Whether a change of an entry is found."""
    chosen = next(one for one in worker.cases if one.name == case)
    file, good, wanted = worker.good[case]
    changed = entry_fuzzer.copy.deepcopy(good)
    change(changed)
    text = entry_fuzzer.json.dumps(changed).encode()
    whole = entry_fuzzer.folders._HEAD + entry_fuzzer.seal.seal(
        entry_fuzzer.seal.seal_secret(), file.stem, text
    )
    found = worker._run(chosen, file, whole + b"\n" + text, "sealed", wanted)
    return any(problem in one for one in found)


def opens_a_file(content: Any) -> None:
    nodes = content[1][5]
    content[1][1].append(["aten::from_file", "default"])
    node = ["call_function", "added", len(content[1][1]) - 1, [entry_fuzzer.WORD, True, 5], [], 0, None]
    nodes.insert(-1, node)


def says_the_word(content: Any) -> None:
    for node in content[1][5]:
        if node[0] == "placeholder":
            node[1] = node[2] = f"{entry_fuzzer.WORD}_1"


def test_an_operator_that_opens_a_file_is_found(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not find(worker, "", opens_a_file)
    monkeypatch.setattr(graph_codec, "_may_graph_call", lambda node, operators: True)
    assert find(worker, "a graph has aten::from_file", opens_a_file)


def test_text_that_is_compiled_is_found(worker: Worker) -> None:
    sources = (f"{entry_fuzzer.WORD} = 1", repr(entry_mutator.CODE), f"x = {{ {entry_fuzzer.WORD}")
    found = []
    for source in sources:
        worker.watch.found, worker.watch.on = [], True
        with contextlib.suppress(SyntaxError):
            compile(source, "<test>", "exec")
        worker.watch.on = False
        found.append(len(worker.watch.found))
    assert found == [1, 0, 1]


def test_what_a_process_does_is_found(worker: Worker, tmp_path: Path) -> None:
    deeds: tuple[Callable[[], object], ...] = (
        lambda: (tmp_path / "file").write_text(""),
        lambda: os.open(tmp_path / "file", os.O_WRONLY),
        functools.partial(os.system, "true"),
        functools.partial(__import__, entry_fuzzer.WORD),
        (tmp_path / "file").read_text,
    )
    found = []
    for deed in deeds:
        worker.watch.found, worker.watch.on = [], True
        with contextlib.suppress(ImportError):
            deed()
        worker.watch.on = False
        found.append(bool(worker.watch.found))
    assert found == [True, True, True, True, False]


def test_an_exception_of_the_compile_is_found(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any) -> Any:
        raise KeyError("no such thing")

    monkeypatch.setattr(CacheEntry, "read", fails)
    assert find(worker, "the compile raises KeyError", says_the_word)


def test_another_result_of_what_is_dropped_is_found(worker: Worker) -> None:
    chosen, (file, _, wanted) = worker.cases[0], worker.good[worker.cases[0].name]
    other = [one + 1 if isinstance(one, torch.Tensor) else one for one in wanted]
    found = worker._run(chosen, file, b"", "sealed", other)
    assert any("dropped, and another result" in one for one in found)


def test_a_worker_that_dies_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "dies.py"
    script.write_text("import os; print('at 7', flush=True); os.abort()")
    counts: Any = entry_fuzzer.collections.Counter()
    command = [entry_fuzzer.sys.executable, str(script)]
    assert entry_fuzzer._follow(command, dict(os.environ), counts, []) == (7, -6)
    monkeypatch.setattr(entry_fuzzer, "HANG", 1.0)
    script.write_text("import time; print('at 8', flush=True); time.sleep(600)")
    assert entry_fuzzer._follow(command, dict(os.environ), counts, []) == (8, None)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_nothing_is_found_in_an_hour() -> None:
    """(Of another night, other mutations; `ENTRY_FUZZER_SECONDS` is for shorter ones.)"""
    seconds = float(os.environ.get("ENTRY_FUZZER_SECONDS", "3600"))
    found = fuzz(int(time.time()), seconds)
    print(found["counts"], *found["findings"], sep="\n")  # all of them: an hour is not soon run again
    assert found["findings"] == []
    assert found["counts"]["mutations"] > seconds / 10
