"""What scenes are made of: arguments, a motif, steps after the call, and how a later call differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.abstract.state import AbstractState
from fuzz.choices import Choices
from fuzz.generate.later_calls import Change
from fuzz.generate.program_builder import ProgramBuilder
from fuzz.generate.steps import is_writable, results_of
from fuzz.ir.nodes import Argument, Step, Storage, Tree, View, Write
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Size
from oracles.observation.steps import Backward

Given = tuple[list[Storage], list[Argument]]
Later = Callable[[Choices, AbstractState, Tree], tuple[Step, ...]]

_MOST = 3  # backwards, each from one result


@dataclass(frozen=True, slots=True)
class Scene:
    """A program of one kind, whole.

    Attributes:
        arguments: draws what the function is given.
        motif: appends statements.
        steps: draws what is done after the call, if anything else than usual.
        change: makes of the call a later one, if there is to be one.
    """

    arguments: Callable[[Choices], Given]
    motif: Callable[[ProgramBuilder], object]
    steps: Later | None = None
    change: Change | None = None


def real_storage(
    choices: Choices, size: Size, requires_grad: bool = False, leaf: bool = True, inference: bool = False
) -> Storage:
    """An allocation of real numbers."""
    dtype, seed = choices.pick(("float32", "float32", "float64")), choices.integer(0, 12)
    return Storage(dtype, size, seed, requires_grad, leaf, inference=inference)


def like_storage(storage: Storage, choices: Choices, size: Size | None = None) -> Storage:
    """Numbers of a storage's dtype that require grad, and lie elsewhere."""
    shape = storage.size if size is None else size
    return Storage(storage.dtype, shape, choices.integer(0, 12), True, choices.chance(0.5))


def size_of(choices: Choices, least: int = 2) -> Size:
    """One or two dimensions."""
    first = choices.integer(least, 4)
    return (first,) if choices.chance(0.5) else (first, choices.integer(2, 4))


def whole_view(number: int, storage: Storage, via: str = "view") -> View:
    """A view of all of a root."""
    return View(number, storage.size, contiguous_strides(storage.size), 0, via)


def disjoint_slices(number: int, count: int, length: int, via: str = "view") -> list[View]:
    """Slices of a flat storage that share no element."""
    return [View(number, (length,), (1,), i * length, via) for i in range(count)]


def second_derivatives(choices: Choices, state: AbstractState, returns: Tree) -> tuple[Step, ...]:
    """Second derivatives."""
    roots = None if choices.chance(0.7) else (choices.integer(0, 3),)
    return (Backward(roots, "double", True),)


def backward_twice(choices: Choices, state: AbstractState, returns: Tree) -> tuple[Step, ...]:
    """A backward after one that has freed what it could."""
    roots = None if choices.chance(0.5) else (choices.integer(0, 3),)
    return Backward(roots), Backward(roots)


def write_and_differentiate(names: Sequence[str]) -> Later:
    """A write to one of some tensors, and backwards from each result, which notice it or do not."""

    def steps(choices: Choices, state: AbstractState, returns: Tree) -> tuple[Step, ...]:
        returned = results_of(state, returns)
        there = [name for name in names if is_writable(state, returned, name)]
        count = sum(state.tensor(name).requires_grad for name in returned)
        roots = tuple(Backward((i,), "plain", True) for i in range(min(max(count, 1), _MOST)))
        return (Write(choices.pick(there)), *roots) if there else roots

    return steps
