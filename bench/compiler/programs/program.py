"""A program of a collection: what is called, with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn


@dataclass(frozen=True, slots=True)
class Program:
    """One program, made afresh: `module(*arguments, **keywords)`."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


class Make(Protocol):
    """Makes the same program each time; with `double` in double precision."""

    def __call__(self, *, double: bool = False) -> Program:
        """The program."""


Load = Callable[..., Make]
