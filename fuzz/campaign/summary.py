"""Summary: a campaign as its file has it, whether it has just ended or ran last night.

In: a `Store`. Out: a `Summary`, for the reports.

    with Store.read(Path("found")) as store:
        summary = summarize(store)
    summary.total("findings"), summary.buckets
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.ledger import Below, Bucket, Ledger, Tally
from fuzz.campaign.memory_gauge import Growth, Sample, memory_growth
from fuzz.campaign.records import Suspect
from fuzz.campaign.refusal_rate import excessive_refusals
from fuzz.campaign.store import Store
from fuzz.campaign.workers import handlers
from fuzz.corpus import case_file
from fuzz.corpus.known_issues import IssueStatus
from fuzz.corpus.recorded_cases import RecordedCase, find_recorded_case
from fuzz.targets.catalog import find_target

# The number of stretches of time in the drawings of a campaign's course.
STRETCHES = 60


@dataclass(frozen=True, slots=True)
class Stretch:
    """The cases that were settled in a part of the campaign, which ends `until` seconds after its start.

    `driver` and `worker` are the most bytes of memory of the driver and of any worker in it, or 0 if unknown.
    """

    until: float
    cases: int
    findings: int
    buckets: int
    driver: int
    worker: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of traits.

    `traits` counts cases by target, trait and outcome, `pairs` programs by pair of traits.
    """

    traits: Mapping[tuple[str, str, str], int]
    pairs: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Summary:
    """A campaign.

    Attributes:
        troubles: mistakes of the fuzzer itself, as tracebacks.
        files: the corpus file and the script of each target and bucket.
        recorded: the recorded case that explains each, if there is one.
        below: bugs of the layers below the targets.
        folder: the folder of the campaign, or "" if it is in memory.
        known: the status of the known issues.
        sessions: when the campaign ran, and whether each session ended by itself.
        memory: the memory of the driver and of the largest worker.
        excessive_refusals: sentences about targets that decline more than they may.
    """

    configuration: Configuration
    versions: Mapping[str, str]
    started: str
    sessions: tuple[Mapping[str, Any], ...]
    seconds: float
    tallies: dict[str, Tally]
    buckets: list[Bucket]
    below: list[Below]
    files: dict[tuple[str, str], tuple[str, str]]
    known: tuple[IssueStatus, ...]
    coverage: Coverage
    course: tuple[Stretch, ...]
    memory: tuple[Growth, ...]
    interrupted: bool
    troubles: list[str]
    reticent: Mapping[str, str]
    recorded: Mapping[tuple[str, str], RecordedCase]
    folder: str

    def total(self, name: str) -> int:
        """A count over all targets."""
        return sum(int(getattr(tally, name)) for tally in self.tallies.values())

    def standing(self, bucket: Bucket) -> IssueStatus | None:
        """The known issue of a bucket, or None."""
        for standing in self.known:
            if standing.covers(bucket.target, bucket.name, bucket.example.program):
                return standing
        return None

    def record(self, bucket: Bucket) -> RecordedCase | None:
        """The recorded case that explains a bucket, or None."""
        return self.recorded.get((bucket.target, bucket.name))

    @property
    def new(self) -> list[Bucket]:
        """The buckets that no known issue covers."""
        return [bucket for bucket in self.buckets if self.standing(bucket) is None]

    @property
    def gone(self) -> list[IssueStatus]:
        """The known issues that were run, and do not reproduce any more."""
        return [standing for standing in self.known if standing.state == "gone"]


def rebuild_ledger(store: Store) -> Ledger:
    """Rebuild the ledger of a campaign from its file."""
    configuration = store.configuration

    def look(target: str, index: int) -> Suspect:
        program = handlers.program(configuration.seed, index, configuration.profile, configuration.device)
        return Suspect(target, index, program, store.seen(target, index))

    ledger = Ledger(configuration.targets, look)
    for row in store.rows():
        ledger.arrive(row.target, row.index, row.seen, row.at)
    ledger.settle()
    ledger.restore(store.examples())
    return ledger


def summarize(
    store: Store, ledger: Ledger | None = None, *, interrupted: bool = False, troubles: tuple[str, ...] = ()
) -> Summary:
    """The summary of a campaign. `ledger` is its ledger, if there is one already.

    Raises:
        StoreError: the file is damaged.
    """
    books_ = ledger or rebuild_ledger(store)
    found = books_.buckets()
    samples = store.memory()
    return Summary(
        configuration=store.configuration,
        versions=store.get("versions"),
        started=store.get("started"),
        sessions=tuple(store.get("sessions")),
        seconds=store.elapsed,
        tallies=books_.tallies,
        buckets=found,
        below=books_.below(),
        files=_bucket_files(store, found),
        known=tuple(IssueStatus.from_json(entry) for entry in store.get("known")),
        coverage=Coverage(store.traits(), store.pairs()),
        course=_campaign_course(store, found, samples),
        memory=memory_growth(samples, store.elapsed),
        interrupted=interrupted or store.get("ended") != "complete",
        troubles=[*store.get("troubles", []), *troubles],
        reticent=excessive_refusals(books_.tallies, store.get("refuses", {})),
        recorded=_recorded_cases(store),
        folder="" if store.folder is None else str(store.folder),
    )


