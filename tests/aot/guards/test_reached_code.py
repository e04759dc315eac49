"""Code that a function reaches: made as it goes, first imported inside, or too much to be looked through."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot import errors
from aot.guards.collect import MOST_FUNCTIONS
from tests.support.agreement import checking_nop, leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]

RATE = 2.0


def test_a_module_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("aot_asked_for")
    module.rate = 2.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aot_asked_for", module)

    def f(x: Tensor) -> Any:
        return x * importlib.import_module("aot_asked_for").rate * __import__("aot_asked_for").rate

    compiled = aot.aot_function(f, checking_nop)
    for rate in (2.0, 3.0, 2.0):
        module.rate = rate  # type: ignore[attr-defined]
        assert torch.equal(compiled(values(2)), values(2) * rate * rate)


def caught(x: Tensor, raised: bool = False) -> Any:
    try:
        return x * eval("RATE")
    except Exception:
        if raised:
            raise ValueError("no rate") from None
        return x


DOUBLE: Any = compile("RATE * 2", "<generated>", "eval")
RUNNING: dict[str, Callable[[Tensor], Any]] = {
    "eval": lambda x: x * eval("RATE"),
    "exec": lambda x: exec("x.mul_(RATE)"),
    "compiled": lambda x: x * eval(DOUBLE),
    "compile": lambda x: types.FunctionType(compile("RATE", "", "eval"), {"RATE": RATE})() * x,
    "caught": caught,
    "caught and raised": lambda x: caught(x, raised=True),
    "in the backward": lambda x: Evaluated.apply(x) + 1,  # type: ignore[no-untyped-call]
}


class Evaluated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * eval("RATE")  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", RUNNING)
def test_code_that_is_made_as_it_goes_is_refused(name: str) -> None:
    x = leaf(2)
    with pytest.raises(errors.UnsupportedOperation, match="made as it goes"):
        aot.aot_function(RUNNING[name], checking_nop)(x)
    assert torch.equal(x, leaf(2))
    assert eval("RATE") == RATE


def test_what_is_not_run_or_is_a_librarys_is_not() -> None:
    layer = nn.Sequential(nn.Dropout()).eval()

    class Made:
        def __init__(self) -> None:
            self.rate = eval("RATE")

    made = Made()

    def f(x: Tensor, other: bool = False) -> Any:
        point: Any = collections.namedtuple("point", "rate")(made.rate)
        traced = torch.fx.symbolic_trace(layer)
        assert re.compile("a+").match("aa") and layer.eval()
        return traced(x) * (eval("RATE") if other else point.rate)

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(2)), values(2) * 2)


def test_a_module_that_is_first_imported_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aot_fresh").mkdir()
    (tmp_path / "aot_fresh" / "__init__.py").write_text("rate = 2.0")
    (tmp_path / "aot_fresh" / "sub.py").write_text("rate = 3.0")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("aot_fresh", "aot_fresh.sub"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def f(x: Tensor, further: bool) -> Any:
        import aot_fresh  # type: ignore[import-not-found]

        if further:
            from aot_fresh import sub

            return x * sub.rate * aot_fresh.rate
        return x * aot_fresh.rate

    compiled = aot.aot_function(f, checking_nop)
    assert torch.equal(compiled(values(2), False), values(2) * 2)
    sys.modules["aot_fresh"].rate = 5.0  # type: ignore[attr-defined]
    assert torch.equal(compiled(values(2), False), values(2) * 5)
    assert torch.equal(compiled(values(2), True), values(2) * 15)
    sys.modules["aot_fresh.sub"].rate = 2.0  # type: ignore[attr-defined]
    for _ in range(2):
        assert torch.equal(compiled(values(2), True), values(2) * 10)
        assert torch.equal(compiled(values(2), False), values(2) * 5)


def test_a_module_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> Tensor:
        try:
            import aot_not_there  # type: ignore[import-not-found]
        except ImportError:
            return x * 2
        return x * aot_not_there.rate  # type: ignore[no-any-return]

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(2)), values(2) * 2)
    assert len(compiled.specializations) == 1
    module = types.ModuleType("aot_not_there")
    module.rate = 3.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aot_not_there", module)
    assert torch.equal(compiled(values(2)), values(2) * 3)


def a_registry() -> dict[str, Any]:
    """A function that calls one of many, each with a scale of its own."""
    space: dict[str, Any] = {"scales": {}, "chosen": "f7"}
    lines = ["def f(x):", "    return registry[chosen](x)"]
    for i in range(40):
        lines += [f"def helper{i}(x):", f"    return x * scales['f{i}'] + {i}"]
        lines += [f"def f{i}(x):", f"    return (lambda y: helper{i}(y))(x)"]
        space["scales"][f"f{i}"] = 1.0
    exec("\n".join(lines), space)
    space["registry"] = {f"f{i}": space[f"f{i}"] for i in range(40)}
    return space


def test_code_is_looked_through_as_it_is_called_where_too_much_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aot.guards.collect.MOST_FUNCTIONS", 20)
    space = a_registry()
    compiled = aot.aot_function(space["f"], checking_nop)
    for change in (
        lambda: None,
        lambda: space["scales"].update(f7=3.0),
        lambda: space.update(chosen="f9"),
        lambda: space.update(helper9=lambda y: y - 1),
        lambda: space.update(scales=dict.fromkeys(space["scales"], 5.0)),
    ):
        change()
        x = leaf(3)
        assert torch.equal(compiled(x), space["f"](x))
    assert len(compiled.specializations) == 4  # the last is none of what is called by then
    space["helper3"] = None
    assert torch.equal(compiled(x), space["f"](x))
    assert len(compiled.specializations) == 4


@contextlib.contextmanager
def listening(*hooks: str) -> Iterator[None]:
    """With these hooks into the interpreter in use."""
    for hook in hooks:
        getattr(sys, f"set{hook}")(lambda *_: None)
    try:
        yield
    finally:
        for hook in hooks:
            getattr(sys, f"set{hook}")(None)


@pytest.mark.parametrize("hook", ["trace", "profile"])
def test_code_is_looked_through_as_it_is_called_beside_a_debugger_or_a_profiler(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.guards.collect.MOST_FUNCTIONS", 20)
    space = a_registry()
    compiled, x = aot.aot_function(space["f"], checking_nop), leaf(3)
    with listening(hook):
        assert torch.equal(compiled(x), space["f"](x))
        assert getattr(sys, f"get{hook}")() is not None


def test_a_debugger_and_a_profiler_keep_code_from_being_looked_through_as_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aot.guards.collect.MOST_FUNCTIONS", 20)
    compiled = aot.aot_function(a_registry()["f"], checking_nop)
    with listening("trace", "profile"), pytest.raises(errors.UnsupportedOperation, match="profiler"):
        compiled(leaf(3))


def test_a_variable_that_is_read_after_it_was_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the collector of hidden states in models is: set, read by what is called then, and reset."""
    monkeypatch.setattr("aot.guards.collect.MOST_FUNCTIONS", 20)
    space = a_registry()
    space["collected"] = contextvars.ContextVar("collected", default=2.0)
    exec(
        "def read(x):\n    return x * collected.get()\n"
        "def g(x):\n    token = collected.set(3.0)\n    y = registry['read'](x)\n"
        "    collected.reset(token)\n    return y + f(x)\n"
        "def h(x):\n    collected.set(3.0)\n    return registry['read'](x) + f(x)",
        space,
    )
    space["registry"]["read"] = space["read"]
    compiled, x = aot.aot_function(space["g"], checking_nop), leaf(3)
    assert torch.equal(compiled(x), space["g"](x))
    space["collected"].set(5.0)
    assert torch.equal(compiled(x), space["g"](x))
    assert len(compiled.specializations) == 2  # it is a guard, whatever the call makes of it
    compiled = aot.aot_function(space["h"], checking_nop)
    for _ in range(2):
        space["collected"].set(7.0)
        assert torch.equal(compiled(x), x * 3 + space["f"](x))
        assert space["collected"].get() == 3.0


def test_a_function_that_calls_too_much_is_refused() -> None:
    space: dict[str, Any] = {"wanted": "made_7"}
    exec("def made(x):\n    return x * 2\n\ndef f(x):\n    return globals()[wanted](x)", space)
    for i in range(MOST_FUNCTIONS + 1):
        space[f"made_{i}"] = types.FunctionType(space["made"].__code__, space)
    with pytest.raises(errors.UnsupportedOperation, match="too many to look through"):
        aot.aot_function(space["f"], checking_nop)(leaf(2))
