"""The public vocabulary: what a compiled function does to each argument, and what each result is.

In: a `Traced` and its `EffectSummary`. Out: a `ViewAndMutationMeta`, in the terms of AOTAutograd. Nothing is
compiled from it: it is what an `EffectSummary` says, for people and for compilers.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields

from torch import Tensor

from aot.analysis.effect_summary import (
    AliasRoot,
    Constant,
    EffectSummary,
    FunctionViewRoot,
    IsRoot,
    Output,
    SameAsOutput,
    ValueRoot,
    View,
    WrapperRoot,
)
from aot.capture.memory.metadata_log import MetadataMutation
from aot.capture.memory.storage import Storage
from aot.capture.run import Traced
from aot.tensors.geometry import Geometry, IntervalIndex, overlap
from aot.tensors.subclasses import SubclassMeta
from aot.tensors.symbolic_sizes import with_hints
from aot.tensors.version_counters import counter_groups
from aot.tensors.views import is_undeclared_view


class MutationType(enum.Enum):
    """Whether and where new data and metadata get into an argument.

    Example:
        >>> compiled = aot.aot_function(lambda x: x.mul_(2), aot.nop)
        >>> compiled(torch.ones(2)); compiled.specializations[0].metadata.input_info[0].mutation_type
        <MutationType.MUTATED_OUT_GRAPH: 'mutated out of graph'>
    """

    NOT_MUTATED = "not mutated"
    MUTATED_IN_GRAPH = "mutated in graph"
    MUTATED_OUT_GRAPH = "mutated out of graph"


class OutputType(enum.Enum):
    """What memory a result lies in.

    An intermediate is a tensor that the function made. A custom function is an `autograd.Function` that
    returns a view; an unsafe view shares memory of which autograd is not told (`_unsafe_view`).

    Example:
        >>> compiled = aot.aot_function(lambda x: (x, x[0], x * 2), aot.nop)
        >>> compiled(torch.ones(2)); [o.output_type for o in compiled.specializations[0].metadata.output_info]
        [<OutputType.IS_INPUT: 'is input'>, <OutputType.ALIAS_OF_INPUT: 'alias of input'>,
         <OutputType.NON_ALIAS: 'non-alias'>]
    """

    NON_ALIAS = "non-alias"
    ALIAS_OF_INPUT = "alias of input"
    IS_INPUT = "is input"
    ALIAS_OF_INTERMEDIATE_SAVE_AS_OUTPUT = "alias of intermediate, saved as output"  # for this result first
    ALIAS_OF_INTERMEDIATE = "alias of intermediate"  # that is saved for an earlier result
    ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT = "alias of intermediate whose base is user output"
    UNSAFE_VIEW_ALIAS = "unsafe view alias"
    CUSTOM_FUNCTION_VIEW = "custom function view"


@dataclass(frozen=True, slots=True)
class InputAliasInfo:
    """What the function does to one of its tensors.

    Attributes:
        is_leaf: whether it is a leaf when it is called.
        mutates_data: whether elements that it shows then are written to.
        mutates_metadata: whether its sizes, strides or offset are changed in place (be it back again), or its
            place in autograd (`detach_`, `requires_grad_`).
        mutates_storage_metadata: whether it is put onto another storage (`set_`, ``.data = ...``).
        mutations_hidden_from_autograd: whether its data changes and its version counter does not (`.data`).
        mutations_under_no_grad_or_inference_mode: whether its data changes, and never in grad mode.
        resizes_storage: whether the storage that it lies in grows (`resize_`).
        requires_grad: whether it requires grad when it is called.
        keep_input_mutations: whether the graph itself writes to it.

    Example:
        >>> compiled = aot.aot_function(lambda x: x.data.mul_(2), aot.nop)
        >>> compiled(torch.ones(2)); compiled.specializations[0].metadata.input_info[0].mutates_data
        True
    """

    is_leaf: bool
    mutates_data: bool
    mutates_metadata: bool
    mutates_storage_metadata: bool
    mutations_hidden_from_autograd: bool
    mutations_under_no_grad_or_inference_mode: bool
    resizes_storage: bool
    requires_grad: bool
    keep_input_mutations: bool

    @property
    def mutation_type(self) -> MutationType:
        """Where what changes gets into the argument."""
        if self.keep_input_mutations:
            return MutationType.MUTATED_IN_GRAPH
        changes = self.mutates_metadata or self.mutates_storage_metadata or self.resizes_storage
        return MutationType.MUTATED_OUT_GRAPH if self.mutates_data or changes else MutationType.NOT_MUTATED


@dataclass(frozen=True, slots=True)
class OutputAliasInfo:
    """What one of the results is.

    Attributes:
        raw_type: its Python type.
        base_idx: of an input or an alias of one, the number of that tensor; of an alias of an intermediate,
            the number of that one among the intermediates that are saved as outputs, or of the output that
            it is; else None.
        requires_grad: whether it requires grad.

    Example:
        >>> compiled = aot.aot_function(lambda x: (x * 2).t(), aot.nop)
        >>> compiled(torch.ones(2, 2)); compiled.specializations[0].metadata.output_info[0].base_idx
        0
    """

    output_type: OutputType
    raw_type: type
    base_idx: int | None
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class ViewAndMutationMeta:
    """What a kind of call does besides computing.

    Attributes:
        input_info: for each tensor of the call, each object once, in the order in which they first appear.
        output_info: for each leaf of the result's tree.
        num_intermediate_bases: how many intermediates are saved as outputs, for results that alias them.
        keep_input_mutations: whether the graph itself was to write to its inputs where that is possible.
        is_train: whether there is a backward.
        num_outputs_rng_offset: how many states of random generators the forward graph takes after its other
            inputs, and returns after the values; for functionalized random draws.
        subclasses: how the wrapper subclasses among arguments and results are made; None without such. Then
            `input_info` has the plain tensors that they are made of, and after these them.

    Example:
        >>> compiled = aot.aot_function(lambda x: x.mul_(2), aot.nop)
        >>> compiled(torch.ones(2)); print(compiled.specializations[0].metadata)
        input 0: mutated out of graph, is leaf, mutates data
        output 0: is input 0
    """

    input_info: tuple[InputAliasInfo, ...]
    output_info: tuple[OutputAliasInfo, ...]
    num_intermediate_bases: int
    keep_input_mutations: bool
    is_train: bool
    num_outputs_rng_offset: int
    subclasses: SubclassMeta | None = None

    def __str__(self) -> str:
        lines = []
        for i, given in enumerate(self.input_info):
            names = [
                f.name for f in fields(given) if getattr(given, f.name) and f.name != "keep_input_mutations"
            ]
            words = [given.mutation_type.value, *(name.replace("_", " ") for name in names)]
            lines.append(f"input {i}: {', '.join(words)}")
        for i, made in enumerate(self.output_info):
            words = [made.output_type.value + ("" if made.base_idx is None else f" {made.base_idx}")]
            words += ["requires grad"] if made.requires_grad else []
            words += [made.raw_type.__name__] if not issubclass(made.raw_type, Tensor) else []
            lines.append(f"output {i}: {', '.join(words)}")
        if self.num_outputs_rng_offset:
            lines.append(f"states of random generators, in and out: {self.num_outputs_rng_offset}")
        return "\n".join(lines)


def view_and_mutation_metadata(
    forward: Traced, effects: EffectSummary, keep_input_mutations: bool
) -> ViewAndMutationMeta:
    """What the run did, in these terms; `keep_input_mutations` says whether the graph was to write to its
    inputs."""
    outputs = _Outputs(forward, effects)
    states = forward.recorder.rng_states
    infos = tuple(outputs.output_info(position) for position in range(effects.num_user_outputs))
    return ViewAndMutationMeta(
        input_info=_inputs_metadata(forward, effects),
        output_info=infos,
        num_intermediate_bases=len(outputs.bases),
        keep_input_mutations=keep_input_mutations,
        is_train=bool(effects.histories) or any(value.history is not None for value in effects.values),
        num_outputs_rng_offset=0 if states is None else len(states.first),
        subclasses=_subclasses(forward, effects),
    )


def _subclasses(forward: Traced, effects: EffectSummary) -> SubclassMeta | None:
    inputs = tuple(wrapper.meta for wrapper in forward.entry.wrappers)
    roots = ((p, effects.roots[o.root]) for p, o in enumerate(effects.outputs) if isinstance(o, IsRoot))
    outputs = {position: root.meta for position, root in roots if isinstance(root, WrapperRoot)}
    return SubclassMeta(inputs, outputs) if inputs or outputs else None


def _inputs_metadata(forward: Traced, effects: EffectSummary) -> tuple[InputAliasInfo, ...]:
    entry, recorder = forward.entry, forward.recorder
    states = tuple(dict.fromkeys(entry.states))
    targets = [target for state in states for target in (*state.version_bumped, *state.writes.values())]
    every = {id(tensor): tensor for tensor in (*entry.fakes, *targets)}
    counters = dict(zip(every, counter_groups(tuple(every.values())), strict=True))
    places = {state: _Written(state, counters) for state in states}
    in_graph = {write.tensor for write in effects.kept}
    autograd = {*effects.begin_requires_grad, *effects.end_requires_grad, *effects.detached}
    found = []
    for i, (fake, state, where) in enumerate(zip(entry.fakes, entry.states, entry.before, strict=True)):
        events = recorder.journal.changes_of(fake)
        writes = places[state].writes_to(where)
        seen = state.inference or any(write.counter == counters[id(fake)] for write in writes)
        found.append(
            InputAliasInfo(
                is_leaf=entry.leaves[i],
                mutates_data=bool(writes),
                mutates_metadata=i in autograd
                or any(isinstance(event, MetadataMutation) for event in events),
                mutates_storage_metadata=any(not isinstance(event, MetadataMutation) for event in events),
                mutations_hidden_from_autograd=bool(writes) and not seen,
                mutations_under_no_grad_or_inference_mode=bool(writes) and not any(w.grad for w in writes),
                resizes_storage=bool(state.grown),
                requires_grad=entry.requires_grad[i],
                keep_input_mutations=i in in_graph,
            )
        )
    replaced = {number for number, _, _ in effects.replaced}
    count = len(entry.fakes)
    tracked = {entry.wrappers[w.tensor - count].base_group for w in effects.writes if w.tensor >= count}
    for number, wrapper in enumerate(entry.wrappers, count):
        written = [found[i] for i in wrapper.meta.positions if found[i].mutates_data]
        found.append(
            InputAliasInfo(
                is_leaf=wrapper.is_leaf,
                mutates_data=bool(written) or number in replaced,
                mutates_metadata=False,
                mutates_storage_metadata=number in replaced,
                mutations_hidden_from_autograd=bool(written) and wrapper.fake._version == wrapper.version,
                mutations_under_no_grad_or_inference_mode=bool(written) and wrapper.base_group not in tracked,
                resizes_storage=False,
                requires_grad=wrapper.edge is not None,
                keep_input_mutations=False,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Write:
    """A place that was written to, whether in grad mode, and the version counter that this moved."""

    where: Geometry
    grad: bool
    counter: int | None


class _Written:
    """What was written of a storage."""

    def __init__(self, state: Storage, counters: dict[int, int]) -> None:
        counted = {counters[id(target)] for target in state.version_bumped}
        self._state = state
        writes: list[_Write] = []
        for (where, root), target in state.writes.items():
            counter = counters[id(target)]
            writes.append(
                _Write(where, root in state.written_in_grad_mode, counter if counter in counted else None)
            )
        self._all = _Placed(writes)
        # Where arguments lie apart one looks there, and at what was written across.
        apart: dict[int | None, list[_Write]] = {}
        for write in writes:
            part = state.apart(write.where)
            apart.setdefault(None if part is None else id(part), []).append(write)
        self._across = _Placed(apart.pop(None, ()))
        self._apart = {part: _Placed(there) for part, there in apart.items()}

    def writes_to(self, where: Geometry) -> list[_Write]:
        """Those that reached any of the elements `where`."""
        part = self._state.apart(where)
        if part is None:
            return self._all.reaching(where)
        here = self._apart.get(id(part))
        return [*(here.reaching(where) if here else ()), *self._across.reaching(where)]


class _Placed:
    def __init__(self, writes: Sequence[_Write]) -> None:
        # (What is said of a call is said of the one that is traced: nothing is assumed of others.)
        self._writes = writes
        self._wheres = [with_hints(write.where) for write in writes]
        self._places = IntervalIndex(self._wheres)

    def reaching(self, where: Geometry) -> list[_Write]:
        there = with_hints(where)
        near = self._places.meeting(there)
        return [self._writes[k] for k in near if overlap(self._wheres[k], there)]


class _Outputs:
    """The outputs, one by one.

    Attributes:
        bases: the values of intermediates that are saved as outputs, and their numbers.
    """

    def __init__(self, forward: Traced, effects: EffectSummary) -> None:
        self.forward = forward
        self.effects = effects
        self.bases: dict[int, int] = {}
        self._user_outputs: dict[int, int] = {}
        for position, output in enumerate(effects.outputs):
            if isinstance(output, IsRoot):
                root = effects.roots[output.root]
                if isinstance(root, ValueRoot):
                    self._user_outputs.setdefault(root.value, position)

    def output_info(self, position: int) -> OutputAliasInfo:
        """What the output at `position` is."""
        output = self.effects.outputs[position]
        value = self.forward.wrapped.get(position, self.forward.outputs[position])
        if isinstance(output, Constant):
            return OutputAliasInfo(OutputType.NON_ALIAS, type(value), None, False)
        kind, base = self._output_type(output, value)
        assert isinstance(value, Tensor)
        return OutputAliasInfo(kind, type(value), base, value.requires_grad)

    def _output_type(self, output: Output, value: Tensor) -> tuple[OutputType, int | None]:
        if isinstance(output, SameAsOutput):
            first = self.effects.outputs[output.output]
            kind, base = self._output_type(first, value)
            if kind is OutputType.NON_ALIAS:
                return OutputType.ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT, output.output
            return kind, base
        assert isinstance(output, (IsRoot, View))
        tensor, made = self._output_memory(output.root)
        root = self.effects.roots[output.root]
        if isinstance(root, FunctionViewRoot) or (isinstance(output, View) and _is_by_function(output)):
            return OutputType.CUSTOM_FUNCTION_VIEW, tensor
        origin = self.forward.recorder.journal.origins.get(id(value))
        if origin is not None and is_undeclared_view(origin[1].step.op):
            return OutputType.UNSAFE_VIEW_ALIAS, tensor
        if tensor is not None:
            whole = isinstance(output, IsRoot) and value is self.forward.entry.tensors_and_subclasses[tensor]
            return (OutputType.IS_INPUT if whole else OutputType.ALIAS_OF_INPUT), tensor
        if isinstance(output, IsRoot) and isinstance(root, (ValueRoot, WrapperRoot)):
            return OutputType.NON_ALIAS, None
        if isinstance(root, WrapperRoot):
            return OutputType.ALIAS_OF_INTERMEDIATE, None
        assert made is not None
        if made in self._user_outputs:
            return OutputType.ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT, self._user_outputs[made]
        if made in self.bases:
            return OutputType.ALIAS_OF_INTERMEDIATE, self.bases[made]
        self.bases[made] = len(self.bases)
        return OutputType.ALIAS_OF_INTERMEDIATE_SAVE_AS_OUTPUT, self.bases[made]

    def _output_memory(self, number: int) -> tuple[int | None, int | None]:
        """The tensor of the call, or else the value of the graph, that a root lies in the memory of."""
        root = self.effects.roots[number]
        if isinstance(root, FunctionViewRoot):
            return self._output_memory(root.base)
        if isinstance(root, WrapperRoot):
            return None, None
        if isinstance(root, ValueRoot):
            return None, root.value
        if isinstance(root, AliasRoot):
            if root.memory is None:
                assert root.root is not None
                return self._output_memory(root.root)
            return root.memory.tensor, root.memory.value
        return root.tensor, None


def _is_by_function(view: View) -> bool:
    return view.made == "IN_CUSTOM_FUNCTION" or any(step.by_custom_function for step in view.steps)
