"""`aot_module`: compile a module; its tensors become arguments of what is compiled.

So parameters, buffers and others are read at each call, and what the module writes to them is written to
them. While the module is traced their stand-ins are in their places, where all of its code finds them: hooks,
submodules, and what a backward runs again (`torch.utils.checkpoint`).
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from aot import cache, config, errors
from aot.backends.compilers import Compiler
from aot.capture.cast_inputs import CastInputs
from aot.frontends.function import CompiledFunction, Partitioner, Specialization, runs_uncompiled
from aot.guards.tracker import GuardTracker
from aot.partition.default import default_partition
from aot.specialize.call import Arguments, are_leaves
from aot.specialize.inline_cache import with_inline_cache
from aot.specialize.module_state import (
    Place,
    module_state_leaves,
    module_state_restorer,
    registered_state_slots,
    state_slots,
    store_results,
)
from aot.tensors.subclasses import is_nested_int
from aot.tensors.symbolic_sizes import StaticSizes, SymbolicSizes, has_symbols
from aot.torch_internals import dynamo_api, pytree, torch_fakes

# Examples that a front end gives before the arguments are there.
_UNKNOWN = (torch_fakes.FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)


class CompiledModule(CompiledFunction):
    """The function that a module is, compiled: of its state, and of the arguments of a call.

    Attributes:
        call_positional: calls the module with positional arguments.
    """

    def __init__(self, module: nn.Module, *options: Any) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise errors.UnsupportedArgument(
                "the module is a ScriptModule, whose code is no Python code; compile the module that it was "
                "made from"
            )

        def lifted(state: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._functional_call(module, state, args, kwargs)  # the guards look at what is named here

        lifted.__name__ = type(module).__name__  # as messages have it
        super().__init__(lifted, *options)
        self._made_of = (module, *options)
        self.__name__ = type(module).__name__
        self.__doc__ = module.__doc__
        self.module = module
        self.call_positional = with_inline_cache(
            self._inline_cache, self._run, self._note_refusal, self.module
        )
        self._static_inputs = _marked_static(module)
        self._symbolic = _symbolic_input_sizes(module)
        count = self._num_params_buffers
        self._numbers = tuple(count + i for i, sizes in enumerate(self._symbolic) if sizes is None)
        self._as_the_graph_says = not self._dynamic and any(s is None or any(s) for s in self._symbolic)
        self._dynamic |= self._as_the_graph_says
        self._swapping = threading.Lock()
        self._stand_ins: tuple[tuple[Place, Any], ...] = ()  # in this trace
        self._left: tuple[tuple[Place, Any], ...] = ()  # what a backward finds in the places
        self._tracer: int | None = None  # the thread that traces
        self._caller_tensors: dict[tuple[int, str], Tensor] = {}  # what is in the places otherwise

    def released_call(self) -> Callable[..., Any]:
        """`call_positional`, to be called in no other way. All goes with it, also while Python's garbage
        collector is off: a graph of Dynamo's may hold parameters and the state of an optimizer."""
        call: Callable[..., Any] = vars(self).pop("call_positional")
        weakref.finalize(call, self._release)
        return call

    def _release(self) -> None:
        """Let go of what refers to itself."""
        del self.__wrapped__
        if isinstance(self.module, fx.GraphModule):
            self.module.graph.owning_module = None

    @dynamo_api.skip
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module."""
        if not kwargs:
            return self.call_positional(*args)
        try:
            return self._run(*args, **kwargs)
        except errors.Unsupported as refusal:
            self._note_refusal(refusal)
        return self.module(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if runs_uncompiled():
            return self.module(*args, **kwargs)
        places = state_slots(self.module)
        return store_results(places, self._dispatch((self._state(places), args, kwargs), {}))

    def _is_transformed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        # (Fake parameters beside other arguments are refused by name.)
        return torch_fakes.are_given(args[1]) or super()._is_transformed(args, kwargs)

    def _flattened(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], Hashable, bool]:
        state, given, named = args
        if not named and are_leaves(given):
            return (*state, *given), (len(state), len(given)), True
        return super()._flattened(args, kwargs)

    def _note_module_tensors(
        self, tree: Hashable, flat: bool, arguments: Arguments, specialization: Specialization
    ) -> None:
        if not flat:
            super()._note_module_tensors(tree, flat, arguments, specialization)
            return
        places, state = state_slots(self.module), module_state_leaves(self.module)
        if state is None or tree != (len(places), len(arguments.leaves) - len(state.leaves)):
            return
        # (While a module is traced, stand-ins are in its places. No test passes for these, except on the
        # device meta, where nothing tells them from other tensors.)
        if any(tensor.is_meta for tensor in arguments.tensors):
            return
        spec = specialization.spec
        result, values = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
        together = pytree.unflatten_function(pytree.tree_flatten(result)[1])
        if values:

            def together(flat: list[Any]) -> Any:
                return store_results(places, specialization.unflatten(flat))

        answer = replace(specialization.as_answer, unflatten=None if together is list else together)
        self._inline_cache.note(tree, flat, arguments, answer, state)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Specialization:
        """Compile for a call with such arguments, without making it."""
        return self.specialize((self._state(state_slots(self.module)), args, kwargs), {})

    def _static(self, arguments: Arguments) -> frozenset[int]:
        given = arguments.leaves[self._num_params_buffers :]
        marked = (given[position][0] for position in self._static_inputs)
        return super()._static(arguments) | arguments.inner_indices(i for i in marked if i is not None)

    def _module_constant(self, arguments: Arguments) -> StaticSizes:
        constant = super()._module_constant(arguments)
        if not self._as_the_graph_says:
            return constant
        given = arguments.leaves[self._num_params_buffers :]  # and then casts
        sizes = zip(given[: len(self._symbolic)], self._symbolic, strict=True)
        return replace(
            constant,
            dimensions=frozenset(
                (tensor, d)
                for (tensor, _), symbolic in sizes
                if tensor is not None and symbolic
                for d, is_symbolic in enumerate(symbolic)
                if not is_symbolic
            ),
        )

    def _state(self, places: Sequence[Place]) -> list[Any]:
        with self._swapping:
            if self._tracer in (None, threading.get_ident()):
                return [owner[name] for owner, name in places]
            return [self._caller_tensors.get((id(owner), name), owner[name]) for owner, name in places]

    def _functional_call(
        self, module: nn.Module, state: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The module's result, and what it puts into the places of its state, by their numbers."""
        places = state_slots(module)
        self._stand_ins = tuple(zip(places, state, strict=True))
        self._swap(self._stand_ins)
        result = module(*args, **kwargs)
        now = state_slots(module)
        if [(id(owner), name) for owner, name in now] != [(id(owner), name) for owner, name in places]:
            raise errors.ClosureMutation(
                f"{self.__name__} gets parameters, buffers or other tensors when it is called, or loses "
                f"some; call it once before it is compiled, if it only does so then, or return them"
            )
        values = [owner[name] for owner, name in places]
        self._left = tuple(zip(places, values, strict=True))
        return result, {i: value for i, value in enumerate(values) if value is not state[i]}

    @property
    def _in_places(self) -> Callable[[], Iterable[Place]]:
        return lambda: [place for place, _ in self._left]

    def _title(self, arguments: Arguments, number: int) -> str:
        places = state_slots(self.module)
        for (owner, name), (tensor, _) in zip(places, arguments.leaves, strict=False):
            if tensor == number:
                parents = (p for p, one in self.module.named_modules() if owner is one._parameters)
                return f"the parameter {'.'.join(filter(None, (next(parents, ''), name)))}"
        return super()._title(arguments, number)

    def _traced(self) -> None:
        self._stand_ins = ()

    def _module_cache_entry(
        self, casts: CastInputs, spec: pytree.TreeSpec, inference: bool, symbols: SymbolicSizes | None
    ) -> cache.CacheEntry | None:
        folder = cache.configured_store()
        if folder is None or not isinstance(self.module, fx.GraphModule):
            return None
        options = cache.Options(
            partition=self._partition,
            decompositions=self._decompositions,
            keep_input_mutations=self._keep,
            functionalize_rng=self._functionalize_rng,
            static=self._static(casts.arguments),
            inference=inference,
            dynamic=symbols is not None,
            candidates=casts.candidates,
        )
        return cache.entry_of(folder, self.module, state_slots(self.module), casts.arguments, spec, options)

    def _module_backward_guards(
        self, scripts: tuple[Any, ...], modules: tuple[Any, ...]
    ) -> Callable[[], GuardTracker]:
        if not scripts:
            return super()._module_backward_guards(scripts, modules)
        stand_ins = self._stand_ins

        @contextlib.contextmanager
        def recording() -> Iterator[None]:
            with self._recording_module(tuple(place for place, _ in stand_ins)):
                self._swap(stand_ins)
                self._left = stand_ins
                yield

        return lambda: _ModuleGuardTracker(recording, *scripts, *modules)

    def _swap(self, state: Sequence[tuple[Place, Any]]) -> None:
        with self._swapping:
            for (owner, name), value in state:
                owner[name] = value

    @contextlib.contextmanager
    def _recording_module(self, places: Sequence[Place] = ()) -> Iterator[None]:
        """When this is over, its tensors are what they were, also those in `places` that it had before;
        meanwhile other threads' calls find them here."""
        put_back = module_state_restorer(self.module, places)
        outer = self._tracer, self._caller_tensors, self._left
        self._left = ()
        with self._swapping:
            self._tracer = threading.get_ident()
            self._caller_tensors = {
                (id(owner), name): owner[name] for owner, name in state_slots(self.module)
            }
        try:
            yield
            self._check_module_left()
        finally:
            with self._swapping:
                put_back()
                self._tracer, self._caller_tensors, self._left = outer

    def _check_module_left(self) -> None:
        """A backward that has been recorded leaves the module as it was."""
        if not self._left:
            return
        now = {(id(owner), name): owner[name] for owner, name in state_slots(self.module)}
        left = {(id(owner), name): value for (owner, name), value in self._left}
        if now.keys() != left.keys() or any(now[place] is not value for place, value in left.items()):
            raise errors.ClosureMutation(
                f"a backward of {self.__name__} (a hook, or what torch.utils.checkpoint runs again) puts "
                f"another tensor into a parameter, buffer or attribute; do it in a hook on a result, outside"
            )


