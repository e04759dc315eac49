"""Eager types: the tensors of a recorded function after one eager run, to know their sizes and dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import torch

from fuzz.minify.recording import Recording, Ref, Seq, names
from fuzz.minify.script_text import load
from oracles.observation.ambient import record_ambient, restore_ambient, restoring_ambient, seed_generators


@lru_cache(maxsize=8)
def survey_eager_types(recording: Recording) -> Mapping[str, torch.Tensor] | None:
    """The tensors of a recorded function by name, after one eager call.

    None if the call raises, or if the text does not even make arguments.

    >>> from fuzz.minify.record import record
    >>> recording = record(torch.sum, (torch.ones(3),)).recording
    >>> {name: tuple(t.shape) for name, t in survey_eager_types(recording).items()}
    {'x0': (3,), 'v0': ()}
    """
    known = [f"x{i}" for i in range(len(recording.inputs))]
    results = list(names(*(call.results for call in recording.calls)))
    watched = replace(recording, returns=Seq("tuple", tuple(map(Ref, results))))
    mode = recording.mode
    with restoring_ambient() as ambient:
        try:
            with torch.inference_mode(False), torch.enable_grad():
                loaded = load(watched)
                args, _, tensors = loaded.make()
            seed_generators(0)
            with torch.inference_mode(mode.inference):
                torch.set_grad_enabled(mode.grad)
                found = loaded.f(*args)
        except Exception:
            return None
        finally:
            restore_ambient(ambient, record_ambient())
    values = {name: tensors[name] for name in known} | dict(zip(results, found, strict=True))
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
