"""Dates: what each version of torch does with a recorded case, and which layer of torch is to blame.

They are two fields of a corpus file:

    "dated": {"torch-aot-eager": {"2.11.0": "agrees", "2.13.0": "differs", "2.15.0": "agrees"}},
    "layer": "AOTAutograd",

`aotfuzz corpus date` writes both. They say what was seen. `expected` and `versions` say what to expect.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from fuzz.ir import json_readers
from fuzz.program.decode import ProgramError

DATED, LAYER = "dated", "layer"
DIFFERS, AGREES = "differs", "agrees"
# A difference other than the recorded one; no verdict, because the case was refused, inconclusive, or has no
# device.
OTHERWISE, UNCLEAR = "differs otherwise", "unclear"
SEEN = (DIFFERS, AGREES, OTHERWISE, UNCLEAR)
EAGER, DYNAMO, AOT_AUTOGRAD = "eager", "Dynamo", "AOTAutograd"
DECOMPOSITIONS, INDUCTOR, BACKEND = "decompositions and partitioner", "Inductor", "backend"
LAYERS = (EAGER, DYNAMO, AOT_AUTOGRAD, DECOMPOSITIONS, INDUCTOR, BACKEND)
"""The layers of torch's compiler, from first to last. `backend` is a backend that is not torch's."""

Dates = Mapping[str, Mapping[str, str]]
"""For each target what was seen under each version of torch, from the oldest to the newest."""

MOST_TARGETS = 32
MOST_VERSIONS = 100


def public_version(torch: str) -> str:
    """A version of torch without its local part.

    >>> public_version("2.13.0+cpu")
    '2.13.0'
    """
    return Version(torch).public


def merge_dates(before: Dates, after: Dates) -> Dates:
    """Merge dates with later ones. Targets are in the order of names, versions in the order of age."""
    merged = {target: {**before.get(target, {}), **after.get(target, {})} for target in {**before, **after}}
    return {target: dict(sorted(merged[target].items(), key=_age)) for target in sorted(merged)}


def last_differing(dates: Dates, target: str) -> str | None:
    """The newest version under which a target differs as recorded, or None."""
    versions = [version for version, state in dates.get(target, {}).items() if state == DIFFERS]
    return max(versions, key=Version, default=None)


def read_dates(data: object) -> Dates:
    """The dates of a corpus file.

    Raises:
        ProgramError: they are wrong. The error says what is wrong, and where.
    """
    if not isinstance(data, dict) or len(data) > MOST_TARGETS:
        raise ProgramError(DATED, f"not an object of at most {MOST_TARGETS} targets", "correct or remove it")
    return {target: _read_states(target, states) for target, states in data.items()}


def _read_states(target: str, data: object) -> dict[str, str]:
    place = f"{DATED}.{json_readers.shorten(target)}"
    if not isinstance(data, dict) or len(data) > MOST_VERSIONS:
        raise ProgramError(
            place, f"not an object of at most {MOST_VERSIONS} versions", "correct or remove it"
        )
    for version in data:
        try:
            Version(version[: json_readers.MAX_TEXT])
        except InvalidVersion as error:
            shown = json_readers.shorten(version)
            raise ProgramError(place, f"{shown} is no version", 'write one such as "2.13.0"') from error
    return {
        version: json_readers.choice(state, f"{place}.{version}", SEEN) for version, state in data.items()
    }


def _age(entry: tuple[str, str]) -> Version:
    return Version(entry[0])