class _ModuleGuardTracker(GuardTracker):
    """What a backward reads that is recorded again, with stand-ins in the module."""

    def __init__(self, recording: Callable[[], contextlib.AbstractContextManager[None]], *roots: Any) -> None:
        super().__init__(*roots)
        self._recording = recording

    @contextlib.contextmanager
    def tracking_run(self, again: bool = False) -> Iterator[None]:
        with super().tracking_run(again), self._recording():
            yield


def _marked_static(module: nn.Module) -> tuple[int, ...]:
    """The input leaves of a graph of Dynamo's that it has marked as parameters and buffers (or the user, with
    `torch._dynamo.mark_static_address`): it hands these over as arguments."""
    inputs = (node for node, example in _inputs(module) for _ in _leaves_of(example))
    return tuple(i for i, node in enumerate(inputs) if dynamo_api.is_static_input(node))


def _symbolic_input_sizes(module: nn.Module) -> tuple[tuple[bool, ...] | None, ...]:
    """For each input leaf of a front end's graph, which of its sizes are symbols there; None where it is a
    number that is one."""
    return tuple(
        None
        if isinstance(leaf, torch.SymInt)
        else tuple(has_symbols(n) and not is_nested_int(n) for n in leaf.shape)
        if isinstance(leaf, Tensor)
        else ()
        for _, example in _inputs(module)
        for leaf in _leaves_of(example)
    )


