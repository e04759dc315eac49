"""Every combination of what may happen to an argument with what a result may be, with and without grad mode.

A program is a statement for each thing that happens and an expression for the result. Each is compared with
eager, and its metadata must be the combination that the table claims. What cannot exist is listed with the
reason; `pytest -s tests/aot/aliasing/test_mutation_by_output_matrix.py` prints the counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import InputAliasInfo, MutationType, OutputType
from tests.support.agreement import assert_agrees, checking_nop, leaf, non_leaf, values
from tests.support.aot.programs import ViewAs

pytestmark = pytest.mark.clause("aliasing", "input-data")


# ---- what the argument is: (is_leaf, requires_grad)

ARGUMENTS: dict[tuple[bool, bool], Callable[..., Tensor]] = {
    (True, False): values,
    (True, True): leaf,
    (False, True): non_leaf,
}

# ---- what happens to it: (mutates_data, hidden from autograd, under no_grad)

DATA: dict[tuple[bool, bool, bool], Callable[[Tensor], None]] = {
    (False, False, False): lambda x: None,
    (True, False, False): lambda x: _scale(x, True),
    (True, False, True): lambda x: _scale(x, False),
    (True, True, False): lambda x: _scale(x.data, True),
    (True, True, True): lambda x: _scale(x.data, False),
}


def _scale(x: Tensor, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        x.mul_(2)


def _unsafe_view(y: Tensor) -> Tensor:
    return torch.ops.aten._unsafe_view(y, y.shape)


def _resize(x: Tensor, metadata: bool) -> None:
    """Its storage grows; what is new there is defined."""
    with torch.no_grad():
        (x.resize_(6, 3) if metadata else x.view(-1).resize_(18).view(6, 3))[3:].fill_(1)


def _transpose(x: Tensor) -> None:
    with torch.no_grad():
        x.t_()


def _elsewhere(x: Tensor) -> None:
    x.data = x.detach().clone()


# ---- what the result is

RESULTS: dict[OutputType, Callable[[Tensor], Any]] = {
    OutputType.NON_ALIAS: lambda x: x * 3,
    OutputType.ALIAS_OF_INPUT: lambda x: x[:1],
    OutputType.IS_INPUT: lambda x: x,
    OutputType.ALIAS_OF_INTERMEDIATE_SAVE_AS_OUTPUT: lambda x: (x * 3)[:1],
    OutputType.ALIAS_OF_INTERMEDIATE: lambda x: (x * 3).chunk(2),
    OutputType.ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT: lambda x: ((y := x * 3), y[:1]),
    OutputType.UNSAFE_VIEW_ALIAS: lambda x: _unsafe_view(x * 3),
    OutputType.CUSTOM_FUNCTION_VIEW: ViewAs.apply,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One combination; `grad` is the mode of the call."""

    argument: tuple[bool, bool]
    data: tuple[bool, bool, bool]
    metadata: bool
    storage: bool
    resized: bool
    result: OutputType
    grad: bool

    def program(self) -> Callable[[Tensor], Any]:
        """What does it. It reads no table: each compile would look for guards in all of it."""
        data, result = DATA[self.data], RESULTS[self.result]
        metadata, storage, resized = self.metadata, self.storage, self.resized

        def run(x: Tensor) -> Any:
            data(x)
            if resized:
                _resize(x, metadata)
            elif metadata:
                _transpose(x)
            if storage:
                _elsewhere(x)
            return result(x)

        return run

    def make(self) -> list[Tensor]:
        return [ARGUMENTS[self.argument](3, 3)]

    def claim(self, kept: bool) -> InputAliasInfo:
        (is_leaf, requires_grad), (data, hidden, no_grad) = self.argument, self.data
        return InputAliasInfo(
            is_leaf=is_leaf,
            mutates_data=data,
            mutates_metadata=self.metadata,
            mutates_storage_metadata=self.storage,
            mutations_hidden_from_autograd=hidden,
            mutations_under_no_grad_or_inference_mode=no_grad,
            resizes_storage=self.resized,
            requires_grad=requires_grad,
            keep_input_mutations=kept,
        )


IMPOSSIBLE: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    (
        "eager refuses to write to a leaf that requires grad in grad mode",
        lambda c: c.argument == (True, True) and c.data == (True, False, False),
    ),
    (
        "eager refuses to resize what requires grad",
        lambda c: c.argument[1] and c.resized,
    ),
)
# (And by definition: nothing is a non-leaf without requiring grad; no mutation of data is hidden or under
# no_grad where there is none; the graph keeps no mutation that is not one of data alone.)


def reason(case: Case) -> str | None:
    """Why a combination cannot exist."""
    return next((text for text, applies in IMPOSSIBLE if applies(case)), None)


def cases() -> Iterator[Case]:
    both = (False, True)
    for rest in itertools.product(ARGUMENTS, DATA, both, both, both, RESULTS, both):
        yield Case(*rest)


def keeping_mutations(case: Case) -> aot.ViewAndMutationMeta:
    compiled = aot.aot_function(case.program(), checking_nop, keep_inference_input_mutations=True)
    arguments = case.make()
    with torch.set_grad_enabled(case.grad):
        compiled(*arguments)
    return compiled.specializations[0].metadata


def check(case: Case) -> None:
    """Compare with eager, and the metadata with the claim."""
    compiled = assert_agrees(case.program(), case.make, grad=case.grad)
    plain, keeping = compiled.specializations[0].metadata, keeping_mutations(case)
    assert plain.input_info == (case.claim(False),)
    assert plain.output_info[-1].output_type is case.result
    assert keeping.output_info == plain.output_info
    only_data = case.data[0] and not (case.metadata or case.storage or case.resized)
    assert keeping.input_info == (case.claim(only_data and not keeping.is_train),)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.value)
@pytest.mark.parametrize("argument", ARGUMENTS, ids=["plain", "leaf", "non-leaf"])
def test_each_combination(argument: tuple[bool, bool], result: OutputType, grad: bool) -> None:
    mine = [c for c in cases() if (c.argument, c.result, c.grad) == (argument, result, grad)]
    existing = [case for case in mine if reason(case) is None]
    for case in existing:
        check(case)
    print(f"{len(existing)} of {len(mine)} combinations can exist, and agree")


@pytest.mark.parametrize("text", [text for text, _ in IMPOSSIBLE])
def test_what_cannot_exist_raises_in_eager(text: str) -> None:
    named = [case for case in cases() if reason(case) == text]
    assert named
    for case in named:
        arguments = case.make()
        with torch.set_grad_enabled(case.grad), pytest.raises(RuntimeError):
            case.program()(*arguments)


def test_the_whole_table_is_counted() -> None:
    every = list(cases())
    existing = [case for case in every if reason(case) is None]
    seen = {case.claim(False) for case in existing}
    print(f"{len(existing)} of {len(every)} combinations can exist, with {len(seen)} kinds of arguments")
    for text, _ in IMPOSSIBLE:
        print(f"{sum(reason(case) == text for case in every)} cannot: {text}")
    assert {case.result for case in existing} == set(OutputType)
    for field in ("is_leaf", "mutates_data", "mutates_metadata", "mutates_storage_metadata", "requires_grad"):
        assert {getattr(info, field) for info in seen} == {False, True}
    assert {info.mutation_type for info in seen} == {MutationType.NOT_MUTATED, MutationType.MUTATED_OUT_GRAPH}
