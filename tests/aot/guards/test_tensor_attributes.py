"""Python attributes of tensors, which tell calls apart where the function reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot.errors import ClosureTensor, DataDependentValue, UnsupportedOutput
from tests.support.aot.subclasses import TwoTensor
from tests.support.versions import needs_torch

pytestmark = pytest.mark.clause("repeat")

Function = Callable[..., Any]
NAME = "quantized"


def helper(w: Tensor) -> bool:
    return hasattr(w, "quantized") and w.quantized


READERS: dict[str, Function] = {
    "getattr": lambda w: w * 2 if getattr(w, "quantized", False) else w * 1,
    "hasattr": lambda w: w * 2 if hasattr(w, "quantized") else w * 1,
    "a plain attribute": lambda w: w * 2 if w.quantized else w * 1,
    "its dict": lambda w: w * 2 if "quantized" in w.__dict__ else w * 1,
    "vars": lambda w: w * 2 if vars(w).get("quantized") else w * 1,
    "dir": lambda w: w * 2 if "quantized" in dir(w) else w * 1,
    "a computed name": lambda w: w * 2 if getattr(w, NAME, False) else w * 1,
    "another function": lambda w: w * 2 if helper(w) else w * 1,
    "a number": lambda w: w * getattr(w, "quantized", 1),
    "an intermediate": lambda w: w * 2 if hasattr(w * 1, "quantized") else w * 1,
}
ABSENT: Any = object()
VALUES = [ABSENT, True, ABSENT, False, 3, 3.0, True, ABSENT]


def tensor(value: Any, make: Callable[[], Tensor] = lambda: torch.ones(2)) -> Tensor:
    made = make()
    if value is not ABSENT:
        made.quantized = value  # type: ignore[attr-defined]
    return made


def outcome(function: Function, w: Any) -> Any:
    try:
        return function(w).tolist()
    except AttributeError as error:
        return str(error)


MAKERS: dict[str, Callable[[], Tensor]] = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "view": lambda: torch.ones(4)[:2],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", READERS)
def test_an_attribute_is_what_it_is_in_each_call(name: str, make: str, dynamic: bool) -> None:
    compiled = aot.aot_function(READERS[name], aot.nop, dynamic=dynamic)
    for value in VALUES:
        found, expected = (outcome(f, tensor(value, MAKERS[make])) for f in (compiled, READERS[name]))
        assert found == expected


def test_an_attribute_comes_and_goes_on_one_tensor() -> None:
    compiled, w = aot.aot_function(READERS["getattr"], aot.nop), torch.ones(2)
    for value in (None, True, None, True):
        vars(w).clear() if value is None else setattr(w, "quantized", value)
        assert compiled(w).tolist() == READERS["getattr"](w).tolist()
    assert len(compiled.specializations) == 2


def test_attributes_that_nothing_reads_are_of_no_account() -> None:
    compiled = aot.aot_function(lambda w: w * 2, aot.nop)
    for step in range(3):
        w = torch.ones(2)
        w.step = step  # type: ignore[attr-defined]
        compiled(w)
    assert len(compiled.specializations) == 1


def test_what_is_in_an_attribute_is_guarded() -> None:
    meta = {"scale": 3.0}
    compiled = aot.aot_function(lambda w: w * w.quantized["scale"], aot.nop)
    for scale in (3.0, 4.0, 3.0):
        meta["scale"] = scale
        assert compiled(tensor(meta)).tolist() == [scale] * 2


@pytest.mark.parametrize("many", [False, True])
def test_each_tensor_of_a_call_has_its_own(many: bool) -> None:
    count = 6 if many else 2

    def f(*tensors: Tensor) -> list[Tensor]:
        return [READERS["getattr"](one) for one in tensors]

    compiled = aot.aot_function(f, aot.nop)
    for at in (None, 1, None, 0, 1):
        given = [tensor(True if i == at else ABSENT) for i in range(count)]
        assert [one.tolist() for one in compiled(*given)] == [one.tolist() for one in f(*given)]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * READERS["getattr"](self.weight) + READERS["hasattr"](self.table)


FRONT_ENDS: dict[str, Callable[[nn.Module], Function]] = {
    "aot_module": lambda module: aot.aot_module(module, aot.nop),
    "torch_compile": lambda module: torch.compile(module, backend="aotfuzz"),
}


OVERLOOKED = "Dynamo of torch 2.11 overlooks an attribute that a parameter gets, with its backend `eager` too"


@pytest.mark.parametrize(
    "front_end", ["aot_module", pytest.param("torch_compile", marks=needs_torch(">2.11", OVERLOOKED))]
)
def test_parameters_and_buffers_have_them_too(front_end: str) -> None:
    torch._dynamo.reset()
    module = Layer()
    compiled = FRONT_ENDS[front_end](module)
    for owner in (None, module.weight, None, module.table, None):
        for one in (module.weight, module.table):
            vars(one).pop("quantized", None)
        if owner is not None:
            owner.quantized = True
        for _ in range(2):
            assert compiled(torch.ones(2)).tolist() == module(torch.ones(2)).tolist()


def test_wrapper_subclasses_have_them_too() -> None:
    compiled = aot.aot_function(READERS["getattr"], aot.nop)
    for value in (ABSENT, True, ABSENT):
        given = [tensor(value, lambda: TwoTensor(torch.ones(2), torch.ones(2))) for _ in range(2)]
        result, expected = compiled(given[0]), READERS["getattr"](given[1])
        assert type(result) is TwoTensor and result.a.tolist() == expected.a.tolist()


def sets(w: Tensor) -> Tensor:
    w.quantized = 5  # type: ignore[attr-defined]
    return w * 1


def sets_a_private_one(w: Tensor) -> Tensor:
    w._is_initialized = True  # type: ignore[attr-defined]
    return w * 1


def deletes(w: Tensor) -> Tensor:
    del w.quantized  # type: ignore[attr-defined]
    return w * 1


def sets_at_a_result(w: Tensor) -> Tensor:
    result = w * 1
    result.quantized = True  # type: ignore[attr-defined]
    return result


@pytest.mark.parametrize("function", [sets, sets_a_private_one, deletes, sets_at_a_result])
def test_a_change_of_an_attribute_is_refused(function: Function) -> None:
    w = tensor(True)
    with pytest.raises(UnsupportedOutput, match="is given a Python attribute"):
        aot.aot_function(function, aot.nop)(w)
    assert vars(w) == {"quantized": True}


def test_a_tensor_in_an_attribute_is_refused_where_it_is_used() -> None:
    compiled = aot.aot_function(lambda w: w * w.quantized, aot.nop)
    with pytest.raises(ClosureTensor):
        compiled(tensor(torch.ones(2)))
    assert compiled(tensor(2.0)).tolist() == [2.0, 2.0]


def _by_name(x: Tensor) -> Tensor:
    x.mark = True  # type: ignore[attr-defined]
    return x * 2


def _by_setattr(x: Tensor) -> Tensor:
    name = "mark"
    setattr(x, name, True)
    return x * 2


def _by_another_function(x: Tensor) -> Tensor:
    return _by_name(x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_by_name, _by_setattr, _by_another_function])
def test_setting_what_is_there_is_compiled_for_tensors_that_have_it(
    function: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    """Otherwise the attribute would not be set: as one is refused where it is seen to be set."""
    compiled = aot.aot_function(function, lambda graph, *_: graph, dynamic=dynamic)
    for marked in (True, True, False, True, False):
        x = torch.ones(3)
        if marked:
            x.mark = True  # type: ignore[attr-defined]
            assert torch.equal(compiled(x), x * 2)
        else:
            with pytest.raises(UnsupportedOutput, match="is given a Python attribute mark"):
                compiled(x)
        assert hasattr(x, "mark") == marked


CAPTURED = torch.ones(2)
HELD = {"w": torch.ones(2)}


@pytest.fixture
def without_attributes() -> Iterator[None]:
    """What functions capture has no attribute before, nor after."""
    yield
    for captured in (CAPTURED, HELD["w"]):
        vars(captured).clear()


# (Their data is no argument, and may not be read.)
CAPTURED_READERS: dict[str, Callable[[], Any]] = {
    "getattr": lambda: 2 if getattr(CAPTURED, "quantized", False) else 1,
    "hasattr": lambda: 2 if hasattr(CAPTURED, "quantized") else 1,
    "its dict": lambda: 2 if "quantized" in CAPTURED.__dict__ else 1,
    "vars": lambda: 2 if vars(CAPTURED).get("quantized") else 1,
    "dir": lambda: 2 if "quantized" in dir(CAPTURED) else 1,
    "a computed name": lambda: 2 if getattr(CAPTURED, NAME, False) else 1,
    "another function": lambda: 2 if helper(CAPTURED) else 1,
    "a number": lambda: getattr(CAPTURED, "quantized", 1),
}


@pytest.mark.usefixtures("without_attributes")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CAPTURED_READERS)
def test_attributes_of_captured_tensors_are_guarded(name: str, dynamic: bool) -> None:
    def f(x: Tensor) -> Any:
        return x * CAPTURED_READERS[name]()

    compiled = aot.aot_function(f, aot.nop, dynamic=dynamic)
    for value in VALUES:
        vars(CAPTURED).clear()
        if value is not ABSENT:
            CAPTURED.quantized = value  # type: ignore[attr-defined]
        assert torch.equal(compiled(torch.ones(2)), f(torch.ones(2))), value


def _counts(x: Tensor) -> Tensor:
    CAPTURED.count = getattr(CAPTURED, "count", 0) + 1  # type: ignore[attr-defined]
    return x * CAPTURED.count  # type: ignore[attr-defined]


def _counts_in_a_dict(x: Tensor) -> Tensor:
    w: Any = HELD["w"]
    w.count = getattr(w, "count", 0) + 1
    return x * w.count


def _lengthens(x: Tensor) -> Tensor:
    seen = getattr(CAPTURED, "seen", [])
    CAPTURED.seen = [*seen, len(seen)]  # type: ignore[attr-defined]
    return x * len(CAPTURED.seen)  # type: ignore[attr-defined]


def _by_its_dict(x: Tensor) -> Tensor:
    vars(CAPTURED)["count"] = vars(CAPTURED).get("count", 0) + 1
    return x * CAPTURED.count  # type: ignore[attr-defined]


def _sets_and_deletes(x: Tensor) -> Tensor:
    if hasattr(CAPTURED, "flag"):
        del CAPTURED.flag
        return x * 2
    CAPTURED.flag = True  # type: ignore[attr-defined]
    return x * 3


@pytest.mark.usefixtures("without_attributes")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function", [_counts, _counts_in_a_dict, _lengthens, _by_its_dict, _sets_and_deletes]
)
def test_attributes_of_captured_tensors_are_set_at_each_call(function: Function, dynamic: bool) -> None:
    found = []
    for f in (function, aot.aot_function(function, aot.nop, dynamic=dynamic)):
        found.append(
            [(f(torch.ones(2)).tolist(), dict(vars(CAPTURED)), dict(vars(HELD["w"]))) for _ in range(4)]
        )
        for captured in (CAPTURED, HELD["w"]):
            vars(captured).clear()
    assert found[0] == found[1]


@pytest.mark.usefixtures("without_attributes")
def test_a_refusal_takes_attributes_of_captured_tensors_back() -> None:
    def f(x: Tensor) -> float:
        CAPTURED.count = 1  # type: ignore[attr-defined]
        return 1.0 if x.sum() > 0 else 2.0

    with pytest.raises(DataDependentValue):
        aot.aot_function(f, aot.nop)(torch.ones(2))
    assert vars(CAPTURED) == {}
