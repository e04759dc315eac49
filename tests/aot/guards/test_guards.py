"""What a function reads from its closure, from globals and from objects: never that of an earlier call."""

from __future__ import annotations

import array
import dataclasses
import functools
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import aot
from tests.support.agreement import checking_nop, leaf

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]

RATE = 2.0
SETTINGS = {"rate": 2.0, "other": 1}
FACTORS = [2.0, 3.0]
MODULE = types.ModuleType("settings_of_somebody")
MODULE.rate = 2.0
MODULE.inner = types.SimpleNamespace(rate=2.0)


def double(x: Tensor) -> Tensor:
    return x * 2


def triple(x: Tensor) -> Tensor:
    return x * 3


def by_rate(x: Tensor) -> Tensor:
    return x * RATE


operation = double


@dataclasses.dataclass
class Config:
    rate: float = 2.0
    kind: str = "double"
    steps: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    parent: Any = None

    @property
    def doubled(self) -> float:
        return self.rate * 2

    def apply(self, x: Tensor) -> Tensor:
        return x * self.rate


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 2.0


class Slotless:
    """Has an attribute that no code names."""

    def __init__(self) -> None:
        self.put(2.0)

    def put(self, value: float) -> None:
        setattr(self, "_".join(["its", "tempo"]), value)

    def look(self, name: str) -> float:
        return getattr(self, f"its_{name}")  # type: ignore[no-any-return]


class Derived(Config):
    offset = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x) + self.offset

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate = 2.0
        self.blocks = nn.ModuleList([nn.Dropout(0.5), nn.Softplus(beta=1.0)])
        self.block0 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return getattr(self, f"block{0}")(x) * (self.rate if self.training else 1.0)


