"""The folder of the cache and its files are the user's alone; or they are not used, which is said once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx

import aot
from aot.cache import seal
from aot.cache import store as folders
from aot.cache.__main__ import main
from aot.cache.store import Store
from tests.support.agreement import leaf, values

KEY = "1" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    folders._warned.clear()
    with aot.config.patch(cache=tmp_path / "home" / "cache"):
        yield tmp_path / "home" / "cache"


def program(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin().sum()


GRAPH = fx.symbolic_trace(program)


def run() -> float:
    compiled = aot.aot_module_simplified(GRAPH, [values(2, 2), leaf(2, 2)], aot.nop)
    result: float = compiled(values(2, 2), leaf(2, 2)).item()
    return result


def is_not_used(reason: str, folder: Path) -> None:
    """No entry of a folder is read, none is written, and it is said why, once."""
    before = sorted(folder.glob("*.aot"))
    hits = aot.cache.stats().hits
    with pytest.warns(aot.CacheWarning, match=reason) as told:
        run()
        run()
    assert len(told) == 1
    assert aot.cache.stats().hits == hits
    assert sorted(folder.glob("*.aot")) == before
    assert reason in aot.cache.stats().unusable


def test_what_is_made_is_the_user_s_alone(folder: Path) -> None:
    mask = os.umask(0)
    try:
        run()
    finally:
        os.umask(mask)
    for path in (folder.parent, folder):
        assert path.stat().st_mode & 0o777 == 0o700
    for path in (*folder.iterdir(), seal.key_file()):
        assert path.stat().st_mode & 0o777 == 0o600, path
    run()
    assert aot.cache.stats().hits == 1


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o1777, 0o702])
def test_a_folder_that_others_may_write_to(
    mode: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    folder.chmod(mode)
    is_not_used("others may write to", folder)
    assert main(["--folder", str(folder), "stats"]) == 0
    assert "not used  others may write to" in capsys.readouterr().out
    folder.chmod(0o755)
    run()
    assert aot.cache.stats().hits == 1


def test_a_folder_that_everybody_may_exchange(folder: Path) -> None:
    run()
    folder.parent.chmod(0o777)
    is_not_used("everybody may put another folder in the place", folder)
    folder.parent.chmod(0o1777)  # as /tmp
    run()
    assert aot.cache.stats().hits == 1


def test_a_link_to_a_folder_of_the_user_s(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.parent.mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    run()
    run()
    assert aot.cache.stats().hits == 1
    (tmp_path / "elsewhere").chmod(0o777)
    is_not_used("others may write to", tmp_path / "elsewhere")


def test_what_belongs_to_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    is_not_used(f"belongs to user {user}", folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which the superuser alone may (issue 45)")
def test_an_entry_of_another_user(folder: Path) -> None:
    run()
    (entry,) = folder.glob("*.aot")
    os.chown(entry, 12345, -1)
    with pytest.warns(aot.CacheWarning, match="dropped, and compiled anew: .* belongs to user 12345"):
        run()
    assert (aot.cache.stats().hits, aot.cache.stats().dropped) == (0, 1)
    run()
    assert aot.cache.stats().hits == 1
    os.chown(folder, 12345, -1)
    is_not_used("belongs to user 12345", folder)


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_link_to_an_entry(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.with_name("good").read_bytes())
    path.symlink_to(copy)


def put_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def put_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_what_others_may_write(path: Path) -> None:
    path.write_bytes(path.with_name("good").read_bytes())
    path.chmod(0o666)


def put_much(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(folders.LARGEST + 1)


PUT: tuple[Callable[[Path], None], ...] = (
    put_pipe,
    put_link_to_zeros,
    put_link_to_an_entry,
    put_link_to_itself,
    put_socket,
    put_folder,
    put_what_others_may_write,
    put_much,
)


@pytest.mark.parametrize("put", PUT, ids=lambda put: put.__name__)
def test_what_is_no_entry(put: Callable[[Path], None], folder: Path) -> None:
    wanted = run()
    (entry,) = folder.glob("*.aot")
    entry.rename(folder / "good")
    put(entry)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert run() == wanted
    assert any("dropped, and compiled anew" in str(one.message) for one in told)
    stats = aot.cache.stats()
    assert (stats.hits, stats.dropped) == (0, 1)
    if put is not put_folder:  # in the place of which no file can be put
        assert run() == wanted and aot.cache.stats().hits == 1


LOGS: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda log, other: log.symlink_to(other),
    "the same file": lambda log, other: log.hardlink_to(other),
    "a pipe": lambda log, other: os.mkfifo(log),
    "a device": lambda log, other: log.symlink_to("/dev/full"),
    "a folder": lambda log, other: log.mkdir(),
}


@pytest.mark.parametrize("kind", LOGS)
def test_what_is_no_log(kind: str, folder: Path, tmp_path: Path) -> None:
    wanted = run()
    mine = tmp_path / "mine"
    mine.write_text("mine\n")
    log = folder / "events.log"
    log.unlink()
    LOGS[kind](log, mine)
    with pytest.warns(aot.CacheWarning, match="cannot (write to|use) the cache"):
        assert run() == wanted
    assert mine.read_text() == "mine\n"
    assert aot.cache.stats().hits == 0, "it could not be counted"


def test_a_log_that_is_large_is_not_read(folder: Path) -> None:
    run()
    with (folder / "events.log").open("ab") as log:
        log.truncate(1 << 30)
    assert aot.cache.stats().misses == 0
    run()
    assert (folder / "events.log").stat().st_size < 1 << 20
    run()
    assert aot.cache.stats().hits >= 1


def test_entries_of_another_key_are_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = run()
    monkeypatch.setenv(seal.VARIABLE, str(tmp_path / "other" / "key"))
    with pytest.warns(aot.CacheWarning, match="was written with another key than yours"):
        assert run() == wanted
    assert (aot.cache.stats().hits, aot.cache.stats().dropped) == (0, 1)
    run()
    assert aot.cache.stats().hits == 1


@pytest.mark.parametrize("text", ["", "short\n", "g" * 64, "0" * 66])
def test_a_file_that_holds_no_key(
    text: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    monkeypatch.setenv(seal.VARIABLE, str(file))
    is_not_used("holds no key", folder)
    assert file.read_text() == text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read(
    mode: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    monkeypatch.setenv(seal.VARIABLE, str(file))
    run()
    file.chmod(mode)
    is_not_used("others can read or write its key", folder)


def test_a_key_that_cannot_be_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(seal.VARIABLE, str(tmp_path / "file" / "key"))
    is_not_used("let AOTFUZZ_CACHE_KEY name a file", folder)


def test_the_key_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seal.VARIABLE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert seal.key_file() == tmp_path / "state" / "aotfuzz" / "cache-key"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert seal.key_file() == tmp_path / ".local" / "state" / "aotfuzz" / "cache-key"


def test_threads_and_processes_make_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seal.VARIABLE, str(tmp_path / "new" / "key"))
    code = "from aot.cache import seal; print(seal.seal_secret().hex())"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    found: set[str] = set()
    threads = [threading.Thread(target=lambda: found.add(seal.seal_secret().hex())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.update(process.communicate(timeout=250)[0].strip() for process in processes)
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["key"]


def test_seals_are_of_the_key_and_the_content(folder: Path) -> None:
    cache = Store(folder, 1 << 20)
    assert cache.write(KEY, b"content")
    file = folder / f"{KEY}.aot"
    whole = file.read_bytes()
    for changed in (
        whole.replace(b"content", b"contenu"),
        whole[:-1],
        whole + b" ",
        whole.replace(b" 2\n", b" 1\n"),
    ):
        file.write_bytes(changed)
        with pytest.warns(aot.CacheWarning, match="dropped"):
            assert cache.read(KEY) is None
    file.write_bytes(whole)
    assert cache.read(KEY) == b"content"
    assert torch.is_grad_enabled()
