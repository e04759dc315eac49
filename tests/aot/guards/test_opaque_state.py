"""What a function reads that no name leads to: iterators, random generators, weak references, variables of
contexts and threads, the environment, what a tensor of somebody else's is like."""

from __future__ import annotations

import collections
import contextvars
import csv
import functools
import itertools
import logging
import os
import queue
import random
import shlex
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import aot
from aot.guards.opaque_state import state_of
from tests.support.agreement import checking_nop, leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]


def generator() -> Iterator[float]:
    for step in (0, 0, 1, 2):
        yield 1.0 + step


class Countdown:
    def __init__(self) -> None:
        self.left = 5.0

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        self.left -= 1
        return self.left


ADVANCED: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([1.0, 1.0, 2.0, 3.0]),
    "dict": lambda: iter({1: 2, 3: 4}),
    "set": lambda: iter({1, 2}),
    "range": lambda: iter(range(5)),
    "huge range": lambda: iter(range(10**30)),
    "deque": lambda: iter(collections.deque([1.0, 1.0])),
    "zip": lambda: map(sum, zip([1.0, 1.0], [2.0, 2.0], strict=True)),
    "filter": lambda: filter(None, [1.0, 1.0]),
    "count": lambda: itertools.count(1),
    "cycle": lambda: itertools.cycle([1.0, 2.0]),
    "chain": lambda: itertools.chain([1.0], [1.0]),
    "islice": lambda: itertools.islice(itertools.count(1), 1, 3),
    "repeat": lambda: itertools.repeat(2.0, 3),
    "tee": lambda: itertools.tee([1.0, 1.0])[0],
    "generator": generator,
    "generator of a generator": lambda: (rate * 2 for rate in generator()),
    "of a function": lambda: iter(functools.partial(next, itertools.count(1)), None),
    "of Python": Countdown,
    "of a method of a library": lambda: iter(random.Random(3).random, None),
    "lines": lambda: csv.reader(["1", "1"]),
    "words": lambda: shlex.shlex("1 1"),
}


HIDING = {"cycle", "tee", "of a function", "of a method of a library", "lines", "words"}


def number(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value)


def calls(make: Callable[[], Any], use: Callable[[Any], float], compiles: Callable[[Any], Any]) -> list[Any]:
    """What three calls of a function return that uses something once in each."""
    thing, found = make(), list[Any]()
    called = compiles(lambda x: x * use(thing))
    for _ in range(3):
        try:
            found.append(called(values(2)).tolist())
        except StopIteration:
            found.append(StopIteration)
    return found


def compiled_to_check(f: Callable[..., Any]) -> Any:
    return aot.aot_function(f, checking_nop)


@pytest.mark.parametrize("kind", ADVANCED)
def test_an_iterator_that_the_function_advances_goes_on(kind: str) -> None:
    def use(rates: Any) -> float:
        return number(next(rates))

    eager = calls(ADVANCED[kind], use, lambda f: f)
    assert calls(ADVANCED[kind], use, compiled_to_check) == eager


@pytest.mark.parametrize("kind", sorted(set(ADVANCED) - HIDING))
def test_an_iterator_that_it_does_not_advance_is_not(kind: str) -> None:
    rates = ADVANCED[kind]()

    def f(x: Tensor, advance: bool) -> Tensor:
        return x * number(next(rates)) if advance else x * 2

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(2), False), values(2) * 2)
    assert len(compiled.specializations) == 1
    assert torch.equal(compiled(values(2), True), values(2) * number(next(ADVANCED[kind]())))


@pytest.mark.parametrize("make", [queue.Queue, queue.LifoQueue, queue.SimpleQueue])
def test_a_queue_that_the_function_takes_from_and_puts_into(make: Callable[[], Any]) -> None:
    waiting, log, expected = make(), make(), make()
    for rate in (2.0, 2.0, 3.0):
        waiting.put(rate)
        expected.put(rate)

    def f(x: Tensor) -> Any:
        log.put(len(x))
        return x * (waiting.get() if len(x) == 2 else 2)

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(3)), values(3) * 2)
    assert log.qsize() == 2
    for left in (2, 1, 0):
        assert torch.equal(compiled(values(2)), values(2) * expected.get())
        assert waiting.qsize() == left