class Scaled(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * Scaled.factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * RATE


def setting(space: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(space, name, value)


def entry(container: Any, key: Any, value: Any) -> Callable[[], None]:
    return lambda: container.__setitem__(key, value)


HERE = sys.modules[__name__]
Case = tuple[Callable[[Tensor], Any], Callable[[], None], Callable[[], None]]


def cell() -> Case:
    rate = 2.0

    def change(to: float) -> None:
        nonlocal rate
        rate = to

    return lambda x: x * rate, lambda: change(3.0), lambda: change(2.0)


def cell_of_a_nested_function() -> Case:
    config = Config()

    def f(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return y * sum(config.rate for _ in range(2))

        return inner(x)

    return f, setting(config, "rate", 3.0), setting(config, "rate", 2.0)


def global_number() -> Case:
    return lambda x: x * RATE, setting(HERE, "RATE", 3.0), setting(HERE, "RATE", 2.0)


def sign_of_zero() -> Case:
    space = types.SimpleNamespace(zero=0.0)
    return lambda x: x.copysign(space.zero), setting(space, "zero", -0.0), setting(space, "zero", 0.0)


def one_and_true() -> Case:
    space = types.SimpleNamespace(flag=1)
    return (
        lambda x: x.clone() if space.flag is True else x,
        setting(space, "flag", True),
        setting(space, "flag", 1),
    )


def global_function() -> Case:
    return lambda x: operation(x) + 1, setting(HERE, "operation", triple), setting(HERE, "operation", double)


def called_helper() -> Case:
    return lambda x: by_rate(x) + 1, setting(HERE, "RATE", 3.0), setting(HERE, "RATE", 2.0)


def helper_that_a_library_calls() -> Case:
    def f(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(by_rate, x, use_reentrant=False)

    return f, setting(HERE, "RATE", 3.0), setting(HERE, "RATE", 2.0)


def decorated() -> Case:
    return torch.no_grad()(by_rate), setting(HERE, "RATE", 3.0), setting(HERE, "RATE", 2.0)


def default() -> Case:
    def helper(x: Tensor, rate: float = 2.0) -> Tensor:
        return x * rate

    return (
        lambda x: helper(x) + 1,
        setting(helper, "__defaults__", (3.0,)),
        setting(helper, "__defaults__", (2.0,)),
    )


def mutable_default() -> Case:
    rates = [2.0]

    def f(x: Tensor, rates: list[float] = rates) -> Tensor:
        return x * rates[0]

    return lambda x: f(x) + 1, entry(rates, 0, 3.0), entry(rates, 0, 2.0)


def keyword_default() -> Case:
    def f(x: Tensor, *, rate: float = 2.0) -> Tensor:
        return x * rate

    return lambda x: f(x) + 1, entry(f.__kwdefaults__, "rate", 3.0), entry(f.__kwdefaults__, "rate", 2.0)


def code() -> Case:
    def f(x: Tensor) -> Tensor:
        return x * 2

    own = f.__code__
    return lambda x: f(x) + 1, setting(f, "__code__", triple.__code__), setting(f, "__code__", own)


def attribute_of_a_function() -> Case:
    def f(x: Tensor) -> Tensor:
        return x * f.rate  # type: ignore[attr-defined]

    f.rate = 2.0  # type: ignore[attr-defined]
    return f, setting(f, "rate", 3.0), setting(f, "rate", 2.0)


def attribute() -> Case:
    config = Config(parent=Config())
    config.parent.parent = config
    return (
        lambda x: x * config.parent.rate,
        setting(config.parent, "rate", 3.0),
        setting(config.parent, "rate", 2.0),
    )


def attribute_under_another_name() -> Case:
    config = Config()

    def f(x: Tensor) -> Tensor:
        settings = [config]
        return next(one.rate for one in settings) * x

    return f, setting(config, "rate", 3.0), setting(config, "rate", 2.0)


def attribute_by_name() -> Case:
    config = Config()
    return lambda x: x * getattr(config, "rate"), setting(config, "rate", 3.0), setting(config, "rate", 2.0)  # noqa: B009


def attribute_by_computed_name() -> Case:
    one, name = Slotless(), "tempo"
    return lambda x: x * getattr(one, "its_" + name), lambda: one.put(3.0), lambda: one.put(2.0)


def attribute_by_computed_name_in_a_method() -> Case:
    one = Slotless()
    return lambda x: x * one.look("tempo"), lambda: one.put(3.0), lambda: one.put(2.0)


def record_by_computed_name() -> Case:
    one, name = types.SimpleNamespace(its_tempo=2.0), "tempo"
    put = functools.partial(setattr, one, f"its_{name}")
    return lambda x: x * getattr(one, "its_" + name), lambda: put(3.0), lambda: put(2.0)


def attribute_by_name_with_a_default() -> Case:
    one = Slotless()
    return lambda x: x * getattr(one, "its_tempo", 2 + len(x)), lambda: one.put(3.0), lambda: one.put(2.0)


def attributes_by_vars() -> Case:
    config = Config()
    return lambda x: x * vars(config)["rate"], setting(config, "rate", 3.0), setting(config, "rate", 2.0)


def attribute_that_hides_one_of_the_class() -> Case:
    one = Derived()
    return lambda x: x * one.offset, setting(one, "offset", 3.0), lambda: delattr(one, "offset")


def attribute_of_the_class() -> Case:
    one = Derived()
    return lambda x: x * one.offset, setting(Derived, "offset", 3.0), setting(Derived, "offset", 1.0)


def attribute_that_is_asked_for() -> Case:
    one = Config()
    return lambda x: x * hasattr(one, "extra"), setting(one, "extra", 3.0), lambda: delattr(one, "extra")


def property_of_an_object() -> Case:
    config = Config()
    return lambda x: x * config.doubled, setting(config, "rate", 3.0), setting(config, "rate", 2.0)


def slot() -> Case:
    one = Slotted()
    return lambda x: x * one.rate, setting(one, "rate", 3.0), setting(one, "rate", 2.0)


def namespace() -> Case:
    config = types.SimpleNamespace(rate=2.0)
    return lambda x: x * config.rate, setting(config, "rate", 3.0), setting(config, "rate", 2.0)


def class_of_an_object() -> Case:
    one = Config()
    return (
        lambda x: x * getattr(one, "offset", 5.0),
        setting(one, "__class__", Derived),
        setting(one, "__class__", Config),
    )


def module_of_python() -> Case:
    return lambda x: x * MODULE.rate, setting(MODULE, "rate", 3.0), setting(MODULE, "rate", 2.0)


def object_of_a_module() -> Case:
    return (
        lambda x: x * MODULE.inner.rate,
        setting(MODULE.inner, "rate", 3.0),
        setting(MODULE.inner, "rate", 2.0),
    )


def imported_inside() -> Case:
    sys.modules["settings_of_somebody"] = MODULE

    def f(x: Tensor) -> Tensor:
        from settings_of_somebody import rate  # type: ignore[import-not-found]

        return x * rate

    return f, setting(MODULE, "rate", 3.0), setting(MODULE, "rate", 2.0)


def bound_method() -> Case:
    one = Config()
    return one.apply, setting(one, "rate", 3.0), setting(one, "rate", 2.0)


def callable_object() -> Case:
    one = Derived()
    return one, setting(one, "rate", 3.0), setting(one, "rate", 2.0)


def method_replaced() -> Case:
    one, own = Derived(), Config.__dict__["apply"]
    return one, setting(Config, "apply", lambda self, x: x * 5), setting(Config, "apply", own)


def subscript_of_an_object() -> Case:
    one = Derived()
    return lambda x: x * one["rate"], setting(one, "rate", 3.0), setting(one, "rate", 2.0)


def partial() -> Case:
    rates = [2.0]
    return functools.partial(lambda r, x: x * r[0], rates), entry(rates, 0, 3.0), entry(rates, 0, 2.0)


def dict_entry() -> Case:
    return lambda x: x * SETTINGS["rate"], entry(SETTINGS, "rate", 3.0), entry(SETTINGS, "rate", 2.0)


def new_dict_entry() -> Case:
    table = OrderedDict(a=1.0)
    return lambda x: x * sum(table.values()), entry(table, "b", 2.0), lambda: table.__delitem__("b")


def order_of_a_dict() -> Case:
    table = OrderedDict(a=1.0, b=2.0)

    def f(x: Tensor) -> Tensor:
        return x * next(iter(table.values()))

    return f, lambda: table.move_to_end("a"), lambda: table.move_to_end("b")


def list_element() -> Case:
    return lambda x: x * FACTORS[1], entry(FACTORS, 1, 5.0), entry(FACTORS, 1, 3.0)


def length_of_a_list() -> Case:
    items: list[Any] = [1, object()]
    return lambda x: x * len(items), lambda: items.append(2), lambda: items.pop() and None


def element_of_a_set() -> Case:
    found = {1}
    return lambda x: x * (2 in found), lambda: found.add(2), lambda: found.remove(2)


def functions_in_a_dict() -> Case:
    table = {"f": double}
    return lambda x: table["f"](x) + 1, entry(table, "f", triple), entry(table, "f", double)


def nested_containers() -> Case:
    table = {"a": [Config()]}
    return (
        lambda x: x * table["a"][0].steps[1],
        entry(table["a"][0].steps, 1, 5),
        entry(table["a"][0].steps, 1, 2),
    )


def memory() -> Case:
    numbers = array.array("d", [2.0])
    return lambda x: x * numbers[0], entry(numbers, 0, 3.0), entry(numbers, 0, 2.0)


def numpy_array() -> Case:
    numbers = numpy.array([2.0, 1.0])
    return lambda x: x * float(numbers.sum()), entry(numbers, 0, 3.0), entry(numbers, 0, 2.0)


def dtype() -> Case:
    config = types.SimpleNamespace(dtype=torch.float64)
    return (
        lambda x: x.to(config.dtype),
        setting(config, "dtype", torch.int64),
        setting(config, "dtype", torch.float64),
    )


def shape_of_a_tensor() -> Case:
    config = types.SimpleNamespace(like=torch.ones(2))
    first, second = config.like, torch.ones(3)
    return (
        lambda x: x * len((*config.like.shape, 1)) * config.like.shape[0],
        setting(config, "like", second),
        setting(config, "like", first),
    )


def training() -> Case:
    layer = Layer()
    return lambda x: layer(x) + 1, lambda: layer.eval() and None, lambda: layer.train() and None


def number_of_a_module() -> Case:
    layer = Layer()
    return lambda x: layer(x) + 1, setting(layer, "rate", 3.0), setting(layer, "rate", 2.0)


def number_of_a_library_module() -> Case:
    layer = Layer()
    return layer, setting(layer.blocks[1], "beta", 3.0), setting(layer.blocks[1], "beta", 1.0)


def part_of_a_module() -> Case:
    layer = Layer()
    relu, sigmoid = layer.block0, nn.Sigmoid()
    return layer, setting(layer, "block0", sigmoid), setting(layer, "block0", relu)


def hook_of_a_module() -> Case:
    layer = Layer()
    handles: list[Any] = []

    def add() -> None:
        handles.append(layer.block0.register_forward_hook(lambda module, inputs, result: result * RATE))

    return layer, add, lambda: handles.pop().remove()


def custom_function() -> Case:
    return lambda x: Scaled.apply(x) + 1, setting(Scaled, "factor", 3.0), setting(Scaled, "factor", 2.0)


def backward_of_a_custom_function() -> Case:
    return lambda x: Scaled.apply(x) + 1, setting(HERE, "RATE", 3.0), setting(HERE, "RATE", 2.0)


def generated_code() -> Case:
    space: dict[str, Any] = {"rate": 2.0}
    exec(compile("def f(x):\n    return x * rate", "<generated>", "exec"), space)
    return space["f"], entry(space, "rate", 3.0), entry(space, "rate", 2.0)


def builtin_that_is_hidden() -> Case:
    space: dict[str, Any] = {}
    exec(compile("def f(x):\n    return x * len('abc')", "<generated>", "exec"), space)
    return space["f"], entry(space, "len", lambda _: 7), lambda: space.__delitem__("len")


CASES = [
    *(cell, cell_of_a_nested_function, global_number, sign_of_zero, one_and_true, global_function),
    *(called_helper, helper_that_a_library_calls, decorated, default, mutable_default, keyword_default, code),
    *(attribute_of_a_function, attribute, attribute_under_another_name, attribute_by_name),
    *(
        attribute_by_computed_name,
        attribute_by_computed_name_in_a_method,
        record_by_computed_name,
        attribute_by_name_with_a_default,
        attributes_by_vars,
        attribute_that_hides_one_of_the_class,
    ),
    *(attribute_of_the_class, attribute_that_is_asked_for, property_of_an_object, slot, namespace),
    *(class_of_an_object, module_of_python, object_of_a_module, imported_inside, bound_method),
    *(
        callable_object,
        method_replaced,
        subscript_of_an_object,
        partial,
        dict_entry,
        new_dict_entry,
        order_of_a_dict,
    ),
    *(list_element, length_of_a_list, element_of_a_set, functions_in_a_dict, nested_containers, memory),
    *(numpy_array, dtype, shape_of_a_tensor, training, number_of_a_module, number_of_a_library_module),
    *(part_of_a_module, hook_of_a_module, custom_function, backward_of_a_custom_function, generated_code),
    builtin_that_is_hidden,
]


def results(function: Callable[[Tensor], Any]) -> list[Any]:
    x = leaf(2)
    torch.manual_seed(3)
    y = function(x)
    gradient = torch.autograd.grad(y.sum(), x)[0].tolist() if y.requires_grad else None
    return [y.dtype, y.tolist(), gradient, y is x]


@pytest.mark.parametrize("many", [1, 1000], ids=["together", "alone"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_later_calls_see_what_is_there(
    case: Callable[[], Case], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.guards.guard._MANY", many)  # of which on guards of a kind share a test
    function, change, back = case()
    compiled = aot.aot_function(function, checking_nop)
    before = results(function)
    assert results(compiled) == before
    change()
    try:
        after = results(function)
        assert after != before, "the case shows nothing"
        assert results(compiled) == after
        assert results(compiled) == after
    finally:
        back()
    assert results(function) == before
    assert results(compiled) == before
    assert len(compiled.specializations) == 2
