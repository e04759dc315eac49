"""`aot_function`: compile a function ahead of time, once per kind of call."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from aot import config, errors, logs
from aot.backends import graph_names
from aot.backends.compilers import Compiled, Compiler, materialize_metadata, require_compiler
from aot.cache.entry import CacheEntry
from aot.capture.autograd.engine import RetracePoint
from aot.capture.cast_inputs import CallCasts, CastInputs, find_cast_inputs
from aot.capture.inputs import with_fake_tensors
from aot.capture.intercept.inner_gradients import with_outer_graph_check
from aot.capture.intercept.number_calls import NumberAsked, no_redirections
from aot.capture.recorder.autocast_cache import CastsDiffer
from aot.capture.recorder.escapes import EscapeCheck
from aot.capture.recorder.threads import trace_lock
from aot.frontends.fallback import Fallback
from aot.frontends.recompile_warnings import warn_of_compiles_for_each_call, warn_of_what_changes
from aot.frontends.specialization import Specialization, describe_guards
from aot.frontends.value_dependence import answer_by_values, with_value_checks, without
from aot.graph.node_origins import front_end_running
from aot.graph.symint_inputs import has_data_numbers, lift_symbols_to_inputs
from aot.guards import function_modes
from aot.guards.guard import Guards
from aot.guards.side_effects import NO_SIDE_EFFECTS, SideEffects
from aot.guards.tracker import GuardTracker
from aot.partition.default import default_partition
from aot.pipeline.artifact import Lowered
from aot.pipeline.gc_pause import no_full_collections
from aot.pipeline.lower import CompileOptions, Lowering, Partitioner, lower
from aot.runtime.build import CompiledWrapper, build
from aot.runtime.call_assertions import with_call_assertions
from aot.runtime.dry_run import dry_run
from aot.runtime.graph_assertions import compile_graph
from aot.specialize.call import (
    Arguments,
    analyze_arguments,
    call_key_without_sizes,
    flatten_arguments,
    refusing_container_changes,
)
from aot.specialize.inline_cache import MISS, InlineCache, PlacementSensitivity
from aot.specialize.recompile_reasons import Before, Key, recompile_reason
from aot.tensors.fake_tensors import root_of
from aot.tensors.subclasses import has_nested_ints
from aot.tensors.symbolic_sizes import ShapeGuards, StaticSizes, SymbolicSizes
from aot.tensors.tensor_attributes import AttributeNames
from aot.torch_internals import (
    ambient_state,
    autocast_state,
    autograd_state,
    compile_logs,
    dispatcher,
    dynamo_api,
    function_transforms,
    mode_stacks,
    pytree,
    torch_fakes,
)

__all__ = ["CompiledFunction", "Partitioner", "Specialization", "aot_function"]


def runs_uncompiled() -> bool:
    """Whether a compiled function that is called here is the original one: part of a function that is being
    traced, or where no autograd is, whose views and version counters a compiled call would make."""
    return errors.is_tracing() or dispatcher.is_below_autograd()


class CompiledFunction:
    """A function compiled by `aot_function`; call it as the original.

    Attributes:
        specializations: the compiles so far, oldest first.
        fallback: what becomes of refused calls, and how many ran as in eager.
        seeds: whether the function may set a random generator's state
        (`capture.recorder.random_draws.RngTrace.allows_seeding`). asks_modes: whether the function's calls of
        torch ask torch function modes that are on.
    """

    seeds = True
    asks_modes = True
    outer_compile: Any = None

    def __init__(
        self,
        function: Callable[..., Any],
        fw_compiler: Compiler,
        bw_compiler: Compiler,
        inference_compiler: Compiler,
        partition_fn: Partitioner,
        decompositions: dict[Any, Callable[..., Any]],
        num_params_buffers: int,
        keep_inference_input_mutations: bool,
        functionalize_rng_ops: bool,
        dynamic: bool = False,
        on_unsupported: config.OnUnsupported | None = None,
    ) -> None:
        self.__wrapped__ = function
        self._made_of: tuple[Any, ...] = (
            function,
            fw_compiler,
            bw_compiler,
            inference_compiler,
            partition_fn,
            decompositions,
            num_params_buffers,
            keep_inference_input_mutations,
            functionalize_rng_ops,
            dynamic,
            on_unsupported,
        )
        self.fallback = Fallback(on_unsupported)
        self._fw_compiler = require_compiler("fw_compiler", fw_compiler)
        self._bw_compiler = require_compiler("bw_compiler", bw_compiler)
        self._inference_compiler = require_compiler("inference_compiler", inference_compiler)
        self._partition = partition_fn
        self._decompositions = decompositions
        self._num_params_buffers = num_params_buffers
        self._keep = keep_inference_input_mutations
        self._functionalize_rng = functionalize_rng_ops
        self._dynamic = dynamic
        self._numbers: tuple[int, ...] = ()  # leaves of arguments for which symbols may stand
        self._cache: dict[object, tuple[Specialization, ...]] = {}  # newest first
        # The same by what is left of a key without sizes: what answers more than one, and what cannot.
        self._general: dict[object, tuple[Specialization, ...]] = {}
        self._static_only: set[object] = set()
        self._inline_cache = InlineCache()
        self._redirections = no_redirections()
        self._attributes = AttributeNames()  # of tensors, which the function may read
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self._specializations: list[Specialization] = []
        self._before: list[Before] = []
        self._once = 0  # how many of them were for one call

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy (`copy.deepcopy`, pickle) is of the original, and has compiled nothing yet."""
        return type(self), self._made_of

    @property
    def specializations(self) -> tuple[Specialization, ...]:
        for one in self._specializations:
            for graph in (one.forward, *one.backwards):
                materialize_metadata(graph)
        return tuple(self._specializations)

    @dynamo_api.skip
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if not kwargs:
                flat = self._inline_cache.flat
                for answer in flat:
                    result = answer(args)
                    if result is not MISS:
                        if answer is not flat[0]:
                            self._inline_cache.promote(answer)
                        return result
            return self._dispatch(args, kwargs)
        except errors.Unsupported as refusal:
            self._note_refusal(refusal)
        return self.__wrapped__(*args, **kwargs)

    def _note_refusal(self, refusal: errors.Unsupported) -> None:
        """Count a refused call that runs as in eager.

        Raises:
            Unsupported: the refusal, where such calls do not.
        """
        if runs_uncompiled() or not self.fallback.is_on or refusal.acted:
            raise refusal
        self.fallback.note_call(refusal, self.__name__)

    def _dispatch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that no test has passed for which takes its arguments as they are."""
        if runs_uncompiled() or self._is_transformed(args, kwargs):
            return self.__wrapped__(*args, **kwargs)
        if function_modes.are_on():
            with function_modes.without_user_modes(for_good=not self.asks_modes):
                return self._answer_call(args, kwargs)
        return self._answer_call(args, kwargs)

    def _answer_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, tree, flat = self._flattened(args, kwargs)
        if not (flat or function_modes.modes_aside()):  # the tests of those take it that no mode is on
            for one in self._inline_cache.newest_first:
                if one.tree == tree and not one.flat:
                    result = one.answer(leaves)
                    if result is not MISS:
                        self._inline_cache.promote(one.answer)
                        return result
        arguments = analyze_arguments(leaves)
        key = self._key(tree, arguments)
        found = self._known_specialization(key, arguments)
        if found is None:
            specialization = self._compile_unless_refused(key, arguments, args, kwargs)
            tensors = self._tensors_taken(specialization, arguments)
        else:
            specialization, tensors = found
        noted = found is not None and not specialization.computes_sizes
        if noted and not (function_transforms.are_tensors_transformed() or function_modes.modes_aside()):
            self._note_module_tensors(tree, flat, arguments, specialization)
        if specialization.computes_sizes:

            def compile_anew() -> tuple[Specialization, tuple[torch.Tensor, ...]]:
                made = self._compile_or_reuse_specialization(key, arguments, args, kwargs, anew=True)
                return made, self._tensors_taken(made, arguments)

            chosen, name = (specialization, tensors), self.__name__
            return answer_by_values(name, self._cache, key, chosen, arguments, compile_anew, self._forget)
        return specialization.answer(tensors, leaves)

    def _forget(self, specialization: Specialization) -> None:
        """Take a specialization out of all that is known."""
        for table in (self._cache, self._general):
            table.update({key: without(known, specialization) for key, known in table.items()})
        self._specializations = list(without(self._specializations, specialization))
        self._before = [before for before in self._before if before[1] is not specialization.guards]

    def _is_transformed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether transforms see a call, or it is made with torch's fake tensors, which is another compiler's
        trace: the original function answers it, operation by operation."""
        if torch_fakes.are_given(args):
            return True
        if not function_transforms.are_tensors_transformed():
            return False
        return function_transforms.is_any_transformed(self._flattened(args, kwargs)[0])

    def _flattened(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], Hashable, bool]:
        """The leaves of a call's arguments, their tree, and whether what the caller gives are leaves."""
        leaves, tree = flatten_arguments(args, kwargs)
        return leaves, tree, leaves is args

    def _note_module_tensors(
        self, tree: Hashable, flat: bool, arguments: Arguments, specialization: Specialization
    ) -> None:
        """Have calls like this one known again."""
        self._inline_cache.note(tree, flat, arguments, specialization.as_answer)

    def specialize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Specialization:
        """What answers a call with these arguments; it is not made, but compiled if it has to be.

        Raises:
            Unsupported: see `aot.errors`.
        """
        with function_modes.without_user_modes(for_good=not self.asks_modes):
            leaves, tree, _ = self._flattened(args, kwargs)
            arguments = analyze_arguments(leaves)
            key = self._key(tree, arguments)
            found = self._known_specialization(key, arguments)
            if found is not None:
                return found[0]
            return self._compile_unless_refused(key, arguments, args, kwargs, ahead=True)

    def _compile_unless_refused(
        self,
        key: Key,
        arguments: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ahead: bool = False,
    ) -> Specialization:
        """The same as `_compile_or_reuse_specialization`, which traces no call that was refused before and
        runs as in eager."""
        # (In a transform, or while another tracer is on, what is refused may be so because of that.)
        lasting = not (function_transforms.is_transforming() or mode_stacks.is_another_tracer_on())
        if lasting:
            self.fallback.check(key)
        try:
            with compile_logs.within_compile(self.outer_compile):
                return self._compile_or_reuse_specialization(key, arguments, args, kwargs, ahead)
        except errors.Unsupported as refusal:
            if lasting and not ahead:
                self.fallback.keep(key, refusal)
            raise

    def _compile_or_reuse_specialization(
        self,
        key: Key,
        arguments: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ahead: bool = False,
        anew: bool = False,
    ) -> Specialization:
        """What answers a call; `anew` where values are others than for all that do otherwise."""
        with trace_lock(), no_full_collections(), mode_stacks.user_dispatch_modes_off():
            found = self._known_specialization(key, arguments)  # by now, by another thread
            specialization = None if found is None or anew else found[0]
            dynamic = self._dynamic or any(
                map(dynamo_api.has_dynamic_marks, arguments.tensors_and_subclasses)
            )
            if specialization is None and (dynamic or self._general):
                general = self._without_sizes(key, arguments)
                specialization = None if anew else self._specialization_answering(general, arguments)
                if specialization is not None:
                    self._cache[key] = (specialization, *self._cache.get(key, ()))
            if specialization is None:
                _, spec = pytree.tree_flatten((args, kwargs))
                inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
                with (
                    autograd_state.plain_autograd(),
                    autograd_state.outside_inference_mode(),
                    torch.set_grad_enabled(grad),
                ):
                    symbolic = general if dynamic and general not in self._static_only else None
                    specialization = self._compile_specialization(symbolic, arguments, spec, inference, ahead)
                key = self._key(key[0], arguments)  # with what the function has turned out to read
                specialization = self._remember_specialization(key, arguments, specialization)
                if specialization.sizes is not None and not specialization.changes.once:
                    general = self._without_sizes(key, arguments)
                    self._general[general] = (specialization, *self._general.get(general, ()))
        return specialization

    def _compile_specialization(
        self,
        general: object | None,
        arguments: Arguments,
        spec: pytree.TreeSpec,
        inference: bool,
        ahead: bool,
    ) -> Specialization:
        """Compile for such a call, and for other sizes if there is a `general` key of it."""
        casts = self._casting(arguments, inference)
        while True:
            try:
                specialization = None
                if general is not None:
                    specialization = self._specialize_dynamic(general, casts, spec, inference, ahead)
                return specialization or self._specialize(casts, spec, inference, None, ahead)
            except CastsDiffer as difference:
                casts = casts.differing(difference, arguments)
            except NumberAsked as asked:
                self._redirections.update(asked.redirections)

    def _key(self, tree: Hashable, arguments: Arguments) -> Key:
        around = (
            *ambient_state.current_key(),
            function_modes.modes_key(),
            self._attributes.key(arguments.tensors_and_subclasses),
        )
        return tree, arguments.key, around

    def _without_sizes(self, key: Key, arguments: Arguments) -> object:
        tree, _, ambient = key
        return tree, call_key_without_sizes(arguments, self._static(arguments), self._numbers), ambient

    def _specialization_answering(self, general: object, arguments: Arguments) -> Specialization | None:
        numbers = self._given(arguments).values()
        for specialization in self._general.get(general, ()):
            assert specialization.sizes is not None
            tensors = specialization.given(arguments) if specialization.holds() else None
            if tensors is not None and specialization.sizes.hold(*tensors, *numbers):
                return specialization
        return None

    def _given(self, arguments: Arguments) -> dict[int, int]:
        """The numbers among the leaves of a call's arguments that may be symbols, by position."""
        return {leaf: arguments.leaves[leaf][1] for leaf in self._numbers}

    def _module_constant(self, arguments: Arguments) -> StaticSizes:
        """Which numbers of tensors are no symbols."""
        return StaticSizes(self._static(arguments), unmarked=not self._dynamic)

    def _specialize_dynamic(
        self, general: object, casts: CastInputs, spec: pytree.TreeSpec, inference: bool, ahead: bool
    ) -> Specialization | None:
        """Compile for more sizes than these; None where that cannot be done."""
        arguments = casts.arguments
        tensors, numbers = arguments.tensors, self._given(arguments)
        roots = [root_of(tensor) for tensor in tensors]
        wrappers = tuple(zip(arguments.wrappers, arguments.metas, strict=True))
        sizes = dict.fromkeys((config.settings().traced_size, None))
        constants = [casts.constant(self._module_constant(arguments))]
        nested = {i for meta in arguments.metas if has_nested_ints(meta.size) for i in meta.positions}
        if nested:  # whose names may turn out to be multiplied by what other tensors have for sizes
            others = frozenset(range(len(tensors))) - nested
            constants.append(replace(constants[0], tensors=constants[0].tensors | others))
        for constant, traced in itertools.product(constants, sizes):
            try:
                symbols = SymbolicSizes(tensors, roots, numbers, constant, traced, wrappers)
                specialization = self._specialize(casts, spec, inference, symbols, ahead)
            except (CastsDiffer, NumberAsked):
                raise
            except Exception as error:  # (What the function raises itself, it raises once more.)
                reason = f"{self.__name__}: each size for itself, {type(error).__name__}"
                logs.log(logs.GUARDS, reason, error.__str__)
                continue
            assert specialization.sizes is not None
            if specialization.changes.once or specialization.sizes.hold(
                *arguments.tensors_and_subclasses, *numbers.values()
            ):
                return specialization
            self._general[general] = (specialization, *self._general.get(general, ()))
        self._static_only.add(general)
        return None

    def _known_specialization(
        self, key: object, arguments: Arguments
    ) -> tuple[Specialization, tuple[torch.Tensor, ...]] | None:
        """What answers a call, and the tensors that it takes."""
        for specialization in self._cache.get(key, ()):
            if specialization.holds():
                tensors = specialization.given(arguments)
                if tensors is not None:
                    return specialization, tensors
        return None

    def _remember_specialization(
        self, key: Key, arguments: Arguments, specialization: Specialization
    ) -> Specialization:
        numbers = tuple(self._given(arguments).values())
        reason = recompile_reason(
            key, len(arguments.leaves), arguments.tensors_and_subclasses, numbers, self._before
        )
        specialization = replace(specialization, why=reason)
        self._specializations.append(specialization)
        alike = self._cache.get(key, ())
        if specialization.changes.once:
            self._once += 1
            if self._once == config.settings().warn_after:
                warn_of_compiles_for_each_call(self.__name__, self._once, specialization)
        else:
            self._before.append((key, specialization.guards, specialization.sizes))
            self._cache[key] = (specialization, *alike)
        logs.log(
            logs.GUARDS,
            f"{self.__name__}: specialization {len(self._specializations)}",
            lambda: describe_guards(specialization, alike),
        )
        if len(alike) + 1 == config.settings().warn_after:
            warn_of_what_changes(self.__name__, len(alike) + 1, alike)
        return specialization

    def _specialize(
        self,
        casts: CastInputs,
        spec: pytree.TreeSpec,
        inference: bool,
        symbols: SymbolicSizes | None,
        ahead: bool,
    ) -> Specialization:
        """Compile for such a call; `ahead` of it, or to make it."""
        if function_transforms.is_transforming():
            raise errors.UnsupportedOperation(
                f"{self.__name__} is to be compiled inside of a torch.func transform; compile it before"
            )
        arguments = casts.arguments

        def flat(leaves: list[Any]) -> Any:
            args, kwargs = pytree.tree_unflatten(leaves[: spec.num_leaves], spec)
            with refusing_container_changes((args, kwargs)), function_modes.modes_restored():
                return self.__wrapped__(*args, **kwargs)

        lifetimes = EscapeCheck()
        noted = GuardTracker(
            self.__wrapped__, *function_modes.modes_aside(), runs=True, in_places=self._in_places
        )
        noted.follow_attributes(arguments.tensors_and_subclasses)
        self._attributes |= noted.attribute_names
        plain = self._attributes.none_of(arguments.tensors_and_subclasses)
        slot = self._module_cache_entry(casts, spec, inference, symbols) if plain else None
        blueprint = None if slot is None else slot.read()
        if slot is not None and blueprint is not None:
            try:
                return self._specialization_from_cache(blueprint, flat, casts, noted.guards, slot)
            except Exception as error:  # a compiler's, which raises it below as well, or the entry is wrong
                slot.discard(error)
        torch_fakes.preload()
        try:
            specialization = noted.track_within_context(
                self._trace_function, flat, casts, lifetimes, noted, inference, symbols, slot
            )
            noted.reachable_objects.restore_module_caches()
            if specialization.backwards:  # Second derivatives are recorded from the trace, which lives on.
                lifetimes.refuse_stored_escapes(noted.reachable_objects.find_stored)
            else:  # the trace is gone: `TraceSession.release_all`
                lifetimes.refuse_escapes(noted.reachable_objects.find_stored)
        except BaseException:
            noted.reachable_objects.restore_module_caches()
            if noted.changes.once:  # and so have stayed
                noted.undo_tracked_changes()
            lifetimes.poison()
            raise
        self._attributes |= noted.attribute_names
        if ahead and noted.changes.once:
            noted.undo_tracked_changes()
            raise errors.ClosureMutation(
                f"{self.__name__} changes {', '.join(noted.changes.once)} in a way that no compiled call can "
                f"repeat (an object is made anew, an iterator moves on): it can be compiled for each call, "
                f"and not ahead of one"
            )
        return specialization

    def _trace_function(
        self,
        flat: Callable[[list[Any]], Any],
        casts: CastInputs,
        lifetimes: EscapeCheck,
        noted: GuardTracker,
        inference: bool,
        symbols: SymbolicSizes | None,
        slot: CacheEntry | None,
    ) -> Specialization:
        arguments = casts.arguments
        grad = torch.is_grad_enabled()
        try:
            recorded = self._record_function(flat, casts, lifetimes, noted, inference, symbols)
            blueprint, recorder = recorded.blueprint, recorded.forward.recorder
            general, symbols = symbols is not None, recorder.symbols
            changes = noted.changes, noted.changes_of_backward
            keeps = slot is not None and not any(one.effects or one.once for one in changes)
            packed = slot.encode(blueprint, recorded.order) if slot is not None and keeps else None
            graph = lift_symbols_to_inputs(blueprint.forward, symbols, forward=True)
            compiled = self._compile_forward(graph.module, blueprint)
            # (The compiler may assume more.)
            sizes = symbols.shape_guards() if general and symbols is not None else None
            if any(blueprint.backwards):
                recorder.release_trace()
            else:
                recorder.release_all()
            scripts = (self.__wrapped__,) if recorded.python_callbacks is None else recorded.python_callbacks
            look = self._module_backward_guards(scripts, tuple(noted.roots[1:]) if scripts else ())
        finally:
            torch.set_grad_enabled(grad)
            self._traced()
        levels = [None if level is None else functools.partial(_same, level) for level in recorded.levels]
        built = build(
            blueprint.plan,
            compiled,
            graph.taken,
            blueprint.backwards,
            levels,
            self._bw_compiler,
            look=look,
            symbols=symbols,
            following=noted.changes_of_backward.with_side_effects,
        )
        dry_run(built, blueprint.forward, arguments, recorded.expected, inference, symbols)
        if any(blueprint.backwards):
            lifetimes.track_references(recorded.references())
        if slot is not None and packed is not None:
            slot.write(packed)
        if symbols is not None:
            symbols.let_go()
        if recorded.order is not None:
            built = replace(built, call=recorded.order.kept(built.call))
        call = with_value_checks(built.call, graph.module.graph, recorder.handlers.found.values())
        built = replace(built, call=call)
        return self._make_specialization(
            blueprint, built, graph.module, noted.guards, symbols, sizes, casts, noted.changes
        )

    def _record_function(
        self,
        flat: Callable[[list[Any]], Any],
        casts: CastInputs,
        lifetimes: EscapeCheck,
        noted: GuardTracker,
        inference: bool,
        symbols: SymbolicSizes | None,
    ) -> Lowering:
        arguments = casts.arguments
        options = CompileOptions(
            self._decompositions,
            self._keep,
            self._functionalize_rng,
            self._partition,
            self.__name__,
            self.seeds,
            casts.candidates,
            functools.partial(self._title, arguments),
            self._redirections,
        )
        static = self._static(arguments)
        static |= casts.of(static)
        running = self._recording_module()
        with front_end_running(getattr(self, "module", self.__wrapped__)):
            return lower(flat, arguments, lifetimes, noted, running, inference, symbols, static, options)

    def _specialization_from_cache(
        self,
        blueprint: Lowered,
        flat: Callable[[list[Any]], Any],
        casts: CastInputs,
        guards: Guards,
        slot: CacheEntry,
    ) -> Specialization:
        """What a compile of another time has left, put to use."""
        graphs = blueprint.backwards
        graph_names.assign_compile_id(blueprint.forward, *graphs)
        compiled = self._compile_forward(blueprint.forward, blueprint)
        levels: list[Callable[[], RetracePoint] | None] = [None] * len(graphs)
        if any(blueprint.again):
            again = self._function_retracer(
                flat, replace(casts, arguments=with_fake_tensors(casts.arguments)), slot
            )
            levels = [
                functools.partial(again, k) if is_so else None for k, is_so in enumerate(blueprint.again)
            ]
        look = self._module_backward_guards((), ())
        built = build(blueprint.plan, compiled, (), graphs, levels, self._bw_compiler, look, None)
        return self._make_specialization(blueprint, built, blueprint.forward, guards, None, None, casts)

    def _function_retracer(
        self, flat: Callable[[list[Any]], Any], casts: CastInputs, slot: CacheEntry
    ) -> Callable[[int], RetracePoint]:
        """What records, when it is first asked, the trace that a call like this one has left when it was
        compiled: for backwards that are recorded again, from the level of that number.

        Raises:
            DoubleBackwardUnsupported: the function does not do any more what it did.
        """
        ambient = ambient_state.snapshot()
        levels: list[RetracePoint | None] = []

        def again(number: int) -> RetracePoint:
            with trace_lock():
                if not levels:
                    lifetimes = EscapeCheck()
                    noted = GuardTracker(self.__wrapped__, runs=True, in_places=self._in_places)
                    try:
                        with ambient(), autograd_state.plain_autograd():
                            recorded = self._record_function(flat, casts, lifetimes, noted, False, None)
                    finally:
                        self._traced()
                        noted.reachable_objects.restore_module_caches()
                        lifetimes.poison()
                    if not slot.matches(recorded.blueprint):
                        raise errors.DoubleBackwardUnsupported(
                            f"{self.__name__} was compiled in another process, to other graphs than now that "
                            f"its backward has to be recorded again; clear the cache (python -m aot.cache "
                            f"clear)"
                        )
                    recorded.forward.recorder.release_trace()
                    levels.extend(recorded.levels)
                level = levels[number]
            assert level is not None
            return level

        return again

    def _make_specialization(
        self,
        blueprint: Lowered,
        built: CompiledWrapper,
        forward: fx.GraphModule,
        guards: Guards,
        symbols: SymbolicSizes | None,
        sizes: ShapeGuards | None,
        casts: CastInputs,
        changes: SideEffects = NO_SIDE_EFFECTS,
    ) -> Specialization:
        graphs = tuple(
            lift_symbols_to_inputs(b, symbols).module for b in blueprint.backwards if b is not None
        )
        call = built.call
        if blueprint.grad_targets:
            call = with_outer_graph_check(call, blueprint.grad_targets)
        if config.settings().debug_assert:
            call = with_call_assertions(call, blueprint.metadata, self.__name__)
        use = blueprint.casts
        given = CallCasts(casts, use, symbols is not None) if use.made or casts.candidates else None
        call = call if given is None else given.making(call)
        return Specialization(
            changes.with_side_effects(call),
            blueprint.spec,
            pytree.unflatten_function(blueprint.spec),
            forward,
            graphs,
            built.source,
            blueprint.metadata,
            guards,
            sizes,
            () if symbols is None else tuple(symbols.numbers),
            PlacementSensitivity.FULL if config.settings().debug_assert else blueprint.plan.placement,
            changes=changes,
            attributes=self._attributes,
            computes_sizes=has_data_numbers(forward.graph),
            casts=given,
            region=autocast_state.cast_cache_key() if use.asks else None,
            plan=blueprint.plan,
        )

    def _module_cache_entry(
        self, casts: CastInputs, spec: pytree.TreeSpec, inference: bool, symbols: SymbolicSizes | None
    ) -> CacheEntry | None:
        """The place of such a call's compile in the cache on disk; None where it has none."""
        return None

    def _tensors_taken(
        self, specialization: Specialization, arguments: Arguments
    ) -> tuple[torch.Tensor, ...]:
        """What a compile takes for a call that it was made for.

        Raises:
            AutocastCacheUnsupported: the call's casts are others than when it was compiled.
        """
        tensors = specialization.given(arguments)
        if tensors is not None:
            return tensors
        casts = specialization.casts
        kept = [] if casts is None else casts.kept(arguments.tensors_and_subclasses)
        names = " and ".join(self._title(arguments, number) for number in kept) or "a tensor"
        raise errors.AutocastCacheUnsupported(
            f"autocast keeps a cast of {names} (of a tensor subclass, or made by another thread meanwhile), "
            f"which {self.__name__} cannot take; leave the region of autocast after each step, or enter it "
            f"with cache_enabled=False"
        )

    def _casting(self, arguments: Arguments, inference: bool) -> CastInputs:
        """A call, with the casts that it may take as further arguments."""
        return find_cast_inputs(arguments, inference)

    def _title(self, arguments: Arguments, number: int) -> str:
        """What a message calls a tensor of a call."""
        return f"tensor {number} (counting tensors)"

    def _traced(self) -> None:
        """A trace is over."""

    def _recording_module(self) -> contextlib.AbstractContextManager[None]:
        """What the function and its backward run in while they are recorded."""
        return contextlib.nullcontext()

    def _module_backward_guards(
        self, scripts: tuple[Any, ...], modules: tuple[Any, ...]
    ) -> Callable[[], GuardTracker]:
        """What tells, at a backward, what its Python reads: of `scripts`, and `modules` that they got."""
        return lambda: GuardTracker(*scripts, *modules)

    @property
    def _in_places(self) -> Callable[[], Iterable[tuple[Any, Any]]] | None:
        """What tells where tensors of the trace stand for the caller's; None where none do."""
        return None

    def _static(self, arguments: Arguments) -> frozenset[int]:
        """The tensors that the caller says are parameters or buffers: they live until the backward whatever
        is saved, lie in one place from call to call, and their sizes are no symbols."""
        leading = arguments.leaves[: self._num_params_buffers]
        return arguments.inner_indices(i for i, _ in leading if i is not None)

    def _compile_forward(self, module: fx.GraphModule, blueprint: Lowered) -> Compiled:
        if blueprint.plan.parts:
            return compile_graph(self._fw_compiler, module, "forward")
        return compile_graph(self._inference_compiler, module, "inference")


