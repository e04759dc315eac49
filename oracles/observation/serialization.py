"""Serialization: observations as JSON data, so that one process can judge what another has observed.

In: an `Observation`. Out: plain data, and back. Two versions of torch cannot be loaded into one process. Each
observes in a process of its own, and one of them judges. Records, bytes, and torch's dtypes, layouts and
devices each have a form of their own:

    {"record": "Value", "fields": {"dtype": {"torch": "float32"}, "data": {"bytes": "AACAPw=="}, ...}}

Invariant: decoding calls nothing but the record classes of `records`, and `torch.device`.
"""

from __future__ import annotations

import base64
from dataclasses import fields
from typing import Any

import torch

from oracles.observation import records
from oracles.observation.records import Observation

_LOCAL = ("origin",)  # the function that raised has other names in other versions of torch
_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (
        records.Value,
        records.TensorState,
        records.PythonState,
        records.Raised,
        records.Ambient,
        records.GradientRun,
        records.LaterWrite,
        records.LaterRequire,
        records.Reach,
        records.Observation,
    )
}


def observation_to_json(observation: Observation) -> Any:
    """An observation as plain data.

    >>> observation_from_json(observation_to_json(seen)) == seen
    True
    """
    return _encode(observation)


def observation_from_json(data: Any) -> Observation:
    """The observation that `observation_to_json` gave.

    Raises:
        ValueError: the data is no observation, or names a dtype or a layout that this torch does not have.
    """
    found = _decode(data)
    if not isinstance(found, Observation):
        raise ValueError(f"not an observation: {type(found).__name__}")
    return found


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, torch.dtype | torch.layout):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    name = type(value).__name__
    if _RECORDS.get(name) is not type(value):
        raise TypeError(f"an observation holds no {name}")
    return {
        "record": name,
        "fields": {
            one.name: _encode(getattr(value, one.name)) for one in fields(value) if one.name not in _LOCAL
        },
    }


def _decode(data: Any) -> Any:
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return tuple(_decode(item) for item in data)
    match data:
        case {"bytes": str(text)}:
            return base64.b64decode(text, validate=True)
        case {"torch": str(name)}:
            found = getattr(torch, name, None)
            if isinstance(found, torch.dtype | torch.layout):
                return found
            raise ValueError(f"torch {torch.__version__} has no dtype or layout {name!r}")
        case {"device": str(name)}:
            try:
                return torch.device(name)
            except RuntimeError as error:
                raise ValueError(f"torch {torch.__version__} has no device {name!r}") from error
        case {"record": str(name), "fields": dict(given)} if name in _RECORDS:
            try:
                return _RECORDS[name](**{key: _decode(item) for key, item in given.items()})
            except TypeError as error:
                raise ValueError(f"not a {name}: {error}") from error
    raise ValueError(f"an observation holds no {type(data).__name__} like this")
