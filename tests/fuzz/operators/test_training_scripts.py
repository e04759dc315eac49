"""What a training script has: the generator makes it, and it does in eager what it is there for."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.choices import SeededChoices
from fuzz.generate import generate
from fuzz.ir.nodes import Program, Ref, Region, Root, Scalar, Statement, Storage
from fuzz.operators import OPERATORS
from fuzz.operators.training_scripts import ROWS
from fuzz.program.decode import ProgramError, check, split_calls
from fuzz.program.printer import Loaded, load
from tests.support.fuzz.in_eager import expected_to_raise


def one_row(name: str, *values: object, size: tuple[int, ...] = (4, 2), leaf: bool = True) -> Program:
    """A program of one row, on numbers that require grad and what else is given."""
    storages = [Storage("float32", size, 3, True, leaf)]
    arguments: list[Any] = [Root(0)]
    for value in values:
        if isinstance(value, Storage):
            storages.append(value)
            arguments.append(Root(len(storages) - 1))
        else:
            assert isinstance(value, float)
            arguments.append(Scalar(value))
    operands = tuple(f"a{i}" for i in range(len(arguments)))
    statement = Statement(name, operands, (), ("v0",))
    references = tuple(map(Ref, operands))
    return Program(tuple(storages), tuple(arguments), references, (statement,), Ref("v0"))


INDEX = Storage("int64", (3,), 1)
SINGLES = {
    "embedding_sparse": one_row("embedding_sparse", INDEX),
    "embedding_within": one_row("embedding_within", INDEX),
    "jagged_values": one_row("jagged_values"),
    "jagged_padded": one_row("jagged_padded"),
    "jagged_given": one_row("jagged_given"),
    "checkpoint_buffer": one_row("checkpoint_buffer"),
    "checkpoint_number": one_row("checkpoint_number", 0.25),
}


def gradients(program: Program, times: int = 1) -> tuple[Loaded, Tensor, list[Tensor]]:
    """The program, what it is given first, and the gradients that backwards give of ones."""
    loaded = load(program)
    args, leaves, _ = loaded.make()
    (leaf,) = leaves.values()
    result = loaded.f(*args)
    ones = torch.ones_like(result)
    found = [torch.autograd.grad(result, leaf, ones, retain_graph=True)[0] for _ in range(times)]
    return loaded, leaf.detach(), found


def test_there_is_a_program_of_each_row() -> None:
    assert list(SINGLES) == [row.name for row in ROWS]


@pytest.mark.parametrize(
    ("name", "layout"), [("embedding_sparse", torch.sparse_coo), ("embedding_within", torch.strided)]
)
def test_gradients_of_embeddings(name: str, layout: torch.layout) -> None:
    loaded, _, (gradient,) = gradients(SINGLES[name])
    assert gradient.layout is layout
    index = loaded.make()[0][1] % 4
    expected = torch.zeros(4).index_add(0, index, torch.ones(3)).unsqueeze(1).expand(4, 2)
    assert torch.equal(gradient.to_dense(), expected)


def test_what_is_no_leaf_gets_no_sparse_gradient() -> None:
    with pytest.raises(ProgramError, match="no leaf would be sparse"):
        check(one_row("embedding_sparse", INDEX, leaf=False))
    check(one_row("embedding_within", INDEX, leaf=False))


@pytest.mark.parametrize("name", ["jagged_values", "jagged_padded", "jagged_given"])
def test_a_nested_tensor_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []
    plain = torch.nested.nested_tensor_from_jagged

    def noting(*args: Any, **kwargs: Any) -> Tensor:
        made.append(plain(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(torch.nested, "nested_tensor_from_jagged", noting)
    program = SINGLES[name]
    odd = replace(program, storages=(replace(program.storages[0], size=(5, 2)),))
    for one in (program, odd):
        _, _, (gradient,) = gradients(one)
        assert gradient.count_nonzero()
        nested = made.pop()
        assert nested.layout is torch.jagged
        assert nested.requires_grad
        assert [len(part) for part in nested.unbind()] == [2, one.storages[0].size[0] - 2]


def test_a_backward_reads_what_the_checkpointed_block_has_left() -> None:
    _, x, found = gradients(SINGLES["checkpoint_buffer"], times=2)
    for gradient in found:
        torch.testing.assert_close(gradient, -2 * x.sin())


def test_a_checkpointed_number() -> None:
    _, x, (gradient,) = gradients(SINGLES["checkpoint_number"])
    torch.testing.assert_close(gradient, 1 - (x + 0.25).tanh().square())


def _uses(*names: str) -> Callable[[Program], bool]:
    return lambda program: any(statement.operator in names for statement in program.statements)


def _checkpointed(program: Program) -> list[Statement]:
    return [s for s in program.statements if s.block >= 0 and program.blocks[s.block] == Region("checkpoint")]


def _anneals(program: Program) -> bool:
    """A number goes into a checkpoint, and is another one in a later call."""
    numbers = {
        name
        for statement in _checkpointed(program)
        for name in statement.operands
        if name[0] == "a" and isinstance(program.arguments[int(name[1:])], Scalar)
    }
    return any(
        call.arguments[int(name[1:])] != program.arguments[int(name[1:])]
        for name, call in itertools.product(numbers, program.later)
    )


CLASSES: dict[str, tuple[str, Callable[[Program], bool]]] = {
    "sparse embeddings": ("python", _uses("embedding_sparse")),
    "sparse embeddings within": ("python", _uses("embedding_within")),
    "jagged tensors made inside": ("python", _uses("jagged_values", "jagged_padded")),
    "jagged tensors as arguments": ("python", _uses("jagged_given")),
    "checkpoints with draws": (
        "autograd",
        lambda program: any(OPERATORS[s.operator].random for s in _checkpointed(program)),
    ),
    "checkpoints with numbers that change": ("scenes", _anneals),
    "numbers in operators that take functions": ("python", _uses("checkpoint_number")),
    "numbers in custom functions": ("scenes", _uses("function_scale_argument")),
    "checkpoints that write a buffer": ("python", _uses("checkpoint_buffer")),
    "leaves made in inference mode": ("mixed", lambda program: any(s.inference for s in program.storages)),
    "masks that write": ("python", _uses("write_selected", "scale_selected")),
    "backward writes": ("operators", _uses("function_refill")),
}
PROGRAMS, WANTED = 20_000, 3


@pytest.mark.parametrize("name", CLASSES)
def test_the_generator_makes_it_and_eager_runs_it(name: str) -> None:
    profile, belongs = CLASSES[name]
    made = (generate(SeededChoices(2, index), profile) for index in range(PROGRAMS))
    found = list(itertools.islice((p for p in made if belongs(p) and _runs(p)), WANTED))
    assert len(found) == WANTED
    for program in found:
        loaded = load(program)
        for make, call in zip(loaded.makes, split_calls(program), strict=True):
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")
                args, _, _ = make()
                with torch.inference_mode(call.scenario.inference):
                    torch.set_grad_enabled(call.scenario.grad)
                    loaded.f(*args)


def _runs(program: Program) -> bool:
    return not any(map(expected_to_raise, split_calls(program)))
