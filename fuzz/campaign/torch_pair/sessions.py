"""Sessions: one session of a comparison: check the interpreters, run both campaigns, examine differences.

    begin_comparison(Path("candidate"), ("old/bin/python", "new/bin/python"), configuration, print)
    resume_comparison(Path("candidate"), print)

The campaigns run one after the other, each with all workers, so that both have the same machine. Then each
program runs in eager alone under both. Of the cases with a transition some are reduced, with both versions
available. A session that is interrupted raises KeyboardInterrupt after its processes have ended, and what it
stored counts.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.campaign.configuration import DEFAULT_BUDGET, Configuration, campaign_versions
from fuzz.campaign.investigate import investigate
from fuzz.campaign.ledger import Group, Ledger, raw_finding
from fuzz.campaign.store import FILE as CAMPAIGN
from fuzz.campaign.store import Store
from fuzz.campaign.torch_pair.campaign_probe import require_campaign
from fuzz.campaign.torch_pair.eager_pass import compare_eagers
from fuzz.campaign.torch_pair.folder import (
    SIDES,
    SOURCE,
    PairExample,
    Request,
    add_eager,
    add_example,
    is_comparison,
    read_eager,
    read_examples,
    read_request,
    write_request,
)
from fuzz.campaign.torch_pair.remote_runner import PairedRunner, RemoteRunner
from fuzz.campaign.torch_pair.transitions import CasePair, Kind, case_pairs, transition_ledgers
from fuzz.campaign.workers import handlers
from fuzz.errors import InterpreterError, StoreError, WorkersLost
from fuzz.interpreters import Interpreter, environment_with_source, find_interpreter, write_source_copy
from fuzz.safe_text import shell_command

Watch = Callable[[str], None]
# Seconds between two lines of progress.
_PACE = 10.0


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both interpreters, after the check, and the environment in which they import this aotfuzz."""

    before: Interpreter
    after: Interpreter
    environment: Mapping[str, str]


def begin_comparison(
    folder: Path, pythons: tuple[str, str], configuration: Configuration, watch: Watch
) -> list[str]:
    """Run a comparison in a new folder. `watch` gets its progress in words.

    Returns:
        The fuzzer's own mistakes on the way, as tracebacks.

    Raises:
        InterpreterError: an interpreter cannot run the campaign.
        StoreError: the folder holds a comparison or a campaign, or cannot be written.
    """
    if is_comparison(folder) or (folder / CAMPAIGN).exists():
        raise StoreError(
            f"{folder} already holds {'a comparison' if is_comparison(folder) else 'a campaign'}; "
            f"choose another folder with --out, or go on with: {shell_command('aotfuzz', 'resume', folder)}"
        )
    before, after = map(find_interpreter, pythons)
    new = not folder.exists()
    try:
        sides = _checked_sides(folder, before, after, configuration)
    except BaseException:
        shutil.rmtree(folder if new else folder / SOURCE, ignore_errors=True)
        raise
    aotfuzz = {key: value for key, value in campaign_versions().items() if key in ("aotfuzz", "commit")}
    write_request(folder, Request((str(before.python), str(after.python)), configuration, aotfuzz))
    return _run_session(folder, configuration, sides, watch)


def resume_comparison(
    folder: Path, watch: Watch, *, cases: int | None = None, jobs: int | None = None
) -> list[str]:
    """Continue a comparison. With `cases`, both campaigns run until they have so many.

    The result and the errors are those of `begin_comparison`. InterpreterError is raised too if an
    interpreter now has another torch.
    """
    request = read_request(folder)
    configuration = request.configuration
    configuration = replace(
        configuration, cases=cases or configuration.cases, jobs=jobs or configuration.jobs
    )
    before, after = map(find_interpreter, request.pythons)
    for name, interpreter in zip(SIDES, (before, after), strict=True):
        _require_same_torch(folder / name, interpreter)
    sides = _checked_sides(folder, before, after, configuration)
    write_request(folder, replace(request, configuration=configuration))
    return _run_session(folder, configuration, sides, watch)


def _checked_sides(
    folder: Path, before: Interpreter, after: Interpreter, configuration: Configuration
) -> _Sides:
    """Both sides, after each has made the first programs with the copy of this aotfuzz, and these are
    equal.
    """
    source = folder / SOURCE
    try:
        write_source_copy(source)
    except OSError as error:
        raise StoreError(f"cannot write {source}: {error}; choose another with --out") from error
    made = [require_campaign(side, source, configuration) for side in (before, after)]
    if made[0] != made[1]:
        raise InterpreterError(
            f"{before.python} and {after.python} make other programs of the same seed; "
            "this is a mistake in aotfuzz"
        )
    return _Sides(before, after, environment_with_source(source))


def _require_same_torch(campaign: Path, interpreter: Interpreter) -> None:
    if not (campaign / CAMPAIGN).is_file():
        return
    with Store.read(campaign) as store:
        torch = store.get("versions")["torch"]
    if torch != interpreter.torch:
        raise InterpreterError(
            f"{campaign} was run with torch {torch}, and {interpreter.python} now has {interpreter.torch}; "
            "run a comparison of its own"
        )


def _run_session(folder: Path, configuration: Configuration, sides: _Sides, watch: Watch) -> list[str]:
    with _signals_interrupting():
        for name, interpreter in zip(SIDES, (sides.before, sides.after), strict=True):
            watch(f"{name}: torch {interpreter.torch}, {interpreter.python}")
            _run_campaign_of_side(folder / name, interpreter, configuration, sides.environment)
        with ExitStack() as running:
            before, after = (
                running.enter_context(
                    RemoteRunner(interpreter, sides.environment, configuration, folder / f"{name}.log")
                )
                for name, interpreter in zip(SIDES, (sides.before, sides.after), strict=True)
            )
            _compare_all_eagers(folder, configuration, before, after, watch)
            return _investigate_transitions(folder, configuration, before, after, watch)