def _inputs(module: nn.Module) -> Iterator[tuple[fx.Node, Any]]:
    """Yield the inputs of a front end's graph, each with its example."""
    if isinstance(module, fx.GraphModule):
        for node in module.graph.find_nodes(op="placeholder"):
            yield node, node.meta.get("example_value", node.meta.get("val"))


def _leaves_of(example: Any) -> list[Any]:
    """The leaves of an input: several where it is a list, as in the graphs of compiled autograd."""
    return pytree.tree_flatten(example)[0] if isinstance(example, (list, tuple, dict)) else [example]


class AOTModule(nn.Module):
    """A compiled module; call it as the original.

    Attributes:
        orig_module: the original, whose parameters and buffers are read and written.
        compiled: what it is compiled to; `aot.explain` takes it.
    """

    def __init__(self, module: nn.Module, compiled: CompiledModule) -> None:
        super().__init__()
        self.orig_module = module
        self.compiled = compiled

    @dynamo_api.skip
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original returns."""
        return self.compiled.run(args, kwargs)


def aot_module(
    mod: nn.Module,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partitioner | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    functionalize_rng_ops: bool = False,
    dynamic: bool = False,
    on_unsupported: config.OnUnsupported | None = None,
) -> AOTModule:
    """Compile a module ahead of time, as `aot_function` does a function.

    Parameters and buffers (those that are tied once) are arguments of the graphs, first of all, then tensors
    that other attributes are, or lists and dicts there hold; `mod` keeps them, trains with them, and has
    what its code writes to them, or puts in their places. Training mode, hooks and attributes are those of
    the call.

    Args:
        mod: takes and returns tensors, numbers, strings, None and containers of them.
        fw_compiler, bw_compiler, partition_fn, decompositions, keep_inference_input_mutations,
            inference_compiler, functionalize_rng_ops, dynamic, on_unsupported: see `aot_function`. The
            sizes of parameters and buffers are never symbols.

    Raises:
        UnsupportedArgument: `mod` is a ScriptModule.
        Unsupported: when called, see `aot.errors`; nothing has been changed by then.

    Example:
        >>> import torch, aot
        >>> layer = torch.nn.BatchNorm1d(2)
        >>> compiled = aot.aot_module(layer, aot.nop)
        >>> compiled(torch.ones(3, 2)).sum().backward()
        >>> layer.num_batches_tracked.item(), layer.bias.grad.tolist()
        (1, [3.0, 3.0])
    """
    compiled = CompiledModule(
        mod,
        fw_compiler,
        bw_compiler or fw_compiler,
        inference_compiler or fw_compiler,
        partition_fn or default_partition,
        decompositions or {},
        len(registered_state_slots(mod)),
        keep_inference_input_mutations,
        functionalize_rng_ops,
        dynamic,
        on_unsupported,
    )
    return AOTModule(mod, compiled)


def _check_state_is_real(module: nn.Module) -> None:
    """Refuse a module whose parameters or buffers have no values, by their names.

    Raises:
        UnsupportedArgument: some are fake tensors.
    """
    state = (*module.named_parameters(), *module.named_buffers())
    fakes = [name for name, tensor in state if isinstance(tensor, torch_fakes.FakeTensor)]
    if fakes:
        raise errors.UnsupportedArgument(
            f"parameters and buffers of {type(module).__name__} that are fake tensors, made under a "
            f"FakeTensorMode: {', '.join(fakes)}. They have no values to compute with; make the module "
            f"outside of that mode, or give the graph inputs in their place"
        )


def aot_module_simplified(
    mod: nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partitioner | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    functionalize_rng_ops: bool = False,
    dynamic: bool = False,
    on_unsupported: config.OnUnsupported | None = None,
) -> Callable[..., Any]:
    """The same for front ends that make graphs: positional arguments, compiled at once.

    Args:
        mod: what the front end has made, usually an `fx.GraphModule`.
        args: example arguments. It is compiled for these, unless there are fake tensors or symbols
            among them: then at the first call, for that one's. Calls of other kinds are compiled as they
            come.

    Returns:
        A function of the same positional arguments, which returns what `mod` returns. It has `mod`'s
        ``zero_grad``, ``named_parameters`` and ``named_buffers``, and is compiled to its ``compiled``.

    Raises:
        UnsupportedArgument: a parameter or buffer is a fake tensor.
        Unsupported: as `aot_function`, here already where it is compiled here. With
            ``on_unsupported="eager"`` the function is returned all the same, and runs as `mod` does.

    Example:
        >>> import torch, aot
        >>> graph = torch.fx.symbolic_trace(torch.nn.Linear(2, 1))
        >>> forward = aot.aot_module_simplified(graph, [torch.ones(3, 2)], aot.nop)
        >>> forward(torch.ones(3, 2)).shape
        torch.Size([3, 1])
    """
    _check_state_is_real(mod)
    compiled = aot_module(
        mod,
        fw_compiler,
        bw_compiler,
        partition_fn,
        decompositions,
        keep_inference_input_mutations,
        inference_compiler,
        functionalize_rng_ops=functionalize_rng_ops,
        dynamic=dynamic,
        on_unsupported=on_unsupported,
    ).compiled
    if not any(isinstance(arg, _UNKNOWN) for arg in args):
        try:
            compiled.prepare(tuple(args), {})
        except errors.Unsupported:
            if not compiled.fallback.is_on:
                raise

    forward = compiled.call_positional
    attributes = ("zero_grad", "named_parameters", "named_buffers")
    vars(forward).update({name: getattr(mod, name) for name in attributes}, compiled=compiled)
    return forward
