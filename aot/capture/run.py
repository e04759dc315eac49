"""The one run of the user's function.

In: a function of flat arguments and the call's `Arguments`. Out: a `Traced`, everything that the run left
behind: the recorder with its graph, the fakes of the arguments as they are now, and the outputs.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

import aot.capture.control_flow.higher_order  # noqa: F401  (what operators that take functions do in a trace)
from aot import errors
from aot.capture.inputs import FakeInputs, make_graph_inputs
from aot.capture.intercept.inner_gradients import check_outer_graph
from aot.capture.intercept.patches import hook_patch_reporting
from aot.capture.memory.storage import Storage
from aot.capture.recorder.autocast_cache import Candidate, CastCache, CastsDiffer, CastUse
from aot.capture.recorder.escapes import EscapeCheck
from aot.capture.recorder.recorder import Recorder
from aot.capture.subclass_inputs import FakeSubclassInput
from aot.capture.trace_result import Primal
from aot.capture.trace_text import trace_text
from aot.guards.dynamic_code import dynamic_code_refused
from aot.guards.process_settings import (
    DISPATCH_MODES,
    changed_settings,
    read_settings,
    restore_process_settings,
)
from aot.specialize.call import Arguments
from aot.tensors.fake_tensors import check_base_relations, check_view_histories
from aot.tensors.jagged_views import as_jagged_view
from aot.tensors.subclasses import (
    PlainTensorMeta,
    SubclassCreationMeta,
    flatten_subclass,
    is_wrapper,
    subclass_context_key,
    unflatten_subclass,
)
from aot.tensors.symbolic_sizes import SYMBOLIC, SymbolicSizes, with_hints
from aot.tensors.tensor_attributes import FakeAttributes, check_attributes, give_attributes
from aot.tensors.views import as_strided_view, physical
from aot.torch_internals import (
    autograd_graph,
    dispatcher,
    mode_stacks,
    plain_fakes,
    pytree,
    symbolic_shapes,
    tensor_impl,
)


@dataclass(frozen=True, slots=True)
class Traced:
    """What one run of the function left behind.

    Attributes:
        primals: the graph inputs so far, in order.
        outputs: the flat outputs, fakes and constants.
        spec: the outputs' tree.
        grad_after: whether grad mode was on when the function returned.
        grad_targets: the tensors of the call that the function has taken gradients with respect to.
        nodes: the sequence number of the first node of the autograd graph that was made after it.
        wrapped: the outputs that are wrapper subclasses, by their positions; `outputs` has None there.
        made: those that the function made, of which these are views, or which they are; and how they are made
            of outputs.
        replaced: what wrapper subclasses among the arguments are made of now: the number of the argument, the
            way to the part by its names, and the output that it is.
        num_user_outputs: how many of the outputs the function has returned; the others are what wrapper
            subclasses are made of.
        casts: what the function does with autocast's cache.
    """

    recorder: Recorder
    entry: FakeInputs
    primals: list[Primal]
    outputs: tuple[Any, ...]
    spec: pytree.TreeSpec
    grad_after: bool
    grad_targets: frozenset[int]
    nodes: int
    wrapped: dict[int, Tensor]
    made: tuple[tuple[Tensor, SubclassCreationMeta], ...]
    replaced: tuple[tuple[int, tuple[str, ...], int], ...]
    num_user_outputs: int
    casts: CastUse

    def storage(self, tensor: Tensor) -> tuple[Storage, int]:
        """The storage that a tensor of the trace lies in, and its size in bytes."""
        state = self.recorder.state(tensor)
        return state, state.nbytes

    def __str__(self) -> str:
        outputs = [self.wrapped.get(position, value) for position, value in enumerate(self.outputs)]
        return trace_text(self.recorder, self.entry, self.primals, outputs)


def trace_function(
    function: Callable[..., Any],
    arguments: Arguments,
    decompositions: dict[Any, Callable[..., Any]],
    lifetimes: EscapeCheck,
    inference: bool,
    functionalize_rng: bool,
    symbols: SymbolicSizes | None = None,
    seeds: bool = True,
    candidates: Sequence[Candidate] = (),
    title: Callable[[int], str] = "tensor {} (counting tensors)".format,
    adopt_symbols: Callable[[Sequence[Primal]], SymbolicSizes] | None = None,
) -> Traced:
    """Run `function` on fakes of the arguments' leaves, in inference mode if `inference`; its random draws
    take and return the generators' states if `functionalize_rng`. `symbols` tells which numbers of the
    arguments are symbols, if some are; `seeds` whether the function may set a generator's state;
    `candidates` which arguments are casts, and `title` what messages call them; `adopt_symbols` makes symbols
    when sizes turn out to depend on values.

    Raises:
        Unsupported: one of the refusals of `aot.errors`.
        CastsDiffer: other casts than the candidates are to be arguments.
        Exception: whatever the function raises, as it raises it.
    """
    recorder = Recorder(decompositions, lifetimes, inference, functionalize_rng, symbols)
    recorder.draws.allows_seeding = seeds
    primals: list[Primal] = []
    entry = make_graph_inputs(recorder, arguments, primals)
    given = entry.tensors_and_subclasses
    leaves = [value if index is None else given[index] for index, value in arguments.leaves]
    if symbols is not None:
        for leaf, number in symbols.numbers.items():
            leaves[leaf] = number
    grad = torch.is_grad_enabled()
    numbers = {id(fake): i for i, fake in enumerate(given)}
    differentiated: set[int] = set()
    attributes = give_attributes(arguments.tensors_and_subclasses, given)
    views = [f for f, t in zip(entry.fakes, arguments.tensors, strict=True) if t._is_view() > f._is_view()]

    recorder.casts = cast_cache = CastCache(recorder.read, given, candidates, title)

    def differentiating(given: Sequence[Any]) -> None:
        differentiated.update(numbers[id(t)] for t in given if id(t) in numbers)
        cast_cache.note_differentiated_casts(differentiated)
        check_outer_graph(arguments.tensors_and_subclasses, differentiated)

    values = functools.partial(input_values, primals, arguments.tensors)
    if symbols is not None:
        symbols.given = values
    elif adopt_symbols is not None:
        recorder.data.adopt = lambda: recorder.adopt_symbols(adopt_symbols(primals))
    try:
        with errors.recording_refusals(), recorder.draws.draws_traced():
            with (
                hook_patch_reporting(
                    recorder.hooks.wrap_hook,
                    lambda _, hook: recorder.hooks.watch_node(hook),
                    differentiating,
                    views,
                ),
                dispatcher.trace_kernels_on(),
                recorder,
                dynamic_code_refused(),
                _inference_mode(inference, grad),
            ):
                with recorder.threads.other_threads_watched(values):
                    settings = read_settings()
                    cast_cache.fill_cast_cache()
                    try:
                        result = function(leaves)
                    except BaseException as error:
                        mode_stacks.set_dispatch_modes(recorder.with_view_mode(settings[DISPATCH_MODES]))
                        _leave_modes(error)
                        cast_cache.check_cached_casts()
                        error.args = with_hints(error.args)  # which the caller reads when the trace has ended
                        raise
                    finally:
                        recorder.casts = None  # which knows the arguments, and the trace may live on
                    modes = recorder.with_view_mode(settings[DISPATCH_MODES])
                    _check_settings_after_run(
                        (*settings[:DISPATCH_MODES], modes, *settings[DISPATCH_MODES + 1 :])
                    )
                    casts = cast_cache.end()
                nodes = autograd_graph.next_sequence_number()
                grad_after = torch.is_grad_enabled()
            recorder.draws.check()
    except (errors.Unsupported, CastsDiffer):
        torch.set_grad_enabled(grad)
        raise
    except symbolic_shapes.GuardOnDataDependentSymNode as error:
        raise errors.DataDependentValue(
            f"the function asks for a size that depends on the values of a tensor "
            f"({str(error).splitlines()[0]}); compute it outside"
        ) from error
    except RuntimeError as error:
        refusal = _refusal_of_run(error)
        if refusal is None:
            raise
        raise refusal from error
    torch.set_grad_enabled(grad)
    check_base_relations(arguments.tensors, entry.fakes)
    check_view_histories(
        arguments.tensors,
        entry.fakes,
        entry.versions,
        entry.edges,
        recorder.journal.views_mutated_in_grad_mode,
    )
    flat, spec = pytree.tree_flatten(result, is_leaf=lambda value: isinstance(value, torch.Size))
    wrapped: dict[int, Tensor] = {}
    for position, value in enumerate(flat):
        if is_wrapper(value):
            wrapped[position], flat[position] = value, None
        else:
            _check_output_of_run(recorder, position, value)
    for position, (fake, before) in enumerate(zip(given, attributes, strict=True)):
        check_attributes(f"argument {position} (counting tensors)", fake, before)
    for position, value in enumerate(flat):
        if isinstance(value, Tensor) and id(value) not in numbers:
            what = f"output {position} (counting the leaves of the output tree)"
            check_attributes(what, value, FakeAttributes())
            if type(value) is not Tensor:
                raise errors.UnsupportedOutput(
                    f"{what} is a {type(value).__name__} that the function makes, and would come back as a "
                    f"plain tensor; make it of the result"
                )
    visible = len(flat)
    made = _flatten_subclass_outputs(recorder, entry, wrapped, flat)
    replaced = _replaced_subclass_parts(recorder, entry, flat)
    recorder.results = tuple(value for value in flat if isinstance(value, Tensor))
    recorder.parts.check_returned_leaf_views(recorder.results)
    return Traced(
        recorder,
        entry,
        primals,
        tuple(flat),
        spec,
        grad_after,
        frozenset(differentiated),
        nodes,
        wrapped,
        made,
        replaced,
        visible,
        casts,
    )


def _refusal_of_run(error: RuntimeError) -> errors.Unsupported | None:
    """What is said instead of an error that a trace has made torch raise; None where eager raises it."""
    said = str(error).splitlines()[0] if str(error) else ""
    if plain_fakes.is_missing_memory_error(error):
        return errors.DataDependentValue(
            f"something that the function calls reads the memory of a tensor ({said}); compute with the "
            f"tensor instead"
        )
    if isinstance(error, NotImplementedError) and said.startswith("Could not run 'aten::"):
        return errors.UnsupportedOperation(
            f"the function calls an operation that torch cannot do without values ({said.split('. ')[0]}); "
            f"compute it outside"
        )
    if said.startswith("Cannot swap t"):
        return errors.StorageMutation(
            "the function swaps tensors (torch.utils.swap_tensors), which others refer to; swap them outside"
        )
    return None


def _check_settings_after_run(before: Sequence[Any]) -> None:
    """Refuse a function that leaves a setting otherwise than it was, and put it back.

    Raises:
        UnsupportedOperation: it does.
    """
    changed = [setting for setting in changed_settings(before) if not setting.followed]
    if changed:
        restore_process_settings(before)
        names = " and ".join(setting.name for setting in changed)
        raise errors.UnsupportedOperation(f"the function leaves {names} changed behind; change that outside")


def _leave_modes(error: BaseException) -> None:
    """Let go of the modes that graphs of Dynamo's have entered (`_enter_inference_mode`), to leave them after
    what has raised: when they go, they put back what was on when they came, and that is this trace."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith("<eval_with_key>"):  # fx's name for what it has generated
            frame.clear()


