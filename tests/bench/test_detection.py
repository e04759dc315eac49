"""The catalogue of faults, the hook that makes them, and that must-find faults are found."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aot
from bench.fuzzer import detection, group_testing
from bench.fuzzer.cases import METHODS, OURS, Seen, program
from bench.fuzzer.detection import Trial
from bench.fuzzer.group_testing import Outcome, Stream, Track
from bench.fuzzer.seeded_bugs import (
    FAULTS,
    STAGES,
    Fault,
    FaultError,
    Switches,
    install,
    make,
    overlap,
    source_of,
)
from bench.fuzzer.seeded_bugs.import_hook import compiled
from bench.fuzzer.workers import Ran, Stretch, WorkerError, Workers
from fuzz.operators import OPERATORS
from fuzz.program.decode import Duplicate, View
from oracles import CLAUSES

pytestmark = pytest.mark.usefixtures("forkable")

ROOT = Path(__file__).parents[2]
BY_NAME = {fault.name: fault for fault in FAULTS}

# Found in the first programs of the first stream.
MUST_FIND = (
    "grad mode is left off",
    "views show what was there before a write",
    "graphs with a backward write to their inputs",
    "of several gradients one counts",
    "a recomputed value comes after its first reader",
    "the last arguments are kept",
)
CASES = 80


def test_the_catalogue_is_large_enough() -> None:
    stages = Counter(fault.stage for fault in FAULTS)
    assert set(stages) == set(STAGES)
    assert min(stages.values()) >= 5
    assert len(FAULTS) >= 80


def test_faults_are_told_apart_by_name() -> None:
    assert len(BY_NAME) == len(FAULTS)
    assert set(MUST_FIND) <= BY_NAME.keys()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_its_module(fault: Fault) -> None:
    source = source_of(fault.module)
    assert make([fault], source).source != source
    assert compiled([fault], source, fault.module).co_names
    assert set(fault.clauses) <= set(CLAUSES)


def test_a_fault_whose_text_is_gone_is_named() -> None:
    lost = replace(FAULTS[0], find="no such text")
    with pytest.raises(FaultError, match=rf"{lost.name}.* 0 times in {lost.module}"):
        make([lost], source_of(lost.module))


def test_a_fault_whose_text_is_there_twice_is_named() -> None:
    with pytest.raises(FaultError, match=r"2 times in aot\.x"):
        make([replace(FAULTS[0], module="aot.x", find="one")], "one\none\n")


def test_a_fault_whose_module_is_gone_is_named() -> None:
    with pytest.raises(FaultError, match=r"no module aot\.nowhere"):
        source_of("aot.nowhere")


def test_a_fault_that_begins_at_no_statement_is_named() -> None:
    astray = replace(FAULTS[0], find="# why", replace="# how")
    with pytest.raises(FaultError, match=r"line 2 .* in no statement"):
        compiled([astray], "one = 1\n# why\ntwo = 2\n", "aot.x")


def test_a_fault_is_not_made_where_aot_is_loaded() -> None:
    import aot

    assert aot.__name__ in sys.modules
    finders = list(sys.meta_path)
    with pytest.raises(FaultError, match="has been imported"):
        install(FAULTS[0])
    assert sys.meta_path == finders


_PROBE = """
from bench.fuzzer.seeded_bugs import Fault, install

fault = Fault("all numbers are one", "inputs", "aot.tensors.constants", "return (type(value), value)\\n",
              "return (type(value),\\n        0)\\n", ("repeat",), "A later call gets another one's number.")
