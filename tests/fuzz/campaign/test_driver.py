"""Campaigns on compilers that are wrong in one way each: every case is accounted for, and said rightly."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fuzz.campaign.configuration import Budget, Configuration
from fuzz.campaign.driver import Campaign, Progress, judge_death
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.store import FILE, Store
from fuzz.campaign.summary import Summary, summarize
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death, Job
from fuzz.corpus import case_file
from fuzz.report import json_output, tables
from fuzz.report.html_report import report_page
from tests.fuzz import bad_targets

pytestmark = pytest.mark.usefixtures("helpers_are_importable")

BASE = Configuration(
    targets=(),
    seed=3,
    cases=60,
    jobs=2,
    limit=2.0,
    # No seconds at all: cases bound most of these, and then a reduction's time must not count.
    budget=Budget(evaluations=40, seconds=0.0, hang_limit=1.0),
)


# Three of its first 27 programs take an exponential, in two ways.
EXPONENTIALS = 4


def _configuration(*targets: str, **changes: Any) -> Configuration:
    names = tuple(
        f"tests.fuzz.bad_targets:{name}" if hasattr(bad_targets, name) else name for name in targets
    )
    return replace(BASE, targets=names, **changes)


def _run(*targets: str, folder: Path | None = None, **changes: Any) -> Summary:
    configuration = _configuration(*targets, **changes)
    if folder is None:
        return Campaign(configuration).run()
    with Store.create(folder, configuration) as store:
        return Campaign(configuration, store).run()


def _consistent(summary: Summary, cases: int) -> None:
    for tally in summary.tallies.values():
        assert tally.cases == cases
        assert tally.agree + tally.poisoned + tally.refused + tally.findings == cases
    assert sum(bucket.count for bucket in summary.buckets) == summary.total("findings")
    assert summary.troubles == []


WRONG = ("drops_mutation", "copies_alias", "leaves", "cannot_compile")


@pytest.fixture(scope="module")
def of_wrong_compilers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """A campaign on four wrong compilers and a right one, which many tests look at."""
    folder = tmp_path_factory.mktemp("wrong") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(bad_targets.__file__).parent))
        return folder, _run(*WRONG, "eager", folder=folder, cases=12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("target", "clause"),
    [
        ("drops_mutation", "input-data"),
        ("copies_alias", "aliasing"),
        ("leaves", "errors"),
        ("cannot_compile", "errors"),
    ],
)
def test_a_wrong_compiler_is_reported_as_what_it_is(
    target: str, clause: str, of_wrong_compilers: tuple[Path, Summary]
) -> None:
    _, summary = of_wrong_compilers
    _consistent(summary, 12)
    buckets = [bucket for bucket in summary.buckets if bucket.target.endswith(f":{target}")]
    best = next(bucket for bucket in buckets if bucket.clause == clause)
    assert best.example.state == "shown"
    assert best.example.statements <= 3
    assert summary.total("crashes") == summary.total("timeouts") == 0


def test_a_doubled_gradient_of_a_duplicate_is_found() -> None:
    summary = _run("doubles_duplicate", profile="duplicates", cases=20)
    _consistent(summary, 20)
    bucket = summary.buckets[0]
    assert bucket.clause == "gradients"
    assert "=" in bucket.name.split("/")[-1], "the reduced program still passes an argument twice"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("target", "kind"), [("segfaults", "crashes"), ("exits", "crashes"), ("hangs", "timeouts")]
)
def test_a_target_that_dies_now_and_then_costs_its_own_cases_only(target: str, kind: str) -> None:
    cases = 40 if kind == "crashes" else 22
    summary = _run(target, cases=cases, jobs=1)
    _consistent(summary, cases)
    assert summary.total(kind) == summary.total("findings") > 0
    assert {bucket.clause for bucket in summary.buckets} == {"errors"}
    # It depends on what ran before, so a worker that has run nothing else does not show it.
    assert {bucket.example.state for bucket in summary.buckets} == {"unconfirmed"}
    assert summary.total("agree") > 0


def test_a_target_that_breaks_its_process_costs_no_other_case() -> None:
    summary = _run("breaks_its_process", "eager", cases=60, seed=EXPONENTIALS)
    _consistent(summary, 60)
    assert summary.buckets
    for bucket in summary.buckets:  # one for each row that takes an exponential
        # (Of a program at which eager raises as well, only what it leaves behind is seen.)
        found = (
            "errors/call: RuntimeError cannot do that",
            "errors/after the call: RuntimeError torch is broken",
        )
        assert bucket.name.startswith(found)
        assert bucket.example.state == "shown"
    assert summary.tallies["eager"].agree == 60


def test_what_a_script_leaves_behind_costs_no_case() -> None:
    """Its target may have broken torch for good, or the next time that garbage is collected."""
    script = "from tests.fuzz.bad_targets import _Refuses\n_Refuses().__enter__()\nraise SystemExit(1)\n"
    items = handlers.script_item(script), handlers.case_item(3, 0, "mixed", "cpu", "eager")
    with Pool(handlers.HANDLER, jobs=1) as pool:
        shown, after = pool.run([Job((item,), 20.0) for item in items])
    assert isinstance(shown, Answer)
    assert shown.value["status"] == 1
    assert isinstance(after, Answer)
    assert after.value["outcome"] == "agree"


def test_a_crash_that_a_program_causes_is_reduced_to_it() -> None:
    summary = _run("crashes_on_exp", cases=27, seed=EXPONENTIALS)
    _consistent(summary, 27)
    assert summary.total("crashes") == sum(bucket.count for bucket in summary.buckets) > 0
    for bucket in summary.buckets:
        assert bucket.name.startswith("errors/call: crash, killed by SIGABRT")
        (statement,) = bucket.example.program.statements
        assert statement.operator in ("exp", "exp_", "exp_out", "exp_kernel")
        assert bucket.example.state == "shown"
        assert "bad_targets.py" in bucket.example.seen.stack


def test_a_control_never_differs() -> None:
    summary = _run("eager", "good", cases=100)
    _consistent(summary, 100)
    assert summary.buckets == []


def test_another_seed_gives_others() -> None:
    budget = replace(BASE.budget, evaluations=1)
    one, other = (_run("drops_mutation", cases=8, seed=seed, budget=budget) for seed in (3, 4))
    assert _essence(one) != _essence(other)


def _essence(summary: Summary) -> object:
    tallies = {name: replace(tally, seconds=0.0) for name, tally in summary.tallies.items()}
    return tallies, [
        (
            bucket.name,
            bucket.target,
            bucket.count,
            bucket.first_case,
            bucket.example.program,
            bucket.example.state,
        )
        for bucket in summary.buckets
    ]


def test_time_bounds_a_campaign_and_what_counts_is_a_prefix(tmp_path: Path) -> None:
    summary = _run("good", folder=tmp_path, cases=None, seconds=1.0)
    rows = sqlite3.connect(tmp_path / FILE).execute("select case_index from results order by 1").fetchall()
    assert [index for (index,) in rows] == list(range(summary.total("cases")))
    assert summary.total("cases") > 0


@pytest.mark.parametrize(
    ("bound", "expected"),
    [({"cases": None, "seconds": 60.0}, "tests.fuzz.bad_targets:good"), ({"cases": 500}, "eager")],
)
def test_a_slow_target_leaves_the_others_their_share_of_the_time(
    bound: dict[str, Any], expected: str
) -> None:
    """Bounded by time the one that has had least of it is next, bounded by cases the one with fewest."""
    campaign = Campaign(_configuration("eager", "good", **bound))
    submitted: list[Job] = []

    class Waiting:
        wanted = 1
        lease_seconds = 0.25
        submit = staticmethod(submitted.append)
        backlog = property(lambda self: len(submitted))

    campaign._pool = cast(Pool, Waiting())
    for name, seconds, cases in (("eager", 30.0, 5), ("tests.fuzz.bad_targets:good", 2.0, 400)):
        tally, line = campaign._ledger.tallies[name], campaign._ledger.lines[name]
        tally.seconds, tally.cases, line.settled, line.issued = seconds, cases, cases, cases
    campaign._issue_leases()
    assert [job.items[0]["target"] for job in submitted] == [expected]


def test_results_are_stored_with_their_files(of_wrong_compilers: tuple[Path, Summary]) -> None:
    folder, summary = of_wrong_compilers
    database = sqlite3.connect(folder / FILE)
    assert database.execute("select count(*) from results").fetchone() == (5 * 12,)
    found = database.execute("select count(*) from results where outcome = 'finding'").fetchone()
    assert (
        found == (summary.total("findings"),) == database.execute("select count(*) from findings").fetchone()
    )
    assert len(summary.files) == len(summary.buckets) > 0
    for bucket in summary.buckets:
        file, script = summary.files[bucket.target, bucket.name]
        case = case_file.read(Path(file))
        assert case.program == bucket.example.program
        assert case.expected == {bucket.target: "differs"}
        assert "def f(" in Path(script).read_text()


def test_the_file_tells_the_campaign_again(of_wrong_compilers: tuple[Path, Summary]) -> None:
    folder, summary = of_wrong_compilers
    with Store.read(folder) as store:
        assert summarize(store) == summary
    traits = {trait for _, trait, _ in summary.coverage.traits}
    assert {"device: cpu", "data: argument"} <= traits
    for target in summary.tallies:
        counted = sum(
            cases
            for (name, trait, _), cases in summary.coverage.traits.items()
            if name == target and trait == "device: cpu"
        )
        assert counted == 12, "every case of every target is counted once"
    assert max(summary.coverage.pairs.values()) <= 12, "pairs are counted by program"


def test_a_disk_that_fills_up_ends_the_campaign_with_what_was_found(tmp_path: Path) -> None:
    configuration = _configuration("drops_mutation", cases=5000)
    with Store.create(tmp_path, configuration) as store:
        pages = store._database.execute("pragma page_count").fetchone()[0]
        store._database.execute(f"pragma max_page_count = {pages + 40}")
        summary = Campaign(configuration, store).run()
    assert any("database or disk is full" in trouble for trouble in summary.troubles)
    assert 0 < summary.total("cases") < 5000
    assert summary.buckets
    database = sqlite3.connect(tmp_path / FILE)
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    with Store.read(tmp_path) as store:
        assert summarize(store).tallies == summary.tallies, "only what the file has was counted"


class Stop(Exception):
    """Stands for the end of a driver in the middle of its work."""


def _after(cases: int, what: type[BaseException]) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if sum(tally.cases for tally in progress.tallies.values()) >= cases:
            raise what

    return watch


def test_a_campaign_that_was_cut_off_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    configuration = _configuration("drops_mutation", "copies_alias", cases=16)
    whole = Campaign(configuration).run()
    with Store.create(tmp_path, configuration) as store, pytest.raises(Stop):
        Campaign(configuration, store, _after(1, Stop)).run()
    with Store.open(tmp_path) as store:
        assert summarize(store).interrupted
        before = summarize(store).total("cases")
        Campaign(configuration, store, _after(20, KeyboardInterrupt)).run()
    with Store.open(tmp_path) as store:
        summary = Campaign(configuration, store).run()
    assert 0 < before < 32
    assert not summary.interrupted
    assert [session["ended"] for session in summary.sessions] == ["killed", "interrupted", "complete"]
    assert _essence(summary) == _essence(whole)
    assert summary.coverage == whole.coverage


def test_interruption_keeps_what_was_found() -> None:
    def interrupt(progress: Progress) -> None:
        if sum(tally.findings for tally in progress.tallies.values()):
            raise KeyboardInterrupt

    configuration = replace(BASE, targets=("tests.fuzz.bad_targets:drops_mutation",), cases=5000)
    summary = Campaign(configuration, None, interrupt).run()
    assert summary.interrupted
    assert 0 < summary.total("cases") < 5000
    assert sum(bucket.count for bucket in summary.buckets) == summary.total("findings") > 0


def test_a_worker_that_somebody_else_kills_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "victims").mkdir()
    summary = _run("killed_once", cases=20, jobs=1)
    _consistent(summary, 20)
    assert summary.total("agree") == 20


def test_a_case_that_the_generator_cannot_make_ends_no_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has told of it; the books are kept without knowing what the program has."""

    def failing(*_: object) -> None:
        raise RuntimeError("no program comes to mind")

    campaign = Campaign(_configuration("good", cases=1))
    monkeypatch.setattr(handlers, "generate", failing)
    campaign._settle_arrived_case(
        "tests.fuzz.bad_targets:good", 0, RunOutcome("poisoned", "", (), "the fuzzer failed on it", 0.0)
    )
    campaign._ledger.settle()
    assert campaign._ledger.tallies["tests.fuzz.bad_targets:good"].poisons == {"the fuzzer failed on it": 1}