def _flatten_subclass_outputs(
    recorder: Recorder, entry: FakeInputs, wrapped: dict[int, Tensor], flat: list[Any]
) -> tuple[tuple[Tensor, SubclassCreationMeta], ...]:
    """The wrapper subclasses that outputs are, or are views of, and that the function made; what they are
    made of is appended to the outputs."""
    arguments = {id(one) for wrapper in entry.wrappers for one in (wrapper.fake, *wrapper.inner.values())}
    made: dict[int, tuple[Tensor, SubclassCreationMeta]] = {}
    for position, value in wrapped.items():
        root = recorder.wrapper_views.root(value, arguments)
        if id(root) not in arguments and id(root) not in made:
            meta, plain = as_jagged_view(root, *flatten_subclass(root))
            first = len(flat)
            for part in plain:
                _check_output_of_run(recorder, position, part)
            flat.extend(plain)
            made[id(root)] = root, meta.moved(lambda i, first=first: first + i)  # type: ignore[misc]
    return tuple(made.values())


def _replaced_subclass_parts(
    recorder: Recorder, entry: FakeInputs, flat: list[Any]
) -> tuple[tuple[int, tuple[str, ...], int], ...]:
    """What wrapper subclasses among the arguments are made of now, where that is something else; it is
    appended to the outputs.

    Raises:
        SubclassMutation: they have changed otherwise.
    """
    found: list[tuple[int, tuple[str, ...], int]] = []
    for i, wrapper in enumerate(entry.wrappers):
        fake = wrapper.fake
        changes = recorder.wrapper_views.changes_of(fake)
        if ((tuple(fake.shape), fake.stride()) != wrapper.shown) > bool(changes):
            raise errors.SubclassMutation(
                f"the function changes the shape or strides of an argument of type {type(fake).__name__}, "
                f"and not by an operation; make a new tensor instead"
            )
        followed = wrapper.edge is not None or fake.requires_grad
        unnoticed = recorder.wrapper_views.changed_unnoticed(fake)
        if changes and followed and (wrapper.is_view or (unnoticed and fake.is_leaf)):
            raise errors.SubclassMutation(
                f"the function changes the shape or strides of an argument of type {type(fake).__name__} "
                f"that requires grad and is a view, or a leaf; make a new tensor instead"
            )
        before = _expected_subclass_meta(recorder, wrapper, entry.fakes)
        for path, one in _other_subclass_parts(recorder, wrapper, before, fake, entry.fakes):
            _check_output_of_run(recorder, len(flat), one)
            found.append((len(entry.fakes) + i, path, len(flat)))
            flat.append(one)
    return tuple(found)


