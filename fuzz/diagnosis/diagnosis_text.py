"""Diagnosis text: a diagnosis and its problems, as text for people and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from packaging.version import Version
from tabulate import tabulate

from fuzz.diagnosis.environment import Cache, Torch
from fuzz.diagnosis.private_api import PrivateApi, change_text
from fuzz.diagnosis.sample_programs import CASES, SEED, Sample

_OUTCOMES = ("agree", "poisoned", "refused", "finding")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of `aotfuzz doctor`.

    Attributes:
        python: the version of Python.
        torch: the installed torch.
        compiler: the path of a C++ compiler, or None.
        cache: the cache on disk.
        missing_packages: for each optional extra, its packages that are not installed.
        private_api: changes of torch's private API.
        programs: the results of the programs of each profile; empty if none could run.
        programs_error: why none could run, or "".
    """

    python: str
    torch: Torch
    compiler: str | None
    cache: Cache
    missing_packages: Mapping[str, tuple[str, ...]]
    private_api: PrivateApi
    programs: Mapping[str, Sample]
    programs_error: str = ""


def problems(diagnosis: Diagnosis) -> list[str]:
    """The problems, each in a sentence that says what to do if that is known; empty if there are none."""
    return list(_problems(diagnosis))


def _problems(diagnosis: Diagnosis) -> Iterator[str]:
    torch, api = diagnosis.torch, diagnosis.private_api
    if torch.error:
        yield f"torch cannot be imported: {torch.error}"
        return
    if api.tested and _minor(torch.version) < _minor(api.tested[0]):
        yield f"torch {torch.version} is too old; install {api.tested[0]} or a newer one"
    if api.error:
        yield f"private API cannot be looked at: {api.error}"
    yield from map(change_text, api.changes)
    if diagnosis.cache.error:
        yield f"aot cannot be imported: {diagnosis.cache.error}"
    if diagnosis.cache.on and diagnosis.cache.unusable:
        yield f"the cache cannot be used: {diagnosis.cache.unusable}"
    if diagnosis.programs_error:
        yield f"programs cannot be run: {diagnosis.programs_error}"
    for profile, sample in diagnosis.programs.items():
        if sample.problems:
            command = f"aotfuzz run --target aot --profile {profile} --seed {SEED} --cases {CASES}"
            yield f"profile {profile}: {'; '.join(sample.problems)} ({command})"


def notes(diagnosis: Diagnosis) -> list[str]:
    """Remarks that are no problems."""
    found = []
    torch, tested = diagnosis.torch, diagnosis.private_api.tested
    if not torch.error and tested and _minor(torch.version) > _minor(tested[-1]):
        found.append(f"torch {torch.version} is newer than what was tested ({', '.join(tested)})")
    if diagnosis.compiler is None:
        found.append("there is no C++ compiler, which Inductor needs; nothing else does")
    return found


def _minor(version: str) -> tuple[int, ...]:
    return Version(version).release[:2]


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data, with its problems under ``problems``."""
    wrong = problems(diagnosis)
    return {"well": not wrong, "problems": wrong, "notes": notes(diagnosis), **asdict(diagnosis)}


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """A diagnosis for people."""
    wrong = problems(diagnosis)
    rows = [
        ("Python", diagnosis.python),
        ("torch", _torch_text(diagnosis)),
        ("C++ compiler", diagnosis.compiler or "none"),
        ("GPU", ", ".join(diagnosis.torch.gpus) or "none"),
        ("cache", _cache_text(diagnosis.cache)),
        *((f"extra {name}", _extra_text(missing)) for name, missing in diagnosis.missing_packages.items()),
        ("private API", _api_text(diagnosis.private_api)),
    ]
    parts = [tabulate(rows, tablefmt="plain", disable_numparse=True)]
    if diagnosis.programs:
        parts.append(_programs_table(diagnosis.programs))
    parts += [f"Note: {note}." for note in notes(diagnosis)]
    parts += [f"Wrong: {problem}" for problem in wrong] or ["All is well."]
    return "\n\n".join(parts[:2]) + "\n\n" + "\n".join(parts[2:])


def _torch_text(diagnosis: Diagnosis) -> str:
    torch, tested = diagnosis.torch, diagnosis.private_api.tested
    if torch.error:
        return "cannot be imported"
    is_tested = any(_minor(torch.version) == _minor(one) for one in tested)
    return f"{torch.version}, built for {torch.build}, {'tested' if is_tested else 'not tested'}"


def _cache_text(cache: Cache) -> str:
    if cache.error:
        return "not known"
    state = "on" if cache.on else "off (AOTFUZZ_CACHE_DIR is not set)"
    return f"{state}, {cache.folder}" + (f", cannot be used: {cache.unusable}" if cache.unusable else "")


def _extra_text(missing: tuple[str, ...]) -> str:
    return f"not installed: {', '.join(missing)}" if missing else "installed"


def _api_text(api: PrivateApi) -> str:
    if api.error:
        return "not known"
    missing = sum(change["after"] is None for change in api.changes)
    changed = len(api.changes) - missing
    compared = " and ".join(api.baselines)
    return f"{api.names} names compared with torch {compared}: {missing} missing, {changed} changed"


def _programs_table(programs: Mapping[str, Sample]) -> str:
    rows = [
        (profile, *(sample.outcomes.get(one, 0) for one in _OUTCOMES)) for profile, sample in programs.items()
    ]
    return tabulate(rows, headers=("profile", "agree", "prove nothing", "refused", "findings"))
