"""One trace of a function, forward and backward, up to the graphs that compilers get.

In: a function of flat arguments, and a call of it. Out: a `Lowering`: what can be kept of the compile
(`Lowered`), and what lives in this process alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from aot import logs
from aot.analysis import analyze
from aot.analysis.effect_summary import EffectSummary
from aot.analysis.metadata import view_and_mutation_metadata
from aot.backends import graph_names
from aot.backends.compilers import (
    defer_metadata,
    example_inputs,
    mark_static,
    materialize_metadata,
    readable_graph,
)
from aot.capture.autograd.engine import RetracePoint
from aot.capture.intercept import metadata_reads, streams
from aot.capture.intercept.number_calls import Redirections, calls_redirected
from aot.capture.intercept.patches import patched
from aot.capture.intercept.symints import symints_as_ints
from aot.capture.recorder.autocast_cache import Candidate
from aot.capture.recorder.escapes import EscapeCheck
from aot.capture.recorder.symbolic_views import SymbolicViewMode, symbolic_views
from aot.capture.run import Traced, input_values, trace_function
from aot.capture.trace_result import Primal
from aot.errors import BackendError, ClosureMutation, UnsupportedArgument
from aot.graph.purity import is_random_node
from aot.guards.side_effects import SideEffects
from aot.guards.tracker import GuardTracker
from aot.joint.joint import Joint
from aot.joint.trace_backward import trace_joint
from aot.ops.classify import RESIZES_STORAGE
from aot.partition.default import default_partition
from aot.partition.joint_graph import check_side_effects, drop_repeated_effects, is_tangent
from aot.partition.min_cut import min_cut_rematerialization_partition
from aot.partition.segment_split import split_by_segment
from aot.pipeline.artifact import Lowered
from aot.pipeline.descriptors import describe_joint, describe_partition
from aot.runtime.dry_run import ObservedState, observe_call_state
from aot.runtime.plan import make_plan
from aot.specialize.call import Arguments
from aot.tensors.fake_tensors import lacks_memory, root_of
from aot.tensors.symbolic_sizes import NO_SIZES, SymbolicSizes
from aot.torch_internals import compile_logs, tensor_impl

Partitioner = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What a trace is made with.

    Attributes:
        keep_input_mutations: whether graphs without a backward write to their inputs themselves.
        functionalize_rng: whether random draws take and return the states of generators.
        name: of the function, for the log.
        seeds: whether the function may set a random generator's state.
        candidates: which arguments are casts of others.
        title: names a tensor of the call in a message.
        redirections: functions of which the trace runs other code.
    """

    decompositions: dict[Any, Callable[..., Any]]
    keep_input_mutations: bool
    functionalize_rng: bool
    partition: Partitioner
    name: str
    seeds: bool
    candidates: tuple[Candidate, ...]
    title: Callable[[int], str]
    redirections: Redirections


@dataclass(frozen=True, slots=True)
class Lowering:
    """One trace.

    Attributes:
        levels: what each part of the backward can be recorded again from.
        python_callbacks: what of the function's Python eager runs in the backward; None for all of it.
        expected: what the function has left of its arguments.
        order: what a call has to do with other CUDA streams than the current one; None for nothing.
    """

    blueprint: Lowered
    forward: Traced
    levels: list[RetracePoint | None]
    python_callbacks: tuple[Any, ...] | None
    expected: ObservedState
    order: streams.StreamOrder | None

    def references(self) -> Iterator[torch.Tensor]:
        """The tensors of the trace that it holds when it lives on: each as often as it does."""
        yield from self.forward.recorder.traced_references()
        pairs = {
            id(pair): pair for level in self.levels if level is not None for pair in level.cotangent_inputs
        }
        for _, tensor in pairs.values():
            yield tensor


