"""This aotfuzz as a folder: its Python files alone, which another interpreter imports beside its own torch.

The folder that aotfuzz is installed in cannot be handed over, because it often holds a torch as well. A copy
also keeps the two campaigns of a comparison on one code while a checkout is edited. Compiled modules stay
behind: they are of one version of Python, and the Python files are the same programs.
"""

from __future__ import annotations

import os
import shutil
from importlib import metadata, util
from pathlib import Path

from fuzz.errors import StoreError

PACKAGES = ("aot", "fuzz", "oracles")
_LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "*.pyd")
# What `importlib.metadata` reads of an installed package: its version, and the targets that it registers.
_METADATA = (("METADATA", "METADATA"), ("PKG-INFO", "METADATA"), ("entry_points.txt", "entry_points.txt"))


def write_source_copy(folder: Path) -> None:
    """Write the packages of aotfuzz to a folder, in place of what is there.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        if folder.exists():
            shutil.rmtree(folder)
        for name in PACKAGES:
            shutil.copytree(_package_folder(name), folder / name, ignore=_LEFT_BEHIND)
        _write_metadata(folder)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error}; choose another with --out") from error


def environment_of_copy(folder: Path) -> dict[str, str]:
    """The environment of a process that imports aotfuzz from that folder, before all others."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(folder.resolve()), *([before] if before else [])])
    return environment


def _package_folder(name: str) -> Path:
    spec = util.find_spec(name)
    assert spec is not None and spec.origin is not None, f"aotfuzz runs without its package {name}"
    return Path(spec.origin).parent


def _write_metadata(folder: Path) -> None:
    """Write what an installed aotfuzz says of itself; nothing where this one is not installed."""
    try:
        installed = metadata.distribution("aotfuzz")
    except metadata.PackageNotFoundError:
        return
    place = folder / f"aotfuzz-{installed.version}.dist-info"
    place.mkdir()
    for name, written in _METADATA:
        text = installed.read_text(name)
        if text is not None:
            (place / written).write_text(text, encoding="utf-8")
