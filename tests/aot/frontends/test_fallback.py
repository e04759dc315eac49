"""Fallback: where a function is refused, and `on_unsupported="eager"` holds, it runs as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot import errors
from oracles import Outcome, judge, observe
from tests.support.agreement import fresh, non_leaf

pytestmark = pytest.mark.clause("refusals")


def reads_a_value(x: Tensor) -> Tensor:
    """Refused after it has written and drawn."""
    with torch.no_grad():
        x.mul_(2)
    return x * torch.rand(3) if x.sum().item() > 3 else x + torch.rand(3)


def resizes(x: Tensor) -> Tensor:
    """Refused below Dynamo, which captures it whole: the storage has been written to by then."""
    x.mul_(2)
    torch.ops.inductor.resize_storage_bytes_(x, 12)
    return x.sin() * 3


class Branches(nn.Module):
    """A module that is refused when it is called, with a buffer that it writes to."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, *, least: float = 1.0) -> Tensor:
        self.calls += 1
        y: Tensor = self.linear(x)
        return y * 2 if x.sum().item() > least else y


@pytest.fixture(autouse=True)
def no_setting() -> Iterator[None]:
    """Front ends do what they do by default."""
    with aot.config.patch(on_unsupported=None):
        yield


def by_function(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return aot.aot_function(f, aot.nop, **options)


def by_torch_compile(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(f, backend="aotfuzz", options=options or None)


def test_the_call_is_what_eager_makes_of_it() -> None:
    compiled = by_function(reads_a_value, on_unsupported="eager")
    eager = observe(reads_a_value, lambda: fresh(lambda: [non_leaf(3)]))
    with pytest.warns(errors.FallbackWarning):
        target = observe(compiled, lambda: fresh(lambda: [non_leaf(3)]))
    assert judge(eager, target).outcome is Outcome.AGREE


def test_there_is_one_warning_with_the_text_and_explain_counts() -> None:
    compiled = aot.aot_function(reads_a_value, aot.nop, on_unsupported="eager")
    with pytest.warns(errors.FallbackWarning, match="DataDependentValue: the function asks") as caught:
        for size in (3, 3, 3):
            compiled(torch.ones(size))
    assert len(caught) == 1 and caught[0].filename == __file__
    (count,) = compiled.fallback.calls.values()
    assert count == 3
    assert "refused, 3 calls ran as in eager" in aot.explain(compiled)
    assert "so that 3 calls ran as in eager" in aot.explain(compiled, html=True)


def test_a_kind_of_calls_that_was_refused_is_not_traced_again() -> None:
    runs = []

    def f(x: Tensor) -> Any:
        runs.append(len(x))
        return 1 if x.sum().item() > 2 else 0

    compiled = aot.aot_function(f, aot.nop, on_unsupported="eager")
    with pytest.warns(errors.FallbackWarning):
        assert [compiled(torch.ones(n)) for n in (2, 2, 3, 3)] == [0, 0, 1, 1]
    assert runs == [2, 2, 3, 3]  # what a refused trace has appended is taken back


def test_other_kinds_of_calls_are_compiled() -> None:
    compiled = aot.aot_function(
        lambda x: x * 2 if len(x) > 2 or x.item() > 5 else 1, aot.nop, on_unsupported="eager"
    )
    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
    with pytest.warns(errors.FallbackWarning):
        assert compiled(torch.ones(1)) == 1
    assert len(compiled.specializations) == 1


@pytest.mark.parametrize("kwargs", [{}, {"least": 9.0}])
def test_a_module_keeps_its_state(kwargs: dict[str, float]) -> None:
    module = Branches()
    compiled = aot.aot_module(module, aot.nop, on_unsupported="eager")
    x = torch.ones(1, 3)
    with pytest.warns(errors.FallbackWarning, match="Branches is not compiled"):
        result = compiled(x, **kwargs)
    assert module.calls == 1
    assert torch.equal(result, module(x, **kwargs))
    result.sum().backward()
    assert module.linear.weight.grad is not None


def test_a_front_end_that_compiles_at_once_gets_a_function_all_the_same() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x.to_sparse() * 2)
    with pytest.raises(errors.Unsupported):
        aot.aot_module_simplified(graph, [torch.ones(3)], aot.nop)
    forward = aot.aot_module_simplified(graph, [torch.ones(3)], aot.nop, on_unsupported="eager")
    with pytest.warns(errors.FallbackWarning):
        assert forward(torch.ones(3)).to_dense().tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", ["aotfuzz", "aotfuzz_inductor"])
def test_the_backends_of_torch_compile_fall_back_by_default(fresh_dynamo: None, backend: str) -> None:
    compiled = torch.compile(resizes, backend=backend, fullgraph=True)
    with pytest.warns(errors.FallbackWarning, match=r"resizes at test_fallback.py:\d+ is not compiled"):
        results = [compiled(torch.ones(3)) for _ in range(2)]
    assert torch.equal(results[1], resizes(torch.ones(3)))
    assert "resizes at test_fallback.py:" in aot.explain()
    assert "StorageMutation: " in aot.explain() and "2 calls ran as in eager" in aot.explain()


def test_they_raise_if_they_are_told_to(fresh_dynamo: None) -> None:
    compiled = by_torch_compile(resizes, on_unsupported="raise")
    x = torch.ones(3)
    with pytest.raises(errors.StorageMutation):
        compiled(x)
    assert x.tolist() == [1, 1, 1]


def test_an_argument_goes_before_the_setting_and_that_before_the_default(fresh_dynamo: None) -> None:
    with aot.config.patch(on_unsupported="eager"), pytest.warns(errors.FallbackWarning):
        by_function(reads_a_value)(torch.ones(3))
        with pytest.raises(errors.DataDependentValue):
            by_function(reads_a_value, on_unsupported="raise")(torch.ones(3))
    with aot.config.patch(on_unsupported="raise"), pytest.raises(errors.StorageMutation):
        by_torch_compile(resizes)(torch.ones(3))
    with pytest.raises(errors.DataDependentValue):
        by_function(reads_a_value)(torch.ones(3))


def test_what_eager_raises_is_raised_and_no_refusal() -> None:
    def f(x: Tensor) -> Tensor:
        raise ValueError(3 if x.sum().item() > 2 else 2)

    compiled = aot.aot_function(f, aot.nop, on_unsupported="eager")
    with pytest.warns(errors.FallbackWarning), pytest.raises(ValueError, match="3") as caught:
        compiled(torch.ones(3))
    assert caught.value.__context__ is None


def test_values_for_which_an_operation_raises_what_is_caught() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(x)
        except RuntimeError:
            return x.sin()

    compiled = aot.aot_function(f, aot.nop, on_unsupported="eager")
    eye = torch.eye(2)
    assert torch.equal(compiled(eye), eye)
    with pytest.warns(errors.FallbackWarning):
        assert torch.equal(compiled(-eye), (-eye).sin())
    with warnings.catch_warnings(action="error"):
        assert torch.equal(compiled(eye), eye)  # of which the kind is compiled as before


def test_a_call_inside_of_a_transform_says_nothing_of_other_calls() -> None:
    seen = []

    compiled = aot.aot_function(lambda x: x.sin(), aot.nop, on_unsupported="eager")

    def inside(y: Tensor) -> Tensor:
        seen.append(compiled(torch.ones(2)))
        return y.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.FallbackWarning)  # it runs as in eager, and is not refused
        torch.func.grad(inside)(torch.ones(3))
    compiled(torch.ones(2))
    assert torch.equal(seen[0], torch.ones(2).sin())
    assert len(compiled.specializations) == 1


@pytest.mark.parametrize(
    "choose",
    [
        lambda: by_function(torch.sin, on_unsupported="ignore"),
        lambda: aot.config.patch(on_unsupported="ignore").__enter__(),
        lambda: by_torch_compile(torch.sin, on_unsupported="ignore")(torch.ones(2)),
    ],
)
def test_other_values_are_refused(fresh_dynamo: None, choose: Callable[[], Any]) -> None:
    with pytest.raises(Exception, match="on_unsupported='ignore': it is 'raise'"):
        choose()
