"""What eager does with a program, and what is expected of it."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch

from fuzz.abstract import eager_rules
from fuzz.ir.control_flow import executed_statements
from fuzz.operators import OPERATORS
from fuzz.program.decode import Program, View, initial_state, interpret_statement
from fuzz.program.printer import load
from oracles.observation.ambient import restoring_ambient
from oracles.observation.mode_stacks import recording_leaked_modes


def shows_bytes(program: Program) -> bool:
    """Whether an argument shows what lies in its memory as another dtype."""
    return any(isinstance(one, View) and one.dtype is not None for one in program.arguments)


def expected_to_raise(program: Program) -> bool:
    """Whether the generator knows that eager refuses one of the statements."""
    state = initial_state(program)
    for i, statement in executed_statements(program):
        row = OPERATORS[statement.operator]
        modes = state.modes(program.blocks, statement.block)
        use = state.use(row, statement.operands, dict(statement.attributes), modes)
        if eager_rules.eager_error_now(use):
            return True
        interpret_statement(state, i, statement, program.blocks)
    return False


def fails_for_its_version(outcome: object) -> bool:
    """Whether that was raised which eager raises in this version of torch alone.

    torch 2.11 saves for backward what `checkpoint` computes in inference mode.
    """
    return torch.__version__ < "2.12" and "Inference tensors cannot be saved for backward" in str(outcome)


def raise_warnings() -> None:
    """Have warnings raised, but for those that Dynamo causes where eager has it capture functions, and that
    of an operator which torch calls new."""
    warnings.simplefilter("error")
    ignored = ("The .grad attribute", "`torch.jit", "To copy construct from a tensor", "index_reduce")
    for message in ignored:
        warnings.filterwarnings("ignore", message)


def execute(program: Program) -> tuple[list[Any], list[Any]] | Exception:
    """The tensors that the program returns, and its tensor arguments; or what it raises."""
    loaded = load(program)
    args, _, _ = loaded.make()
    try:
        scenario = program.scenario
        around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if scenario.autocast is not None:
            around = torch.autocast("cpu", getattr(torch, scenario.autocast))
        swapped = loaded.mode if scenario.swapped else None
        with (
            restoring_ambient(),
            recording_leaked_modes(),
            contextlib.nullcontext() if swapped is None else swapped(),
            torch.inference_mode(scenario.inference),
            torch.set_grad_enabled(scenario.grad),
            around,
            warnings.catch_warnings(),
        ):
            raise_warnings()
            # Once in a process, by `resize_as_`; what it does is defined all the same.
            warnings.filterwarnings("ignore", "An output with one or more elements was resized")
            result = loaded.f(*args)
    except (RuntimeError, ValueError, IndexError) as error:
        return error
    return tuple(
        [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        for tree in (result, args)
    )
