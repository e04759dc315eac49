"""A backward in other circumstances than it was compiled for: with ``create_graph=True``, under another
autocast or deterministic state, from some of the results of a custom function, or when what the function's
Python reads in it has changed since.

It is recorded again (`joint.retrace`) and compiled when it is first needed. With ``create_graph=True`` it is
a node of the autograd graph in its turn, whose backward goes to the tangents and to what the first forward
was given; that one can be differentiated in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot.backends.compilers import Compiler, example_inputs
from aot.capture.autograd.engine import RetracePoint
from aot.capture.recorder.threads import trace_lock
from aot.errors import DoubleBackwardUnsupported, UnsupportedTangent
from aot.graph.symint_inputs import lift_symbols_to_inputs
from aot.guards.tracker import GuardTracker
from aot.joint.retrace import RetracedBackward, retrace_backward
from aot.partition.default import default_partition
from aot.partition.joint_graph import is_tangent
from aot.runtime.compiled_graphs import (
    LazyBackward,
    as_own_tensor,
    check_backward_numbers,
    compiled_graph_runner,
    with_arity_check,
)
from aot.runtime.graph_assertions import compile_graph
from aot.runtime.saved_values import tangents_read_by_offset
from aot.runtime.tangents import tangent_as_in_trace, unflatten_tangent_values, with_traced_strides
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import (
    GradientLayout,
    flatten_subclass,
    inner_tensors,
    is_nested,
    is_wrapper,
    subclass_meta_key,
)
from aot.tensors.symbolic_sizes import SymbolicSizes
from aot.torch_internals import ambient_state, autograd_graph, plain_fakes, tensor_impl


class DoubleBackward:
    """The backward of one level, recorded as callers need it.

    Args:
        level: gives what it is recorded from; asked when it first is.
        whole: whether eager runs all of it, where no gradient comes in as well.
    """

    def __init__(
        self,
        level: Callable[[], RetracePoint],
        compiler: Compiler,
        look: Callable[[], GuardTracker],
        symbols: SymbolicSizes | None = None,
        whole: bool = False,
    ) -> None:
        self._symbols = symbols
        self._whole = whole
        self._level_of = level
        self._compiler = compiler
        self._look = look
        self._ways: dict[object, tuple[_CompiledBackward, ...]] = {}

    def __call__(
        self,
        saved: Sequence[Tensor | None],
        given: Sequence[Tensor | None],
        edges: Sequence[Tensor | None],
        owned: Sequence[Tensor | None] = (),
        numbers: Sequence[int] = (),
    ) -> list[Tensor | None]:
        """The gradient for each end.

        Args:
            saved: the values of the forward that are available.
            given: a tangent for each entrance, or None.
            edges: for each end a tensor that has its edge, or None where nobody has one.
            owned: the same for each of the level's own edges that gradients of the gradients may go to.
            numbers: the numbers of the call that are symbols in the trace.

        Raises:
            DoubleBackwardUnsupported: with ``create_graph=True``, where it cannot be exact.
        """
        present = tuple(j for j, tangent in enumerate(given) if tangent is not None)
        if not present and not self._whole:
            return [None] * len(edges)
        create_graph = torch.is_grad_enabled()
        tracked = tuple(j for j in present if create_graph and given[j].requires_grad)  # type: ignore[union-attr]
        own = tuple(e for e, tensor in enumerate(owned) if tensor is not None) if create_graph else ()
        kinds = tuple(_kind_of(given[j]) for j in present)
        key = (present, tracked, create_graph, own, kinds, ambient_state.backward_key())
        way = self._known(key)
        if way is None:
            with trace_lock():
                way = self._known(key)
                if way is None:
                    noted = self._look()
                    differ = [j for j, k in zip(present, kinds, strict=True) if k != self._guess(j)]
                    others = {j: self._in_trace(given[j], j, numbers) for j in differ}
                    circumstances = present, create_graph, tracked, own, others
                    step = noted.track_within_context(self._run_and_record, noted, *circumstances)
                    way = _CompiledBackward(
                        self._level, step, self._compiler, self._look, noted, self._symbols
                    )
                    if not noted.changes.once:
                        self._ways[key] = (way, *self._ways.get(key, ()))
        targets = [*(owned[e] for e in way.step.own_targets), *edges]
        check_backward_numbers(self._symbols, numbers)
        given = [tangent for tangent in given if tangent is not None]
        run = way.changes.with_side_effects(way)
        gradients: list[Tensor | None] = run([saved[i] for i in way.step.taken], given, targets, numbers)
        return gradients

    @property
    def _level(self) -> RetracePoint:
        return self._level_of()

    def _guess(self, entrance: int) -> object:
        """The kind of tangent that the entrance gets unless another one is given."""
        return _type_of(self._level.cotangent_inputs[entrance][1])

    def _in_trace(self, tangent: Any, entrance: int, numbers: Sequence[int]) -> Tensor:
        """A tensor that is in the trace as a tangent of another kind than the guessed one is in a call."""
        like = self._level.cotangent_inputs[entrance][1]
        if self._symbols is None or (is_wrapper(tangent) and is_nested(tangent)):
            return tangent  # type: ignore[no-any-return]
        with plain_fakes.fakes_allowed():
            return tangent_as_in_trace(tangent, like, self._symbols, numbers)

    def _run_and_record(self, noted: GuardTracker, *circumstances: Any) -> RetracedBackward:
        with noted.tracking_run():
            return self._record_double_backward(*circumstances)

    def _record_double_backward(
        self,
        present: Sequence[int],
        create_graph: bool,
        tracked: Sequence[int],
        own: Sequence[int],
        others: Mapping[int, Any],
    ) -> RetracedBackward:
        likes = [*others.values(), *(like for _, like in self._level.cotangent_inputs)]
        if any(is_wrapper(like) and is_nested(like) for like in likes):
            raise DoubleBackwardUnsupported(
                "create_graph=True, or a backward under another autocast or deterministic state than the "
                "forward, or from a gradient of another type, through a nested tensor; call the original "
                "function"
            )
        try:
            return retrace_backward(self._level, present, create_graph, tracked, own, others, self._whole)
        except DoubleBackwardUnsupported as error:
            if create_graph or not others:
                raise
            kind = next(type(one).__name__ if is_wrapper(one) else "Tensor" for one in others.values())
            raise UnsupportedTangent(
                f"a backward is given a gradient of another type, or made otherwise, than it was recorded "
                f"for ({kind}), which does not make itself such by "
                f"__coerce_same_metadata_as_tangent__: {error}"
            ) from error

    def _known(self, key: object) -> _CompiledBackward | None:
        return next((way for way in self._ways.get(key, ()) if way.guards.hold()), None)


def _kind_of(tangent: Any) -> object:
    """Equal for two tangents if one recorded backward is for both."""
    kind = _type_of(tangent)
    return _ZEROS if kind is None and tensor_impl.is_zero_tensor(tangent) else kind


_ZEROS = "zeros without memory, as a product of them is, of whatever type the other factor"


def _type_of(tangent: Any) -> object:
    """Equal for two tangents that are made of tensors in the same way."""
    if not is_wrapper(tangent):
        return None
    return subclass_meta_key(flatten_subclass(tangent)[0].showing(lambda numbers: (len(numbers),)))


@dataclass(frozen=True, slots=True)
class _OutputGroup:
    """Gradients that one node of the autograd graph makes: which, and the positions of what their gradients
    go to."""

    results: tuple[int, ...]
    targets: frozenset[int]


def _grouped_gradients(step: RetracedBackward) -> tuple[_OutputGroup, ...]:
    """All gradients in one group; then, if these are several, those apart that lead to different targets."""
    groups: dict[frozenset[int], list[int]] = {}
    for i, reached in step.reach.items():
        groups.setdefault(reached, []).append(i)
    whole = _OutputGroup(tuple(range(len(step.made))), frozenset().union(*groups))
    if len(groups) < 2:
        return (whole,)
    next(iter(groups.values())).extend(i for i in whole.results if i not in step.reach)
    return (whole, *(_OutputGroup(tuple(results), reached) for reached, results in groups.items()))


def _leads_to_functions(tensors: Sequence[Tensor | None]) -> bool:
    """Whether a custom function that is none of ours is behind some tensors."""
    stack = [tensor.grad_fn for tensor in tensors if tensor is not None]
    seen: set[Node | None] = {None}
    while stack:
        node = stack.pop()
        if node not in seen:
            assert node is not None
            seen.add(node)
            if autograd_graph.is_function_node(node):
                package = autograd_graph.function_of(node).__module__.partition(".")[0]
                if package != __name__.partition(".")[0]:
                    return True
            stack.extend(above for above, _ in node.next_functions)
    return False


class _CompiledBackward:
    """One recorded backward, compiled."""

    def __init__(
        self,
        level: RetracePoint,
        step: RetracedBackward,
        compiler: Compiler,
        look: Callable[[], GuardTracker],
        noted: GuardTracker,
        symbols: SymbolicSizes | None,
    ) -> None:
        self.symbols = symbols
        self.step = step
        self.guards = noted.guards
        self.changes = noted.changes
        self.ambient = ambient_state.backward_key()
        self.compiler = compiler
        forward: fx.GraphModule = step.graph
        backward: fx.GraphModule | None = None
        if step.second_order_tangents:
            inputs = example_inputs(step.graph)
            forward, backward = default_partition(step.graph, inputs, num_fwd_outputs=step.count)
        kept = len(list(forward.graph.nodes)[-1].args[0])
        graph = lift_symbols_to_inputs(forward, symbols)
        graph.module.meta["donated"] = ()  # what is saved may be asked for again
        compiled = compile_graph(compiler, graph.module, "backward")
        self.run: Callable[..., Any] = with_arity_check(
            compiled_graph_runner(compiled, graph.taken), kept, "backward"
        )
        self.from_start = tangents_read_by_offset(forward, "cotangents_")
        self.further_from_start = tangents_read_by_offset(backward)
        self.backward: LazyBackward | None = None
        self.groups = _grouped_gradients(step)
        available: dict[fx.Node, int] = {}
        if backward is not None:
            results = sum(len(layout.wheres) for layout in step.higher)
            self.backward = LazyBackward(backward, compiler, symbols=symbols)
            self.run_backward = with_arity_check(self.backward.run, results, "backward")
            self.run_part = with_arity_check(self.backward.run_part, results, "backward")
            saved = [n for n in backward.graph.nodes if n.op == "placeholder" and not is_tangent(n)]
            available = {step.nodes[n.name]: i for i, n in enumerate(saved)}
        entrances = tuple(step.cotangent_inputs.values())
        following = RetracePoint(level.recorder, entrances, step.sinks, available, level.released)
        self.kinds = {i: _type_of(step.cotangent_inputs[i][1]) for i in step.second_order_tangents}
        self.next = DoubleBackward(lambda: following, compiler, look, symbols)

    def __call__(
        self,
        saved: list[Tensor | None],
        tangents: list[Tensor],
        edges: Sequence[Tensor | None],
        numbers: Sequence[int],
    ) -> list[Tensor | None]:
        step = self.step
        inputs: list[Tensor] = []
        for tangent, layout in zip(tangents, step.tangents, strict=True):
            for part, where in zip(inner_tensors(tangent), layout.wheres, strict=True):
                inputs.append(self.lie(part, where, numbers, len(inputs) in self.from_start))
        with torch.no_grad():
            values = self.run([*saved, *inputs], numbers)
        made = self._laid(step.made, numbers)
        results: list[Any] = unflatten_tangent_values(made, map(as_own_tensor, values[: step.count]))
        if step.cotangent_inputs:
            targets = [*(t for t in tangents if t.requires_grad), *edges]
            targets += [None] * (len(step.gradients) - len(targets))
            for target, gradient in zip(targets, step.gradients, strict=True):
                if gradient is not None and target is None:
                    raise DoubleBackwardUnsupported(
                        "create_graph=True where a second derivative goes to an argument that the first does "
                        "not go to; call the original function"
                    )
            results = _distinct_results(results, [*inputs, *tangents])
            for group in self._gradient_groups(targets):
                own = tuple(results[i] for i in group.results)
                box = [self, tuple(values[step.count :]), own, numbers, targets, group.results]
                reached = [target if p in group.targets else None for p, target in enumerate(targets)]
                # What goes nowhere requires grad all the same, as in eager.
                anywhere = any(one is not None for one in reached)
                nowhere = None if anywhere else torch.empty(0, requires_grad=True)
                made = _SecondOrderNode.apply(box, nowhere, *reached)  # type: ignore[no-untyped-call]
                for i, result in zip(
                    group.results, made if isinstance(made, tuple) else (made,), strict=True
                ):
                    results[i] = result
        return [None if k is None else results[k] for k in step.results]

    def _gradient_groups(self, targets: Sequence[Tensor | None]) -> Sequence[_OutputGroup]:
        """The nodes that the gradients are results of.

        One is as good as several, but where a custom function is behind it: that makes zeros of a gradient
        which it does not get, and must not be behind what does not lead to it.
        """
        whole, *apart = self.groups
        return apart if apart and _leads_to_functions(targets) else (whole,)

    def takes(self, given: Sequence[Tensor | None]) -> bool:
        """Whether these tangents of the gradients are of the kinds that it was recorded for.

        A plain gradient's is a wrapper subclass where the sum that it goes into is one.
        """
        return all(given[i] is None or _type_of(given[i]) == kind for i, kind in self.kinds.items())

    def _laid(self, layouts: Sequence[GradientLayout], numbers: Sequence[int]) -> Sequence[GradientLayout]:
        """How gradients lie in a call."""
        symbols = self.symbols
        if symbols is None:
            return layouts
        return [symbols.laid(layout, numbers) for layout in layouts]

    def lie(self, tangent: Tensor, where: Geometry, numbers: Sequence[int], from_start: bool) -> Tensor:
        """A tangent as it was in the trace."""
        if self.symbols is not None:
            where = self.symbols.at(where, numbers)
        return with_traced_strides(tangent, where.size, where.stride, from_start)


def _distinct_results(results: list[Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results of an autograd.Function are to be objects of their own."""
    seen = {id(tensor) for tensor in inputs}
    found = []
    for result in results:
        found.append(result.detach() if id(result) in seen else result)
        seen.add(id(result))
    return found


