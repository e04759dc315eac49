"""Random draws in a trace: which state each one starts from, so that a state that is set back is seen.

A trace draws nothing, so the generators would not move, and a function that saves a generator's state, draws,
and restores it would go unnoticed. Therefore the generators are moved on at every recorded draw, to a state
that stands for the one after it. A later draw that starts from an earlier state repeats what was drawn there
(`checkpoint`, `fork_rng`), if it is the same draw; all else that sets a state is refused. So is a draw of
Python's or numpy's random numbers, which would be those of the trace for ever.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot.errors import RandomStateMutation
from aot.guards.process_settings import random_states, set_random_states
from aot.torch_internals import mode_stacks, rng


@dataclass(frozen=True, slots=True)
class _Draw:
    """A recorded draw: what was called, as a comparable tuple, and the node that holds the result."""

    call: tuple[Any, ...]
    node: fx.Node


def _is_same_draw_argument(
    first: Any, second: Any, drawn: Mapping[fx.Node, fx.Node], known: dict[tuple[fx.Node, fx.Node], bool]
) -> bool:
    """Whether two parts of calls are equal: constants that are, or values computed alike from the same, but
    for those that were `drawn`; these are if they repeat one another."""
    if isinstance(first, fx.Node) and isinstance(second, fx.Node):
        first, second = drawn.get(first, first), drawn.get(second, second)
        if first is second:
            return True
        pair = (first, second)
        if pair not in known:
            alike = first.op == second.op == "call_function" and first.target is second.target
            known[pair] = (
                alike
                and first not in drawn
                and _is_same_draw_argument(
                    (first.args, first.kwargs), (second.args, second.kwargs), drawn, known
                )
            )
        return known[pair]
    if type(first) is not type(second):
        return False
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(
            _is_same_draw_argument(a, b, drawn, known) for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            _is_same_draw_argument(v, second[k], drawn, known) for k, v in first.items()
        )
    return bool(first == second)


def _move_others_on() -> tuple[Any, ...]:
    """Put the random generators of Python and numpy in states that nobody has seen, and tell them."""
    random.random()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.random_sample()
    return random_states()


class RngTrace:
    """The draws of one trace, and what the default generators' states stand for.

    Attributes:
        allows_seeding: whether what is traced may set a generator's state, the caller's own included. To see
            it, a trace puts the generators in states of its own; another thread that saves and restores
            theirs meanwhile, as Dynamo does, makes one of these last.
    """

    def __init__(self) -> None:
        self.allows_seeding = True
        self._lines = [_GeneratorTrace(generator) for generator in rng.default_generators()]
        self._drawn: dict[fx.Node, fx.Node] = {}  # of a draw that repeats one, that one; of others themselves

    def record(
        self,
        call: tuple[Any, ...],
        device: torch.device,
        make: Callable[[], fx.Node],
        repeat: Callable[[fx.Node], fx.Node],
        *,
        again: bool = True,
    ) -> fx.Node:
        """The node of a draw on a device: what `repeat` makes of an earlier one, where the generator was set
        back to before the same draw; else what `make` appends, unless only the former is allowed (`again` is
        false).

        Raises:
            RandomStateMutation: the function has set the generator's state, and then draws something else.
        """
        line = self._generator_line(device)
        at = line.generator_state_number()
        if at < len(line.draws) and _is_same_draw_argument(line.draws[at].call, call, self._drawn, {}):
            line.set(line.states[at + 1])
            node = repeat(line.draws[at].node)
            self._drawn[node] = line.draws[at].node
            return node
        if at < len(line.draws):
            raise RandomStateMutation(
                f"{call[0]} after a random generator was set back to an earlier state (fork_rng, "
                f"set_rng_state), where something else was drawn before; draw outside of the function"
            )
        if not again:
            raise RandomStateMutation(
                f"{call[0]} in a backward would not repeat a draw of the forward (dropout recomputed without "
                f"preserve_rng_state, or a hook that draws); take it out of the checkpoint or the hook"
            )
        node = make()
        line.draws.append(_Draw(call, node))
        self._drawn[node] = node
        line.move_on()
        return node

    def set_callers_states(self) -> None:
        """Put the generators in the states that the caller had them in, from which a call draws."""
        for line in self._lines:
            line.set(line.callers)

    def check(self) -> None:
        """Refuse a function that leaves another state behind than its draws do."""
        if any(line.generator_state_number() != len(line.draws) for line in self._lines):
            raise RandomStateMutation(
                "the function leaves a random generator in an earlier state than its draws do (fork_rng, "
                "set_rng_state); draw or restore outside of the function"
            )

    @contextlib.contextmanager
    def draws_traced(self) -> Iterator[None]:
        """While the function or its backward runs: states stand for draws. Afterwards they are the caller's
        again.

        Raises:
            RandomStateMutation: random numbers were drawn that are not torch's.
        """
        others = random_states()
        try:
            moved = _move_others_on() if self.allows_seeding else others  # so that seeding is seen as well
            for line in self._lines:
                line.enter_generator(self.allows_seeding)
            yield
            if random_states() != moved:
                raise RandomStateMutation(
                    "the function draws random numbers of Python's or numpy's, or seeds their generators, "
                    "which would be the same in every later call; draw outside of the function and pass the "
                    "numbers, or draw with torch"
                )
        finally:
            for line in self._lines:
                line.set(line.callers)
            set_random_states(others)

    def _generator_line(self, device: torch.device) -> _GeneratorTrace:
        """The line of the generator that draws on a device come from."""
        generator = rng.default_generator(device)
        for line in self._lines:
            if line.generator is generator:
                return line
        if generator is None:  # nothing is drawn on the device meta
            return self._lines[0]
        line = _GeneratorTrace(generator)  # CUDA was not in use before
        line.enter_generator(False)
        self._lines.append(line)
        return line


class _GeneratorTrace:
    """The draws from one generator, in their order, and its states.

    A state is known by its number: state 0 is the caller's, state i + 1 is what draw i leaves.

    Attributes:
        callers: the state to give back.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.callers = self._state()
        self.draws: list[_Draw] = []
        self.states: list[Tensor] = []

    def enter_generator(self, may_be_set: bool) -> None:
        """Note the caller's state, and go on from where the trace has left off."""
        self.callers = self._state()
        if self.states:
            self.set(self.states[-1])
        elif may_be_set:
            self.move_on()  # so that seeding with the caller's own seed is seen as well
        else:
            self.states.append(self.callers)

    def generator_state_number(self) -> int:
        """The number of the state that the generator is in; RandomStateMutation if it has none."""
        now = self._state()
        with mode_stacks.dispatch_modes_off():
            for number in reversed(range(len(self.states))):
                if torch.equal(now, self.states[number]):
                    return number
        raise RandomStateMutation(
            "the function seeds a random generator, or sets a state that it did not read itself "
            "(manual_seed, set_rng_state); do it outside of the function"
        )

    def move_on(self) -> None:
        """Go to the next state."""
        move_on(self.generator)
        self.states.append(self._state())

    def set(self, state: Tensor) -> None:
        """Put the generator in a state."""
        with mode_stacks.dispatch_modes_off():
            self.generator.set_state(state)

    def _state(self) -> Tensor:
        with mode_stacks.dispatch_modes_off():
            return self.generator.get_state()


def move_on(generator: torch.Generator) -> None:
    """Move a generator to a state that it has not had before."""
    if generator.device.type == "cuda":
        generator.set_offset(generator.get_offset() + 4)
    else:
        with mode_stacks.dispatch_modes_off():
            torch.empty((), device=generator.device).uniform_(generator=generator)
