"""RNG replay: record the random numbers of one run and give them to another.

A generator gives other numbers for another dtype, and advances by another amount. A reference in double
precision that drew for itself would compute something else, and could not show eager's rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oracles.observation.operation_mode import OperationMode
from oracles.rerun.dense_operands import repeats_elements, tensors


@dataclass(frozen=True, slots=True)
class Draw:
    """What one operation drew.

    Attributes:
        operator: the ATen overload.
        values: copies of its results, and of arguments that it wrote to and did not return.
        states: the default generators' states after it, of the CPU, then of each GPU.
    """

    operator: Any
    values: tuple[torch.Tensor, ...]
    states: tuple[torch.Tensor, ...]


class RecordDraws(OperationMode):
    """Record what operations draw.

    Example:
        with (recorder := RecordDraws()):
            x = torch.rand(2)
        recorder.draws[0].values    # (x,)
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            values = tuple(value.detach().clone() for value in _replayed_results(func, args, result))
            self.draws.append(Draw(func, values, _states()))
        return result


class ReplayDraws(OperationMode):
    """Give recorded numbers to the random operations of another run, in order, whatever their dtype.

    If an operation differs from the recorded one, or its sizes do, it and all later ones draw for themselves.

        with ReplayDraws(recorder.draws):
            torch.rand(2, dtype=torch.float64)    # equal to x
    """

    def __init__(self, draws: Sequence[Draw]) -> None:
        super().__init__()
        self._left = list(draws)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self._left and torch.Tag.nondeterministic_seeded in func.tags:
            draw = self._left.pop(0)
            drawn = list(_replayed_results(func, args, result))
            if draw.operator is func and [v.shape for v in drawn] == [v.shape for v in draw.values]:
                for mine, value in zip(drawn, draw.values, strict=True):
                    if not repeats_elements(mine):
                        mine.data.copy_(value)  # which moves no version counter
                _set_states(draw.states)
            else:
                self._left.clear()
        return result


def _replayed_results(func: Any, args: Any, result: Any) -> Iterator[torch.Tensor]:
    """The results, and the arguments that the operation wrote to and did not return."""
    results = list(tensors(result))
    yield from results
    for argument, given in zip(func._schema.arguments, args, strict=False):
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written and isinstance(given, torch.Tensor) and all(given is not one for one in results):
            yield given


def _states() -> tuple[torch.Tensor, ...]:
    others = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ()
    return (torch.get_rng_state(), *others)


def _set_states(states: Sequence[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(list(states[1:]))