def test_a_loop_that_goes_on_where_the_last_one_stopped() -> None:
    batches = iter([[1.0], [1.0], [2.0]])

    def f(x: Tensor) -> Tensor:
        for batch in batches:
            return x * batch[0]
        return x

    compiled = aot.aot_function(f, checking_nop)
    for rate in (1.0, 1.0, 2.0, 1.0):
        assert torch.equal(compiled(values(2)), values(2) * rate)


def test_a_method_of_an_iterator() -> None:
    advance = itertools.count(1).__next__
    compiled = aot.aot_function(lambda x: x * advance(), checking_nop)
    for step in (1, 2, 3):
        assert torch.equal(compiled(values(2)), values(2) * step)


def test_iterators_of_its_own_are_no_state() -> None:
    def f(x: Tensor) -> Tensor:
        rates = iter([1.0, 2.0])
        for i, (a, b) in enumerate(zip(rates, map(float, itertools.count(1)), strict=False)):
            x = x * a + b * i + sum(rate for rate in generator())
        return x * random.Random(3).random() * float(numpy.random.default_rng(3).normal())

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(2)), f(values(2)))
    assert len(compiled.specializations) == 1


DRAWN: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "random": (lambda: random.Random(1), lambda rng: rng.random()),
    "method": (lambda: random.Random(1).random, lambda draw: draw()),
    "system": (random.SystemRandom, lambda rng: rng.random()),
    "numpy": (lambda: numpy.random.default_rng(1), lambda rng: float(rng.normal())),
    "numpy method": (lambda: numpy.random.default_rng(1).normal, lambda draw: float(draw())),
    "old numpy": (lambda: numpy.random.RandomState(1), lambda rng: float(rng.randn())),
    "seeded": (lambda: random.Random(1), lambda rng: rng.seed(2) or 1.0),
    "torch": (torch.Generator, lambda rng: rng.manual_seed(3).initial_seed()),
}


@pytest.mark.parametrize("kind", sorted(set(DRAWN) - {"system"}))
def test_a_generator_that_the_function_draws_from_draws_at_each_call(kind: str) -> None:
    make, draw = DRAWN[kind]
    assert calls(make, draw, compiled_to_check) == calls(make, draw, lambda f: f)


def test_a_generator_of_the_systems_is_asked_at_each_call() -> None:
    found = calls(*DRAWN["system"], compiled_to_check)
    assert len({tuple(numbers) for numbers in found}) == 3


def test_a_generator_that_it_looks_at_is_guarded() -> None:
    rng = random.Random(1)

    def f(x: Tensor) -> Tensor:
        return x * random.Random(rng.getstate()[1][0] % 7).random()

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(3):
        assert torch.equal(compiled(values(2)), f(values(2)))
        assert torch.equal(compiled(values(2)), f(values(2)))
        rng.random()
        rng.seed(rng.getrandbits(20))
    assert 1 < len(compiled.specializations) <= 3


def test_draws_from_the_default_generators_are_no_state() -> None:
    generator, draw = torch.default_generator, random.random

    def f(x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, True) * (draw() if generator is None else 2)

    compiled = aot.aot_function(f, checking_nop)
    for seed in range(3):
        torch.manual_seed(seed)
        random.random()
        got = compiled(values(4))
        torch.manual_seed(seed)
        assert torch.equal(got, f(values(4)))
    assert len(compiled.specializations) == 1


class Config:
    def __init__(self) -> None:
        self.rate = 2.0
        self.inner: Any = None
        self.parent: Any = None

    def doubled(self) -> float:
        return self.rate * 2


Case = tuple[Callable[[Tensor], Any], Callable[[], Any]]


def context_variable() -> Case:
    variable = contextvars.ContextVar("variable", default=2.0)
    return lambda x: x * variable.get(), lambda: variable.set(3.0)


def object_in_a_context_variable() -> Case:
    variable = contextvars.ContextVar[Config]("variable")
    variable.set(Config())
    return lambda x: x * variable.get().rate, lambda: setattr(variable.get(), "rate", 3.0)


def attribute_of_a_thread() -> Case:
    local = threading.local()
    local.rate = 2.0
    return lambda x: x * local.rate, lambda: setattr(local, "rate", 3.0)


def attribute_that_a_thread_does_not_have() -> Case:
    local = threading.local()
    return lambda x: x * getattr(local, "rate", 2.0), lambda: setattr(local, "rate", 3.0)


