"""The recorder: one Python frame per operation, which runs it on fakes and appends its functional form.

The user's function sees fake tensors that alias, mutate and carry autograd history exactly as its real
arguments would: every rule of eager, and every error, is torch's own. Below autograd each operation comes
through here once. A pure one is appended as it is; a view is only noted; an in-place one is appended in
its functional form, and its result becomes the storage's new value (`memory.storage`). What is recorded is
therefore functional without a second pass over it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

import aot.capture.intercept.batch_norms
import aot.capture.intercept.checkpoints
import aot.capture.intercept.constructors  # noqa: F401  (methods that are replaced in a trace)
from aot import errors
from aot.capture.intercept import metadata_reads, streams
from aot.capture.intercept.exception_handlers import Handlers
from aot.capture.intercept.mode_sensitive import checks_eigenvector_phases, checks_quantiles
from aot.capture.intercept.patches import unsupported_higher_order_op
from aot.capture.memory.storage import Storage
from aot.capture.memory.subclass_views import check_rebind, subclass_size_and_stride
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.capture.recorder.autocast_cache import CastCache
from aot.capture.recorder.data_numbers import EMBEDDINGS
from aot.capture.recorder.escapes import EscapeCheck
from aot.capture.recorder.metadata_mutations import Moving, replayable_metadata_mutation
from aot.capture.recorder.symbolic_views import ASKS_FOR_NUMBERS
from aot.graph.value_meta import ResultMeta, dtypes_of, lookup, result_meta_of
from aot.ops.call_targets import call_with_grad, is_custom
from aot.ops.classify import (
    BATCH_NORM,
    READS_GRAD_MODE,
    RESIZES_STORAGE,
    OpInfo,
    OpKind,
    bypasses_autograd,
    casts_within,
    classify,
    ends_in_views,
    is_random_call,
    tensors_in,
    zeros_like_fake,
)
from aot.tensors import sparse_gradients
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.subclasses import is_wrapper
from aot.tensors.symbolic_sizes import SymbolicSizes
from aot.tensors.views import is_undeclared_view
from aot.torch_internals import (
    ambient_state,
    autograd_graph,
    autograd_state,
    dispatcher,
    dynamo_api,
    higher_order_ops,
    mode_stacks,
    op_queries,
    tensor_impl,
    torch_fakes,
    wrapper_subclasses,
)

aten = torch.ops.aten


# ATen asks whether a condition holds by `equal(condition, new_ones(condition))`, in order to raise where it
# does not hold (`cov` of weights that are negative), or does (`istft` with a window that has gaps).
_EXPECTED = {aten.ge.Scalar: True, aten.ne.Scalar: True, aten.lt.Scalar: False, aten.le.Scalar: False}

# Questions to which the answers follow from devices, dtypes and numbers.
_CHOOSE_KERNELS = {aten._use_cudnn_ctc_loss.default, aten._use_miopen_ctc_loss.default}

# Operations that write what a mask selects: on how much that is the size of a gradient depends.
_PUTS = {aten.index_put.default, aten.masked_scatter.default}

# Those that make sparse gradients.
_SPARSE: dict[Any, Callable[..., Any]] = {
    aten._sparse_coo_tensor_with_dims_and_tensors.default: sparse_gradients.made_of_parts,
    aten._embedding_bag_backward.default: sparse_gradients.embedding_bag_backward,
}

# Operations that read memory by strides, whatever their operand shows.
_BY_STRIDES = {aten.as_strided_copy.default, aten.as_strided_scatter.default}


def _differentiable(meta: Any) -> bool:
    """Whether a result, or one of a list, is a tensor that may require grad."""
    if isinstance(meta, tuple):
        return any(map(_differentiable, meta))
    dtype = lookup(meta).dtype if isinstance(meta, int) else torch.bool
    return dtype.is_floating_point or dtype.is_complex


class Recorder(Moving):  # type: ignore[no-untyped-call]
    """Records everything that runs below autograd while it is the innermost mode."""

    def __init__(
        self,
        decompositions: dict[Any, Callable[..., Any]],
        lifetimes: EscapeCheck,
        inference: bool = False,
        functionalize_rng: bool = False,
        symbols: SymbolicSizes | None = None,
        mode: torch_fakes.FakeTensorMode | None = None,
    ) -> None:
        super().__init__(lifetimes, inference, functionalize_rng, symbols, mode)
        self._decompositions = decompositions
        self.handlers = Handlers()
        self._resolved: list[weakref.ref[Tensor]] = []
        self._decomposing = False  # below autocast, then
        self.casts: CastCache | None = None
        self._native_passthrough: Any = None  # an operation that is left to torch the next time it comes
        self._last_node = -1  # the sequence number of the node of the autograd graph that was made last

    supports_higher_order_operators = True  # they come to `dispatch` like others

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps every call of __torch_dispatch__ in torch._dynamo.disable

    # ---- dispatch

    @dynamo_api.skip  # which may have compiled a part of the function
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._native_passthrough is func and any(map(wrapper_subclasses.is_dispatched_natively, types)):
            self._native_passthrough = None
            return NotImplemented
        if self.symbols is not None:
            self.view_symbolically()
            if func in ASKS_FOR_NUMBERS:
                return ASKS_FOR_NUMBERS[func](args[0])
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return self._dispatch_subclass(func, types, args, kwargs or {})
        if mode_stacks.is_function_mode_on():
            return mode_stacks.shield_from_function_modes(self.dispatch)(func, args, kwargs or {})
        return self.dispatch(func, args, kwargs or {})

    def _dispatch_subclass(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation on wrapper subclasses: what their own code makes of it, with what they are made of, is
        recorded. They are asked in the order in which torch asks them."""
        mutable = isinstance(func, op_queries.OpOverload) and func._schema.is_mutable
        if (
            self.symbols is not None
            and mutable
            and classify(func).kind in (OpKind.RESHAPE, OpKind.RESIZE, OpKind.REBIND)
        ):
            # ATen's kernels, which a subclass calls for what it shows, take the process down.
            raise errors.SubclassMutation(
                f"{func} on a tensor subclass with symbols for sizes; compile each size for itself "
                f"(dynamic=False)"
            )
        rebinds = mutable and classify(func).kind is OpKind.REBIND
        if rebinds:
            check_rebind(func, args)
        self.inside += 1
        before = subclass_size_and_stride(args)
        try:
            with self:
                for kind in types:
                    if wrapper_subclasses.is_dispatched_natively(kind):
                        self._native_passthrough = func
                        result = func(*args, **kwargs)
                    else:
                        result = kind.__torch_dispatch__(func, types, args, kwargs)
                    if result is not NotImplemented:
                        changes = self.inside == 1 or op_queries.is_inplace_view(func)
                        if rebinds:
                            self.wrapper_views.note_rebind(args[0], self.inside > 1)
                        elif changes and subclass_size_and_stride(args) != before:
                            self.wrapper_views.note_subclass_mutation(
                                *replayable_metadata_mutation(func, args, kwargs), self.inside > 1
                            )
                        if self.inside == 1:
                            self._join_wrappers(func, args)
                            self.wrapper_views.count(func, args, kwargs)
                            self.wrapper_views.note_subclass_result(func, args, kwargs, result)
                        return result
        finally:
            self.inside -= 1
            self._native_passthrough = None
        names = ", ".join(kind.__name__ for kind in types)
        raise TypeError(f"Multiple dispatch failed for '{func}': {names} returned NotImplemented")

    def _join_wrappers(self, func: Any, args: tuple[Any, ...]) -> None:
        if not isinstance(func, op_queries.OpOverload) or not func._schema.is_mutable:
            return
        if torch.is_grad_enabled() and any(
            is_wrapper(one) and one._is_view() for one in tensors_in(args, {})
        ):
            self.join(args)

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation on fakes and record it."""
        streams.on_operation()
        if self.casts is not None:
            self.casts.follow_cast_cache(func, args, kwargs)
        if not self.builder.backward:
            self.handlers.note_handlers()
        self._refuse_operation(func)
        if mode_stacks.is_another_tracer_on():
            if self.inside and mode_stacks.is_only_fake_mode_on():  # as DTensor finds out how its results lie
                return func(*args, **kwargs)
            raise errors.UnsupportedOperation(
                f"{func} is called while another tracer is on (make_fx, torch.export, FakeTensorMode), which "
                f"would record what is done here and not what the function does; trace apart"
            )
        if func is aten.is_pinned.default:
            return self._is_pinned(args[0])
        if func in _SPARSE and self.builder.backward:
            with self:
                result = _SPARSE[func](*args, **kwargs)
            if result is not None:
                return result
        if func in _CHOOSE_KERNELS:
            return self.builder.run(func, self._nodes(args), kwargs)
        if func in self._decompositions:
            result = self._record_decomposed(func, args, kwargs)
            if result is not NotImplemented:
                return result
        self._note_saved_tensor_hooks()
        operation = classify(func)
        kind = operation.kind
        if func is RESIZES_STORAGE and self.state(args[0]).writes:
            self._let_go_of_writes(func, *args)
        if operation.placed:
            metadata_reads.record_dependence()
        if self.parts and torch.is_grad_enabled():
            self.parts.check_leaf_view_operation(args, kwargs, kind is OpKind.VIEW)
        if operation.made and not self._decomposing and casts_within(func, args, kwargs):
            kind = OpKind.COMPOSITE
        if operation.underived:
            self._check_derivative(func, kind, args, kwargs)
        if kind is OpKind.PURE:
            return self._dispatch_pure(func, operation, args, kwargs)
        if kind is OpKind.VIEW:
            return self._dispatch_view(func, args, kwargs)
        if kind is OpKind.MUTATION:
            return self.record_mutation(func, operation, args, kwargs)
        if kind is OpKind.RESHAPE:
            return self.reshape(func, args, kwargs)
        if kind is OpKind.RESIZE:
            return self.resize(func, args, kwargs)
        if kind is OpKind.REBIND:
            return self.rebind(func, args, kwargs)
        if kind in (OpKind.METADATA, OpKind.RANGE):
            return func(*args, **kwargs)
        if kind is OpKind.COMPOSITE:
            with self:
                autocast, inside = not self._decomposing, bool(self.inside)
                return dispatcher.run_decomposition(func, args, kwargs, autocast, inside)
        return self.record_special(func, args, kwargs)

    def _let_go_of_writes(self, func: Any, tensor: Tensor, size: int) -> None:
        """Forget what was written to a storage that is let go of: nobody can read it there any more.

        Raises:
            StorageMutation: it is not, or autograd follows what was written.
        """
        state = self.state(tensor)
        if size != 0 or state.written_in_grad_mode or self.builder.backward:
            raise errors.StorageMutation(
                f"{func} resizes the storage of a tensor that the function has written to, other than to "
                f"nothing after writes under torch.no_grad(); resize it outside of the function"
            )
        state.writes.clear()  # (but it is counted that they were made)

    def _refuse_operation(self, func: Any) -> None:
        """Refuse what is recorded under no circumstances."""
        if self.inference and not torch.is_inference_mode_enabled():
            raise errors.InferenceModeUnsupported(
                f"the call is made under torch.inference_mode, which the function leaves for {func}; call it "
                f"under torch.no_grad"
            )
        if isinstance(func, higher_order_ops.HigherOrderOperator):
            raise unsupported_higher_order_op(str(func))

    def _note_saved_tensor_hooks(self) -> None:
        """Note the hooks that pack what the node keeps that autograd has made last."""
        made = autograd_graph.next_sequence_number() - 1
        if made > self._last_node and not self.builder.backward:
            hooks = autograd_state.saved_tensor_hooks()
            if hooks is not None:
                self.under_hooks[made] = hooks
        self._last_node = made

    def _dispatch_pure(
        self, func: Any, operation: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._refuse_lazy_inference_tensors(func, args, kwargs)
        result = self.record_pure(func, operation, args, kwargs)
        if func is aten._pin_memory.default:
            self.state(result).pinned = True
        if func is aten.clone.default and geometry(args[0]).is_lazy:
            self.resolved.append(weakref.ref(result))
            if bypasses_autograd(args, {}):
                self._resolved.append(weakref.ref(result))
        past = self._inference_tensors and bypasses_autograd(args, kwargs)
        if past and not is_random_call(func, operation, args, kwargs):
            return self._record_results_as_views(result, ends_in_views(func, args, kwargs))
        return result

    def _dispatch_view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.apart and torch.is_inference_mode_enabled():
            self._check_apart(args[0])
        if not self.builder.backward:
            self.builder.origins.note_view(func)
        result = self.view(func, args, kwargs)
        if self.parts and torch.is_grad_enabled():
            self.parts.viewed(args[0], result)
        return result

    def _refuse_lazy_inference_tensors(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse an operation on lazily conjugated or negated inference tensors that ends in a view: it comes
        with clones of these, which say nothing of what they were made for."""
        resolved = [clone for ref in self._resolved if (clone := ref()) is not None]
        if not any(tensor is clone for tensor in tensors_in(args, kwargs) for clone in resolved):
            return
        if any(ends_in_views(func, args, kwargs)):
            raise errors.InferenceModeUnsupported(
                f"{func} of inference tensors that are lazily conjugated or negated, outside of inference "
                f"mode; call resolve_conj() or resolve_neg() on them in it"
            )

    def _check_apart(self, viewed: Tensor) -> None:
        """Refuse what autograd takes for a view of the base, and here of what stands for a view of that."""
        if any(one is viewed or one is viewed._base for one in self.apart):
            raise errors.AutogradStateMutation(
                "a view under torch.inference_mode of an argument that requires grad, and whose base does "
                "not (it was detached in place since), which tells what may be done with it; detach it first"
            )

    def _is_pinned(self, tensor: Tensor) -> bool:
        """Whether it lies in page-locked memory, which no guard looks at."""
        state = self.state(tensor)
        if state.entries and tensor.is_cpu:
            raise errors.DataDependentValue(
                "the function asks whether an argument lies in page-locked memory (is_pinned, pin_memory); "
                "ask outside of the function, or pin a copy"
            )
        return state.pinned

    def _check_derivative(
        self, func: Any, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse a custom operator that autograd has not been told of where it would be differentiated: eager
        follows what its kernel calls, which may be all of it, a part or nothing."""
        if kind is OpKind.VIEW:
            raise errors.UnsupportedOperation(
                f"{func} returns a view, and autograd has not been told of which kind; clone in it, or take "
                f"the view outside of it"
            )
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors_in(args, kwargs)):
            return
        if kind is OpKind.PURE:
            recipe = self.builder.infer(
                func, self._nodes(args), {k: self._argument_nodes(v) for k, v in kwargs.items()}
            )
            if not any(map(_differentiable, recipe.metas)):
                return
        raise errors.UnsupportedOperation(
            f"{func} has no derivative registered, and is given a tensor that requires grad; register one "
            f"(register_autograd), or call it under torch.no_grad"
        )

    def is_constant(self, fake: Tensor) -> bool:
        """Whether the values of a tensor follow from literals alone."""
        return self.known.values(self.read(fake)) is not None

    def _record_decomposed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = self._decomposing, self._counts
        origins, outer = self.builder.origins, self.builder.origins.operator
        origins.operator = outer or func
        self._decomposing = True
        self._counts &= classify(func).counted and func not in BATCH_NORM
        try:
            with self:
                return self._decompositions[func](*args, **kwargs)
        finally:
            self._decomposing, self._counts = before
            origins.operator = outer

    def _record_results_as_views(self, result: Any, views: tuple[bool, ...]) -> Any:
        """The results of a pure operation, each as a view of a hidden tensor where it is one."""
        if not any(views):
            return result
        with dispatcher.tracking_views(), self:
            if isinstance(result, Tensor):
                return result.view_as(result)
            return [r.view_as(r) if view else r for r, view in zip(result, views, strict=True)]

    def record_pure(self, func: Any, operation: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A pure operation: append it, and make fakes for its results."""
        if func in _BY_STRIDES:
            by_strides = self._record_by_strides(func, args, kwargs)
            if by_strides is not None:
                return by_strides
        if func in BATCH_NORM:
            written, training = BATCH_NORM[func]
            if args[training] and any(args[i] is not None for i in written):
                return self.record_mutation_on_clones(
                    func, tuple(i for i in written if args[i] is not None), args, kwargs
                )
        drawing = is_random_call(func, operation, args, kwargs)
        node_args = self._nodes(args, drawing)
        node_kwargs = {k: self._argument_nodes(v, drawing) for k, v in kwargs.items()}
        if func is RESIZES_STORAGE and self.state(args[0]).entries:  # the caller's, whatever it shows by now
            node_args = (self.state(args[0]).entries[0].node, *node_args[1:])
        if operation.valued and not is_custom(func):
            known_value = self._known_value(func, node_args, node_kwargs)
            if known_value is not NotImplemented:
                return known_value
        if torch.is_grad_enabled():
            self._count_gradient_rows(func, args, node_args, node_kwargs)
        if operation.valued and self.data.records(func, node_args, node_kwargs):
            node, recipe = self.data.record(func, node_args, node_kwargs)
            return self._results(node, recipe)
        if torch.get_default_dtype() is not self.builder.default_dtype:
            node_kwargs = self._record_with_default_dtype(func, node_args, node_kwargs)
        recipe = self.builder.infer(func, node_args, node_kwargs)
        if recipe.aliases:
            if not is_undeclared_view(func):
                raise errors.UnsupportedOperation(
                    f"{func} returns memory of its arguments although its schema does not say so; clone its "
                    f"result inside the operation"
                )
            return self.view(func, args, kwargs)
        node = self._call(func, node_args, node_kwargs, recipe, drawing)
        if not recipe.many and any(isinstance(a, Tensor) and (a.is_conj() or a.is_neg()) for a in args):
            return self._record_lazy_result(func, args, kwargs, node)
        return self._results(node, recipe)

    def _known_value(self, func: Any, node_args: tuple[Any, ...], node_kwargs: dict[str, Any]) -> Any:
        """What an operation gives that asks for values, if these follow from literals, or are assumed;
        NotImplemented where neither is so."""
        known = self.known.values((node_args, node_kwargs))
        if known is not None:
            return self._record_evaluated(func, node_args, node_kwargs, known)
        if func is aten.equal.default and node_args[1].target is aten.new_ones.default:
            expected = _EXPECTED.get(node_args[0].target)
            if expected is not None:
                return self._assume(node_args[0], expected)
        return True if checks_eigenvector_phases(func) or checks_quantiles(func) else NotImplemented

    def _count_gradient_rows(
        self, func: Any, args: tuple[Any, ...], node_args: tuple[Any, ...], node_kwargs: dict[str, Any]
    ) -> None:
        """Have the graph compute what the shapes of gradients depend on."""
        if func in _PUTS and args[2].requires_grad:
            self.data.count_selected(node_args[1] if isinstance(node_args[1], list) else node_args[1:2])
        if func in EMBEDDINGS and args[0].requires_grad:
            self.data.count_embedded(func, node_args, node_kwargs)

    def _record_with_default_dtype(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """The keyword arguments with which an operation gives, under the default dtype of the call, what it
        gives under the one that the function has set for a while."""
        builder = self.builder
        expected = dtypes_of(builder.infer(func, args, kwargs).metas)
        candidates = [kwargs]
        if any(argument.name == "dtype" for argument in func._schema.arguments):
            candidates.append({**kwargs, "dtype": expected[0]})
        with ambient_state.default_dtype_replaced(builder.default_dtype):
            for candidate in candidates:
                if dtypes_of(builder.infer(func, args, candidate).metas) == expected:
                    return candidate
        raise errors.UnsupportedOperation(
            f"{func} gives another dtype under the default dtype that the function sets for a while than "
            f"under that of the call; convert what it is given"
        )

    def _record_by_strides(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Copy or write by strides: values of the graph need not lie in memory as tensors do, so it is left
        to views to find the elements. None for what raises."""
        if func is aten.as_strided_copy.default:
            view = self.view(aten.as_strided.default, args, kwargs)
            copy: Tensor = self.dispatch(
                aten.clone.default, (view,), {"memory_format": torch.contiguous_format}
            )
            return copy
        source, value, *rest = args
        if geometry(source).overlaps_itself_somehow:
            source = self.dispatch(aten.clone.default, (source,), {})
        where = geometry(source)
        target = geometry(aten.as_strided.default(source, *rest, **kwargs))
        if target.size != tuple(value.shape):
            return None
        stop = max(where.stop, target.stop)
        memory = self.dispatch(aten.new_zeros.default, (source, [stop]), {})
        lying = (memory, where.size, where.stride, where.offset)
        result: Tensor = self.view(aten.as_strided.default, lying, {})
        self.dispatch(aten.copy_.default, (result, source), {})
        place = (memory, target.size, target.stride, target.offset)
        self.dispatch(aten.copy_.default, (self.view(aten.as_strided.default, place, {}), value), {})
        return result

    def _record_lazy_result(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: fx.Node
    ) -> Tensor:
        """The one result of an operation on lazy tensors, which may be lazy itself: a product of conjugates
        is the conjugate of a product."""
        with mode_stacks.dispatch_modes_off(), autograd_state.outside_inference_mode(), torch.no_grad():
            blanks = [zeros_like_fake(a) if isinstance(a, Tensor) else a for a in args]
            shown = func(*blanks, **kwargs)
        if not (shown.is_conj() or shown.is_neg()):
            return self._new_fake(node, self.builder.metas[node])
        if shown.is_conj():
            node = self.builder.emit(aten._conj_physical.default, node)
        if shown.is_neg():
            node = self.builder.emit(aten.neg.default, node)
        fake = self._new_fake(node, self.builder.metas[node])
        tensor_impl.set_lazy_bits(fake, shown.is_conj(), shown.is_neg())
        return fake

    def _results(self, node: fx.Node, recipe: ResultMeta) -> Any:
        if recipe.many and not recipe.metas:
            return None
        return self._wrap_result(node, recipe.metas if recipe.many else recipe.metas[0])

    def _record_evaluated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Any) -> Any:
        """A question for a value, or a shape that depends on one, where all values are known."""
        with mode_stacks.dispatch_modes_off(), torch.no_grad():
            result = func(*known[0], **known[1])
        if not isinstance(result, (Tensor, tuple, list)):
            return result
        recipe = result_meta_of(result)
        return self._results(self.builder.call(func, args, kwargs, recipe), recipe)

    def _assume(self, condition: fx.Node, expected: bool) -> bool:
        """A condition of ATen's on an operation's arguments: the graph raises when it is not as expected."""
        holds = condition if expected else self.builder.emit(aten.logical_not.default, condition)
        self.builder.emit(aten._assert_async.msg, holds, f"a check of values failed: {condition.name}")
        return expected

    def view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A view: nothing is appended until somebody reads it."""
        parent, rest = args[0], args[1:]
        if not isinstance(parent, Tensor):
            # ATen's derivatives conjugate the number that a tensor was multiplied with. It is a tensor there.
            dtype = torch.complex128 if isinstance(parent, complex) else torch.float64
            parent = self.dispatch(aten.scalar_tensor.default, (parent,), {"dtype": dtype})
        self.journal.sync_data_assignment(parent)
        state = self.state(parent)
        result = func(parent, *rest, **kwargs)
        mode = CreationMode.now()
        where = geometry(parent)
        if isinstance(result, Tensor):
            self._note_view(state, parent, where, result, ViewOp(func, rest, kwargs, None, mode))
        else:
            call = object()
            for i, part in enumerate(result):
                step = ViewOp(func, rest, kwargs, i, mode, call=call)
                self._note_view(state, parent, where, part, step)
        return result

    def _note_view(self, state: Storage, parent: Tensor, where: Geometry, view: Tensor, step: ViewOp) -> None:
        self.journal.note_view_origin(self.lifetimes.track(view), parent, step)
        # An explicit offset is relative to the storage, not to the parent's current value, so the step
        # cannot be replayed on the latter; reading falls back to a relative as_strided. And values of the
        # graph are never lazy.
        if step.op not in (aten.as_strided.default, aten._conj.default, aten._neg_view.default):
            state.view(where, geometry(view), step)

    def record_special(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Literals, and everything that a graph cannot say."""
        if func is aten.lift_fresh.default or func is aten.lift.default:
            (value,) = args
            if tensor_impl.storage_key(value) in self.states:
                return self.view(func, args, kwargs)
            node = self.builder.emit(aten.clone.default, self.literal(value))
            return self._new_fake(node, self.builder.metas[node])
        if func in READS_GRAD_MODE:
            op_args = self._nodes(args)
            if torch.is_grad_enabled():
                func, op_args = call_with_grad, (func, *op_args)
            recipe = self.builder.infer(func, op_args, kwargs)
            return self._results(self.builder.call(func, op_args, kwargs, recipe), recipe)
        for value in (*args, *kwargs.values()):
            self._argument_nodes(value)
        raise errors.UnsupportedOperation(f"{func} cannot be recorded; compute it outside of the function")
