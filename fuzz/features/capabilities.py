"""Capabilities: names that a target may lack, each for a set of traits of programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from fuzz.features.traits import TRAITS
from fuzz.patterns import matches

CAPABILITIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "0-d": ("argument: 0-d",),
        "aliases": ("alias: *", "argument: duplicate", "argument: view of an alias"),
        "autograd": (
            *("argument: leaf", "argument: non-leaf", "argument: own leaf", "gradient: *"),
            *("metadata: requires_grad_", "mode: checkpoint", "view: custom function"),
        ),
        "complex": ("dtype: complex*", "argument: complex number"),
        "control-flow": ("flow: *",),
        "cuda": ("device: cuda",),
        "double-backward": ("gradient: double",),
        "empty": ("argument: empty",),
        "higher-order": ("operator: higher order",),
        "in-place": ("data: *",),
        "later-calls": ("repeat: *",),
        "metadata": ("metadata: *",),
        "modes": ("mode: *",),
        "module": ("module: *",),
        "python": ("python: *", "mode: entered"),
        "random": ("random: *",),
        "subclass": ("subclass: *",),
        "views": ("view: *",),
    }
)
"""The names that a target may lack, each with the traits of programs that need it."""


def needed_traits(name: str) -> tuple[str, ...]:
    """The patterns of traits for a capability. A pattern of traits stands for itself.

    >>> needed_traits("random"), needed_traits("dtype: float64")
    (('random: *',), ('dtype: float64',))
    """
    return CAPABILITIES.get(name, (name,))


def is_capability(name: str) -> bool:
    """Whether a name is a capability, or a pattern of some trait."""
    return name in CAPABILITIES or any(matches(name, trait) for trait in TRAITS)


@lru_cache(maxsize=256)
def excluded_traits(lacks: tuple[str, ...]) -> frozenset[str]:
    """The traits that no program may have for a target that lacks these capabilities.

    >>> sorted(excluded_traits(("empty", "dtype: float64")))
    ['argument: empty', 'dtype: float64']
    """
    return frozenset(_matching(pattern for name in lacks for pattern in needed_traits(name)))


def _matching(patterns: Iterable[str]) -> Iterable[str]:
    for pattern in patterns:
        if "*" not in pattern:
            yield pattern
        else:
            yield from (trait for trait in TRAITS if matches(pattern, trait))
