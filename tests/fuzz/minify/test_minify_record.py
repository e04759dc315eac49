"""Recordings of users' functions and their text, and what cannot be recorded."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fuzz.choices import SeededChoices
from fuzz.errors import (
    CannotRecord,
    DifferenceLost,
    FunctionRaises,
    MinifyError,
    NoDifference,
    RecordingDiffers,
    TargetError,
)
from fuzz.features.traits import traits
from fuzz.generate import generate
from fuzz.minify import minify
from fuzz.minify.record import record
from fuzz.minify.script_text import load, render
from fuzz.program.printer import load as load_program
from fuzz.program.printer import render as render_program
from tests.fuzz import bad_targets as bad

Function = Callable[..., Any]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


def _hook(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2)
    return y


def _default_dtype(x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(2)


def _checkpoint(x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(torch.sin, x, use_reentrant=False)


def _seed(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return x + torch.rand(2)


def _swallowed(x: torch.Tensor) -> torch.Tensor:
    try:
        return _hook(x)
    except Exception:
        return x


CAUGHT = torch.ones(2)


@pytest.mark.parametrize(
    ("function", "argument", "named"),
    [
        (Doubled.apply, torch.ones(2, requires_grad=True), "Doubled.apply"),
        (_hook, torch.ones(2, requires_grad=True), "torch.Tensor.register_hook with a function"),
        (_swallowed, torch.ones(2, requires_grad=True), "torch.Tensor.register_hook with a function"),
        (_default_dtype, torch.ones(2), "default dtype"),
        (_checkpoint, torch.ones(2, requires_grad=True), "torch.utils.checkpoint"),
        (_seed, torch.ones(2), "torch.manual_seed"),
        (lambda x: x + CAUGHT, CAUGHT, "lies on the memory of one of its arguments"),
        (lambda x: x * 2, torch.ones(2).to_sparse(), "layout torch.sparse_coo"),
        (lambda x: x * 2, torch.ones(2, dtype=torch.complex64).conj(), "conjugated"),
        (lambda x: SimpleNamespace(x=x), torch.ones(2), "returns an object of type SimpleNamespace"),
        (
            lambda x: torch.rand(2, generator=torch.Generator()) + x,
            torch.ones(2),
            "torch.rand with an object",
        ),
    ],
)
def test_what_cannot_be_recorded_is_named(function: Function, argument: Any, named: str) -> None:
    with pytest.raises(CannotRecord, match=re.escape(named)):
        minify(function, (argument,), bad.drops_mutation)
    assert torch.get_default_dtype() is torch.float32


def test_each_reason_has_its_error() -> None:
    x = torch.ones(2)
    with pytest.raises(NoDifference, match="does not differ"):
        minify(torch.sin, (x,), bad.good)
    with pytest.raises(NoDifference, match="refused: ClosureTensor"):
        minify(lambda y: y + CAUGHT, (x,), "aot")
    with pytest.raises(FunctionRaises, match="ZeroDivisionError"):
        minify(lambda y: y * (1 / 0), (x,), bad.good)
    with pytest.raises(TargetError, match="no target named"):
        minify(torch.sin, (x,), "no-such-target")

    def writes_unseen(y: torch.Tensor) -> torch.Tensor:
        z = y * 1
        np.asarray(z.numpy())[0] = 7
        return z * 1

    with pytest.raises(RecordingDiffers, match="in what was recorded"):
        minify(writes_unseen, (x,), bad.good)

    def wrong_by_name(function: Function) -> Function:
        return bad.wrong_by_one(function) if function is special else function

    def special(y: torch.Tensor) -> torch.Tensor:
        return y * 2

    with pytest.raises(DifferenceLost, match="not so on the calls"):
        minify(special, (x,), wrong_by_name)
    assert issubclass(DifferenceLost, MinifyError)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 80, 20))
def test_a_recording_does_what_generated_functions_do(start: int) -> None:
    """Nothing but a custom function or operator, a hook, checkpoint, a tensor subclass, what is lazily
    conjugated or negated or made in inference mode, a view of what was detached since, a mode that is left
    on, or a module that holds an argument's memory is refused, and what is recorded does the same."""
    agreed = refused = 0
    for number in range(start, start + 20):
        program = generate(SeededChoices(77, number), "mixed")
        loaded = load_program(program)
        with torch.enable_grad():
            args, _, _ = loaded.make()
        try:
            with warnings.catch_warnings(), torch.inference_mode(program.scenario.inference):
                warnings.simplefilter("ignore")
                torch.set_grad_enabled(program.scenario.grad)
                minify(loaded.f, args, bad.good)
        except CannotRecord as refusal:
            held = "lies on the memory of one of its arguments" in str(refusal)
            words = r"\.apply|register_hook|checkpoint|tensor subclass|ops\.aotfuzz|lazily|detached in place"
            told = re.search(words + "|made in inference mode|leaves another mode", str(refusal))
            assert told or (held and program.module is not None), refusal
            refused += 1
        except FunctionRaises:
            refused += 1  # a few programs are refused by eager, on purpose
        except RecordingDiffers as refusal:
            # What follows from Python state, and what `Tensor.new` makes, is not among torch's calls.
            python = any(trait.startswith(("python: ", "random: Python")) for trait in traits(program))
            unseen = re.search(r"torch\.distributions|Watching\(\)\.__enter__", render_program(program))
            assert python or unseen, refusal
            refused += 1
        except NoDifference as nothing:
            assert "agree" in str(nothing) or "poisoned" in str(nothing)
            agreed += 1
    assert agreed + refused == 20
    assert agreed >= 10


def test_a_recording_is_what_is_printed() -> None:
    def function(x: torch.Tensor, more: list[torch.Tensor]) -> Any:
        x += 1
        x[0, 1:] = 2.5
        y = 2 - more[0].T
        with torch.no_grad():
            z, _ = y.max(0)
        return {"z": z, 3: -y @ y}

    recorded = record(function, (torch.ones(2, 3), [torch.ones(3, 3)]))
    text = render(recorded.recording)
    expected = """
def f(x0, p1):
    x1 = p1[0]
    x0.add_(1)
    x0[0, 1:] = 2.5
    v0 = x1.T
    v1 = 2 - v0
    with torch.no_grad():
        v2, v3 = v1.max(0)
    v4 = v1.neg()
    v5 = v4.matmul(v1)
    return {'z': v2, 3: v5}
"""
    assert text[text.index("\ndef f") :] == expected
    loaded = load(recorded.recording)
    args, _, _ = loaded.make()
    mine = function(torch.ones(2, 3), [torch.ones(3, 3)])
    theirs = loaded.f(*args)
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
