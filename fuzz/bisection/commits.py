"""Commits: find the first wrong commit of a repository, by `git bisect` in a separate worktree.

The user's checkout is not touched: git keeps a bisection's state for each worktree, and the worktree is
removed at the end. At each commit the build command runs in the worktree, then the trial. For the trial the
worktree is the current folder, and comes first on the import path.

    first = find_commit(Bisection(Path("repo"), "v1", "main", "make -j8", trial, interpreter, limit=60))
    first.commits[0].subject
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fuzz.bisection.trial import Outcome, Trial, Verdict
from fuzz.errors import CommitsError
from fuzz.interpreters import Interpreter, run_process
from fuzz.safe_text import one_line

BUILD_SECONDS = 3600.0
_FIRST = re.compile(r"^([0-9a-f]{40,64}) is the first bad commit", re.MULTILINE)
_ANY_OF = re.compile(r"^[0-9a-f]{40,64}$", re.MULTILINE)
_WORDS = {Verdict.RIGHT: "good", Verdict.WRONG: "bad", Verdict.UNKNOWN: "skip"}


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its hash and the first line of its message."""

    hash: str
    subject: str

    def __str__(self) -> str:
        return f"{self.hash[:12]} {one_line(self.subject)}"


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """The first wrong commit; several if it may be any of them, because those in between cannot be tried."""

    commits: tuple[Commit, ...]
    before: Commit | None
    tried: int

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        as_data = [{"hash": commit.hash, "subject": commit.subject} for commit in self.commits]
        before = self.before and {"hash": self.before.hash, "subject": self.before.subject}
        return {"first_wrong": as_data, "before": before, "tried": self.tried}


@dataclass(frozen=True, slots=True)
class Bisection:
    """A bisection: the commits of a repository, how each is built, and the trial."""

    repository: Path
    good: str
    bad: str
    build: str
    trial: Trial
    interpreter: Interpreter
    limit: float = 120.0


def find_commit(
    asked: Bisection, *, report: Callable[[Commit, Outcome], None] = lambda _commit, _outcome: None
) -> FirstCommit:
    """Find the first commit after `good` at which the trial is wrong. `report` gets each outcome.

    Raises:
        CommitsError: there is no such repository or commit, good is not an ancestor of bad, the trial is not
            right at good or not wrong at bad, or git fails.
    """
    with _worktree(asked) as worktree:
        tried = 0
        for name, revision, verdict in (
            ("good", asked.good, Verdict.RIGHT),
            ("bad", asked.bad, Verdict.WRONG),
        ):
            _git(worktree, "checkout", "--quiet", "--detach", _hash_of(asked, revision))
            outcome = _try_commit(asked, worktree, report)
            tried += 1
            if outcome.verdict is not verdict:
                raise CommitsError(
                    f"the {name} commit {revision} is not {verdict}, but {outcome.verdict}: {outcome.said}"
                )
        said = _git(worktree, "bisect", "start", _hash_of(asked, asked.bad), _hash_of(asked, asked.good))
        while (found := _first_commit(worktree, said)) is None:
            outcome = _try_commit(asked, worktree, report)
            tried += 1
            said = _git(worktree, "bisect", _WORDS[outcome.verdict], statuses=(0, 2))
        before = _commit(worktree, f"{found[0].hash}^") if len(found) == 1 else None
        return FirstCommit(found, before, tried)


def _try_commit(asked: Bisection, worktree: Path, report: Callable[[Commit, Outcome], None]) -> Outcome:
    """Build the commit that is checked out, and run the trial.

    A commit that does not build proves nothing.
    """
    built = run_process(["sh", "-c", asked.build], limit=BUILD_SECONDS, folder=worktree)
    if built.status != 0:
        outcome = Outcome(Verdict.UNKNOWN, f"not built, status {built.status}: {built.last_words}")
    else:
        changes = {"PYTHONPATH": str(worktree), "PYTHONDONTWRITEBYTECODE": "1"}
        outcome = asked.trial.run(asked.interpreter, limit=asked.limit, folder=worktree, changes=changes)
    report(_commit(worktree, "HEAD"), outcome)
    # A build may change files that git tracks, and then git could not check out the next commit.
    _git(worktree, "checkout", "--quiet", "--force", "HEAD")
    return outcome


@contextmanager
def _worktree(asked: Bisection) -> Iterator[Path]:
    """While it lasts, there is a worktree of the repository in a temporary folder."""
    repository = asked.repository
    if not repository.is_dir():
        raise CommitsError(f"{repository} is no folder; name a git repository")
    good, bad = (_hash_of(asked, revision) for revision in (asked.good, asked.bad))
    if good == bad or _git_status(repository, "merge-base", "--is-ancestor", good, bad) != 0:
        raise CommitsError(f"the good commit {asked.good} does not come before the bad one {asked.bad}")
    with TemporaryDirectory(prefix="aotfuzz-commits-") as folder:
        worktree = Path(folder).resolve() / "worktree"
        _git(repository, "worktree", "add", "--quiet", "--detach", str(worktree), bad)
        try:
            yield worktree
        finally:
            _git_status(worktree, "bisect", "reset", "HEAD")
            _git_status(repository, "worktree", "remove", "--force", str(worktree))
            _git_status(repository, "worktree", "prune")


def _first_commit(worktree: Path, said: str) -> tuple[Commit, ...] | None:
    """The result in the output of `git bisect`; None if it is not finished."""
    if (found := _FIRST.search(said)) is not None:
        return (_commit(worktree, found[1]),)
    if "first bad commit could be any of" in said:
        return tuple(_commit(worktree, name) for name in _ANY_OF.findall(said))
    return None


def _commit(folder: Path, revision: str) -> Commit:
    name, _, subject = _git(folder, "show", "--no-patch", "--format=%H %s", revision).strip().partition(" ")
    return Commit(name, subject)


def _hash_of(asked: Bisection, revision: str) -> str:
    try:
        return _git(
            asked.repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"
        ).strip()
    except CommitsError as error:
        raise CommitsError(f"{revision!r} is no commit of {asked.repository}") from error


def _git(folder: Path, *arguments: str, statuses: tuple[int, ...] = (0,)) -> str:
    """The output of git.

    Raises:
        CommitsError: it ends with another status than `statuses`.
    """
    ran = _run_git(folder, *arguments)
    if ran.returncode not in statuses:
        raise CommitsError(f"git {arguments[0]} in {folder}: {one_line((ran.stderr or ran.stdout).strip())}")
    return ran.stdout + ran.stderr if arguments[0] == "bisect" else ran.stdout


def _git_status(folder: Path, *arguments: str) -> int:
    return _run_git(folder, *arguments).returncode


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder, in English, and without environment variables that name another repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        env={**environment, "LC_ALL": "C"},
        check=False,
    )
