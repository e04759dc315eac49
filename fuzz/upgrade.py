"""Programs of earlier formats, made such of the present one, as far as they are any."""

from __future__ import annotations

from typing import Any

from fuzz import document as read

# What is read besides the present format. 6 had no modules, 5 no blocks but regions, and none in another, 4
# no special values, 3 no later calls and no steps, 2 no inference mode, 1 no views of other dtypes or leaves.
EARLIER = (1, 2, 3, 4, 5, 6)
_MODES = ("inherit", "no_grad", "enable_grad", "inference_mode", "checkpoint")


def upgraded(data: dict[str, Any], version: int) -> dict[str, Any]:
    """A document of an earlier format, as far as it is one, with the fields that have come since."""
    data = {"module": None, **data}
    if version == 6:
        return data
    if version == 1 and isinstance(arguments := data.get("arguments"), list):
        kind = {"dtype": None, "leaf": False}
        data["arguments"] = [
            {**kind, **item} if isinstance(item, dict) and item.get("kind") == "view" else item
            for item in arguments
        ]
    if version <= 3:
        data = {"later": [], **data}
        if isinstance(scenario := data.get("scenario"), dict):
            added = {"steps": []} if version == 3 else {"inference": False, "steps": []}
            data["scenario"] = {**added, **scenario}
    if version == 5:
        return _with_regions(data)
    data["storages"] = _plain_storages(data.get("storages"))
    if isinstance(later := data.get("later"), list):
        data["later"] = [
            {**call, "storages": _plain_storages(call.get("storages"))} if isinstance(call, dict) else call
            for call in later
        ]
    return _with_regions(data)


def _with_regions(data: dict[str, Any]) -> dict[str, Any]:
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


def _plain_storages(data: object) -> object:
    if not isinstance(data, list):
        return data
    return [{"special": False, **item} if isinstance(item, dict) else item for item in data]