def case_of_bucket(bucket: Bucket, configuration: Configuration, torch_version: str) -> case_file.Case:
    """The corpus case of a bucket's example."""
    from fuzz.corpus import buckets

    example = bucket.example
    finding = buckets.primary_finding(example.seen.findings)
    origin = case_file.Origin(bucket.target, configuration.seed, example.suspect.index, configuration.profile)
    return case_file.Case(
        program=example.program,
        # The campaign's name may say "unreduced"; a replay computes this name again.
        bucket=buckets.bucket(example.seen.findings, example.program),
        clause=bucket.clause,
        torch=torch_version.split("+")[0],
        origin=origin,
        expected={bucket.target: case_file.DIFFERS},
        findings=example.seen.findings,
        note=finding.message[: case_file.MAX_LINE],
    )


def write_files(store: Store, found: list[Bucket]) -> None:
    """Write each bucket's corpus file and script into the campaign's folder.

    Raises:
        StoreError: that fails.
    """
    if store.folder is None:
        return
    configuration, torch_version = store.configuration, store.get("versions")["torch"]
    for bucket, name in zip(found, bucket_file_names(found), strict=True):
        store.file(
            "corpus",
            f"{name}.json",
            case_file.case_text(case_of_bucket(bucket, configuration, torch_version)),
        )
        store.file("repro", f"{name}.py", bucket.example.script)


def bucket_file_names(found: list[Bucket]) -> list[str]:
    """The file names of buckets. Different buckets may give one name, and then get numbers.

    The order of the buckets does not matter.
    """
    names: Counter[str] = Counter()
    given: dict[tuple[str, str], str] = {}
    for bucket in sorted(found, key=lambda bucket: (bucket.target, bucket.first_case, bucket.name)):
        name = case_file.case_slug(bucket.name, bucket.target)
        names[name] += 1
        given[bucket.target, bucket.name] = name if names[name] == 1 else f"{name}-{names[name]}"
    return [given[bucket.target, bucket.name] for bucket in found]


def _bucket_files(store: Store, found: list[Bucket]) -> dict[tuple[str, str], tuple[str, str]]:
    if store.folder is None:
        return {}
    files = {}
    for bucket, name in zip(found, bucket_file_names(found), strict=True):
        case, script = store.folder / "corpus" / f"{name}.json", store.folder / "repro" / f"{name}.py"
        if case.is_file() and script.is_file():
            files[bucket.target, bucket.name] = (str(case), str(script))
    return files


def find_recorded_cases(
    found: list[Bucket], cases: Mapping[Path, case_file.Case], torch_version: str
) -> dict[tuple[str, str], RecordedCase]:
    """For each target and bucket the recorded case that explains it.

    Buckets that are not reduced are left out.
    """
    explained = {}
    # A control may break torch too. It proves nothing then, so its difference is the target's finding.
    concerned = {name: (name, *find_target(name).controls) for name in {bucket.target for bucket in found}}
    for bucket in found:
        example = bucket.example
        if example.state in ("shown", "confirmed"):
            findings, program = example.seen.findings, example.program
            case = find_recorded_case(
                cases.items(), concerned[bucket.target], torch_version, bucket.name, findings, program
            )
            if case is not None:
                explained[bucket.target, bucket.name] = case
    return explained


def store_recorded_cases(store: Store, recorded: Mapping[tuple[str, str], RecordedCase]) -> None:
    """Write which recorded cases explain the buckets, for later reports.

    Raises:
        StoreError: that fails.
    """
    rows = [[target, bucket, case.to_json()] for (target, bucket), case in recorded.items()]
    store.set("recorded", rows, store.elapsed)


def _recorded_cases(store: Store) -> dict[tuple[str, str], RecordedCase]:
    return {
        (target, bucket): RecordedCase.from_json(case) for target, bucket, case in store.get("recorded", [])
    }


def _campaign_course(store: Store, found: list[Bucket], samples: list[Sample]) -> tuple[Stretch, ...]:
    """The cases, findings, new buckets and memory of the campaign over time."""
    width = max(store.elapsed, 1e-9) / STRETCHES

    def place(at: float) -> int:
        return min(STRETCHES - 1, int(at / width))

    cases: Counter[int] = Counter()
    findings: Counter[int] = Counter()
    for row in store.rows():
        cases[place(row.at)] += 1
        findings[place(row.at)] += bool(row.seen.signature)
    new = Counter(place(bucket.first_seconds) for bucket in found)
    driver = dict.fromkeys(range(STRETCHES), 0)
    worker = dict.fromkeys(range(STRETCHES), 0)
    for sample in samples:
        driver[place(sample.at)] = max(driver[place(sample.at)], sample.driver)
        worker[place(sample.at)] = max(worker[place(sample.at)], sample.worker)
    return tuple(
        Stretch((one + 1) * width, cases[one], findings[one], new[one], driver[one], worker[one])
        for one in range(STRETCHES)
    )