def lower(
    flat: Callable[[list[Any]], Any],
    arguments: Arguments,
    lifetimes: EscapeCheck,
    noted: GuardTracker,
    running: contextlib.AbstractContextManager[None],
    inference: bool,
    symbols: SymbolicSizes | None,
    static: frozenset[int],
    options: CompileOptions,
) -> Lowering:
    """Run the function once, differentiate what it did, and decide what a call does.

    Args:
        flat: takes the leaves of the arguments.
        noted: what the function reads besides them.
        running: what it runs in.
        inference: whether the call is made in inference mode.
        symbols: which numbers of the arguments are symbols, if some are.
        static: the tensors that are parameters or buffers.

    Raises:
        Unsupported: see `aot.errors`.
        Exception: whatever the function raises.
    """
    grad = torch.is_grad_enabled()
    with (
        noted.tracking_run(again=symbols is not None),
        running,
        symbolic_views(symbols),
        contextlib.nullcontext() if symbols is None else symbols.values_at_hand(),
        patched(),
        metadata_reads.recording_metadata_reads() as looked,
        contextlib.ExitStack() as until_end,
    ):
        # (Nothing that a refused trace leaves behind is to keep them. While it records an operation, autograd
        # does not tell the roots.)
        given = [(arguments, [root_of(tensor) for tensor in arguments.tensors])]
        until_end.callback(given.clear)

        def adopt_symbols(primals: Sequence[Primal]) -> SymbolicSizes:
            """Symbols for sizes that depend on values, in a trace that had none so far."""
            ((call, roots),) = given
            made = SymbolicSizes.of_fixed_sizes(
                call.tensors,
                roots,
                tuple(zip(call.wrappers, call.metas, strict=True)),
            )
            made.given = functools.partial(input_values, primals, call.tensors)
            until_end.enter_context(symints_as_ints(made.is_computed))
            until_end.enter_context(made.values_at_hand())
            return made

        # (Where the guards look at code as it is called, they know no other.)
        redirected = None if noted.is_tracing_calls else options.redirections
        with (
            streams.recording_streams() as chosen,
            calls_redirected(redirected, noted.reached_functions),
        ):
            forward = trace_function(
                noted.noting_input_writes(flat),
                arguments,
                options.decompositions,
                lifetimes,
                inference,
                options.functionalize_rng,
                symbols,
                options.seeds,
                options.candidates,
                options.title,
                adopt_symbols,
            )
            adopted, symbols = symbols is None, forward.recorder.symbols
            if adopted and symbols is not None:
                until_end.enter_context(SymbolicViewMode(symbols))
            order = None if chosen is None else chosen.stream_order()
        entry = forward.entry
        expected = observe_call_state(
            entry.fakes, entry.versions, entry.states, forward.outputs, forward.storage
        )
        logs.log(logs.TRACED, options.name, forward.__str__)
        effects = analyze(forward, options.keep_input_mutations)
        logs.log(logs.EFFECTS, options.name, effects.__str__)
        metadata = view_and_mutation_metadata(forward, effects, options.keep_input_mutations)
        noted.track_backward()
        joint = trace_joint(forward, effects)
    if not noted.changes.once:
        noted.guards.check()
    _check_lowered_backward(noted.changes_of_backward, joint, options.name)
    _check_lowered_memory(arguments, joint)
    numbers: dict[object, int] = {}
    keys: list[object] = [tensor_impl.storage_key(t) for t in arguments.tensors]
    keys += [("wrapper", wrapper.base_group) for wrapper in entry.wrappers]
    storages = tuple(numbers.setdefault(key, len(numbers)) for key in keys)
    parameters = static.union(_accumulating(arguments))
    logs.log(logs.JOINT, options.name, joint.__str__)
    describe_joint(joint, effects)
    fw_module, bw_module = _partition_lowered(joint, effects, options.partition, parameters, options.name)
    leaves = frozenset(i for i, t in enumerate(arguments.tensors_and_subclasses) if _accumulates(t))
    parts = (
        [(None, ())] * len(joint.segments)
        if bw_module is None
        else split_by_segment(bw_module, joint.segments)
    )
    asked = (
        looked.happened
        or noted.reads_attribute(metadata_reads.NAMES)
        or metadata_reads.reads_metadata(tuple(noted.roots))
    )
    asked = asked or any(metadata_reads.reads_metadata(guard.expected) for guard in noted.guards.guards)
    asked = asked or inference or symbols is not None or bool(arguments.metas or forward.grad_targets)
    plan = make_plan(
        effects,
        joint,
        fw_module,
        parts,
        storages,
        parameters,
        leaves,
        _arguments_written_together(arguments),
        bool(arguments.metas or forward.wrapped),
        asked,
        _lie_apart(arguments),
        grad,
        forward.grad_after,
        inference,
        NO_SIZES if symbols is None else symbols.shape_guards(),
    )
    logs.log(logs.PLAN, options.name, plan.__str__)
    fixed = [primal.tensor in static for primal in joint.primals]
    mark_static(fw_module, fixed)
    for (module, _), part in zip(parts, plan.parts, strict=True):
        if module is not None:
            mark_static(module, [s.primal is not None and fixed[s.primal] for s in part.saved])
    backwards = tuple(module for module, _ in parts)
    describe_partition(joint, fw_module, backwards)
    for module in (fw_module, *backwards):
        if module is not None:
            defer_metadata(module, _complete_metadata)
    graph_names.assign_compile_id(fw_module, *backwards)
    levels = _levels_of_lowered(joint, backwards)
    again = tuple(level is not None for level in levels)
    blueprint = Lowered(
        plan, fw_module, backwards, again, metadata, forward.spec, forward.grad_targets, forward.casts
    )
    return Lowering(blueprint, forward, levels, joint.python_callbacks, expected, order)


def _check_lowered_backward(changes: SideEffects, joint: Joint, name: str) -> None:
    """Refuse a backward whose Python changes what no run of a graph can change again.

    Raises:
        ClosureMutation: it does.
    """
    several = len([segment for segment in joint.segments if segment.results]) != 1
    paths = [*changes.once, *changes.resting, *(path for path, _ in changes.effects if several)]
    if paths:
        how = "which of its backwards that is cannot be told" if several else "that depends on what is there"
        raise ClosureMutation(
            f"a backward of {name} (a hook, a custom function) changes {', '.join(dict.fromkeys(paths))}, "
            f"and {how}; do it in a hook on a result, outside"
        )