def _run_campaign_of_side(
    folder: Path, interpreter: Interpreter, configuration: Configuration, environment: Mapping[str, str]
) -> None:
    """Run a campaign, or the rest of it, to its end in a process of its own.

    Raises:
        InterpreterError: it ended early by itself.
    """
    words = ["--cases", str(configuration.cases), "--jobs", str(configuration.jobs), "--known", "none"]
    if (folder / CAMPAIGN).is_file():
        if _is_campaign_complete(folder, configuration):
            return
        words = ["resume", str(folder), *words]
    else:
        targets = [word for target in configuration.targets for word in ("--target", target)]
        words = ["run", *targets, "--seed", str(configuration.seed), *words]
        words += ["--profile", configuration.profile, "--device", configuration.device]
        words += ["--case-timeout", str(configuration.limit), "--out", str(folder)]
    # In a session of its own it gets no Ctrl-C. This process gets it, and passes it on.
    process = subprocess.Popen(
        [str(interpreter.python), "-P", "-m", "fuzz.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.terminate()  # the process may ignore SIGINT, as processes in a shell's background do
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
        raise
    if not ((folder / CAMPAIGN).is_file() and _is_campaign_complete(folder, configuration)):
        raise InterpreterError(
            f"the campaign under {interpreter.python} (torch {interpreter.torch}) ended early, "
            f"with status {status}"
        )


def _is_campaign_complete(folder: Path, configuration: Configuration) -> bool:
    with Store.read(folder) as store:
        return store.get("ended") == "complete" and store.configuration.cases == configuration.cases


def _compare_all_eagers(
    folder: Path, configuration: Configuration, before: RemoteRunner, after: RemoteRunner, watch: Watch
) -> None:
    """Compare the two eagers on each program that is not compared yet."""
    assert configuration.cases is not None
    known = read_eager(folder)
    left = [index for index in range(configuration.cases) if index not in known]
    lock = threading.Lock()
    paced = _Pace(watch, "eager alone", configuration.cases, len(known))

    def compare(index: int) -> None:
        with lock:
            program = handlers.program(configuration.seed, index, configuration.profile, configuration.device)
        case = compare_eagers(index, program, before, after)
        with lock:
            add_eager(folder, case)
            paced.advance()

    _run_in_threads(2 * configuration.jobs, compare, left)


def _investigate_transitions(
    folder: Path, configuration: Configuration, before: RemoteRunner, after: RemoteRunner, watch: Watch
) -> list[str]:
    """Reduce the due cases of each group of transitions, with both versions available."""
    stored = read_examples(folder)
    lock = threading.Lock()
    troubles: list[str] = []
    budget = replace(DEFAULT_BUDGET, seconds=math.inf)
    with Store.read(folder / SIDES[0]) as one, Store.read(folder / SIDES[1]) as other:
        ledgers = transition_ledgers(case_pairs(one, other), one, other)
    work: list[_GroupOfCases] = []
    for kind, (ledger, cases) in ledgers.items():
        ledger.restore(stored.get(kind, {}))
        due = (group for group in ledger.groups.values() if group.due())
        work += (_GroupOfCases(kind, ledger, group, cases) for group in due)
    paced = _Pace(watch, "groups of cases that differ, reduced", len(work), 0)

    def investigate_group(work: _GroupOfCases) -> None:
        own, there = (before, after) if work.kind is Kind.GONE else (after, before)
        while work.group.due():
            with lock:
                suspect = work.ledger.suspect(work.group)
            expected = work.cases[suspect.target, suspect.index].other.seen
            try:
                example = investigate(suspect, PairedRunner(own, there, expected), budget)
            except WorkersLost:
                raise
            except Exception:
                troubles.append(traceback.format_exc())
                example = raw_finding(suspect)
            work.group.take(example)
            with lock:
                add_example(folder, PairExample(work.kind, example))
        with lock:
            paced.advance()

    _run_in_threads(configuration.jobs, investigate_group, work)
    return troubles


@dataclass(frozen=True, slots=True)
class _GroupOfCases:
    """Cases with the same transition, their ledger, and all cases of their kind."""

    kind: Kind
    ledger: Ledger
    group: Group
    cases: Mapping[tuple[str, int], CasePair]


class _Pace:
    """Reports the progress of a part of the session, every few seconds and at its end."""

    def __init__(self, watch: Watch, what: str, total: int, done: int) -> None:
        self._watch = watch
        self._what = what
        self._total = total
        self._done = done
        self._told = time.monotonic()

    def advance(self) -> None:
        """Count one more."""
        self._done += 1
        now = time.monotonic()
        if now - self._told >= _PACE or self._done == self._total:
            self._told = now
            self._watch(f"{self._what}: {self._done} of {self._total}")


def _run_in_threads(at_once: int, function: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call a function with each item, `at_once` at a time. The first exception ends it and is raised."""
    threads = ThreadPoolExecutor(at_once)
    try:
        for future in [threads.submit(function, item) for item in items]:
            future.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _signals_interrupting() -> Iterator[None]:
    """While it lasts, SIGTERM ends a session as Ctrl-C does.

    SIGINT does so too if it is ignored, as for processes in a shell's background.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {kind: signal.signal(kind, interrupt) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
