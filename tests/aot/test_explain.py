"""`explain`: what is shown, and when."""

from __future__ import annotations

import gc
import linecache
import traceback

import torch
from agree import leaf, values
from torch import Tensor

import aot


def squares(x: Tensor) -> Tensor:
    """Mutates, and has a backward."""
    x.add_(1)
    return x * x


def test_before_the_first_call() -> None:
    text = aot.explain(aot.aot_function(squares, aot.nop))
    assert "squares" in text
    assert "not compiled yet" in text
    assert "graph" not in text


def test_the_three_artifacts() -> None:
    compiled = aot.aot_function(squares, aot.nop)
    compiled(leaf(3) * 1)
    text = aot.explain(compiled)
    forward, *rest = text.split("---- backward graph")
    backward, wrapper = "".join(rest).split("---- wrapper")
    assert "squares: specialization 1" in forward
    assert "---- forward graph" in forward
    assert "torch.ops.aten.mul.Tensor(add" in forward
    assert "tangents_1" not in forward
    assert "tangents_1" in backward
    assert "torch.ops.aten.mul.Tensor(tangents_" in backward
    assert "def call(t0):" in wrapper
    assert "written(t0, v0" in wrapper


def test_without_a_backward() -> None:
    compiled = aot.aot_function(squares, aot.nop)
    compiled(values(3))
    text = aot.explain(compiled)
    assert "---- forward graph" in text
    assert "---- backward graph" not in text
    assert "---- wrapper" in text


def test_every_specialization_is_shown() -> None:
    compiled = aot.aot_function(squares, aot.nop)
    for size in (2, 3, 2):
        compiled(values(size))
    text = aot.explain(compiled)
    assert text.count("==== squares: specialization") == 2
    assert text.count("def call(") == 2


def test_the_wrapper_that_is_shown_is_the_one_that_runs() -> None:
    """A traceback through the wrapper quotes its source."""
    broken = [False]

    def compiler(module: object, example_inputs: object) -> object:
        def run(*arguments: Tensor) -> list[Tensor]:
            if broken[0]:
                raise ValueError("here")
            return [arguments[0] + 1, arguments[0]]

        return run

    compiled = aot.aot_function(squares, compiler)
    compiled(values(3))
    broken[0] = True
    try:
        compiled(values(3))
    except ValueError as error:
        quoted = [f.line for f in traceback.extract_tb(error.__traceback__) if "aot wrapper" in f.filename]
    assert quoted
    assert quoted[0]
    assert quoted[0] in compiled.specializations[0].wrapper


def test_a_function_without_a_name() -> None:
    class Callable:
        def __call__(self, x: Tensor) -> Tensor:
            return x.sin()

    compiled = aot.aot_function(Callable(), aot.nop)
    assert "Callable: not compiled yet" in aot.explain(compiled)
    compiled(values(2))
    assert "aten.sin.default" in aot.explain(compiled)


def test_the_source_of_a_wrapper_goes_with_it() -> None:
    """Tracebacks find it in `linecache`, which would keep it for good."""

    def wrappers() -> set[str]:
        return {name for name in linecache.cache if name.startswith("<aot wrapper")}

    before = wrappers()
    compiled = aot.aot_function(torch.sin, aot.nop)
    compiled(torch.ones(3))
    assert len(wrappers() - before) == 1
    del compiled
    gc.collect()
    assert wrappers() <= before
