"""Programs run under another interpreter: answers find who asked, and a process that ends is said."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.torch_pair.remote_runner import PairedRunner, RemoteRunner
from fuzz.campaign.workers import handlers
from fuzz.errors import PoolError, WorkersLost
from fuzz.interpreters import Interpreter
from oracles import Finding
from tests.support.fuzz.interpreters import write_script
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, SINE

ROOT = Path(__file__).parents[4]
HERE = Interpreter(Path(sys.executable), "3", "2.0")
LOSING = "tests.fuzz.bad_targets:drops_mutation"
FINDING = Finding("values", "out", "1.0", "2.0", "out: 1.0 in eager, 2.0 in the target")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteRunner]:
    log = tmp_path_factory.mktemp("log") / "log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    configuration = Configuration(targets=("eager",), cases=1, jobs=1, limit=60.0)
    with RemoteRunner(HERE, environment, configuration, log) as started:
        yield started


def test_programs_run_there(runner: RemoteRunner) -> None:
    assert runner.run(SINE, "eager").outcome == "agree"
    seen = runner.run(DOUBLE_IN_PLACE, LOSING)
    assert seen.signature == "input-data/arg elements"
    assert seen.findings[0].clause == "input-data"


def test_items_are_handled_there(runner: RemoteRunner) -> None:
    digest = runner.handle(handlers.eager_digest_item(SINE))
    assert digest == runner.handle(handlers.eager_digest_item(SINE)), "an answer says nothing of its question"
    assert digest != runner.handle(handlers.eager_digest_item(DOUBLE_IN_PLACE))
    observed = runner.handle(handlers.eager_item(SINE))["value"]
    judged = runner.handle(handlers.judge_eager_item(SINE, observed))["value"]
    assert judged["outcome"] == "agree"
    assert "no observation" not in str(judged)
    assert "not an observation" in runner.handle(handlers.judge_eager_item(SINE, [None]))["failed"]


def test_a_mistake_of_the_fuzzer_is_raised(runner: RemoteRunner) -> None:
    with pytest.raises(PoolError, match="no target named 'no-such'"):
        runner.run(SINE, "no-such")


def test_a_process_that_ends_is_said(tmp_path: Path) -> None:
    silent = Interpreter(write_script(tmp_path / "python", "echo no torch here >&2"), "3", "2.0")
    configuration = Configuration(targets=("eager",), cases=1)
    with pytest.raises(PoolError, match=r"no worker starts under .*: no torch here \(.*log\)"):
        RemoteRunner(silent, os.environ, configuration, tmp_path / "log")
    dying = write_script(tmp_path / "dying", "echo '{\"ready\": true}'; read line; kill -9 $$")
    runner = RemoteRunner(Interpreter(dying, "3", "2.0"), os.environ, configuration, tmp_path / "log")
    with pytest.raises(WorkersLost, match="have ended"):
        runner.run(SINE, "eager")
    with pytest.raises(WorkersLost, match="have ended"):
        runner.run(SINE, "eager")
    runner.close()


class _Giving:
    """Gives the same for every program."""

    limit = 5.0
    interpreter = HERE

    def __init__(self, seen: RunOutcome, *, shows: bool = True) -> None:
        self.seen = seen
        self.showing = shows
        self.runs = 0

    def run(self, *_: Any, **__: Any) -> RunOutcome:
        self.runs += 1
        return self.seen

    def shows(self, *_: Any) -> bool:
        return self.showing


def _finding(signature: str = "values/out") -> RunOutcome:
    return RunOutcome("finding", signature, (FINDING,), "it", 0.1)


AGREE = RunOutcome("agree", "", (), "agree", 0.1)


def _paired(own: _Giving, other: _Giving, expected: RunOutcome) -> PairedRunner:
    return PairedRunner(cast(RemoteRunner, own), cast(RemoteRunner, other), expected)


def test_a_difference_counts_while_the_other_torch_does_as_it_did() -> None:
    assert _paired(_Giving(_finding()), _Giving(AGREE), AGREE).run(SINE, "aot") == _finding()
    both = _paired(_Giving(_finding()), _Giving(_finding()), AGREE).run(SINE, "aot")
    assert (both.outcome, both.signature, both.findings) == ("poisoned", "", ())
    assert both.reason == "torch 2.0 does not do as in the case: values/out"
    changed = _paired(_Giving(_finding()), _Giving(_finding("strides/out")), _finding("strides/out"))
    assert changed.run(SINE, "aot").signature == "values/out"


def test_the_other_torch_is_asked_only_where_there_is_a_difference() -> None:
    other = _Giving(AGREE)
    assert _paired(_Giving(AGREE), other, AGREE).run(SINE, "aot") == AGREE
    assert other.runs == 0


@pytest.mark.parametrize(
    ("own", "other", "expected", "shown"),
    [
        (True, False, AGREE, True),
        (True, True, AGREE, False),
        (False, False, AGREE, False),
        (True, True, _finding("strides/out"), True),
    ],
)
def test_a_script_shows_what_one_torch_has_alone(
    own: bool, other: bool, expected: RunOutcome, shown: bool
) -> None:
    runner = _paired(_Giving(AGREE, shows=own), _Giving(AGREE, shows=other), expected)
    assert runner.shows("", FINDING) is shown


def test_signals_of_a_terminal_are_not_for_the_process(runner: RemoteRunner) -> None:
    """A Ctrl-C goes to the group of processes in the foreground."""
    assert os.getpgid(runner._process.pid) != os.getpgid(0)