installed = install(fault)
from aot.tensors.constants import constant_key
seen = [installed.reached(), constant_key(1) == constant_key(2), installed.reached()]
constant_key(1.5)
print(*seen, installed.reached())
"""


def test_the_hook_makes_the_fault_says_when_it_is_reached_and_leaves_nothing_on_disk() -> None:
    def on_disk() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (ROOT / "aot").rglob("constants*.py*")}

    before = on_disk()
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.split() == ["False", "True", "True", "False"], done.stderr
    assert before
    assert on_disk() == before


@pytest.fixture(scope="module")
def workers() -> Any:
    with Workers(jobs=1) as some:
        yield some


def _run(workers: Workers, fault: Fault | None, **more: Any) -> Ran:
    stretch = Stretch(**{"seed": 0, "first": 0, "until": CASES, "seconds": 60.0, **more})
    (ran,) = workers.run(fault, "aot" if fault is None else fault.target, [stretch]).result()
    return ran


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MUST_FIND)
def test_must_find(name: str, workers: Workers) -> None:
    fault = BY_NAME[name]
    ran = _run(workers, fault)
    (seen,) = ran.found
    assert ran.reached
    assert ran.until == seen.index + 1 <= CASES
    assert seen.clause in fault.clauses


def test_a_stream_goes_on_where_it_ended_and_is_the_same_each_time(workers: Workers) -> None:
    fault = BY_NAME["views show what was there before a write"]
    once = _run(workers, fault)
    (seen,) = once.found
    first = _run(workers, fault, until=seen.index)
    assert (first.until, first.found) == (seen.index, ())
    again = _run(workers, fault, first=seen.index)
    assert (again.until, again.found, first.reached + again.reached) == (once.until, once.found, once.reached)


def test_nothing_is_found_without_a_fault(workers: Workers) -> None:
    assert _run(workers, None, until=20, goes_on=True).found == ()


def test_a_stream_ends_with_its_time(workers: Workers) -> None:
    assert _run(workers, None, seconds=0.0).until == 0


_LEAVE = Fault(
    "a crash", "runtime", "aot.frontends.function", "        return specialization.answer(tensors, leaves)\n",
    "        import os\n        os._exit(3)\n", ("errors",), "The process ends."
)  # fmt: skip


def test_a_crash_is_a_finding(workers: Workers) -> None:
    ran = _run(workers, _LEAVE)
    (seen,) = ran.found
    assert (seen.index, ran.until, seen.clause) == (0, 1, "errors")
    assert "process down" in seen.signature or "crash" in seen.signature


_REFUSE = Fault(
    "a refusal of calls with two arguments", "runtime", "aot.frontends.function",
    "        return specialization.answer(tensors, leaves)\n",
    "        if len(args) == 2:\n            raise errors.UnsupportedArgument('two are too many')\n"
    "        return specialization.answer(tensors, leaves)\n", (), "Nothing is done."
)  # fmt: skip


def test_too_many_refusals_are_a_finding(workers: Workers) -> None:
    ran = _run(workers, _REFUSE)
    (seen,) = ran.found
    assert (seen.clause, seen.signature) == ("refusals", "refusals/UnsupportedArgument")
    assert 1 < ran.refused <= ran.until == seen.index + 1 < CASES
    # A stream that was interrupted counts on.
    first = _run(workers, _REFUSE, until=seen.index)
    again = _run(workers, _REFUSE, first=seen.index, refused=first.refused)
    assert (first.found, again.found) == ((), ran.found)
    assert first.refused + again.refused == ran.refused


def test_a_fault_with_which_nothing_can_be_imported_is_a_mistake(workers: Workers) -> None:
    broken = Fault(
        "a broken import", "inputs", "aot.tensors.constants", "import torch\n", "import torhc\n", (), ""
    )
    with pytest.raises(WorkerError, match=r"(?s)a broken import.*torhc"):
        _run(workers, broken)
    assert _run(workers, None, until=1).until == 1  # the worker is still there


def test_a_finding_is_reduced(workers: Workers) -> None:
    fault = BY_NAME["the last arguments are kept"]
    seen = _run(workers, fault).found
    (smaller,) = workers.reduce(fault, fault.target, seen, 60).result()
    assert smaller.after is not None
    assert smaller.bucket is not None
    assert smaller.after < smaller.before
    assert smaller.bucket.startswith("lifetime/")
    trial = Trial(fault, (Track(fault.name, 1, 1, 1.0, seen[0]),))
    ((name, *_, bucket),) = detection._buckets([trial], {fault.name: [smaller]}).rows
    assert (name, bucket) == (fault.name, smaller.bucket)


# ---- many faults at once

_HIDDEN = ("tangents are laid out over themselves", "views show what was there before a write")


def test_switches_make_faults_and_take_them_back() -> None:
    def adds(x: torch.Tensor, n: int) -> torch.Tensor:
        view = x[1:]
        before = view * 1
        x.add_(n)
        return before + view

    stale, forgets = (
        BY_NAME["views show what was there before a write"],
        BY_NAME["the key forgets Python numbers"],
    )
    switches = Switches([stale, forgets])
    try:
        for on in ({stale.name}, {forgets.name}, {stale.name, forgets.name}, set()):
            switches.turn(on)
            compiled = aot.aot_function(adds, aot.nop)
            values = [compiled(torch.zeros(2), n).item() for n in (2, 3)]
            assert values == [
                0 if stale.name in on else n for n in ((2, 2) if forgets.name in on else (2, 3))
            ]
            assert switches.reached() == on
    finally:
        switches.turn(())


def test_a_module_forgets_what_it_has_remembered_with_a_fault() -> None:
    from aot.graph import shape_inference

    fault = BY_NAME["shapes are remembered without keyword arguments"]
    switches = Switches([fault])
    before = len(shape_inference._RECIPES)
    switches.turn([fault.name])
    shape_inference._RECIPES["wrong",] = shape_inference._RECIPES.get(("wrong",))  # type: ignore[assignment]
    switches.turn(())
    assert len(shape_inference._RECIPES) == before


def test_registered_operators_outlast_a_fault() -> None:
    from aot.capture.recorder import functional_rng

    op, fault = torch.ops.aten.rand.default, BY_NAME["a repeated draw moves the generator"]
    switches = Switches([fault])
    form = functional_rng.functional_op(op)
    with torch.random.fork_rng():
        drawn_from = torch.manual_seed(0).get_state()
        before = torch.manual_seed(1).get_state()
        for on in ({fault.name}, set()):
            switches.turn(on)
            assert functional_rng.functional_op(op) is form
            form(drawn_from, [2])
            assert torch.equal(torch.get_rng_state(), before) == (not on)
            torch.set_rng_state(before)


def test_all_faults_can_be_switched() -> None:
    for module in {fault.module for fault in FAULTS}:
        importlib.import_module(module)
    Switches(FAULTS).turn(())


def test_a_fault_that_is_in_no_function_cannot_be_switched() -> None:
    outside = replace(
        FAULTS[0],
        module="aot.graph.shape_inference",
        find="_RECIPES_LIMIT = 20_000",
        replace="_RECIPES_LIMIT = 2",
    )
    with pytest.raises(FaultError, match=r"is not in one function of aot\.graph\.shape_inference"):
        Switches([outside])


def test_faults_that_change_the_same_words_take_turns() -> None:
    early = BY_NAME["kept memory is given up at once"]
    rivals = [early, replace(early, name="kept memory is never given up", replace="")]
    assert overlap(*rivals)
    assert not overlap(rivals[0], BY_NAME["the last arguments are kept"])
    with pytest.raises(FaultError, match="changes words that another one changes"):
        make(rivals, source_of(rivals[0].module))
    stream = Stream(0, rivals)
    pools = [stream._pool("aot", index) for index in range(2)]
    assert sorted(pools) == sorted([one.name] for one in rivals)


@pytest.mark.nightly
def test_a_stream_finds_each_of_many_faults_by_itself(workers: Workers) -> None:
    names = [*MUST_FIND, *_HIDDEN]
    outcome = workers.search(0, [BY_NAME[name] for name in dict.fromkeys(names)], 90.0, CASES).result()
    tracks = {track.fault: track for track in outcome.tracks}
    assert outcome.alarms == ()
    assert outcome.runs > sum(outcome.cases.values()) > 0
    for name in MUST_FIND:
        track, fault = tracks[name], BY_NAME[name]
        assert track.found is not None, name
        assert track.found.clause in fault.clauses
        assert 1 <= track.reached <= track.cases == track.found.index + 1
        ran = _run(workers, fault, first=track.found.index, until=track.found.index + 1)
        assert ran.found == (track.found,)  # the same where the fault is imported


def test_what_a_fault_changes_is_told_apart_from_what_comes_by_it(workers: Workers) -> None:
    """The one writes another wrapper, the other is in code that runs later."""
    names = ("the layout of tangents is assumed", "graphs run under the caller's autocast")
    outcome = workers.search(3, [BY_NAME[name] for name in names], 60.0, 15).result()
    wrapper, later = outcome.tracks
    assert (wrapper.found, later.found) == (None, None)
    assert wrapper.reached > 0 < later.reached
    assert (wrapper.triggered, later.triggered) == (True, False)


@pytest.mark.nightly  # hundreds of compiles
def test_other_methods_find_less(workers: Workers) -> None:
    """They compare values and gradients, which a tensor that is kept alive does not change."""
    wrong, hidden = (
        BY_NAME["views show what was there before a write"],
        BY_NAME["the last arguments are kept"],
    )
    found = {}
    for method in METHODS:
        outcome = workers.search(0, [wrong, hidden], 60.0, 40, method).result()
        found[method] = {track.fault for track in outcome.tracks if track.found is not None}
        assert outcome.alarms == ()
    assert found[OURS] == {wrong.name, hidden.name}
    assert all(found[name] == {wrong.name} for name in ("allclose", "same"))
    assert hidden.name not in found["sums"]
    assert wrong.name not in found["plain"]


def test_plain_programs_neither_write_nor_share_memory() -> None:
    for index in range(100):
        one = program(0, index, "plain")
        shown = [argument for argument in one.arguments if isinstance(argument, (Duplicate, View))]
        assert all(isinstance(argument, View) and argument.via == "parameter" for argument in shown)
        rows = [OPERATORS[statement.operator] for statement in one.statements]
        assert not any(row.metadata or row.writes for row in rows)


@pytest.mark.nightly
def test_a_stream_survives_a_crash_and_counts_refusals(workers: Workers) -> None:
    crash, refuse = (
        _LEAVE,
        replace(_REFUSE, find=_REFUSE.find.replace("leaves)\n", "leaves)"), target="aot-min-cut"),
    )
    refuse = replace(refuse, replace=refuse.replace.rstrip("\n"))
    outcome = workers.search(0, [crash, refuse, BY_NAME["grad mode is left off"]], 60.0, 60).result()
    one, two, three = outcome.tracks
    assert one.found is not None
    assert (one.cases, one.found.clause) == (1, "errors")
    assert two.found is not None
    assert two.found.clause == "refusals"
    assert three.found is not None
    assert outcome.alarms == ()


def test_what_is_wrong_without_a_fault_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = BY_NAME["grad mode is left off"]
    seen = Seen(0, 0, "values", "values/out")
    stream = Stream(0, [fault])
    monkeypatch.setattr(
        stream,
        "_runner",
        SimpleNamespace(
            run=lambda *_: group_testing._Run("finding", frozenset({fault.name}), seen), renew=list
        ),
    )
    stream._case("aot")
    assert stream._alarms == [("aot", seen)]
    assert stream._all[fault.name].found is None


def _trial(name: str, *tracks: tuple[int, float, bool]) -> Trial:
    seen = Seen(0, 0, "values", "values/out")
    return Trial(BY_NAME[name], tuple(Track(name, n, 1, s, seen if f else None, f) for n, s, f in tracks))


def test_tables() -> None:
    trials = [
        _trial(MUST_FIND[0], (4, 1.0, True), (6, 3.0, True)),
        _trial(MUST_FIND[1], (20, 6.0, False), (10, 2.0, True)),
    ]
    alarm = ("aot", Seen(0, 7, "values", "values/out"))
    outcomes = [Outcome((), {"aot": 2500}, alarms, 5000, 9.0) for alarms in ((alarm,), ())]
    first, second = detection._faults(trials).rows
    assert first[1:9] == (MUST_FIND[0], 2, 20.0, 2, 2, 5, 2.0, 6)
    assert second[4:8] == (1, 1, 10, 2.0)
    overall = dict(detection._overall(trials, outcomes).rows)
    assert overall["detected in 80% of the streams, %"] == 50
    assert overall["runs for each program"] == 2
    assert overall["mean time to detection within 6.0 CPU s"] == pytest.approx(3.0)
    assert overall["mean time to detection within 20.0 cases"] == pytest.approx(10.0)
    assert dict(detection._survival(trials).rows) == {1: 100.0, 3: 100.0, 10: 25.0, 20: 25.0}
    assert detection._alarms(outcomes).rows == (("aot", 5000, 1, 2.0),)


def test_what_cannot_be_repeated_is_no_detection(workers: Workers) -> None:
    name = MUST_FIND[0]
    found = _run(workers, BY_NAME[name]).found[0]
    clean = next(i for i in range(CASES) if not _run(workers, BY_NAME[name], first=i, until=i + 1).found)
    tracks = [(Track(name, 9, 1, 1.0, seen),) for seen in (found, replace(found, index=clean))]
    (trial,) = detection._confirmed(
        workers, [BY_NAME[name]], [Outcome(one, {}, (), 1, 1.0) for one in tracks], OURS
    )
    assert trial.tracks == (tracks[0][0], replace(tracks[1][0], found=None))
    assert trial.unconfirmed == (replace(found, index=clean),)