def _expected_subclass_meta(
    recorder: Recorder, wrapper: FakeSubclassInput, fakes: Sequence[Tensor]
) -> SubclassCreationMeta:
    """How a wrapper subclass among the arguments is made, if nothing but its place in autograd has changed:
    contexts may tell whether it requires grad."""
    if wrapper.fake.requires_grad == (wrapper.edge is not None):
        return wrapper.meta
    with recorder, dispatcher.trace_kernels_on():
        like = unflatten_subclass(wrapper.meta, fakes).detach().requires_grad_(wrapper.fake.requires_grad)
    return replace(wrapper.meta, context=like.__tensor_flatten__()[1])


def _other_subclass_parts(
    recorder: Recorder,
    wrapper: FakeSubclassInput,
    before: SubclassCreationMeta,
    now: Any,
    fakes: Sequence[Tensor],
    to: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """The parts of a wrapper subclass that are other tensors than they were, with the way to them.

    Raises:
        SubclassMutation: it has changed otherwise.
    """
    meta, _ = flatten_subclass(now)
    same = [name for name, _ in meta.parts] == [name for name, _ in before.parts]
    contexts = [subclass_context_key((one.context, one.opaque), meta.kind) for one in (before, meta)]
    if not same or contexts[0] != contexts[1]:
        raise errors.SubclassMutation(
            f"the function changes what __tensor_flatten__ says of an argument of type "
            f"{meta.kind.__name__}; make a new one instead"
        )
    for name, part in before.parts:
        one = getattr(now, name)
        if isinstance(part, SubclassCreationMeta) and one is wrapper.inner[*to, name]:
            changed = (tuple(one.shape), one.stride()) != (part.size, part.stride)
            if changed > bool(recorder.wrapper_views.changed_with_whole(one)):
                raise errors.SubclassMutation(
                    f"the function changes the shape or strides of a tensor that an argument of type "
                    f"{meta.kind.__name__} is made of, and that is a {part.kind.__name__} itself; make a new "
                    f"tensor instead"
                )
            yield from _other_subclass_parts(recorder, wrapper, part, one, fakes, (*to, name))
        elif not isinstance(part, SubclassCreationMeta) and not is_wrapper(one):
            if isinstance(part, PlainTensorMeta) and one is not fakes[part.position]:
                yield (*to, name), one
        else:
            raise errors.SubclassMutation(
                f"the function makes an argument of type {meta.kind.__name__} of tensors of other types, or "
                f"of another tensor subclass; make a new one instead"
            )


def input_values(primals: Sequence[Primal], tensors: Sequence[Tensor]) -> dict[fx.Node, Tensor]:
    """What is in memory where the graph inputs lie."""
    return {
        p.node: physical(tensors[p.tensor]) if p.span is None else as_strided_view(tensors[p.tensor], p.span)
        for p in primals
    }


@contextlib.contextmanager
def _inference_mode(inference: bool, grad: bool) -> Iterator[None]:
    """Inference mode, if the call is made in it, and the call's grad mode."""
    if not inference:
        yield
        return
    with torch.inference_mode(), torch.set_grad_enabled(grad):
        yield


def _check_output_of_run(recorder: Recorder, position: int, value: Any) -> None:
    what = f"output {position} (counting the leaves of the output tree)"
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise errors.UnsupportedOutput(f"{what} has layout {value.layout}; call to_dense() on it")
        if tensor_impl.storage_key(value) not in recorder.states:
            raise errors.ClosureTensor(f"{what} is a tensor that is not an argument; pass it as one")
    elif not isinstance(
        value,
        (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.Size, *SYMBOLIC),
    ):
        raise errors.UnsupportedOutput(
            f"{what} is a {type(value).__name__}; tensors, numbers, strings, None and containers of them "
            f"can be returned (torch.utils._pytree.register_pytree_node makes a class a container)"
        )
