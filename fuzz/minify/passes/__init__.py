"""Passes: the size of a recorded function, and the passes that make it smaller, in the order of their gain.

`call_deletion` deletes calls, inputs, modes and operands. `simplification` makes what is left plainer.
"""

from __future__ import annotations

from fuzz.minify.eager_types import survey_eager_types
from fuzz.minify.passes.call_deletion import (
    CALLS,
    CUTS,
    GLOBALS,
    INPUTS,
    MODES,
    OPERANDS,
    RESULTS,
    TREES,
)
from fuzz.minify.passes.simplification import (
    DTYPES,
    KINDS,
    NUMBERS,
    ONES,
    RAMPS,
    SHAPES,
    SLICES,
    ZEROS,
    is_odd,
    odd_numbers,
    rank,
)
from fuzz.minify.recording import (
    NONE,
    Dict,
    Input,
    Lit,
    Recording,
    Seq,
    Tree,
    globals_of,
    names,
    operands,
    recording_leaves,
)
from fuzz.minify.script_text import is_plain
from fuzz.reduce.search import ReductionProblem


def measure(recording: Recording) -> tuple[int, ...]:
    """The size of a recorded function as a tuple. Every accepted step makes it smaller."""
    constants = (
        leaf for call in recording.calls for tree in operands(call) for leaf in recording_leaves(tree)
    )
    return (
        len(recording.calls),
        len(list(names(recording.returns))),
        len(recording.inputs),
        len(globals_of(recording)),
        sum(call.mode != recording.mode for call in recording.calls),
        sum(_cost(one, recording) for one in recording.inputs),
        sum(is_odd(storage) + (storage.device != "cpu") for storage in recording.storages),
        sum(map(_count_tree_nodes, recording.parameters))
        + (recording.returns != NONE and _count_tree_nodes(recording.returns)),
        sum(1 + (leaf != NONE) for leaf in constants if isinstance(leaf, Lit)),
        sum(len(odd_numbers(call)) for call in recording.calls),
        sum(storage.length for storage in recording.storages)
        + sum(sum(one.size) for one in recording.inputs),
        sum(map(rank, recording.storages)),
    )


def _cost(one: Input, recording: Recording) -> int:
    plain = one.via != "own" or is_plain(one, recording.storages[one.storage])
    via = {"own": 0, "view": 1}.get(one.via, 2)
    return one.requires_grad + (not one.leaf) + via + (not plain) + one.parameter


def _count_tree_nodes(tree: Tree) -> int:
    match tree:
        case Seq(kind, items):
            return 1 + (kind != "tuple") + sum(map(_count_tree_nodes, items))
        case Dict(entries):
            return 2 + sum(_count_tree_nodes(item) for _, item in entries)
        case Lit():
            return 1
        case _:
            return 0


PASSES = (
    RAMPS,
    GLOBALS,  # tensors that live for ever make each check of freed memory slow
    CALLS,
    RESULTS,
    CUTS,
    INPUTS,
    MODES,
    KINDS,
    DTYPES,
    TREES,
    OPERANDS,
    SLICES,
    NUMBERS,
    SHAPES,
    ZEROS,
    ONES,
)


def reduction_problem(recording: Recording) -> ReductionProblem[Recording]:
    """The reduction of a recording. A candidate may have empty tensors only if the recording has some."""
    may_be_empty = _has_empty(recording)

    def valid(candidate: Recording) -> bool:
        return survey_eager_types(candidate) is not None and (may_be_empty or not _has_empty(candidate))

    return ReductionProblem(PASSES, measure, valid)


def _has_empty(recording: Recording) -> bool:
    return any(not tensor.numel() for tensor in (survey_eager_types(recording) or {}).values())
