"""Over commits: the first wrong one, found in a worktree that is gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.bisection.commits import Bisection, Commit, find_commit
from fuzz.bisection.trial import Outcome, Script
from fuzz.errors import CommitsError
from fuzz.interpreters import Interpreter

HERE = Interpreter(Path(sys.executable), "3", "2")
# The number of each commit, and what the module of the backend says there.
COMMITS = (0, 0, 0, 0, 1, 1, 1)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def repository(folder: Path, broken: tuple[int, ...] = ()) -> Path:
    """A repository whose backend is wrong from commit 4 on; those in `broken` cannot be built."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for number, wrong in enumerate(COMMITS):
        (folder / "source.txt").write_text(f"wrong = {wrong}  # {number}\n")
        (folder / "build.sh").write_text("exit 3" if number in broken else "cp source.txt backend.py")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"Commit {number}")
        git(folder, "tag", f"c{number}")
    return folder


def asked(folder: Path, tmp_path: Path, good: str = "c0", bad: str = "c6") -> Bisection:
    script = tmp_path / "script.py"
    script.write_text("import sys, backend; sys.exit(backend.wrong)")
    return Bisection(folder, good, bad, "sh build.sh", Script(script), HERE, limit=60)


def test_the_first_wrong_commit_is_found_and_the_checkout_is_untouched(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    (folder / "source.txt").write_text("mine")
    (folder / "new.txt").write_text("mine, too")
    before = git(folder, "status", "--short"), git(folder, "for-each-ref"), git(folder, "rev-parse", "HEAD")
    reported: list[tuple[Commit, Outcome]] = []
    found = find_commit(asked(folder, tmp_path), report=lambda *pair: reported.append(pair))
    assert [commit.subject for commit in found.commits] == ["Commit 4"]
    assert found.before is not None
    assert found.before.subject == "Commit 3"
    assert found.tried == len(reported) <= 5
    after = git(folder, "status", "--short"), git(folder, "for-each-ref"), git(folder, "rev-parse", "HEAD")
    assert after == before
    assert (folder / "source.txt").read_text() == "mine"
    assert git(folder, "worktree", "list").count("\n") == 1
    assert not list((folder / ".git").glob("**/BISECT*"))


def test_commits_that_cannot_be_built_are_skipped(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", broken=(3,))
    found = find_commit(asked(folder, tmp_path))
    # Commit 3 may be the first wrong one as well.
    assert sorted(commit.subject for commit in found.commits) == ["Commit 3", "Commit 4"]
    assert found.before is None


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("c0", "nowhere", "'nowhere' is no commit of"),
        ("--all", "c6", "'--all' is no commit of"),
        ("c6", "c0", "c6 does not come before the bad one c0"),
        ("c5", "c6", "the good commit c5 is not right, but wrong: status 1"),
        ("c0", "c2", "the bad commit c2 is not wrong, but right"),
    ],
)
def test_ends_that_do_not_fit_are_refused(good: str, bad: str, said: str, tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    with pytest.raises(CommitsError, match=said):
        find_commit(asked(folder, tmp_path, good, bad))
    assert git(folder, "worktree", "list").count("\n") == 1


def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommitsError, match="is no commit of"):
        find_commit(asked(tmp_path, tmp_path))
    with pytest.raises(CommitsError, match="is no folder"):
        find_commit(asked(tmp_path / "none", tmp_path))
