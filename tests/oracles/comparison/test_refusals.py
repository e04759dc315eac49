"""The clause `refusals`: what refused calls leave behind, of each kind of thing that a caller can reach."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from oracles import Arguments, Outcome, compare, judge, observe
from oracles.observation.mode_stacks import active_modes, recording_leaked_modes
from oracles.observation.python_state import record_python_state
from tests.support.oracles import oracle_cases as cases

pytestmark = pytest.mark.clause("refusals")


class Unsupported(RuntimeError):
    """What a compiler raises when it refuses."""


def reason(error: BaseException) -> str | None:
    return type(error).__name__ if isinstance(error, Unsupported) else None


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.calls = 0
        self.sizes: list[int] = []


@functools.lru_cache
def cached(number: int) -> Tensor:
    return torch.full((), float(number))


@dataclass
class World:
    """Python objects of each kind."""

    calls: int = 0
    log: list[object] = field(default_factory=list)
    entries: dict[str, object] = field(default_factory=dict)
    layer: Layer = field(default_factory=Layer)
    drawn: random.Random = field(default_factory=lambda: random.Random(0))
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    buffer: Tensor = field(default_factory=lambda: torch.zeros(2))
    optimizer: Any = None
    cache: object = cached

    def __post_init__(self) -> None:
        cached.cache_clear()
        self.layer.weight.grad = torch.ones(2)
        self.optimizer = torch.optim.Adam([self.layer.weight])


Change = Callable[[Tensor, World], object]


def refused(
    change: Change, function: Change = lambda x, world: x.sin(), *, retry: bool = True
) -> list[tuple[str, str]]:
    """What is found of a call that makes a change, and is refused."""

    def observed(called: Change, **options: Any) -> Any:
        world = World()
        make = lambda: Arguments((cases.grid(3),), objects={"world": world})  # noqa: E731
        return observe(lambda x: called(x, world), make, **options, **more(world))

    def more(world: World) -> dict[str, Any]:
        return {"retry": lambda x: function(x, world)} if retry else {}

    def refuses(x: Tensor, world: World) -> None:
        change(x, world)
        raise Unsupported("no")

    found = compare(observed(function), observed(refuses, refusal=reason))
    return [(finding.clause, finding.path) for finding in found]


def count(x: Tensor, world: World) -> Tensor:
    world.calls += 1
    return x * world.calls


CHANGES: dict[str, tuple[Change, str]] = {
    "argument": (lambda x, world: x.mul_(2), "arg[0]"),
    "strides": (lambda x, world: x.unsqueeze_(1), "arg[0]"),
    "requires grad": (lambda x, world: x.requires_grad_(), "arg[0]"),
    "gradient": (lambda x, world: setattr(x, "grad", x.clone()), "arg[0]"),
    "attribute of a tensor": (lambda x, world: setattr(x, "mark", 1), "arg[0]"),
    "attribute": (lambda x, world: setattr(world, "calls", 1), "world.calls"),
    "new attribute": (lambda x, world: setattr(world, "made", 1), "world.made"),
    "list": (lambda x, world: world.log.append(1), "world.log"),
    "dict": (lambda x, world: world.entries.update(k=1), "world.entries"),
    "other list": (lambda x, world: setattr(world, "log", world.layer.sizes), "world.layer.sizes"),
    "attribute of a module": (lambda x, world: setattr(world.layer, "calls", 1), "world.layer.calls"),
    "list of a module": (lambda x, world: world.layer.sizes.append(1), "world.layer.sizes"),
    "training": (lambda x, world: world.layer.eval(), "world.layer"),
    "hook": (lambda x, world: world.layer.register_forward_hook(lambda *_: None), "world.layer"),
    "submodule": (lambda x, world: setattr(world.layer, "lin", nn.Linear(1, 1)), "world.layer.lin"),
    "parameter": (lambda x, world: world.layer.weight.data.add_(1), "world.layer.weight"),
    "optimizer": (lambda x, world: world.optimizer.step(), "world.optimizer.state[0]"),
    "lru_cache": (lambda x, world: cached(2), "world.cache"),
    "tensor": (lambda x, world: world.buffer.add_(1), "world.buffer"),
    "generator": (lambda x, world: torch.rand(1, generator=world.generator), "world.generator"),
    "generator of Python": (lambda x, world: world.drawn.random(), "world.drawn"),
    "default generator": (lambda x, world: torch.rand(1), "random state"),
    "Python's random": (lambda x, world: random.random(), "random state"),
    "NumPy's random": (lambda x, world: numpy.random.rand(), "random state"),
    "grad mode": (lambda x, world: torch.set_grad_enabled(False), "grad mode"),
    "default dtype": (lambda x, world: torch.set_default_dtype(torch.float64), "default dtype"),
    "deterministic": (lambda x, world: torch.use_deterministic_algorithms(True), "deterministic"),
    "function mode": (lambda x, world: FunctionMode().__enter__(), "modes"),
    "dispatch mode": (lambda x, world: DispatchMode().__enter__(), "modes"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("retry", [True, False])
def test_what_a_refused_call_leaves_changed_is_found(name: str, retry: bool) -> None:
    change, path = CHANGES[name]
    found = refused(change, retry=retry)
    assert ("refusals", path) in found
    assert {clause for clause, _ in found} == {"refusals"}


def test_a_refused_call_that_leaves_nothing_is_clean() -> None:
    assert refused(lambda x, world: None) == []
    assert refused(lambda x, world: None, count) == []


def test_what_a_call_leaves_is_undone_for_the_next_one() -> None:
    state, drawn = random.getstate(), numpy.random.get_bit_generator()
    refused(lambda x, world: (random.random(), numpy.random.rand(), DispatchMode().__enter__()))
    assert random.getstate() == state and numpy.random.get_bit_generator() is drawn
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
    seen = [
        observe(function, cases.leaf).generator
        for function in (torch.sin, torch.cos, lambda w: w * random.random())
    ]
    assert seen[0] == seen[1] != seen[2]


def test_all_as_after_eager_is_right_where_eager_can_do_it_twice() -> None:
    def leaves_a_mode(x: Tensor, world: World) -> Tensor:
        DispatchMode().__enter__()
        world.entries["k"] = 1
        return x.sin()

    assert refused(leaves_a_mode, leaves_a_mode) == []
    # Between the two: one of them is as before.
    assert refused(lambda x, world: DispatchMode().__enter__(), leaves_a_mode) == [("refusals", "modes")]
    # Eager counts to two when it is called then.
    assert refused(count, count) == [("refusals", "world.calls")]


def test_the_same_call_in_eager_is_seen_to_do_otherwise() -> None:
    hidden: list[int] = []

    def reads_what_nobody_shows(x: Tensor, world: World) -> Tensor:
        return x * (len(hidden) + 1)

    assert refused(lambda x, world: hidden.append(1), reads_what_nobody_shows) == [
        ("refusals", "values: out")
    ]
    hidden.clear()
    assert refused(lambda x, world: None, reads_what_nobody_shows) == []


def test_a_tensor_that_nobody_can_read_is_found() -> None:
    class Dead(Tensor):
        def detach(self) -> Tensor:
            raise Unsupported("of a trace that has ended")

    def caches(x: Tensor, world: World) -> None:
        world.entries["k"] = x.as_subclass(Dead)

    assert ("refusals", "world.entries") in refused(caches)


def test_what_eager_does_not_repeat_is_not_held_against_a_refusal() -> None:
    turns: list[int] = []

    def unstable(x: Tensor) -> Tensor:
        turns.append(1)
        return x * len(turns)

    def refuses(x: Tensor) -> Tensor:
        raise Unsupported("no")

    target = observe(refuses, cases.plain, refusal=reason, retry=unstable)
    verdict = judge(observe(unstable, cases.plain), target, None, lambda: observe(unstable, cases.plain))
    assert verdict.outcome is Outcome.POISONED


def test_python_state_after_a_call_is_compared() -> None:
    def after(called: Change) -> Any:
        world = World()
        return observe(
            lambda x: called(x, world), lambda: Arguments((cases.grid(3),), objects={"world": world})
        )

    def twice(x: Tensor, world: World) -> Tensor:
        world.calls += 1
        return count(x, world) / 2

    assert compare(after(count), after(count)) == ()
    assert [(one.clause, one.path) for one in compare(after(count), after(twice))] == [
        ("once", "world.calls")
    ]

    def writes(value: float) -> Change:
        return lambda x, world: world.buffer.add_(value).sum()

    found = compare(after(writes(1.0)), after(writes(1.5)))
    assert [(one.clause, one.path) for one in found] == [("values", "out"), ("once", "world.buffer")]


def test_attributes_of_tensors_after_a_call_are_compared() -> None:
    def marks(x: Tensor) -> Tensor:
        x.mark = True  # type: ignore[attr-defined]
        y = x.sin()
        y.mark = 1  # type: ignore[attr-defined]
        return y

    found = compare(observe(marks, cases.plain), observe(torch.sin, cases.plain))
    assert [(one.clause, one.path) for one in found] == [("structure", "out"), ("once", "arg[0]")]


def test_what_a_failed_call_leaves_is_held_against_eager() -> None:
    def fails(change: Change) -> Any:
        world = World()

        def function(x: Tensor) -> Tensor:
            change(x, world)
            return x.reshape(5)

        return observe(function, lambda: Arguments((cases.grid(3),), objects={"world": world}))

    nothing = fails(lambda x, world: None)
    assert compare(fails(count), nothing) == ()
    assert [(one.clause, one.path) for one in compare(nothing, fails(count))] == [("once", "world.calls")]


def test_a_retry_that_raises_is_compared_with_what_there_was_before_it() -> None:
    """A view whose base it has written to cannot be looked at then, in eager as well."""

    def make() -> Arguments:
        root = cases.leaf().args[0] * 1
        part = root.as_strided((2, 2), (0, 1), 0).chunk(1)[0]
        root.detach_()
        return Arguments((root, part))

    def writes_to_the_base(root: Tensor, part: Tensor) -> Tensor:
        root.mul_(2)
        return part * 2

    def refuses(root: Tensor, part: Tensor) -> Tensor:
        raise Unsupported("no")

    eager = observe(writes_to_the_base, make)
    assert eager.raised is not None
    target = observe(refuses, make, refusal=reason, retry=writes_to_the_base)
    assert compare(eager, target) == ()


def test_modes_that_are_left_or_taken_away_are_told_and_put_back() -> None:
    with FunctionMode() as function_mode, DispatchMode() as dispatch_mode:
        before = active_modes()
        with recording_leaked_modes() as left:
            _python_dispatch._pop_mode()
            DispatchMode().__enter__()
            FunctionMode().__enter__()
        assert active_modes() == before == (function_mode, dispatch_mode)
    names = [name.rpartition(".")[2] for name in left.names]
    assert names == ["FunctionMode", "DispatchMode", "DispatchMode"]
    assert [name.startswith("without ") for name in left.names] == [False, False, True]
    assert active_modes() == ()


def test_a_long_chain_of_objects_is_walked_to_a_depth() -> None:
    chain: list[Any] = []
    for _ in range(5000):
        chain = [chain]
    assert 50 < len(record_python_state({"chain": chain}).nodes) < 500
    tensor = torch.zeros(1)
    for _ in range(5000):
        outer = torch.zeros(1)
        tensor, outer.grad = outer, tensor
    assert 50 < len(record_python_state({"tensor": tensor}).nodes) < 500
