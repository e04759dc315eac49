"""Operations that write to their arguments: their functional forms, and what eager refuses."""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from aot import errors
from aot.capture.recorder.session import TraceSession
from aot.graph.shape_inference import typed_refusals
from aot.graph.value_meta import ResultMeta, lookup, result_meta_of
from aot.ops.call_targets import is_custom
from aot.ops.classify import (
    BATCH_NORM,
    OpInfo,
    call_on_clones,
    classify,
    is_present,
    is_written,
    run_on_zeros,
    tensors_in,
    with_defaults,
)
from aot.ops.overlap_checks import (
    check_custom_operator_overlap,
    check_list_overlap,
    check_partial_overlap,
    check_partial_overlap_of_lists,
    check_write_order_overlap,
    shows_the_same,
)
from aot.tensors.geometry import geometry, known_equal
from aot.torch_internals import op_queries, tensor_impl

aten = torch.ops.aten

_PUTS = {aten.index_put_.default, aten._index_put_impl_.default, aten.masked_scatter_.default}
_FILLS = {aten.fill_.Scalar, aten.zero_.default}  # (fill_.Tensor copies.)


def _flat(targets: Iterable[Any]) -> list[Tensor]:
    """The tensors among written arguments, of lists one by one."""
    lists = (target if isinstance(target, (list, tuple)) else (target,) for target in targets)
    return [target for some in lists for target in some if target is not None]


def _is_of_another_dtype(tensor: Tensor) -> bool:
    """Whether it is a view of a tensor of another dtype, which strides alone do not say."""
    return tensor._is_view() and tensor._base is not None and tensor._base.dtype is not tensor.dtype


def _needs_clones(func: Any, operation: OpInfo, targets: list[Tensor]) -> bool:
    """Whether an operation is recorded as it is, on clones of what it writes to."""
    return (
        operation.functional is None
        or any(isinstance(i, str) for i in operation.written)
        or (operation.random and not all(t.is_contiguous() for t in targets))
        or (func is aten.div_.Tensor and targets[0].is_complex())  # which rounds otherwise in place
    )


