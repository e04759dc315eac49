"""Collection: a folder of recorded cases: its contents, its problems, and cases that are superfluous.

collection = Collection.load(Path("corpus"))
collection.problems(), collection.superfluous()
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fuzz.corpus import buckets, case_file, known_issues
from fuzz.corpus.case_file import Case
from fuzz.corpus.known_issues import NAME, Issue
from fuzz.errors import CorpusError
from fuzz.safe_text import one_line


@dataclass(frozen=True, slots=True)
class Collection:
    """The readable cases by file, the errors of the others, and the known issues."""

    folder: Path
    cases: dict[Path, Case]
    errors: tuple[CorpusError, ...]
    issues: tuple[Issue, ...]

    @classmethod
    def load(cls, folder: Path) -> Collection:
        """Read a folder at any depth. A folder that does not exist is an error of the collection."""
        cases: dict[Path, Case] = {}
        errors: list[CorpusError] = []
        for file in case_file.case_files([folder]):
            try:
                cases[file] = case_file.read(file)
            except CorpusError as error:
                errors.append(error)
        issues: tuple[Issue, ...] = ()
        if (folder / NAME).exists():
            try:
                issues = known_issues.read_known_issues(folder / NAME)
            except CorpusError as error:
                errors.append(error)
        return cls(folder, cases, tuple(errors), issues)

    def holds(self, case: Case) -> Path | None:
        """The file that already records the same bucket or the same program, or None."""
        for file, other in self.cases.items():
            if other.bucket == case.bucket or other.program == case.program:
                return file
        return None

    def problems(self) -> list[tuple[Path, str]]:
        """The problems of each file in words. Nothing is run to find them."""
        found = [
            (error.file, str(error).removeprefix(f"{one_line(str(error.file))}: ")) for error in self.errors
        ]
        for file, case in self.cases.items():
            found += [(file, text) for text in _case_problems(case)]
            if not is_canonical(file, case):
                found.append((file, "is not in today's form; rewrite it with --fix"))
        for kept, others in self._files_of_same_bucket():
            found += [(file, f"has the bucket of {kept.name}; remove it with prune") for file in others]
        for issue in self.issues:
            found += [(self.folder / NAME, f"{issue.title}: {text}") for text in self._problems_of(issue)]
        return found

    def superfluous(self) -> list[tuple[Path, Path]]:
        """Cases whose bucket another case shows as well or better, each with that case."""
        return [(file, kept) for kept, others in self._files_of_same_bucket() for file in others]

    def _files_of_same_bucket(self) -> Iterable[tuple[Path, list[Path]]]:
        """For each bucket the file to keep, and the other files."""
        by_bucket: dict[str, list[Path]] = {}
        for file, case in self.cases.items():
            by_bucket.setdefault(case.bucket, []).append(file)
        for files in by_bucket.values():
            kept = min(files, key=self._worth)
            if len(files) > 1:
                yield kept, [file for file in files if file != kept]

    def _worth(self, file: Path) -> tuple[bool, bool, int, str]:
        """A key by which the best file comes first: known issue, upstream number, then size."""
        case = self.cases[file]
        named = any(issue.case == file.name for issue in self.issues)
        return not named, case.issue is None, len(case.program.statements), file.name

    def _problems_of(self, issue: Issue) -> list[str]:
        if not issue.case:
            return []
        case = self.cases.get(self.folder / issue.case)
        if case is None:
            return [f"names {issue.case}, which is not there or cannot be read"]
        found = []
        for target in issue.targets:
            differs = case.expected.get(target) == case_file.DIFFERS
            if issue.expected == case_file.DIFFERS and not differs:
                found.append(f"{issue.case} does not expect a difference on {target}")
            if differs and not issue.covers(target, case.bucket, case.program):
                found.append(f"does not cover the bucket of {issue.case} on {target}: {case.bucket}")
        if issue.upstream != case.issue:
            found.append(f"has upstream number {issue.upstream}, {issue.case} has {case.issue}")
        return found


def is_canonical(file: Path, case: Case) -> bool:
    """Whether a file's text is what `write_case` would write today."""
    return file.read_text(encoding="utf-8") == case_file.case_text(case)


def _case_problems(case: Case) -> list[str]:
    """The contradictions within a case."""
    found = []
    if case.bucket.split("/")[0] != case.clause:
        found.append(f"has the clause {case.clause} and a bucket of another: {case.bucket}")
    ingredients = buckets.ingredients(case.program)
    if not case.bucket.endswith(f"/{ingredients}"):
        found.append(f"its bucket does not end in what its program has: {ingredients}")
    if case.findings and not case.bucket.startswith(buckets.signature(case.findings)):
        found.append(f"its bucket does not begin with what it found: {buckets.signature(case.findings)}")
    if case.origin.target not in case.expected:
        found.append(f"expects nothing of {case.origin.target}, where it comes from")
    return found
