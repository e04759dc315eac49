"""The recorder: one Python frame per operation, which runs it on fakes and appends its functional form.

The user's function sees fake tensors that alias, mutate and carry autograd history exactly as its real
arguments would: every rule of eager, and every error, is torch's own. Below autograd each operation comes
through here once. A pure one is appended as it is; a view is only noted; an in-place one is appended in
its functional form, and its result becomes the storage's new value (`storages`). What is recorded is
therefore functional without a second pass over it.
"""

from __future__ import annotations

import keyword
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot import errors
from aot import torch_internals as internals
from aot.capture.functional_rng import States
from aot.capture.graph import (
    GraphBuilder,
    Recipe,
    call_with_grad,
    lookup,
    meta_of,
    recipe_of,
    typed_refusals,
)
from aot.capture.hooks import Hooks
from aot.capture.journal import Journal, Rebind, Reshape
from aot.capture.known import Known
from aot.capture.lifetimes import Lifetimes
from aot.capture.modeless import asks_about_phases
from aot.capture.operations import (
    BATCH_NORM,
    READS_GRAD_MODE,
    Kind,
    Operation,
    blank_like,
    call_on_clones,
    casts_within,
    classify,
    draws,
    ends_in_views,
    functional_form,
    given,
    goes_past_autograd,
    is_written,
    tensors_in,
    with_defaults,
)
from aot.capture.overlaps import check_lists, check_order, check_partial_overlap, shows_the_same
from aot.capture.random import Draws
from aot.capture.replaced import takes_functions
from aot.capture.steps import Mode, ViewStep
from aot.capture.storages import StorageState
from aot.capture.threads import Threads
from aot.geometry import Geometry, geometry
from aot.views import is_undeclared_view

aten = torch.ops.aten


# ATen asks whether a condition holds by `equal(condition, new_ones(condition))`, in order to raise where it
# does not hold (`cov` of weights that are negative), or does (`istft` with a window that has gaps).
_EXPECTED = {aten.ge.Scalar: True, aten.ne.Scalar: True, aten.lt.Scalar: False, aten.le.Scalar: False}

# Operations that read memory by strides, whatever their operand shows.
_BY_STRIDES = {aten.as_strided_copy.default, aten.as_strided_scatter.default}

_FILLS = {aten.fill_.Scalar, aten.zero_.default}  # (fill_.Tensor copies.)


