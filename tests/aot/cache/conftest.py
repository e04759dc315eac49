"""What tests of the cache on disk share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import aot
from aot.cache import store


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the cache. Nothing is in it, and no warning of it has been given."""
    store._warned.clear()
    with aot.config.patch(cache=tmp_path / "cache"):
        yield tmp_path / "cache"