def _check_lowered_memory(arguments: Arguments, joint: Joint) -> None:
    """Refuse a function that reads an argument before its storage has memory.

    Raises:
        UnsupportedArgument: it does.
    """
    lacking = {i for i, tensor in enumerate(arguments.tensors) if lacks_memory(tensor)}
    if not lacking:
        return
    for primal, node in zip(joint.primals, joint.graph.graph.find_nodes(op="placeholder"), strict=False):
        order = (user for user in joint.graph.graph.nodes if user in node.users)
        first = next(order, None)
        if primal.tensor in lacking and first is not None and first.target is not RESIZES_STORAGE:
            raise UnsupportedArgument(
                f"argument {primal.tensor} (counting tensors) shows more than its storage holds, and the "
                f"function reads it; give the storage its size before (untyped_storage().resize_)"
            )


# What a GPU's kernel for several copies takes as it is: numbers of half precision it makes single, and a NaN
# then is not the same one.
_COPIED_TOGETHER = frozenset(
    {
        *(torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    }
)


def _arguments_written_together(arguments: Arguments) -> tuple[frozenset[int], ...]:
    """The groups of those of which one call may write to several: on the CPU it does so one after the other;
    on a GPU one kernel does, for one dtype. It refuses lazy ones."""
    groups: dict[object, set[int]] = {}
    for i, tensor in enumerate(arguments.tensors):
        taken = tensor.is_cpu or (tensor.is_cuda and tensor.dtype in _COPIED_TOGETHER)
        if taken and not (tensor.is_conj() or tensor.is_neg()):
            group = None if tensor.is_cpu else (tensor.device, tensor.dtype)
            groups.setdefault(group, set()).add(i)
    return tuple(map(frozenset, groups.values()))


def _partition_lowered(
    joint: Joint, effects: EffectSummary, partition: Partitioner, parameters: frozenset[int], name: str
) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """The forward and the backward of a joint graph.

    Args:
        parameters: the tensors that live until the backward whatever is saved.
        name: of what is compiled, for the log.

    Raises:
        BackendError: the partitioner moves what must not be moved.
    """
    if not any(segment.results for segment in joint.segments):
        return joint.graph, None
    defer_metadata(joint.graph, _complete_metadata)
    compile_logs.log_graph("joint", name, lambda: readable_graph(joint.graph))
    if getattr(partition, "func", partition) not in _OWN_PARTITIONERS:
        materialize_metadata(joint.graph)
    inputs = example_inputs(joint.graph)
    options = {}
    if "static_lifetime_input_indices" in inspect.signature(partition).parameters:
        # What eager does not keep may be written to before the backward, and is copied if it is saved.
        kept = (k.tensor for s in joint.segments for k in s.kept)
        free = parameters.intersection(i for i in kept if i is not None)
        free -= set(effects.written)
        static = [i for i, p in enumerate(joint.primals) if p.tensor in free and p.span is None]
        options["static_lifetime_input_indices"] = static
    forward, backward = partition(joint.graph, inputs, num_fwd_outputs=joint.values, **options)
    drop_repeated_effects(forward, backward)
    check_side_effects(joint.graph, forward, backward)
    if any(is_random_node(node) for node in backward.graph.nodes):
        raise BackendError(
            "the partitioner put a random draw into the backward graph, where it would draw again; use "
            "a partitioner that saves random values, as aot.default_partition does, or "
            "functionalize_rng_ops=True"
        )
    return forward, backward


# They read of nodes what is there without that.
_OWN_PARTITIONERS = (default_partition, min_cut_rematerialization_partition)


def _complete_metadata(module: fx.GraphModule) -> None:
    from aot.graph.node_metadata import complete_node_metadata  # which loads what few compiles need

    complete_node_metadata(module)


def _levels_of_lowered(joint: Joint, backwards: Sequence[fx.GraphModule | None]) -> list[RetracePoint | None]:
    """What each part of the backward can be recorded again from, with the values that are saved for it."""
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    levels: list[RetracePoint | None] = []
    for level, backward in zip(joint.levels, backwards, strict=True):
        if level is None or backward is None:
            levels.append(None)
            continue
        saved = [n.name for n in backward.graph.nodes if n.op == "placeholder" and not is_tangent(n)]
        available = {nodes[name]: i for i, name in enumerate(saved) if name in nodes}
        levels.append(replace(level, available=available))
    return levels


def _lie_apart(arguments: Arguments) -> bool:
    """Whether no tensor shares a storage with another, or a history."""
    tensors = arguments.tensors
    views = any(tensor.requires_grad and tensor._is_view() for tensor in tensors)
    return not views and len({*map(tensor_impl.storage_key, tensors)}) == len(tensors)


def _accumulating(arguments: Arguments) -> frozenset[int]:
    """The plain tensors that are such leaves, or that such leaves are made of."""
    return arguments.inner_indices(
        i for i, t in enumerate(arguments.tensors_and_subclasses) if _accumulates(t)
    )


def _accumulates(tensor: torch.Tensor) -> bool:
    """Whether it is a leaf that gradients are accumulated into."""
    return tensor.is_leaf and tensor.requires_grad
