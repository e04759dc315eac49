"""Programs of earlier formats, made such of the present one, as far as they are any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from fuzz.ir import json_readers as read

# What is read besides the present one. 14 had special values for all value classes, 13 no function modes,
# and no attributes of tensors, 12 no nested wrapper subclasses, and made none, 11 no arguments that are views
# of wrapper subclasses, 10 no tensors in attributes of modules, 9 no lazy arguments, views of aliases, roots
# that have been detached since or were made in inference mode, and autocast, 8 no calls in two threads, 7 no
# wrapper subclasses, 6 no modules, 5 no blocks but regions, and none in another, 4 no special values, 3 no
# later calls and no steps, 2 no inference mode, 1 no views of other dtypes or leaves.
EARLIER = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
_MODES = ("inherit", "no_grad", "enable_grad", "inference_mode", "checkpoint")


def migrate(data: dict[str, Any], version: int) -> dict[str, Any]:
    """A document of an earlier format, as far as it is one, with the fields that have come since."""
    if isinstance(module := data.get("module"), dict):
        data = {**data, "module": {"attributes": [], **module}}
    data = _migrate_each_call(data, "storages", lambda item: _name_values(item, version))
    added: dict[str, Any] = {"swapped": False, "marked": []} if version < 14 else {}
    if version >= 10:
        return _migrate_each_scenario(data, added)
    added |= {"autocast": None}
    added |= {"threads": False} if version < 9 else {}
    if version <= 3:
        data = {"later": [], **data}
        added |= {"steps": []} if version == 3 else {"inference": False, "steps": []}
    data = _migrate_each_scenario(data, added)
    kind: dict[str, Any] = {"lazy": None, "base": "root"}
    kind |= {"wrapped": None} if version < 8 else {}
    kind |= {"dtype": None, "leaf": False} if version == 1 else {}
    data = {"module": None, **data} if version < 7 else data
    data = _migrate_each_call(data, "arguments", lambda item: _with_fields(item, kind))
    data = _migrate_each_call(data, "storages", lambda item: {"detached": False, "inference": False, **item})
    return data if version >= 6 else _migrate_modes_to_regions(data)


def _name_values(storage: dict[str, Any], version: int) -> dict[str, Any]:
    """A storage that says whether it has special values, with their value class."""
    special = storage.get("special", False if version <= 4 else None)
    if type(special) is not bool:
        return storage
    rest = {key: value for key, value in storage.items() if key != "special"}
    return {"values": "special" if special else "plain", "precision": None, **rest}


def _migrate_each_scenario(data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The document with these fields in the scenario of each call where they are not yet."""

    def changed(call: object) -> object:
        if not isinstance(call, dict) or not isinstance(scenario := call.get("scenario"), dict):
            return call
        return {**call, "scenario": {**fields, **scenario}}

    return _of_each_call(data, changed)


def _migrate_each_call(
    data: dict[str, Any], part: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The document with each item changed that `part` lists, of the first call and of later ones."""

    def changed(call: object) -> object:
        if not isinstance(call, dict) or not isinstance(items := call.get(part), list):
            return call
        return {**call, part: [change(item) if isinstance(item, dict) else item for item in items]}

    return _of_each_call(data, changed)


def _of_each_call(data: dict[str, Any], changed: Callable[[object], object]) -> dict[str, Any]:
    """The document, whose first call it is itself, and its later calls, changed."""
    data = dict(cast(dict[str, Any], changed(data)))
    if isinstance(later := data.get("later"), list):
        data["later"] = [changed(call) for call in later]
    return data


def _with_fields(argument: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, **argument} if argument.get("kind") == "view" else argument


def _migrate_modes_to_regions(data: dict[str, Any]) -> dict[str, Any]:
    """Statements one after the other that have the same mode are a block of it."""
    data = {"blocks": [], **data}
    if not isinstance(statements := data.get("statements"), list):
        return data
    blocks: list[dict[str, Any]] = []
    changed: list[object] = []
    before: object = "inherit"
    for i, statement in enumerate(statements):
        if isinstance(statement, dict) and "mode" in statement:
            mode = read.choice(statement["mode"], f"statements[{i}].mode", _MODES)
            if mode not in ("inherit", before):
                blocks.append({"kind": mode, "within": -1})
            before = mode
            statement = {key: value for key, value in statement.items() if key != "mode"}
            statement["block"] = -1 if mode == "inherit" else len(blocks) - 1
        changed.append(statement)
    return {**data, "statements": changed, "blocks": blocks}