class Recorder(internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records everything that runs below autograd while it is the innermost mode.

    Attributes:
        builder: the graph so far.
        journal: what changed about tensors besides their data, and how views came to be.
        joined: storages of what an in-place operation on a view read besides that view, in grad mode.
        backward_reads: what a recorded backward has read, and at which node of the autograd graph.
        known: the values that depend on no argument.
        draws: the random draws so far.
        rng_states: the states that they start from and leave, if these are values of the graph.
        hooks: the hooks registered so far.
        threads: what happens in other threads.
        inference: whether the call is made in inference mode.
        results: the tensors that the function has returned.
    """

    def __init__(
        self,
        decompositions: dict[Any, Callable[..., Any]],
        lifetimes: Lifetimes,
        inference: bool = False,
        functionalize_rng: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lifetimes = lifetimes
        self.inference = inference
        self._inference_tensors = inference
        self.builder = GraphBuilder(internals.FakeTensorMode())
        self.states: dict[int, StorageState] = {}
        self.journal = Journal(self.state)
        self.joined: set[int] = set()
        self.backward_reads: list[tuple[Tensor, Node | None]] = []
        self.known = Known(self.builder)
        self.draws = Draws()
        self.rng_states = States(self.builder) if functionalize_rng else None
        self.hooks = Hooks(lambda: self.builder.backward)
        self.threads = Threads(self.states, self)
        self.results: tuple[Tensor, ...] = ()
        self._decompositions = decompositions
        self._resolved: list[weakref.ref[Tensor]] = []
        self._decomposing = False  # below autocast, then

    supports_higher_order_operators = True  # they come to `dispatch` like others

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps every call of __torch_dispatch__ in torch._dynamo.disable

    def forget(self) -> None:
        """Let go of every tensor, when the trace is over: the recorder itself is part of reference cycles."""
        self.let_go()
        self.states.clear()
        self.results = ()

    def let_go(self) -> None:
        """Let go of what the function, or a backward, has let go of, as eager does.

        What an operation in place on a view saves of its result leads, in a further derivative, to what the
        view shows now if the view is still there, and else to what it showed before.
        """
        self.journal.forget()
        self.backward_reads.clear()
        for state in self.states.values():
            state.let_go()

    # ---- reading and writing

    def state(self, fake: Tensor) -> StorageState:
        """The storage of a fake tensor; one that no recorded operation made is refused."""
        state = self.states.get(internals.storage_key(fake))
        if state is None:
            raise errors.ClosureTensor(
                f"the function uses a tensor of shape {tuple(fake.shape)} and dtype {fake.dtype} that is "
                f"neither one of its arguments nor made by an operation on them (a tensor of a closure, an "
                f"argument's .grad, a tensor from numpy or from a custom kernel); pass it as an argument"
            )
        return state

    def adopt(self, fake: Tensor) -> StorageState:
        """Start to follow the storage of `fake`."""
        storage = fake.untyped_storage()
        state = StorageState(self.builder, storage, fake.is_inference())
        self._inference_tensors |= state.inference
        self.states[internals.storage_key(fake)] = state
        state.of_backward = self.builder.backward
        return state

    def read(self, fake: Tensor) -> fx.Node:
        """The node for what `fake` shows now."""
        if self.builder.backward:
            self.backward_reads.append((fake, internals.current_node()))
        return self.state(fake).read(geometry(fake))

    # ---- dispatch

    @internals.skip_dynamo  # which may have compiled a part of the function
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation on fakes and record it."""
        if self.inference and not torch.is_inference_mode_enabled():
            raise errors.InferenceModeUnsupported(
                f"the call is made under torch.inference_mode, which the function leaves for {func}; call it "
                f"under torch.no_grad"
            )
        if isinstance(func, internals.HigherOrderOperator):
            raise takes_functions(str(func))
        if internals.is_traced_elsewhere():
            raise errors.UnsupportedOperation(
                f"{func} is called while another tracer is on (make_fx, torch.export, FakeTensorMode), which "
                f"would record what is done here and not what the function does; trace apart"
            )
        if func in self._decompositions:
            result = self._decomposed(func, args, kwargs)
            if result is not NotImplemented:
                return result
        operation = classify(func)
        kind = operation.kind
        if operation.made and not self._decomposing and casts_within(func, args, kwargs):
            kind = Kind.COMPOSITE
        if kind is Kind.PURE:
            self._check_resolved(func, args, kwargs)
            result = self.pure(func, operation, args, kwargs)
            if func is aten.clone.default and goes_past_autograd(args, {}) and geometry(args[0]).is_lazy:
                self._resolved.append(weakref.ref(result))
            past = self._inference_tensors and goes_past_autograd(args, kwargs)
            if past and not draws(func, operation, args, kwargs):
                return self._as_noticed(result, ends_in_views(func, args, kwargs))
            return result
        if kind is Kind.VIEW:
            return self.view(func, args, kwargs)
        if kind is Kind.MUTATION:
            return self.mutation(func, operation, args, kwargs)
        if kind is Kind.RESHAPE:
            return self.reshape(func, args, kwargs)
        if kind is Kind.RESIZE:
            return self.resize(func, args, kwargs)
        if kind is Kind.REBIND:
            return self.rebind(func, args, kwargs)
        if kind is Kind.METADATA:
            return func(*args, **kwargs)
        if kind is Kind.COMPOSITE:
            with self:
                return internals.take_apart(func, args, kwargs, autocast=not self._decomposing)
        return self.special(func, args, kwargs)

    def _check_resolved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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

    def _decomposed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before, self._decomposing = self._decomposing, True
        try:
            with self:
                return self._decompositions[func](*args, **kwargs)
        finally:
            self._decomposing = before

    def _as_noticed(self, result: Any, views: tuple[bool, ...]) -> Any:
        """The results of a pure operation, each as a view of a hidden tensor where it is one."""
        if not any(views):
            return result
        with internals.views_noticed(), self:
            if isinstance(result, Tensor):
                return result.view_as(result)
            return [r.view_as(r) if view else r for r, view in zip(result, views, strict=True)]

    def pure(self, func: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A pure operation: append it, and make fakes for its results."""
        if func in _BY_STRIDES:
            by_strides = self._by_strides(func, args, kwargs)
            if by_strides is not None:
                return by_strides
        if func in BATCH_NORM:
            written, training = BATCH_NORM[func]
            if args[training] and any(args[i] is not None for i in written):
                return self.on_clones(func, tuple(i for i in written if args[i] is not None), args, kwargs)
        node_args = self._nodes(args)
        node_kwargs = {k: self._nodes_in(v) for k, v in kwargs.items()}
        if operation.valued:
            known = self.known.values((node_args, node_kwargs))
            if known is not None:
                return self._evaluated(func, node_args, node_kwargs, known)
            if func is aten.equal.default and node_args[1].target is aten.new_ones.default:
                expected = _EXPECTED.get(node_args[0].target)
                if expected is not None:
                    return self._assume(node_args[0], expected)
            if asks_about_phases(func):
                return True
        recipe = self.builder.infer(func, node_args, node_kwargs)
        if recipe.aliases:
            if not is_undeclared_view(func):
                raise errors.UnsupportedOperation(
                    f"{func} returns memory of its arguments although its schema does not say so; clone its "
                    f"result inside the operation"
                )
            return self.view(func, args, kwargs)
        node = self._call(func, node_args, node_kwargs, recipe, draws(func, operation, args, kwargs))
        if not recipe.many and any(isinstance(a, Tensor) and (a.is_conj() or a.is_neg()) for a in args):
            return self._perhaps_lazy(func, args, kwargs, node)
        return self._results(node, recipe)

    def _by_strides(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
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

    def _perhaps_lazy(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: fx.Node
    ) -> Tensor:
        """The one result of an operation on lazy tensors, which may be lazy itself: a product of conjugates
        is the conjugate of a product."""
        with internals.modes_off(), internals.outside_inference_mode(), torch.no_grad():
            blanks = [blank_like(a) if isinstance(a, Tensor) else a for a in args]
            shown = func(*blanks, **kwargs)
        if not (shown.is_conj() or shown.is_neg()):
            return self._fresh(node, self.builder.metas[node])
        if shown.is_conj():
            node = self.builder.emit(aten._conj_physical.default, node)
        if shown.is_neg():
            node = self.builder.emit(aten.neg.default, node)
        fake = self._fresh(node, self.builder.metas[node])
        internals.set_lazy(fake, shown.is_conj(), shown.is_neg())
        return fake

    def _results(self, node: fx.Node, recipe: Recipe) -> Any:
        if not recipe.many:
            return self._fresh(node, recipe.metas[0])
        if not recipe.metas:
            return None
        return [
            None if m is None else self._fresh(self.builder.item(node, i), m)
            for i, m in enumerate(recipe.metas)
        ]

    def _evaluated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Any) -> Any:
        """A question for a value, or a shape that depends on one, where all values are known."""
        with internals.modes_off(), torch.no_grad():
            result = func(*known[0], **known[1])
        if not isinstance(result, (Tensor, tuple, list)):
            return result
        recipe = recipe_of(result)
        return self._results(self.builder.call(func, args, kwargs, recipe), recipe)

    def _assume(self, condition: fx.Node, expected: bool) -> bool:
        """A condition of ATen's on an operation's arguments: the graph raises when it is not as expected."""
        holds = condition if expected else self.builder.emit(aten.logical_not.default, condition)
        self.builder.emit(aten._assert_async.msg, holds, f"a check of values failed: {condition.name}")
        return expected

    def view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A view: nothing is appended until somebody reads it."""
        parent = args[0]
        self.journal.settle(parent)
        state = self.state(parent)
        result = func(*args, **kwargs)
        rest = tuple(args[1:])
        mode = Mode.now()
        where = geometry(parent)
        if isinstance(result, Tensor):
            self._note_view(state, parent, where, result, ViewStep(func, rest, kwargs, None, mode))
        else:
            call = object()
            for i, part in enumerate(result):
                step = ViewStep(func, rest, kwargs, i, mode, call=call)
                self._note_view(state, parent, where, part, step)
        return result

    def _note_view(
        self, state: StorageState, parent: Tensor, where: Geometry, view: Tensor, step: ViewStep
    ) -> None:
        self.journal.note_origin(self.lifetimes.note(view), parent, step)
        # An explicit offset is relative to the storage, not to the parent's current value, so the step
        # cannot be replayed on the latter; reading falls back to a relative as_strided. And values of the
        # graph are never lazy.
        if step.op not in (aten.as_strided.default, aten._conj.default, aten._neg_view.default):
            state.view(where, geometry(view), step)

    def mutation(self, func: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An in-place operation: append its functional form, and make the result the new value."""
        written = operation.written
        targets = [args[i] if isinstance(i, int) else kwargs[i] for i in written if given(i, args, kwargs)]
        flat = [t for target in targets for t in (target if isinstance(target, (list, tuple)) else (target,))]
        self._check_overlap(func, flat, args, kwargs)
        if len(flat) != len(targets):
            check_lists(func, flat, args)
        for target in flat:
            self.journal.settle(target)
            check_partial_overlap(target, args)
            if target._is_view() and torch.is_grad_enabled():
                self.joined.update(internals.storage_key(a) for a in args if isinstance(a, Tensor))
        if (
            operation.functional is None
            or any(isinstance(i, str) for i in written)
            or (operation.random and not all(t.is_contiguous() for t in flat))
            or (func is aten.div_.Tensor and flat[0].is_complex())  # which rounds otherwise in place
        ):
            return self.on_clones(func, written, args, kwargs)
        node_args = self._nodes(with_defaults(func, args, kwargs))
        node_kwargs = {k: self._nodes_in(v) for k, v in kwargs.items()}
        self._check_in_place(func, node_args, node_kwargs)
        if func is aten.copy_.default:
            node_args = (self._blank(flat[0]), *node_args[1:])  # the old value does not matter
        recipe = self.builder.infer(operation.functional, node_args, node_kwargs)
        self._check_growth(func, flat, recipe, node_args, node_kwargs)
        node = self._call(operation.functional, node_args, node_kwargs, recipe, operation.random, True)
        if recipe.many:
            for i, target in enumerate(flat):
                self._write(target, self.builder.item(node, i))
                if isinstance(targets[0], (list, tuple)) and not target.is_inference():
                    torch.autograd.graph.increment_version(target)  # as kernels of lists do themselves
        else:
            self._write(flat[0], node)
        return args[0] if isinstance(args[0], Tensor) else None

    def _call(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        metas: Recipe,
        random: bool,
        overwrites: bool = False,
    ) -> fx.Node:
        """Append a call; of a random one, only if it does not repeat an earlier draw, or if that can be done
        where the user wants it. One that `overwrites` its first argument reads nothing of it but how it lies.
        """
        if not random:
            return self.builder.call(op, args, kwargs, metas)
        read = (self.builder.metas[args[0]], *args[1:]) if overwrites else args

        states, late = self.rng_states, self.builder.backward

        def make() -> fx.Node:
            if states is None:
                return self.builder.call(op, args, kwargs, metas)
            return states.draw(op, args, kwargs, metas)

        def repeat(draw: fx.Node) -> fx.Node:
            if states is None or not late:
                return draw
            return states.draw(op, args, kwargs, metas, draw)

        return self.draws.record((op, read, kwargs), make, repeat, again=not late)

    def _blank(self, fake: Tensor) -> fx.Node:
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

    def _check_growth(
        self, func: Any, targets: list[Tensor], recipe: Recipe, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse an in-place call that resizes what it writes to, as `addbmm_` does; others raise."""
        for target, meta in zip(targets, recipe.metas, strict=True):
            if meta is not None and len(lookup(meta).size) > target.dim():
                self.builder.run(func, args, kwargs)
                raise errors.StorageMutation(
                    f"{func} resizes the tensor of shape {tuple(target.shape)} that it writes to; use the "
                    f"out-of-place operation"
                )

    def _check_overlap(
        self, func: Any, targets: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for target in targets:
            if not isinstance(target, Tensor) or not geometry(target).overlaps_itself:
                continue
            if func is aten.copy_.default and shows_the_same(target, args[1]):
                continue  # which does nothing
            if func not in _FILLS:
                check_order(func, target, args, kwargs)
            if target.requires_grad and torch.is_grad_enabled() and id(target) not in self.journal.origins:
                raise errors.UnsupportedOperation(
                    f"{func} on an argument that requires grad and shows elements several times; pass the "
                    f"tensor that it was expanded from"
                )

    def on_clones(
        self, func: Any, written: tuple[int | str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation without a functional form: it runs on private copies of what it writes."""
        written = tuple(i for i in written if given(i, args, kwargs))
        fakes = [args[i] if isinstance(i, int) else kwargs[i] for i in written]
        if not all(isinstance(f, Tensor) for f in fakes):
            raise errors.UnsupportedOperation(
                f"{func} writes to lists of tensors and has no functional form; call it per tensor"
            )
        before = [geometry(f) for f in fakes]
        node_args = self._nodes(args)
        node_kwargs = {k: self._nodes_in(v) for k, v in kwargs.items()}
        fake_args, fake_kwargs = fx.node.map_arg((node_args, node_kwargs), self.builder.fake)
        with typed_refusals(), self.builder.mode:
            results = call_on_clones(func, written, fake_args, fake_kwargs)
        changed = [geometry(r) for r in results[len(results) - len(fakes) :]]
        if any(a.size != b.size for a, b in zip(before, changed, strict=True)):
            raise errors.StorageMutation(
                f"{func} resizes the tensor it writes to; give it an output of the right shape"
            )
        metas = Recipe(True, tuple(None if r is None else meta_of(r) for r in results))
        counted = classify(func).counted and func not in BATCH_NORM
        random = classify(func).random
        # (An overload may be called like a keyword of Python, in which graphs are written.)
        called = f"{func._opname}.{func._overloadname}" if keyword.iskeyword(func._overloadname) else func
        node = self._call(call_on_clones, (called, written, node_args, node_kwargs), {}, metas, random)
        for i, fake in enumerate(fakes):
            value = self.builder.item(node, len(results) - len(fakes) + i)
            self._write(fake, value, counted)
        outputs: list[Any] = []
        targets, others = iter(fakes), iter(enumerate(metas.metas))
        for returned in func._schema.returns:
            if is_written(returned):
                outputs.append(next(targets))
                continue
            i, meta = next(others)
            outputs.append(None if meta is None else self._fresh(self.builder.item(node, i), meta))
        return outputs[0] if len(outputs) == 1 else tuple(outputs) if outputs else None

    def _write(self, fake: Tensor, value: fx.Node, counted: bool = True) -> None:
        meta = self.builder.meta(value)
        if not torch.can_cast(meta.dtype, fake.dtype):
            # Meta kernels of in-place operations do not look; the text is TensorIterator's.
            raise RuntimeError(
                f"result type {str(meta.dtype)[6:]} can't be cast to the desired output type "
                f"{str(fake.dtype)[6:]}"
            )
        if meta.dtype != fake.dtype:
            value = self.builder.emit(aten._to_copy.default, value, dtype=fake.dtype)
        if meta.size != tuple(fake.shape):
            value = self.builder.emit(aten.expand.default, value, list(fake.shape))
        state = self.state(fake)
        if self.builder.backward and not state.of_backward:
            raise errors.UnsupportedOperation(
                "a backward writes to a tensor of the forward (a custom function's, or a batch norm that a "
                "checkpoint runs again); return what is to be written instead"
            )
        if self.builder.backward and state.held:
            raise errors.UnsupportedOperation(
                "a backward (a custom function's, or a hook) writes to the gradient that it is given, which "
                "torch forbids, as others may hold it; return a new one"
            )
        state.write(fake, value, counted)

    def reshape(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A metadata mutation: the fake changes, the storage does not."""
        fake = args[0]
        self.journal.settle(fake)
        state = self.state(fake)
        before = geometry(fake)
        result = func(*args, **kwargs)
        if func is aten.resize_.default and before == geometry(fake):
            return result  # which does not count as a change
        stale = fake.requires_grad and fake._is_view() and self.journal.moved_unnoticed(fake)
        event = Reshape(func, tuple(args[1:]), kwargs, Mode.now(), stale)
        functional = functional_form(func)
        if functional not in (None, aten.as_strided.default, aten.resize.default):
            state.view(before, geometry(fake), ViewStep(functional, event.args, kwargs, None, event.mode))
        if id(fake) in self.journal.origins:
            origin = self.journal.origins[id(fake)][1]
            if (origin.state, origin.where) == (state, before):
                self.journal.note_origin(
                    fake, fake, ViewStep(func, event.args, kwargs, None, event.mode, True)
                )
            else:
                del self.journal.origins[id(fake)]  # it has been put elsewhere since: no steps lead there
        self.journal.note_change(fake, event)
        if all(view is not fake for view in state.reshaped):
            state.reshaped.append(fake)
        return result

    def resize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`resize_` changes the metadata, and the storage where that is too small."""
        fake = args[0]
        if func is aten.resize_as_.default:
            # The template is not at hand when the wrapper repeats it.
            template = args[1]
            form = kwargs.get("memory_format")
            if form is torch.preserve_format:
                form = None if template.is_contiguous() else torch.channels_last
            kwargs = {} if form is None else {"memory_format": form}
            func, args = aten.resize_.default, (fake, list(template.shape))
        self.journal.settle(fake)
        count = 1
        for n in args[1]:
            count *= n
        nbytes = (geometry(fake).offset + count) * fake.dtype.itemsize
        larger = nbytes > fake.untyped_storage().nbytes()
        if count and larger and tuple(args[1]) != tuple(fake.shape):
            state = self.state(fake)
            if not state.grown or state.grown[-1].nbytes() < nbytes:
                state.grow(internals.memoryless_storage(nbytes, fake.device))
            self.follow_growth(fake)
        return self.reshape(func, args, kwargs)

    def follow_growth(self, fake: Tensor) -> None:
        """Put a tensor onto the largest storage that stands for its own, which has grown."""
        state = self.state(fake)
        if state.grown and state.nbytes > fake.untyped_storage().nbytes():
            internals.move(fake, state.grown[-1])
            self.states[internals.storage_key(fake)] = state

    def rebind(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`set_`: the fake moves to another storage."""
        fake = args[0]
        self.journal.settle(fake)
        source = args[1] if len(args) > 1 else None
        if isinstance(source, Tensor):
            self.state(source)
        elif source is not None and source._cdata not in self.states:
            raise errors.ClosureTensor(
                "set_() to a storage that is neither an argument's nor made by the function; pass a tensor "
                "on it as an argument"
            )
        begins = isinstance(source, Tensor) and source.requires_grad and not fake.requires_grad
        if begins and torch.is_grad_enabled():
            raise errors.StorageMutation(
                "set_() in grad mode of a tensor that does not require grad to one that does: autograd "
                "cannot differentiate it; call it under torch.no_grad()"
            )
        if torch.is_inference_mode_enabled() or fake.is_inference():
            raise errors.InferenceModeUnsupported(
                "set_() under torch.inference_mode or on a tensor that was made there; call it under "
                "torch.no_grad"
            )
        state = self.state(fake)
        if fake._base is not None and all(member is not fake for member in state.members):
            state.left.add(id(fake._base))
        result = func(*args, **kwargs)
        if source is None:
            where = geometry(fake)
            node = self.builder.emit(
                aten.empty_strided.default,
                list(where.size),
                list(where.stride),
                dtype=where.dtype,
                device=fake.device,
            )
            self.adopt(fake).define(where, node)
        self.journal.note_change(fake, Rebind(self.state(fake), geometry(fake), False, Mode.now()))
        return result

    def special(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Literals, and everything that a graph cannot say."""
        if func is aten.lift_fresh.default or func is aten.lift.default:
            (value,) = args
            if internals.storage_key(value) in self.states:
                return self.view(func, args, kwargs)
            node = self.builder.emit(aten.clone.default, self.builder.constant(value))
            return self._fresh(node, self.builder.metas[node])
        if func in READS_GRAD_MODE:
            op_args = self._nodes(args)
            if torch.is_grad_enabled():
                func, op_args = call_with_grad, (func, *op_args)
            recipe = self.builder.infer(func, op_args, kwargs)
            return self._results(self.builder.call(func, op_args, kwargs, recipe), recipe)
        for value in (*args, *kwargs.values()):
            self._nodes_in(value)
        raise errors.UnsupportedOperation(f"{func} cannot be recorded; compute it outside of the function")

    # ---- conversions

    def _fresh(self, node: fx.Node, meta: Any) -> Tensor:
        size, stride, dtype, device = lookup(meta)
        where = Geometry(size, stride, 0, dtype)
        fake = fake_of(where, device)
        self.adopt(fake).define(where, node)
        return self.lifetimes.note(fake)

    def _nodes(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([self._nodes_in(v) for v in values])

    def _nodes_in(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.read(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._nodes_in(v) for v in value])
        if isinstance(value, torch.Generator):
            raise errors.UnsupportedOperation(
                "a random operation with an explicit generator; use torch.manual_seed and the default one"
            )
        return value


def fake_of(where: Geometry, device: torch.device) -> Tensor:
    """A tensor without memory, on a storage of its own that ends where it ends."""
    storage = internals.memoryless_storage(where.stop * where.dtype.itemsize, device)
    return internals.memoryless(storage, where.size, where.stride, where.offset, where.dtype, device)
