"""Where the backward of a trace begins and ends: the edges of its autograd graph that the caller knows.

In: a `Traced` and its `EffectSummary`. Out: the `UserTensor`s, and the edges where the arguments entered;
and the refusal of what goes wrong at these edges: hooks on what is the caller's, histories that autograd
forgets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from aot.analysis.context import is_current, root_of
from aot.analysis.effect_summary import (
    ArgumentRoot,
    BaseRoot,
    EffectSummary,
    IsRoot,
    Root,
    ValueRoot,
    View,
    WrapperRoot,
    value_of,
)
from aot.capture.autograd.edge_targets import ArgumentEdge, OutputEdge, RebuiltEdge, Target, WrittenEdge
from aot.capture.autograd.segments import Key, SegmentedGraph, UserTensor, key_of
from aot.capture.run import Traced
from aot.errors import AutogradStateMutation
from aot.tensors.jagged_views import JaggedView
from aot.tensors.version_counters import version_of
from aot.torch_internals import autograd_state


def user_tensors(
    forward: Traced,
    effects: EffectSummary,
    histories: Mapping[int, Tensor],
    ends: Mapping[Key, ArgumentEdge],
) -> list[UserTensor]:
    """Every tensor with a history that the caller has after the call, each edge of the trace once."""
    fakes = forward.entry.tensors_and_subclasses
    written: dict[int, list[int]] = {}  # the values that go into tensors of one root
    for write in effects.writes:
        if write.tracked:
            written.setdefault(id(root_of(fakes[write.tensor])), []).append(write.value)
    known: dict[Key, UserTensor] = {}

    def add(tensor: Tensor, native: RebuiltEdge | None, value: int | None, to: list[int]) -> None:
        if not tensor.requires_grad or not is_current(tensor) or tensor.grad_fn is None:
            return
        edge = autograd_state.gradient_edge(tensor)
        before = known.get(key_of(edge))
        if before is not None:
            native, value = before.rebuilt or native, before.value if value is None else value
            to = list(before.leads_to) or to
        elif value is None and key_of(edge) in ends:
            return
        known[key_of(edge)] = UserTensor(edge, native, value, tuple(to))

    for value, history in histories.items():
        add(history, None, value, [])
    for i, fake in enumerate(fakes):
        add(fake, WrittenEdge(i), None, written.get(id(root_of(fake)), []))
    for base, view in forward.entry.bases:
        add(base, WrittenEdge(view, True), None, written.get(id(base), []))
    for position, output in enumerate(effects.outputs):
        if isinstance(output, View):
            root = effects.roots[output.root]
            if isinstance(root, (ArgumentRoot, BaseRoot)):
                to = written.get(id(root_of(fakes[root.tensor])), [])
            else:
                to = _values_behind_root(root, histories)
            shown = forward.wrapped.get(position, forward.outputs[position])
            add(shown, OutputEdge(position), None, to)
        elif isinstance(output, IsRoot):
            root = effects.roots[output.root]
            if isinstance(root, WrapperRoot) and root.meta.kind is JaggedView:
                to = _values_behind_parts(root, effects, histories)
                add(forward.wrapped[position], OutputEdge(position), None, to)
    return list(known.values())


def _values_behind_root(root: Root, histories: Collection[int]) -> list[int]:
    """The value that the history of a root which is no argument is that of."""
    if isinstance(root, ValueRoot):
        return [root.value] if root.value in histories else []
    value = value_of(root)
    return [] if value is None else [value]


def _values_behind_parts(root: WrapperRoot, effects: EffectSummary, histories: Collection[int]) -> list[int]:
    """The values with a history that a nested tensor is made of."""
    inner = (effects.outputs[i] for i in root.meta.positions)
    roots = (effects.roots[one.root] for one in inner if isinstance(one, IsRoot))
    return [one.value for one in roots if isinstance(one, ValueRoot) and one.value in histories]


def gradient_sinks(forward: Traced, effects: EffectSummary) -> dict[Key, ArgumentEdge]:
    """What is differentiated with respect to: every argument's edge on entry, and hidden bases'; and
    arguments that began to require grad."""
    entry = forward.entry
    ends: dict[Key, ArgumentEdge] = {}
    for i, edge in enumerate(entry.edges):
        if edge is not None:
            ends.setdefault(key_of(edge), ArgumentEdge(i, False))
    for (_, view), edge in zip(entry.bases, entry.base_edges, strict=True):
        if edge is not None:
            ends.setdefault(key_of(edge), ArgumentEdge(view, True))
    for i, wrapper in enumerate(entry.wrappers):
        if wrapper.edge is not None:
            ends.setdefault(key_of(wrapper.edge), ArgumentEdge(len(entry.fakes) + i, False))
    for i in effects.begin_requires_grad:
        ends.setdefault(key_of(autograd_state.gradient_edge(entry.fakes[i])), ArgumentEdge(i, False))
    return ends


def check_boundary_hooks(
    forward: Traced, exposed: list[UserTensor], ends: Mapping[Key, ArgumentEdge]
) -> None:
    """Refuse hooks that the function has registered where the compiled backward does not run them.

    Raises:
        UnsupportedHook: there is one.
    """
    hooks = forward.recorder.hooks
    hooks.refuse_hooks_on_arguments(
        "tensor", [(end.tensor, GradientEdge(*edge)) for edge, end in ends.items()]
    )
    hooks.refuse_hooks_on_arguments(
        "tensor", _boundary_edges_of(enumerate(forward.entry.tensors_and_subclasses))
    )
    hooks.refuse_hooks_on_arguments("output", _boundary_edges_of(enumerate(forward.outputs)))
    hooks.refuse_hooks_on_arguments("output", _boundary_edges_of(forward.wrapped.items()))
    hooks.refuse_hooks_outside_backward(_native_boundary_edges(exposed, ends), [node for node, _ in ends])


def check_remembered_sinks(forward: Traced, targets: Iterable[Target]) -> None:
    """Refuse gradients of arguments of which autograd forgets the history, as it does in eager for what
    comes after the write.

    Raises:
        AutogradStateMutation: there is one.
    """
    entry = forward.entry
    for target in targets:
        if (
            isinstance(target, ArgumentEdge)
            and not target.of_base
            and target.tensor in entry.loses_history_on_write
        ):
            fake, edge = entry.fakes[target.tensor], entry.edges[target.tensor]
            same = edge is not None and fake.requires_grad and autograd_state.gradient_edge(fake) == edge
            if same and version_of(fake) != entry.versions[target.tensor]:
                raise AutogradStateMutation(
                    f"tensor {target.tensor} requires grad by way of a leaf that is a part of a tensor which "
                    f"does not, and is written to under torch.no_grad(): where the gradient goes depends on "
                    f"what was computed before; write to it outside"
                )


def _native_boundary_edges(exposed: list[UserTensor], ends: Mapping[Key, ArgumentEdge]) -> set[Key]:
    """The edges of native histories, down to the segments and arguments that they are made from."""
    inside = SegmentedGraph(exposed, ends).segment_of
    # (A write to a view is a part of both.)
    found = {key_of(one.edge) for one in exposed if one.rebuilt is not None and one.value is None}
    stack = list(found)
    while stack:
        below = ((node, number) for node, number in stack.pop()[0].next_functions if node is not None)
        for key in below:
            if key not in ends and key not in found and key[0] not in inside:
                found.add(key)
                stack.append(key)
    return found


def _boundary_edges_of(values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, GradientEdge]]:
    for number, value in values:
        if (
            isinstance(value, Tensor)
            and value.requires_grad
            and is_current(value)
            and value.grad_fn is not None
        ):
            yield number, autograd_state.gradient_edge(value)