def object_of_a_thread() -> Case:
    local = threading.local()
    local.config = Config()
    return lambda x: x * local.config.rate, lambda: setattr(local.config, "rate", 3.0)


def weak_reference_that_dies() -> Case:
    configs = [Config()]
    reference = weakref.ref(configs[0])
    return lambda x: x * (2.0 if reference() is None else 3.0), configs.clear


def attribute_behind_a_weak_reference() -> Case:
    config = Config()
    reference = weakref.ref(config)
    return lambda x: x * reference().doubled(), lambda: setattr(config, "rate", 3.0)  # type: ignore[union-attr]


def cycle_behind_a_weak_reference() -> Case:
    config = Config()
    config.inner = [types.SimpleNamespace(parent=config, rate=2.0)]
    reference = weakref.ref(config)
    return (
        lambda x: x * reference().inner[0].rate,  # type: ignore[union-attr]
        lambda: setattr(config.inner[0], "rate", 3.0),
    )


def parent_of_a_module() -> Case:
    parent: Any = nn.Sequential(nn.Identity())
    child: Any = nn.Identity()
    parent.rate, child.parent = 2.0, weakref.ref(parent)

    def f(x: Tensor) -> Tensor:
        y: Tensor = child(x) * child.parent().rate * (1 + child.parent()[0].training)
        return y

    return f, parent.eval


def tensor_behind_a_weak_reference() -> Case:
    weight = torch.ones(2)
    reference = weakref.ref(weight)
    return (
        lambda x: x * (1 + reference().requires_grad),  # type: ignore[union-attr]
        weight.requires_grad_,
    )


def requires_grad_of_a_tensor() -> Case:
    weight = torch.ones(2)
    return lambda x: x * (1 + weight.requires_grad), weight.requires_grad_


def shape_of_a_tensor() -> Case:
    weights = [torch.ones(2)]
    return lambda x: x * weights[0].shape[0], lambda: weights[0].resize_(3)


def dtype_of_a_parameter() -> Case:
    layer = nn.Linear(2, 2)
    return lambda x: x.to(layer.weight.dtype), layer.double


def environment() -> Case:
    os.environ.pop("AOT_RATE", None)
    return (
        lambda x: x * float(os.environ.get("AOT_RATE", "2")),
        lambda: os.environ.__setitem__("AOT_RATE", "3"),
    )


def environment_by_a_function() -> Case:
    os.environ["AOT_RATE"] = "2"
    get = os.getenv
    return lambda x: x * float(get("AOT_RATE") or 1), lambda: os.environ.pop("AOT_RATE")


def namespace_of_the_module() -> Case:
    space: dict[str, Any] = {"rate": 2.0}
    exec("def f(x):\n    return x * globals()['ra' + 'te']", space)
    return space["f"], lambda: space.update(rate=3.0)


def name_that_is_new_in_the_module() -> Case:
    space: dict[str, Any] = {}
    exec("def f(x):\n    return x * globals().get('ra' + 'te', 2.0)", space)
    return space["f"], lambda: space.update(rate=3.0)


def dictionary_of_weak_references() -> Case:
    config = Config()
    known = weakref.WeakValueDictionary({"a": config})
    return lambda x: x * known["a"].rate, lambda: setattr(config, "rate", 3.0)


def dictionary_of_weak_references_that_loses_one() -> Case:
    configs = [Config()]
    known = weakref.WeakKeyDictionary({configs[0]: 2.0})
    return lambda x: x * (1 + sum(known.values())), configs.clear


def dictionary_in_a_class() -> Case:
    settings = collections.UserDict(rate=2.0)
    return lambda x: x * settings["rate"], lambda: settings.update(rate=3.0)


def dictionaries_in_a_chain() -> Case:
    settings = collections.ChainMap({"other": 1.0}, {"rate": 2.0})
    return lambda x: x * settings["rate"], lambda: settings.update(rate=3.0)


def length_of_a_queue() -> Case:
    waiting: queue.Queue[float] = queue.Queue()
    return lambda x: x * (2 if waiting.empty() else 3), lambda: waiting.put(3.0)


