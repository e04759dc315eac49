"""Compilers that are wrong about the Python state around a function, in one way each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzz import Target

Function = Callable[..., Any]


def runs_once(function: Function) -> Function:
    """Answers later calls with what the first one has given."""
    results: list[Any] = []

    def compiled(*args: Any) -> Any:
        if not results:
            results.append(function(*args))
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, results[0])

    return compiled


def drops_attributes(function: Function) -> Function:
    """What the function stores on its arguments is gone."""

    def compiled(*args: Any) -> Any:
        result = function(*args)
        for tensor in pytree.tree_leaves(args):
            if isinstance(tensor, torch.Tensor):
                vars(tensor).clear()
        return result

    return compiled


def ignores_modes(function: Function) -> Function:
    """Function modes are not asked."""

    def compiled(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args)

    return compiled


class TooHard(Exception):
    """What a target raises that declines."""


def _refuses_after_a_run(function: Function) -> Function:
    def compiled(*args: Any) -> Any:
        function(*args)
        raise TooHard

    return compiled


refuses_after_a_run = Target(
    "declines", "", _refuses_after_a_run, lambda e: "hard" if isinstance(e, TooHard) else None
)
