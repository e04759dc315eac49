"""Where a gradient goes, or a history leads, as data: an argument, an output, another segment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArgumentEdge:
    """Argument `tensor` as it is when the call begins, or the base that it is a view of."""

    tensor: int
    of_base: bool


@dataclass(frozen=True, slots=True)
class WrittenEdge:
    """Argument `tensor` as the call leaves it, or the base that it is a view of."""

    tensor: int
    of_base: bool = False


@dataclass(frozen=True, slots=True)
class OutputEdge:
    """Output `output`, a view."""

    output: int


@dataclass(frozen=True, slots=True)
class CotangentEdge:
    """Cotangent input number `cotangent_input` of segment number `segment`."""

    segment: int
    cotangent_input: int


RebuiltEdge = WrittenEdge | OutputEdge  # what has a history that the caller's graph makes


Target = ArgumentEdge | RebuiltEdge | CotangentEdge
