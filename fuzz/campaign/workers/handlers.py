"""Handlers: what a worker does with one item: run a program, try a repro script, or observe eager alone.

Items and answers are plain data, so that they can cross a pipe as JSON:

    {"kind": "case", "seed": 0, "index": 17, "profile": "uniform", "device": "cpu", "target": "aot"}
    {"kind": "program", "program": {...}, "target": "aot"}
    {"kind": "probe", "program": {...}, "target": "aot"}
    {"kind": "script", "text": "import torch..."}
    {"kind": "eager digest", "program": {...}}
    {"kind": "eager", "program": {...}}
    {"kind": "judge eager", "program": {...}, "observations": [...]}

The answer of the first is `Result.to_json` and the program's `traits`, that of the next two `Result.to_json`,
and that of a script `repro_trial.run_repro`. The last three give a digest of eager's observations, the
observations as plain data, and the `Result.to_json` of another eager's observations. If a target has broken
its process, the answer is the worker's `Last`. After a script it always is, because nobody has checked the
process or reset its target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from fuzz.campaign import repro_trial
from fuzz.campaign.workers.worker import Last
from fuzz.choices import SeededChoices
from fuzz.errors import TargetError
from fuzz.execute.call import Result
from fuzz.execute.case import execute
from fuzz.execute.eager_case import judge_eager, observe_eager
from fuzz.execute.garbage import sweep_garbage
from fuzz.features.traits import traits
from fuzz.generate import generate
from fuzz.generate.profile_names import find_profile
from fuzz.ir.nodes import on_device
from fuzz.program.decode import Program, from_json, to_json
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target
from oracles.object_names import class_name, message_of
from oracles.observation.serialization import observation_from_json, observation_to_json

HANDLER = "fuzz.campaign.workers.handlers:handle_item"


def program(seed: int, index: int, profile: str, device: str = "cpu") -> Program:
    """Case `index` of a campaign, which is the same on every machine and after any other case."""
    made = generate(SeededChoices(seed, index), find_profile(profile))
    if device == "cpu":
        return made
    return on_device(made, device)


def case_item(
    seed: int, index: int, profile: str, device: str, target: str, clauses: Sequence[str] = ()
) -> dict[str, Any]:
    """The item that runs one generated case. If there are `clauses`, only they are judged."""
    return {
        "kind": "case",
        "seed": seed,
        "index": index,
        "profile": profile,
        "device": device,
        "target": target,
        "clauses": list(clauses),
    }


def program_item(given: Program, target: str, clauses: Sequence[str] = ()) -> dict[str, Any]:
    """The item that runs one given program; `clauses` are as in `case_item`."""
    return {"kind": "program", "program": to_json(given), "target": target, "clauses": list(clauses)}


def probe_item(given: Program, target: str) -> dict[str, Any]:
    """The item that runs a program on a target as if it lacked and declined nothing.

    The reason of a refusal then has the exception too.
    """
    return {"kind": "probe", "program": to_json(given), "target": target}


def script_item(text: str) -> dict[str, Any]:
    """The item that executes a repro script. Its exit status says whether it shows its difference."""
    return {"kind": "script", "text": text}


def eager_digest_item(given: Program) -> dict[str, Any]:
    """The item that runs a program in eager alone. Its answer is a digest of all observations."""
    return {"kind": "eager digest", "program": to_json(given)}


def eager_item(given: Program) -> dict[str, Any]:
    """The item that runs a program in eager alone. Its answer has all observations."""
    return {"kind": "eager", "program": to_json(given)}


def judge_eager_item(given: Program, observations: list[Any]) -> dict[str, Any]:
    """The item that judges another eager's observations of a program, as `eager_item` gives them."""
    return {"kind": "judge eager", "program": to_json(given), "observations": observations}


def handle_item(item: dict[str, Any]) -> Any:
    """Handle one item. An exception from here is a mistake of the fuzzer."""
    match item["kind"]:
        case "case":
            given = program(item["seed"], item["index"], item["profile"], item["device"])
            return _answer(_executed(given, item), traits=sorted(traits(given)))
        case "program":
            return _answer(_executed(from_json(item["program"]), item))
        case "probe":
            target = _asked_for_all(_target(item["target"]))
            return _answer(_executed_on(from_json(item["program"]), target))
        case "script":
            return Last(repro_trial.run_repro(item["text"]))
        case "eager digest":
            text = json.dumps(_observations_of_eager(item["program"]), sort_keys=True)
            return hashlib.sha256(text.encode()).hexdigest()
        case "eager":
            return _observations_of_eager(item["program"])
        case "judge eager":
            others = [observation_from_json(data) for data in item["observations"]]
            return judge_eager(from_json(item["program"]), others).to_json()
        case kind:
            raise ValueError(f"no item of kind {kind!r}")


def _observations_of_eager(program: Any) -> list[Any]:
    return [observation_to_json(seen) for seen in observe_eager(from_json(program))]


def _executed(given: Program, item: dict[str, Any]) -> Result:
    target, clauses = _target(item["target"]), item.get("clauses")
    if clauses:
        promised = tuple(clause for clause in target.promised if clause in clauses)
        target = replace(target, clauses=promised)
    return _executed_on(given, target)


def _executed_on(given: Program, target: Target) -> Result:
    result = execute(given, target)
    if result.intact:
        sweep_garbage()
    return result


def _asked_for_all(target: Target) -> Target:
    """The target without anything that it lacks and declines, whose refusals contain the exception."""

    def refusal(error: BaseException) -> str | None:
        reason = target.refusal(error)
        return None if reason is None else f"{reason}: {class_name(type(error))}: {message_of(error)}"

    return replace(target, lacks=(), declines=(), refusal=refusal)


def _answer(result: Result, **more: Any) -> Any:
    answer = {**result.to_json(), **more}
    return answer if result.intact else Last(answer)


def _target(name: str) -> Target:
    """The target, prepared with its controls."""
    target = _prepared_target(name)
    for control in target.controls:
        _prepared_target(control)
    return target


@cache
def _prepared_target(name: str) -> Target:
    """The target, prepared once in each process."""
    target = find_target(name)
    try:
        target.prepare()
    except (Exception, SystemExit) as error:
        said = f"{class_name(type(error))}: {message_of(error)}"
        raise TargetError(f"target {name!r} cannot be made ready: its prepare raises {said}") from error
    return target
