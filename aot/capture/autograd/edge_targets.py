"""Where a gradient goes, or a history leads, as data: an argument, an output, another segment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArgumentEdge:
    """Argument `tensor` as it is when the call begins, or the base that it is a view of."""

    tensor: int
    of_base: bool

    def __str__(self) -> str:
        return f"{'the base of ' * self.of_base}t{self.tensor}"


@dataclass(frozen=True, slots=True)
class WrittenEdge:
    """Argument `tensor` as the call leaves it, or the base that it is a view of."""

    tensor: int
    of_base: bool = False

    def __str__(self) -> str:
        return f"{'the base of ' * self.of_base}t{self.tensor} after the call"


@dataclass(frozen=True, slots=True)
class OutputEdge:
    """Output `output`, a view."""

    output: int

    def __str__(self) -> str:
        return f"o{self.output}"


@dataclass(frozen=True, slots=True)
class CotangentEdge:
    """Cotangent input number `cotangent_input` of segment number `segment`."""

    segment: int
    cotangent_input: int

    def __str__(self) -> str:
        return f"input {self.cotangent_input} of segment {self.segment}"


RebuiltEdge = WrittenEdge | OutputEdge  # what has a history that the caller's graph makes


Target = ArgumentEdge | RebuiltEdge | CotangentEdge
