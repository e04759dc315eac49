"""The files of the cache: damaged, hostile, too many, and folders that cannot be written to."""

from __future__ import annotations

import copy
import errno
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

import aot
from aot.cache import store as folders
from aot.cache.store import Store
from tests.support.agreement import leaf, values
from tests.support.aot.cache_entries import sealed

pytestmark = pytest.mark.usefixtures("folder")


def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    scale = torch.tensor([1.0, 2.0])
    x.unsqueeze_(0)
    x.mul_(2)
    return (x * w).sin().sum(), x.view(-1), (w * scale).unbind()[1]


GRAPH = fx.symbolic_trace(program)


def run() -> list[Tensor]:
    x, w = values(2, 2), leaf(2, 2, start=3)
    compiled = aot.aot_module_simplified(GRAPH, [x.clone(), w], aot.nop)
    results = compiled(x, w)
    results[0].backward()
    assert w.grad is not None
    return [*(one.detach() for one in results), w.grad, x]


@pytest.fixture
def entry(folder: Path) -> Path:
    run()
    (one,) = folder.glob("*.aot")
    return one


@given(data=st.data())
@settings(
    deadline=None, max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_damaged_bytes_are_dropped(data: st.DataObject, entry: Path) -> None:
    good, wanted = entry.read_bytes(), run()
    place = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if kind == "flip":
        byte = data.draw(st.integers(1, 255))
        bad = good[:place] + bytes([good[place] ^ byte]) + good[place + 1 :]
    else:
        bad = good[:place] + (data.draw(st.binary(min_size=1)) + good[place:] if kind == "insert" else b"")
    hypothesis.assume(bad != good)
    entry.write_bytes(bad)
    with pytest.warns(aot.CacheWarning, match="dropped, and compiled anew"):
        torch.testing.assert_close(run(), wanted, rtol=0, atol=0)
    assert entry.read_bytes() == good, "what was compiled anew is kept"


def places(data: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if isinstance(data, list):
        for i, one in enumerate(data):
            yield (*path, i)
            yield from places(one, (*path, i))


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    7,
    1 << 80,
    "",
    "x",
    "a b",
    "import os",
    "x)\n    import os\n    (",
    [],
    [[]],
    ["op", "aten::add", "Tensor"],
    ["op", "aten::__class__", "__base__"],
    ["op", "os::system", "default"],
    ["op", "aten::add", "__class__"],
    ["own", "eval"],
    ["node", 99],
    ["node", -1],
    ["dtype", "ops"],
    ["dtype", "load"],
    ["device", "nowhere"],
    ["float", "one"],
    ["size", "a"],
    ["tuple", ["node", 0]],
    ["ViewRoot", [0]],
]


@pytest.mark.nightly
@given(data=st.data())
@settings(
    deadline=None, max_examples=300, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_what_was_never_written_does_not_raise(data: st.DataObject, entry: Path) -> None:
    """With the right seal."""
    good = entry.read_bytes()
    content = json.loads(good.split(b"\n", 2)[2])
    every = list(places(content))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(every))
        inner = content
        for i in way:
            inner = inner[i] if isinstance(inner, list) and i < len(inner) else []
        if isinstance(inner, list) and last < len(inner):
            inner[last] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    entry.write_bytes(sealed(json.dumps(content).encode(), entry.stem))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", aot.CacheWarning)
        compiled = aot.aot_module_simplified(GRAPH, [values(2, 2), leaf(2, 2)], aot.nop)
    assert callable(compiled)
    entry.write_bytes(good)


HOSTILE: dict[str, Callable[[str], str]] = {
    "a name that is code": lambda text: text.replace('"placeholder","primals_1"', '"placeholder","a):0#"'),
    "a target that is code": lambda text: text.replace('"primals_1","primals_1"', '"primals_1","a=print()"'),
    "another function": lambda text: text.replace('["aten::sin","default"]', '"eval"'),
    "another operator": lambda text: text.replace('["aten::mul","Tensor"]', '["torch::load","x"]'),
    "no operator": lambda text: text.replace('"aten::sin","default"', '"aten::sin","__class__"'),
    "a custom operator": lambda text: text.replace('"aten::sin","default"', '"aot_rng::rand","default"'),
    "a number that is text": lambda text: text.replace("[[3,[0,1,2]", '[["3,*t",[0,1,2]', 1),
    "no JSON": lambda text: text[:-1],
    "deep JSON": lambda text: "[" * 100_000 + "]" * 100_000,
    "another value": lambda text: "3",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_entries_are_dropped(name: str, entry: Path) -> None:
    wanted, text = run(), entry.read_bytes().split(b"\n", 2)[2].decode()
    changed = HOSTILE[name](text)
    assert changed != text
    entry.write_bytes(sealed(changed.encode(), entry.stem))
    with pytest.warns(aot.CacheWarning, match="dropped, and compiled anew"):
        torch.testing.assert_close(run(), wanted, rtol=0, atol=0)
    assert aot.cache.stats().dropped == 1


def test_an_entry_under_another_key_is_none(entry: Path, folder: Path) -> None:
    other = "0" * 64
    (folder / f"{other}.aot").write_bytes(entry.read_bytes())
    with pytest.warns(aot.CacheWarning):
        assert Store(folder, 1 << 20).read(other) is None
    assert Store(folder, 1 << 20).read(entry.stem) is not None


def test_what_was_not_read_for_the_longest_time_goes_first(folder: Path) -> None:
    cache = Store(folder, 10_000)
    names = [f"{i:064x}" for i in range(12)]
    for i, name in enumerate(names[:9]):
        assert cache.write(name, bytes(900))
        os.utime(folder / f"{name}.aot", (1000 + i, 1000 + i))
    assert cache.read(names[0]) == bytes(900)
    for name in names[9:]:
        assert cache.write(name, bytes(900))
    left = [i for i, name in enumerate(names) if cache.read(name) is not None]
    assert {0, 9, 10, 11} <= set(left) and not {1, 2} & set(left)
    assert cache.stats().bytes <= 10_000
    assert not cache.write(names[1], bytes(6_000))
    assert cache.stats().uncached == {"an entry that is larger than half the cache": 1}


def test_the_limit_is_a_setting(folder: Path) -> None:
    with aot.config.patch(cache_limit=1000):
        run()
    assert aot.cache.stats().entries == 0


def test_what_was_begun_and_abandoned_is_taken_away(folder: Path) -> None:
    cache = Store(folder, 10_000)
    cache.write("1" * 64, b"")
    old, new = folder / ".begun-old", folder / ".begun-new"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.write("2" * 64, b"")
    assert not old.exists() and new.exists()
    assert cache.clear() == 2
    assert not new.exists()


def test_a_place_that_is_no_folder_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wanted = run()
    with aot.config.patch(cache=tmp_path / "file" / "cache"):
        with pytest.warns(aot.CacheWarning, match="cannot") as told:
            torch.testing.assert_close(run(), wanted)
            run()
        assert len({str(one.message) for one in told}) == len(told) <= 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_full_disks_and_folders_that_are_only_read(
    code: int, entry: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    def opened(path: Any, flags: int, *args: Any, **options: Any) -> Any:
        return fails() if flags & (os.O_WRONLY | os.O_CREAT) else opens(path, flags, *args, **options)

    before, opens = entry.read_bytes(), os.open
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "utime", fails)
    with pytest.warns(aot.CacheWarning, match="cannot write to") as told:
        run()
        run()
        aot.aot_module_simplified(fx.symbolic_trace(lambda x: x * 2), [values(2)], aot.nop)
    assert len(told) == 1
    monkeypatch.undo()
    assert entry.read_bytes() == before and len(list(folder.iterdir())) == 2
    assert aot.cache.stats().hits == 0, "they could not be counted"


def test_what_has_happened_stays_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_EVENTS_LIMIT", 200)
    cache = Store(folder, 1000)
    for _ in range(100):
        cache.note("hit")
        cache.note("uncached a reason")
    assert (folder / "events.log").stat().st_size < 400
    assert (cache.stats().hits, cache.stats().uncached) == (100, {"a reason": 100})
    with (folder / "events.log").open("ab") as log:
        log.write(b"nonsense\n\xff\xfe 1\n99999999999999999999 hit\n1 \x07\n")
    assert cache.stats().hits == 100


def test_clearing_takes_nothing_else_away(folder: Path, entry: Path) -> None:
    mine = folder / "mine.txt"
    mine.write_text("keep")
    assert aot.cache.clear() == 1
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
