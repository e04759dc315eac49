"""A function that changes what it reads, or only writes it; and what is a guard and what is none."""

from __future__ import annotations

import dataclasses
import itertools
import types
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot import errors
from aot.guards.collect import collect_guards
from aot.guards.tracker import GuardTracker
from tests.support.agreement import checking_nop, leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]

SETTINGS = {"rate": 2.0, "other": 1}


@dataclasses.dataclass
class Config:
    rate: float = 2.0
    kind: str = "double"
    steps: list[int] = dataclasses.field(default_factory=lambda: [1, 2])


def count_and_read() -> Callable[[Tensor], Any]:
    count = 0

    def f(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * count

    return f


def draw_from_a_list() -> Callable[[Tensor], Any]:
    rates = [1.0, 2.0]
    return lambda x: x * rates.pop()


def remember() -> Callable[[Tensor], Any]:
    known: dict[int, float] = {}

    def f(x: Tensor) -> Tensor:
        if len(x) not in known:
            known[len(x)] = 2.0
        return x * known[len(x)]

    return f


def step_of_an_object() -> Callable[[Tensor], Any]:
    class Schedule:
        def __init__(self) -> None:
            self.rate = 1.0

        def __call__(self, x: Tensor) -> Tensor:
            self.rate = self.rate * 0.5
            return x * self.rate

    return Schedule()


def global_that_is_rebound() -> Callable[[Tensor], Any]:
    space: dict[str, Any] = {"rate": 2.0}
    text = "def f(x):\n    global rate\n    rate = rate + 1\n    return x * rate"
    exec(compile(text, "<generated>", "exec"), space)
    return space["f"]  # type: ignore[no-any-return]


def attribute_that_is_made() -> Callable[[Tensor], Any]:
    space = types.SimpleNamespace()

    def f(x: Tensor) -> Tensor:
        if not hasattr(space, "rate"):
            space.rate = 2.0
        return x * space.rate

    return f


def written_by_a_helper() -> Callable[[Tensor], Any]:
    config = Config()

    def helper(settings: Config) -> float:
        settings.rate *= 2
        return settings.rate

    return lambda x: x * helper(config)


def _written_by_the_backward(rates: list[float]) -> Callable[[Tensor], Any]:
    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * rates[0]

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            rates[0] = 3.0
            return gradient * 2

    return lambda x: Writing.apply(x) + 1


def method_of_a_container() -> Callable[[Tensor], Any]:
    draw = [1.0, 2.0].pop
    return lambda x: x * draw()


@pytest.mark.parametrize(
    "make",
    [
        *(count_and_read, draw_from_a_list, remember, step_of_an_object, global_that_is_rebound),
        *(attribute_that_is_made, written_by_a_helper, method_of_a_container),
    ],
    ids=lambda make: make.__name__,
)
def test_what_changes_what_it_reads_is_answered_call_by_call(
    make: Callable[[], Callable[[Tensor], Any]],
) -> None:
    def outcomes(compiles: Callable[[Any], Any]) -> list[Any]:
        function = make()

        def f(x: Tensor) -> Any:
            with torch.no_grad():
                x.mul_(2)
            return function(x)

        called, found = compiles(f), list[Any]()
        for _ in range(4):
            x = leaf(2)
            try:
                found.append((called(x).tolist(), x.tolist()))
            except IndexError:  # of a list that is empty by now
                found.append(IndexError)
        return found

    assert outcomes(lambda f: aot.aot_function(f, checking_nop)) == outcomes(lambda f: f)


def test_a_backward_that_changes_what_it_reads_is_refused() -> None:
    rates = [2.0]
    compiled = aot.aot_function(_written_by_the_backward(rates), checking_nop)
    with pytest.raises(errors.ClosureMutation, match=r"a backward of .* changes rates, and that depends"):
        compiled(leaf(2))
    assert rates == [2.0]
    assert compiled.specializations == ()


def test_a_cache_that_has_been_filled_is_read() -> None:
    compiled = aot.aot_function(remember(), checking_nop)
    for size in (2, 3, 2, 3, 3):
        assert torch.equal(compiled(values(size)), values(size) * 2)
    assert len(compiled.specializations) == 4  # that fills it, and that finds it filled, of each size


def test_what_is_only_written_is_written_at_each_call() -> None:
    log: list[int] = []
    seen: dict[int, int] = {}
    counts = [0, 0]
    also = deque[int]()
    note = also.append
    config = types.SimpleNamespace(log=[], calls=0)
    count = 0

    def f(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        counts[1] += 1
        config.calls += 1
        config.log.append(len(x))
        config.last = len(x)
        log.append(len(x))
        note(len(x))
        seen[len(x)] = 1
        return x * 2

    compiled = aot.aot_function(f, checking_nop)
    for size in (2, 3, 2, 3):
        compiled(values(size))
        log.append(-size)  # which is nothing that the function reads
    assert (count, counts[1], config.calls, config.last) == (4, 4, 4, 3)
    assert config.log == [2, 3, 2, 3]
    assert list(also) == [2, 3, 2, 3]
    assert seen == {2: 1, 3: 1}
    assert log == [2, -2, 3, -3, 2, -2, 3, -3]
    assert len(compiled.specializations) == 2


def test_attributes_of_a_metaclass_are_read() -> None:
    class Meta(type):
        scale = 2.0

    class Scaled(metaclass=Meta):
        pass

    compiled = aot.aot_function(lambda x: x * Scaled.scale, checking_nop)
    assert torch.equal(compiled(values(2)), values(2) * 2)
    Meta.scale = 3.0
    assert torch.equal(compiled(values(2)), values(2) * 3)


def test_an_object_whose_python_is_run_by_a_write_is_read() -> None:
    class Log:
        scale = 2.0

        def append(self, x: Tensor) -> Tensor:
            return x.mul_(self.scale)

    log = Log()

    def f(x: Tensor) -> Tensor:
        log.append(x)
        return x

    compiled = aot.aot_function(f, checking_nop)
    assert torch.equal(compiled(values(2)), values(2) * 2)
    log.scale = 3.0
    assert torch.equal(compiled(values(2)), values(2) * 3)


def test_what_a_library_keeps_is_no_guard() -> None:
    def f(x: Tensor) -> Tensor:
        warnings.warn("once", stacklevel=1)
        return torch.nn.functional.dropout(x, 0.5) + next(iter(itertools.count()))

    compiled = aot.aot_function(f, checking_nop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(values(2))
        compiled(values(2))
    assert len(compiled.specializations) == 1
    assert len(collect_guards(torch.sin)[0].guards) == 0


def test_unrelated_globals_and_attributes_are_no_guards() -> None:
    config = Config()
    compiled = aot.aot_function(lambda x: x * config.rate, checking_nop)
    compiled(values(2))
    config.kind = "triple"
    config.steps.append(3)
    SETTINGS["other"] += 1
    compiled(values(2))
    assert len(compiled.specializations) == 1


def test_every_value_finds_its_specialization_again() -> None:
    config = Config()
    compiled = aot.aot_function(lambda x: x * config.rate, checking_nop)
    for rate in (1.0, 2.0, 3.0, 2.0, 1.0, 3.0, float("nan"), -float("nan") + 0, 2.0):
        config.rate = rate
        torch.testing.assert_close(compiled(values(2)), values(2) * rate, equal_nan=True)
    assert len(compiled.specializations) == 4


def test_what_keeps_changing_is_named_once() -> None:
    config = Config()
    compiled = aot.aot_function(lambda x: x * config.rate, checking_nop)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(20):
            config.rate = float(step)
            compiled(values(2))
    assert [one.category for one in caught] == [aot.RecompileWarning]
    assert "config.rate keeps changing" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_failed_compilation_leaves_the_others() -> None:
    config = Config()

    def f(x: Tensor) -> Tensor:
        if config.rate > 5:
            raise ValueError("too fast")
        return x * config.rate

    compiled = aot.aot_function(f, checking_nop)
    compiled(values(2))
    config.rate = 6.0
    with pytest.raises(ValueError, match="too fast"):
        compiled(values(2))
    config.rate = 2.0
    compiled(values(2))
    assert len(compiled.specializations) == 1


def test_parameters_that_a_call_puts_into_a_module() -> None:
    layer = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))

    def f(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        parameters = {name: p.detach().clone() for name, p in layer.named_parameters()}
        assert torch.equal(compiled(parameters, values(3, 2)), f(parameters, values(3, 2)))
    assert len(compiled.specializations) == 1


def test_a_compiled_function_within_another() -> None:
    config = Config()
    inner = aot.aot_function(lambda x: x * config.rate, checking_nop)
    assert {guard.path for guard in collect_guards(lambda x: inner(x) + 1)[0].guards} >= {
        "config",
        "config.rate",
    }


def test_a_container_that_is_made_again_as_it_was() -> None:
    config = types.SimpleNamespace(rates=[1.0, 2.0], table={"a": (1.0,)})
    compiled = aot.aot_function(lambda x: x * config.rates[1] * config.table["a"][0], checking_nop)
    compiled(values(2))
    config.rates, config.table = [1.0, float("2")], {"a": (float("1"),)}
    compiled(values(2))
    assert len(compiled.specializations) == 1
    config.rates = [1.0, 3.0]
    assert torch.equal(compiled(values(2)), values(2) * 3)
    config.table = {"a": (2.0,)}
    assert torch.equal(compiled(values(2)), values(2) * 6)


class Table(dict[str, float]):
    """Computes its entries when one of them is asked for, and cannot compute all of them."""

    def __getitem__(self, key: str) -> float:
        return 10 * super().__getitem__(key)

    def __iter__(self) -> Any:
        raise LookupError("not all of them")

    __len__ = __bool__ = keys = values = items = __iter__  # type: ignore[assignment]


class Rates(list[float]):
    def __iter__(self) -> Any:
        raise LookupError("not all of them")

    __len__ = __bool__ = __iter__  # type: ignore[assignment]


class Ordered(OrderedDict[str, float]):
    def values(self) -> Any:
        raise LookupError("not all of them")


@pytest.mark.parametrize(
    ("table", "key"),
    [(Table(a=1.0, b=2.0), "b"), (Rates([1.0, 2.0]), 1), (Ordered(a=1.0, b=2.0), "b")],
    ids=["dict", "list", "OrderedDict"],
)
def test_a_container_is_looked_into_past_what_its_class_says(table: Any, key: Any) -> None:
    """As a lazy mapping is, which would import everything that it can."""
    config = types.SimpleNamespace(table=table)
    compiled = aot.aot_function(lambda x: x * config.table[key], checking_nop)
    for rate in (2.0, 3.0):
        table[key] = rate
        for _ in range(2):
            assert torch.equal(compiled(values(2)), values(2) * table[key])
    assert len(compiled.specializations) == 2
    config.table = type(table)(a=1.0, b=3.0) if isinstance(table, dict) else Rates([1.0, 3.0])
    assert torch.equal(compiled(values(2)), values(2) * table[key])
    empty = types.SimpleNamespace(table=type(table)())
    lengths = aot.aot_function(lambda x: x * (2 if key in empty.table else 1), checking_nop)
    assert torch.equal(lengths(values(2)), values(2))


def test_what_a_compiled_function_keeps_is_not_looked_into() -> None:
    """Whatever names the function reads of others."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._cache, self._before, self._recognitions = {"by": 2.0}, [3.0], 4.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self._cache["by"] * self._before[0] * self._recognitions

    module = Cached()
    compiled = aot.aot_module(module, checking_nop)
    inner = aot.aot_function(lambda x: x * module._cache["by"], checking_nop)
    inner.rate = 5.0  # type: ignore[attr-defined]
    outer = aot.aot_function(lambda x: inner(x) * inner.rate, checking_nop)  # type: ignore[attr-defined]
    for by in (2.0, 7.0):
        module._cache["by"] = by
        for size in (2, 3, 2, 3):
            assert torch.equal(compiled(values(size)), values(size) * by * 12)
            assert torch.equal(outer(values(size)), values(size) * by * 5)
    assert len(compiled.compiled.specializations) == len(outer.specializations) == 4
    inner.rate = 6.0  # type: ignore[attr-defined]
    assert torch.equal(outer(values(2)), values(2) * 42)


def test_what_is_looked_at_again_is_guarded_once() -> None:
    """However often the function gets a module: each time all that it reaches is looked through."""

    class Settings:
        rate = 2.0

    settings = Settings()
    noted = GuardTracker(lambda x: x * settings.rate)

    def places() -> Counter[str]:
        seen = (one for one in noted.guards.guards if "settings_" not in one.path)
        return Counter(f"{one.kind.name} {one.path}" for one in seen if "ettings" in one.path)

    for number in range(3):
        module = types.ModuleType(f"settings_{number}")
        exec(f"def rate(x): return x.name_{number}", vars(module))
        noted.track_module_got(module)
    found = places()
    assert found["ENTRY Settings.rate"] == 1
    assert max(found.values()) == 1
    settings.name_2 = 1  # it would be read now
    assert not noted.guards.hold()