def _same(level: RetracePoint) -> RetracePoint:
    return level


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partitioner | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    functionalize_rng_ops: bool = False,
    dynamic: bool = False,
    on_unsupported: config.OnUnsupported | None = None,
) -> CompiledFunction:
    """Compile `fn` ahead of time: forward and backward become functional ATen graphs, handed to compilers.

    The user's Python runs once per kind of call (shapes, dtypes, strides, aliasing, ``requires_grad``,
    grad mode, Python scalars, what `fn` reads from its closure, globals and objects, ...); a later call
    of a known kind runs compiled code only, so what it prints is printed once. What it changes of the program
    around it (attributes, variables, containers) is changed at each call.
    Everything else is as in eager: input mutations, aliasing outputs, gradients, randomness.

    Args:
        fn: takes tensors, numbers, strings, None and containers of them, and returns the like.
        fw_compiler: ``(fx.GraphModule, example_inputs) -> callable`` for forward graphs.
        bw_compiler: the same for backward graphs, called on the first backward; default `fw_compiler`.
        partition_fn: ``(joint_module, joint_inputs, *, num_fwd_outputs) -> (forward, backward)``;
            default `aot.default_partition`. One that takes ``static_lifetime_input_indices`` is given them.
        decompositions: operation -> function that computes it by others, e.g. ``torch._decomp``'s.
        num_params_buffers: how many leading arguments (leaves of the argument tree) are parameters and
            buffers: they live on anyway, so that saving them for backward costs no memory. Leaves that
            require grad are known to.
        keep_inference_input_mutations: a graph without a backward writes new data of an argument to its input
            itself, by ``copy_`` at its end, and does not return it; the wrapper does what is not simply that.
        inference_compiler: for graphs without a backward; default `fw_compiler`.
        functionalize_rng_ops: the states of random generators are inputs and results of the forward graph,
            and draws are operations that take one state and return the next (``torch.ops.aot_rng``). With the
            same inputs the graph gives the same numbers, and a partitioner may have the backward repeat a
            draw instead of saving what it gave. A state is a tensor on the CPU: uint8 of shape (5056,) for
            the CPU's generator, int64 of shape (2,), seed and offset, for that of a CUDA device. While such a
            graph runs no other thread is to draw from these generators, but by another such graph: they wait
            for each other.
        dynamic: whether one compile may answer calls of several sizes. Sizes of tensors are then symbols
            while `fn` is traced (``torch.SymInt``), but for 0 and 1, those of parameters and buffers, and
            those marked by ``torch._dynamo.mark_static``; what `fn` asks of them is asked of later calls. A
            graph takes the symbols that it has before its other inputs, as ints. What cannot be
            traced with symbols is compiled for each size, which the logger ``aot.guards`` tells. If False,
            dimensions that are marked by ``torch._dynamo.mark_dynamic`` are treated so, and no others.
        on_unsupported: what becomes of a call that is refused. ``"raise"``: an `Unsupported` is raised.
            ``"eager"``: `fn` itself answers the call, with one `FallbackWarning` for the first of them;
            calls of that kind are not traced again, whatever else changes. By default
            ``config.settings().on_unsupported`` says it, or else ``"raise"``. What a backward refuses is
            raised in any case.

    Raises:
        Unsupported: when called, see `aot.errors`, before anything is changed; here, for what is no compiler.

    Example:
        >>> import torch, aot
        >>> def f(x, y):
        ...     x.mul_(2)
        ...     return x.view(-1), x * y
        >>> compiled = aot.aot_function(f, fw_compiler=aot.nop)
        >>> x = torch.ones(2, 2)
        >>> flat, product = compiled(x, torch.ones(2, 2, requires_grad=True))
        >>> x[0, 0].item(), flat.data_ptr() == x.data_ptr(), product.requires_grad
        (2.0, True, True)
    """
    return CompiledFunction(
        fn,
        fw_compiler,
        bw_compiler or fw_compiler,
        inference_compiler or fw_compiler,
        partition_fn or default_partition,
        decompositions or {},
        num_params_buffers,
        keep_inference_input_mutations,
        functionalize_rng_ops,
        dynamic,
        on_unsupported,
    )
