"""The environment that this project runs in: Python, torch, a C++ compiler, GPUs, the cache, extras."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

SECONDS = 120.0  # for a process that imports torch, on a machine that is busy
_COMPILERS = ("g++", "clang++", "c++")
_CACHE_FOLDER = "AOTFUZZ_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed torch.

    Attributes:
        version: ``torch.__version__``, or "" if it cannot be imported.
        build: "CPU", "CUDA 13.2" or "ROCm 6.4".
        gpus: the names of the GPUs that it finds.
        error: why it cannot be imported, or "".
    """

    version: str
    build: str = ""
    gpus: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache on disk, as a process with aot reports it.

    Attributes:
        folder: its folder, which may not exist.
        on: the variable ``AOTFUZZ_CACHE_DIR`` turns it on.
        unusable: why it cannot be used, or "".
        error: why aot cannot be imported, or "".
    """

    folder: str
    on: bool
    unusable: str = ""
    error: str = ""


def python_version() -> str:
    """The version of Python, and which Python it is, such as "3.11.9, CPython"."""
    return f"{platform.python_version()}, {platform.python_implementation()}"


def installed_torch() -> Torch:
    """The torch that is installed here."""
    try:
        import torch
    except Exception as error:  # a missing shared library is an OSError
        return Torch("", error=_last_line(f"{type(error).__name__}: {error}"))
    hip, cuda = getattr(torch.version, "hip", None), torch.version.cuda
    build = f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "CPU"
    gpus = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return Torch(str(torch.__version__), build, gpus)


def cpp_compiler() -> str | None:
    """The C++ compiler that Inductor would call: that of the variable ``CXX``, or the first one on the
    path.
    """
    named = os.environ.get("CXX")
    return next((path for name in ([named] if named else _COMPILERS) if (path := shutil.which(name))), None)


def disk_cache() -> Cache:
    """The cache on disk, and whether aot can be imported."""
    on = bool(os.environ.get(_CACHE_FOLDER))
    command = [sys.executable, "-m", "aot.cache", "stats", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Cache("", on, error=f"no answer in {SECONDS:.0f} s")
    if done.returncode:
        return Cache("", on, error=_last_line(done.stderr) or f"exit status {done.returncode}")
    stats = json.loads(done.stdout.splitlines()[-1])
    return Cache(stats["folder"], on, stats["unusable"])


def missing_packages() -> Mapping[str, tuple[str, ...]]:
    """For each optional extra of this project, its packages that are not installed.

    If the project is not installed, its extras are not known.
    """
    try:
        distribution = metadata.distribution("aotfuzz")
    except metadata.PackageNotFoundError:
        return {}
    requirements = [Requirement(text) for text in distribution.requires or ()]
    extras = distribution.metadata.get_all("Provides-Extra") or ()
    return {extra: tuple(_missing_of_extra(extra, requirements)) for extra in sorted(extras)}


def _missing_of_extra(extra: str, requirements: list[Requirement]) -> list[str]:
    wanted = [one for one in requirements if one.marker is not None and one.marker.evaluate({"extra": extra})]
    missing = []
    for one in wanted:
        if one.name == "aotfuzz":
            missing += [
                name for inner in sorted(one.extras) for name in _missing_of_extra(inner, requirements)
            ]
        elif not _is_installed(one):
            missing.append(one.name)
    return missing


def _is_installed(wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
