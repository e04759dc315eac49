"""Corpus dates: run every case of a corpus under several versions of torch, and find the layer to blame.

Each interpreter replays all cases at once, as `aotfuzz replay` does. The layer is determined under the newest
torch under which a case differs as recorded. Dynamo and AOTAutograd are distinguished by the targets that
stop there. If only Inductor shows a difference, torch's bisector searches with the script of the case.

    dated = date_cases(cases, interpreters, folder=Path("bisection"), report=print)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzz.bisection.layers import find_layer
from fuzz.bisection.trial import Script
from fuzz.bisection.versions import sort_by_torch
from fuzz.corpus import dates
from fuzz.corpus.case_file import Case, case_slug
from fuzz.corpus.dates import AGREES, DIFFERS, OTHERWISE, UNCLEAR
from fuzz.errors import InterpreterError, ScriptError
from fuzz.interpreters import Interpreter
from fuzz.repro.script import main_finding, repro_script
from fuzz.targets.builtin_targets import SHIPPED

# The outcome of a case for a device that is not here, as in `fuzz.campaign.replay`.
LEFT_OUT = "left out"
# Seconds for one case on one target. Few need more than one.
CASE_SECONDS = 60.0
START_SECONDS = 300.0
_DYNAMO, _AOT_EAGER, _INDUCTOR = "torch-dynamo", "torch-aot-eager", "torch-inductor"
# A target with AOTAutograd as its last layer, and without Dynamo.
_AOT_FUNCTION = "torch-aot-function"


@dataclass(frozen=True, slots=True)
class Dated:
    """A case with its dates, and what could not be found out."""

    file: Path
    case: Case
    said: str = ""


def date_cases(
    cases: Sequence[tuple[Path, Case]],
    interpreters: Sequence[Interpreter],
    *,
    folder: Path,
    jobs: int = 1,
    report: Callable[[str], None] = lambda _text: None,
) -> list[Dated]:
    """The cases with what was seen under each interpreter, in the given order. Files are not written.

    Each case runs on the shipped targets among those for which its file has an expectation. `folder` gets the
    files of searches for a layer.

    Raises:
        InterpreterError: an interpreter cannot replay the cases at all.
    """
    found = {file: Dated(file, case) for file, case in cases}
    runnable = [(file, case) for file, case in cases if _shipped(case)]
    ordered = sort_by_torch(interpreters)
    for interpreter in ordered:
        version = dates.public_version(interpreter.torch)
        report(f"torch {version}: {len(runnable)} cases")
        for (file, target), state in _states(interpreter, runnable, (), jobs).items():
            case = found[file].case
            dated = dates.merge_dates(case.dated, {target: {version: state}})
            found[file] = Dated(file, replace(case, dated=dated))
    for interpreter in reversed(ordered):
        version = dates.public_version(interpreter.torch)
        differing = [(file, at.case) for file, at in found.items() if _last_differing(at.case) == version]
        report(f"torch {version}: layers of {len(differing)} cases")
        for file, layer, said in _layers(interpreter, differing, folder, jobs):
            found[file] = Dated(file, replace(found[file].case, layer=layer), said)
    return [found[file] for file, _ in cases]


def _shipped(case: Case) -> list[str]:
    return [target for target in case.expected if target in SHIPPED]


def _layered_target(case: Case) -> str | None:
    """The target of torch's by which the layer is found: the first layer that differs under any version."""
    for target in (_AOT_EAGER, _AOT_FUNCTION, _DYNAMO, _INDUCTOR):
        if dates.last_differing(case.dated, target) is not None:
            return target
    return None


def _last_differing(case: Case) -> str | None:
    """The newest torch under which that target differs as recorded."""
    target = _layered_target(case)
    return None if target is None else dates.last_differing(case.dated, target)


def _states(
    interpreter: Interpreter, cases: Sequence[tuple[Path, Case]], targets: Iterable[str], jobs: int
) -> dict[tuple[Path, str], str]:
    """What each case does on `targets`, or on those of its file, under an interpreter."""
    if not cases:
        return {}
    named = [word for target in targets for word in ("--target", target)]
    files = {str(file.absolute()): file for file, _ in cases}
    words = ["-P", "-m", "fuzz.cli", "replay", *files, *named, "--jobs", str(jobs), "--json"]
    ran = interpreter.run(words, limit=START_SECONDS + CASE_SECONDS * 4 * len(cases) / jobs)
    try:
        rows = json.loads(ran.stdout.splitlines()[-1])["results"]
    except (ValueError, LookupError, TypeError) as error:
        ended = "took too long" if ran.status is None else f"ended with status {ran.status}"
        raise InterpreterError(
            f"{interpreter.python} cannot replay cases: {ended}: {ran.last_words}"
        ) from error
    # A case whose device is not here proves nothing.
    ran_here = [row for row in rows if row["outcome"] != LEFT_OUT]
    return {(files[row["file"]], row["target"]): _state(row) for row in ran_here}


def _state(row: Mapping[str, Any]) -> str:
    """What was seen, from a row of `aotfuzz replay --json`."""
    if row["outcome"] == "finding":
        return DIFFERS if row["same_bucket"] else OTHERWISE
    return AGREES if row["outcome"] == "agree" else UNCLEAR


def _layers(
    interpreter: Interpreter, cases: Sequence[tuple[Path, Case]], folder: Path, jobs: int
) -> Iterable[tuple[Path, str, str]]:
    """For each case that differs under an interpreter its layer, or "" and the reason."""
    compiled = [(file, case) for file, case in cases if _layered_target(case) != _AOT_FUNCTION]
    under = _states(interpreter, compiled, (_DYNAMO, _AOT_EAGER), jobs)
    for file, case in cases:
        if (
            _layered_target(case) == _AOT_FUNCTION
            or under[file, _DYNAMO] != DIFFERS == under[file, _AOT_EAGER]
        ):
            yield file, dates.AOT_AUTOGRAD, ""
        elif under[file, _DYNAMO] == DIFFERS:
            yield file, dates.DYNAMO, ""
        else:
            yield file, *_layer_by_script(interpreter, case, folder)


def _layer_by_script(interpreter: Interpreter, case: Case, folder: Path) -> tuple[str, str]:
    """The layer that torch's bisector finds with the case's script on Inductor."""
    place = folder / case_slug(case.bucket, _INDUCTOR)
    try:
        blame = find_layer(
            interpreter, write_script(case, _INDUCTOR, place), folder=place, limit=CASE_SECONDS
        )
    except ScriptError as error:
        return "", str(error)
    return blame.layer, "" if blame.layer else blame.said


def write_script(case: Case, target: str, folder: Path) -> Script:
    """Write the script of a case to a folder. It needs only torch.

    Raises:
        OSError: as for any file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "repro.py"
    file.write_text(repro_script(case.program, target, main_finding(case)), encoding="utf-8")
    return Script(file)
