"""Torch's default random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["default_generator", "default_generators", "preserving_generators"]


def default_generators() -> tuple[torch.Generator, ...]:
    """The generators that draws come from unless they name one: the CPU's, and those of CUDA if it is in
    use."""
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *cuda)


def default_generator(device: torch.device) -> torch.Generator | None:
    """The generator that draws on a device come from unless they name one; None where nothing is drawn."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda":
        generators: tuple[torch.Generator, ...] = torch.cuda.default_generators
        return generators[torch.cuda.current_device() if device.index is None else device.index]
    return None


@contextlib.contextmanager
def preserving_generators() -> Iterator[None]:
    """While this lasts, draws leave the default generators as they are."""
    generators = default_generators()
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