def test_a_program_that_kills_eager_proves_nothing() -> None:
    death = RunOutcome("finding", "errors/call: crash", (), "killed", 0.1, "crash", "")
    job = Job((), 1.0)
    died_too = Death(job, 0, "crash", "killed by SIGSEGV", "", "", 0.1)
    returned = Answer(job, 0, {"outcome": "agree", "findings": [], "reason": "", "seconds": 0.1}, 0.1, 0)
    judged = judge_death(death, died_too, "eager")
    assert (judged.outcome, judged.reason.partition(": ")[0]) == ("poisoned", "eager does it too")
    assert judge_death(death, returned, "eager") is death


def test_a_death_that_a_control_dies_too_proves_nothing_and_is_counted_apart() -> None:
    names = ("tests.fuzz.bad_targets:crashes_as_its_control", "tests.fuzz.bad_targets:crashes_by_itself")
    budget = Budget(evaluations=1, seconds=0.0, hang_limit=1.0)
    # (The program of this case takes an exponential.)
    summary = _run(*names, cases=1, seed=139, profile="uniform", budget=budget)
    _consistent(summary, 1)
    likewise, itself = summary.tallies.values()
    assert (likewise.crashes, itself.crashes) == (0, 1)
    reason = "tests.fuzz.bad_targets:crashes_on_exp does it too"
    assert likewise.poisons == {reason: 1}
    data = json_output.campaign_json(summary)
    assert [data["targets"][name]["poisons"] for name in names] == [{reason: 1}, {}]
    assert data["poisons"] == {reason: 1}
    (below,) = summary.below
    assert (below.control, below.cases) == (reason.removesuffix(" does it too"), 1)
    for text in (tables.campaign_table(summary), report_page(summary)):
        assert "lso wrong below you" in text
        assert reason not in text, "it is no reason for which a case is poisoned"