class _SecondOrderNode(torch.autograd.Function):
    """A backward as a node of the autograd graph."""

    @staticmethod
    def forward(ctx: Any, box: list[Any], *reached: Tensor | None) -> tuple[Tensor, ...]:
        way, saved, results, ctx.numbers, ctx.targets, ctx.members = box
        box.clear()
        ctx.way = way
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved)
        pairs = zip(ctx.members, results, strict=True)
        ctx.mark_non_differentiable(*(result for i, result in pairs if i not in way.step.cotangent_inputs))
        return results  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *own: Tensor | None) -> tuple[Tensor | None, ...]:
        way: _CompiledBackward = ctx.way
        step = way.step
        members = dict(zip(ctx.members, own, strict=True))
        given = [members.get(i) for i in range(len(step.made))]
        for gradient, (kind, text) in step.failing.items():
            if given[gradient] is not None:
                raise kind(text)
        saved = ctx.saved_tensors
        as_recorded = ambient_state.backward_key() == way.ambient and way.takes(given)
        if torch.is_grad_enabled() or not as_recorded or not way.guards.hold():
            return (
                None,
                None,
                *way.next(saved, [given[i] for i in step.cotangent_inputs], ctx.targets, (), ctx.numbers),
            )
        bits = [i for i, layout in step.second_order_tangents.items() for _ in layout.wheres]
        mask = sum(1 << j for j, i in enumerate(bits) if given[i] is not None)
        if way.backward is None or not mask:
            return (None,) * (2 + len(step.gradients))
        arguments = list(saved)
        for i, layout in step.second_order_tangents.items():
            tangent = given[i]
            parts = [None] * len(layout.wheres) if tangent is None else inner_tensors(tangent)
            for part, where in zip(parts, layout.wheres, strict=True):
                from_start = len(arguments) - len(saved) in way.further_from_start
                arguments.append(None if part is None else way.lie(part, where, ctx.numbers, from_start))
        whole = mask == (1 << len(bits)) - 1
        numbers = ctx.numbers
        if whole:
            results = way.run_backward(arguments, numbers=numbers)
        else:
            results = way.run_part(mask, arguments, numbers=numbers)
        made = unflatten_tangent_values(way._laid(step.higher, numbers), iter(results))
        return (None, None, *(None if k is None else made[k] for k in step.gradients))