CASES = [
    *(dictionary_of_weak_references, dictionary_of_weak_references_that_loses_one, dictionary_in_a_class),
    *(dictionaries_in_a_chain, length_of_a_queue),
    *(context_variable, object_in_a_context_variable, attribute_of_a_thread),
    *(attribute_that_a_thread_does_not_have, object_of_a_thread, weak_reference_that_dies),
    *(attribute_behind_a_weak_reference, cycle_behind_a_weak_reference, parent_of_a_module),
    *(tensor_behind_a_weak_reference, requires_grad_of_a_tensor, shape_of_a_tensor, dtype_of_a_parameter),
    *(environment, environment_by_a_function, namespace_of_the_module, name_that_is_new_in_the_module),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_later_calls_see_what_is_there(case: Callable[[], Case]) -> None:
    function, change = case()
    compiled = aot.aot_function(function, checking_nop)
    before = function(values(2))
    for _ in range(2):
        torch.testing.assert_close(compiled(values(2)), before)
    assert len(compiled.specializations) == 1
    change()
    after = function(values(2))
    assert not (after.dtype == before.dtype and torch.equal(after, before)), "the case shows nothing"
    for _ in range(2):
        torch.testing.assert_close(compiled(values(2)), after)
    assert len(compiled.specializations) == 2


def test_a_guard_keeps_nothing_behind_a_weak_reference_alive() -> None:
    config = Config()
    config.inner = types.SimpleNamespace(parent=config, rate=2.0)
    reference = weakref.ref(config)

    def f(x: Tensor) -> Tensor:
        found = reference()
        return x if found is None else x * found.doubled() * found.inner.rate

    compiled = aot.aot_function(f, checking_nop)
    assert torch.equal(compiled(values(2)), values(2) * 8)
    config.inner = None
    del config
    assert reference() is None
    assert torch.equal(compiled(values(2)), values(2))


def test_each_thread_has_its_own() -> None:
    local = threading.local()
    found: dict[float, Tensor] = {}

    def run(rate: float) -> None:
        local.rate = rate
        found[rate] = compiled(values(2))

    compiled = aot.aot_function(lambda x: x * local.rate, checking_nop)
    run(2.0)
    for rate in (3.0, 2.0, 3.0):
        thread = threading.Thread(target=run, args=(rate,))
        thread.start()
        thread.join()
        assert torch.equal(found[rate], values(2) * rate)
    assert len(compiled.specializations) == 2


def test_a_context_that_is_set_for_a_call_and_reset_is_as_it_was() -> None:
    variable = contextvars.ContextVar("variable", default=2.0)

    def f(x: Tensor) -> Tensor:
        token = variable.set(3.0)
        try:
            return x * variable.get()
        finally:
            variable.reset(token)

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(2)), values(2) * 3)
    assert len(compiled.specializations) == 1


def test_a_context_that_is_left_set_where_it_is_read() -> None:
    variable = contextvars.ContextVar("variable", default=2.0)

    def f(x: Tensor) -> Tensor:
        variable.set(variable.get() + 1)
        return x * variable.get()

    compiled = aot.aot_function(f, checking_nop)
    for value in (3.0, 4.0, 5.0):
        assert torch.equal(compiled(values(2)), values(2) * value)
        assert variable.get() == value


@functools.lru_cache
def scale(size: int) -> float:
    return 1 / size


def test_what_ordinary_functions_use_is_no_state() -> None:
    log = logging.getLogger("aot.tests")
    known = {2: 3.0}
    stream = open(os.devnull, "w")  # noqa: SIM115
    lock = threading.Lock()
    layer = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def f(parameters: dict[str, Tensor], x: Tensor) -> Any:
        log.info("called with %s", x.shape)
        print(x.shape, file=stream)
        with lock:
            y = torch.func.functional_call(layer, parameters, (x,))
        return y * known[len(x[0])] * scale(len(x))

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(3):
        parameters = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
        parameters |= {name: b.clone() for name, b in layer.named_buffers()}
        torch.testing.assert_close(compiled(parameters, leaf(3, 2)), f(parameters, leaf(3, 2)))
    assert len(compiled.specializations) == 1
    stream.close()


def test_states_of_iterators_that_hide_their_position_are_never_equal() -> None:
    hidden = itertools.cycle([1])
    assert state_of(hidden) != state_of(hidden)
    shown = generator()
    assert state_of(shown) == state_of(shown)