class Writing(TraceSession):  # type: ignore[no-untyped-call]
    """A trace that records writes."""

    def record_mutation(
        self, func: Any, operation: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An in-place operation: append its functional form, and make the result the new value."""
        written = operation.written
        targets = [
            args[i] if isinstance(i, int) else kwargs[i] for i in written if is_present(i, args, kwargs)
        ]
        flat = _flat(targets)
        if is_custom(func):
            check_custom_operator_overlap(func, flat, args, kwargs)
        self._check_mutation_overlap(func, flat, args, kwargs)
        self._enter_backward_writes(flat)
        if any(isinstance(target, (list, tuple)) for target in targets):
            self._check_written_lists(func, flat, args, kwargs)
        for target in flat:
            self.journal.sync_data_assignment(target)
            check_partial_overlap(target, args)
            self._check_mutation_of_reshaped(target, args)
            if (target._is_view() or self._is_resolved(target)) and torch.is_grad_enabled():
                self.join(args)
        if _needs_clones(func, operation, flat):
            return self.record_mutation_on_clones(func, written, args, kwargs)
        if func is aten.copy_.default and geometry(flat[0]).overlaps_itself and shows_the_same(*args[:2]):
            return args[0]  # Nothing is written, so that elements which share a place are no matter.
        node_args = self._nodes(with_defaults(func, args, kwargs), operation.random)
        node_kwargs = {k: self._argument_nodes(v, operation.random) for k, v in kwargs.items()}
        self._check_in_place(func, node_args, node_kwargs)
        if func in _PUTS and torch.is_grad_enabled() and args[2].requires_grad:
            masks = node_args[1] if isinstance(node_args[1], (list, tuple)) else node_args[1:2]
            self.data.count_selected(masks)  # on which the shape of a gradient depends
        if func is aten.copy_.default:
            node_args = (
                self._blank_mutation_target(flat[0]),
                *node_args[1:],
            )  # the old value does not matter
        recipe = self.builder.infer(operation.functional, node_args, node_kwargs)
        self._check_mutation_growth(func, flat, recipe, node_args, node_kwargs)
        node = self._call(operation.functional, node_args, node_kwargs, recipe, operation.random, True)
        if recipe.many:
            # Kernels of lists count by themselves, but not for the code of wrapper subclasses.
            self._record_writes(flat, node, isinstance(targets[0], (list, tuple)) and not self.inside)
        else:
            self._record_write(flat[0], node)
        return args[0] if isinstance(args[0], Tensor) else None

    def _check_written_lists(
        self, func: Any, targets: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Raise what eager raises for lists of tensors that are written to."""
        if len(targets) > 1:
            check_list_overlap(func, targets, args)
        check_partial_overlap_of_lists(targets, args)
        if self._inference_tensors and not torch.is_inference_mode_enabled() and not is_custom(func):
            run_on_zeros(func, args, kwargs)  # which raises for inference tensors, or does not

    def _record_writes(self, targets: list[Tensor], node: fx.Node, listed: bool) -> None:
        """Each target now is the result of `node` at its place; their versions move here if they are
        `listed`."""
        for i, target in enumerate(targets):
            self._record_write(target, self.builder.item(node, i))
            if listed and not target.is_inference():
                torch.autograd.graph.increment_version(target)

    def _enter_backward_writes(self, targets: Iterable[Tensor]) -> None:
        """Tell a backward's writes to what the forward has left, before what is there is read."""
        for target in targets if self.builder.backward and not self.inside else ():
            state = self.state(target)
            if not state.of_backward:
                self.backward_writes.enter(state, target)

    def _is_resolved(self, tensor: Tensor) -> bool:
        return any(clone() is tensor for clone in self.resolved)

    def _check_mutation_of_reshaped(self, target: Tensor, args: tuple[Any, ...]) -> None:
        """Refuse what autograd differentiates by the view that the target was, and no longer is."""
        if not (torch.is_grad_enabled() and _is_of_another_dtype(target)):
            return
        state = self.state(target)
        arguments = {id(one) for one in state.members}  # with which the same is done after the call
        changed = (one for one in state.reshaped if id(one) not in arguments)
        tracked = any(one.requires_grad for one in tensors_in(args, {}))
        if tracked and any(map(_is_of_another_dtype, changed)):
            raise errors.AutogradStateMutation(
                "a view of another dtype is written to after its metadata was changed in place (t_, "
                "squeeze_): autograd's backward of that raises, or gives gradients of other elements; take "
                "another view (t, squeeze), and write through that"
            )

    def join(self, args: tuple[Any, ...]) -> None:
        """Note that an operation in place on a view, in grad mode, has read `args`. (Each wrapper subclass
        has a storage of its own: what the caller has of it, the views lead to.)"""
        for one in tensors_in(args, {}):
            self.joined.update(map(tensor_impl.storage_key, self.wrapper_views.lineage(one)))

    def _blank_mutation_target(self, fake: Tensor) -> fx.Node:
        return self.builder.emit(
            aten.empty_strided.default,
            list(fake.shape),
            list(fake.stride()),
            dtype=fake.dtype,
            device=fake.device,
        )

    def _check_in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise what eager raises for an in-place call with such shapes and dtypes."""
        if not func._schema.returns:
            return
        self.builder.infer(func, args, kwargs)

    def _check_mutation_growth(
        self,
        func: Any,
        targets: list[Tensor],
        recipe: ResultMeta,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Refuse an in-place call that resizes what it writes to, as `addbmm_` does; others raise."""
        for target, meta in zip(targets, recipe.metas, strict=True):
            if meta is not None and len(lookup(meta).size) > target.dim():
                self.builder.run(func, args, kwargs)
                raise errors.StorageMutation(
                    f"{func} resizes the tensor of shape {tuple(target.shape)} that it writes to; use the "
                    f"out-of-place operation"
                )

    def _check_mutation_overlap(
        self, func: Any, targets: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for target in targets:
            if not isinstance(target, Tensor) or not geometry(target).overlaps_itself:
                continue
            if func is aten.copy_.default and shows_the_same(target, args[1]):
                continue  # which does nothing
            if func not in _FILLS:
                check_write_order_overlap(func, target, args, kwargs)
            if target.requires_grad and torch.is_grad_enabled() and id(target) not in self.journal.origins:
                raise errors.UnsupportedOperation(
                    f"{func} on an argument that requires grad and shows elements several times; pass the "
                    f"tensor that it was expanded from"
                )

    def record_mutation_on_clones(
        self, func: Any, written: tuple[int | str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation without a functional form: it runs on private copies of what it writes."""
        written = tuple(i for i in written if is_present(i, args, kwargs))
        fakes = _flat([args[i] if isinstance(i, int) else kwargs[i] for i in written])
        self._enter_backward_writes(fakes)
        before = [geometry(f).size for f in fakes]
        random = classify(func).random
        node_args = self._nodes(args, random)
        node_kwargs = {k: self._argument_nodes(v, random) for k, v in kwargs.items()}
        metas = self._clones_of_kernel(func, written, node_args, node_kwargs)
        if metas is None:
            metas = self._clones_for_mutation(func, written, node_args, node_kwargs)
        results = metas.metas
        changed = [lookup(result).size for result in results[len(results) - len(fakes) :]]
        if before != changed:
            raise errors.StorageMutation(
                f"{func} resizes the tensor it writes to; give it an output of the right shape"
            )
        counted = classify(func).counted and func not in BATCH_NORM
        # (Its kernel may count them: it does where it calls operations that write.)
        uncounted = is_custom(func) and not op_queries.has_inplace_or_view_kernel(func)
        # (An overload may be called like a keyword of Python, in which graphs are written.)
        called = f"{func._opname}.{func._overloadname}" if keyword.iskeyword(func._overloadname) else func
        node = self._call(call_on_clones, (called, written, node_args, node_kwargs), {}, metas, random)
        for i, fake in enumerate(fakes):
            value = self.builder.item(node, len(results) - len(fakes) + i)
            self._record_write(fake, value, counted)
            if uncounted and not fake.is_inference():
                torch.autograd.graph.increment_version(fake)
        outputs: list[Any] = []
        targets, others = iter(fakes), iter(enumerate(metas.metas))
        for returned in func._schema.returns:
            if is_written(returned):
                outputs.append(next(targets))
                continue
            i, meta = next(others)
            outputs.append(self._result(node, i, meta))
        return outputs[0] if len(outputs) == 1 else tuple(outputs) if outputs else None

    def _clones_of_kernel(
        self, func: Any, written: tuple[int | str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ResultMeta | None:
        if self.builder.symbolic:
            return None
        return self.builder.infer_by_kernel(func, args, kwargs, partial(call_on_clones, func, written))

    def _clones_for_mutation(
        self, func: Any, written: tuple[int | str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ResultMeta:
        fake_args, fake_kwargs = fx.node.map_arg((args, kwargs), self.builder.fake)
        with typed_refusals(), self.builder.mode:
            results = call_on_clones(func, written, fake_args, fake_kwargs)
        metas = result_meta_of(results, numbers=is_custom(func))
        if func in BATCH_NORM or op_queries.has_python_meta(func):
            return self.builder.inferred_as_computed(metas, call_on_clones, (func, written, args, kwargs), {})
        return metas

    def _record_write(self, fake: Tensor, value: fx.Node, counted: bool = True) -> None:
        meta = self.builder.meta(value)
        if not torch.can_cast(meta.dtype, fake.dtype):
            # Meta kernels of in-place operations do not look; the text is TensorIterator's.
            raise RuntimeError(
                f"result type {str(meta.dtype)[6:]} can't be cast to the desired output type "
                f"{str(fake.dtype)[6:]}"
            )
        if meta.dtype != fake.dtype:
            value = self.builder.emit(aten._to_copy.default, value, dtype=fake.dtype)
        if not known_equal(meta.size, tuple(fake.shape)):
            value = self.builder.emit(aten.expand.default, value, list(fake.shape))
        state = self.state(fake)
        if self.builder.backward and not state.of_backward:
            if self.inside:
                raise errors.UnsupportedOperation(
                    "a backward writes to a tensor subclass of the forward; return what is to be written"
                )
            self.backward_writes.write(state, fake, value, counted and self._counts)
            return
        if self.builder.backward and state.held:
            raise errors.UnsupportedOperation(
                "a backward (a custom function's, or a hook) writes to the gradient that it is given, which "
                "torch forbids, as others may hold it; return a new one"
            )
        state.write(fake, value, counted and self._counts, noticed=not self.inside)
