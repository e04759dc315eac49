"""The recorder: one Python frame per operation, which runs it on fakes and appends its functional form.

The user's function sees fake tensors that alias, mutate and carry autograd history exactly as its real
arguments would: every rule of eager, and every error, is torch's own. Below autograd each operation comes
through here once. A pure one is appended as it is; a view is only noted; an in-place one is appended in
its functional form, and its result becomes the storage's new value (`storages`). What is recorded is
therefore functional without a second pass over it.
"""

from __future__ import annotations

import enum
import itertools
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot import errors
from aot import torch_internals as internals
from aot.capture.graph import (
    GraphBuilder,
    Recipe,
    by_name,
    call_with_grad,
    lookup,
    meta_of,
    recipe_of,
    typed_refusals,
)
from aot.capture.hooks import Hooks
from aot.capture.known import Known
from aot.capture.lifetimes import Lifetimes
from aot.capture.random import Draws
from aot.capture.storages import Mode, StorageState, ViewStep
from aot.geometry import Geometry, geometry, is_dense

aten = torch.ops.aten


class Kind(enum.Enum):
    """What an operation does to its arguments."""

    PURE = "pure"
    VIEW = "view"
    MUTATION = "mutation"
    RESHAPE = "reshape"  # changes the metadata of its first argument, not its data
    RESIZE = "resize"  # the same, and the size of its storage where that is too small
    REBIND = "rebind"  # puts its first argument onto another storage
    COMPOSITE = "composite"  # made of others; autograd takes it apart, unless inference tensors go past that
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the recorder treats it.

    Attributes:
        written: the arguments that it writes, by position or name.
        functional: the operation that returns what this one writes.
        random: whether it draws.
        valued: whether its result is a value or has a shape that depends on values.
        counted: whether autograd counts its writes.
    """

    kind: Kind
    written: tuple[int | str, ...] = ()
    functional: Any = None
    random: bool = False
    valued: bool = False
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Reshape:
    """An operation that changes an argument but not its data, to be repeated on the real one.

    Attributes:
        mode: in which mode it ran.
        stale: whether the argument is a view whose history autograd derived anew for it, as the version
            counter had moved.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mode: Mode
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Rebind:
    """A tensor was put onto the storage `state`, where it lies as `where`: by ``x.data = y`` (`assigned`), or
    by ``set_``, in the mode `mode`."""

    state: StorageState
    where: Geometry
    assigned: bool
    mode: Mode


@dataclass(frozen=True, slots=True)
class ViewOrigin:
    """How a fake tensor came to lie as it does.

    Attributes:
        parent: the fake that it was taken from; itself, after a metadata mutation.
        step: the view operation, or the functional form of the metadata mutation.
        before: how the parent had come to lie as it did then; None for a tensor that is no view.
        reshapes: how often the parent's metadata had been changed by then.
        version: the version counter when autograd last took note of the view.
        state, where: the storage that it lay in, and how, just afterwards.
        parent_where: how the parent lay there.
    """

    parent: Tensor
    step: ViewStep
    before: ViewOrigin | None
    reshapes: int
    version: int
    state: StorageState
    where: Geometry
    parent_where: Geometry


# Names of functional forms that do not follow from the in-place name.
_RENAMED = {"normal_": "normal_functional"}

# Operations that write to arguments although their schema does not say so: the positions written, when the
# argument at position `training` is true (https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/native_functions.yaml).
_BATCH_NORM = {
    aten.native_batch_norm.default: ((3, 4), 5),
    aten.cudnn_batch_norm.default: ((3, 4), 5),
    aten.miopen_batch_norm.default: ((3, 4), 5),
}

# Operations whose kernel looks at the grad mode: graphs run with it off.
_READS_GRAD_MODE = {aten.mkldnn_rnn_layer.default}

# ATen asks whether a condition holds by `equal(condition, new_ones(condition))`, in order to raise where it
# does not hold (`cov` of weights that are negative), or does (`istft` with a window that has gaps).
_EXPECTED = {aten.ge.Scalar: True, aten.ne.Scalar: True, aten.lt.Scalar: False, aten.le.Scalar: False}

_FILLS = {aten.fill_.Scalar, aten.zero_.default}  # (fill_.Tensor copies.)

_STORAGE_OPS = {"set_": Kind.REBIND, "resize_": Kind.RESIZE, "resize_as_": Kind.RESIZE}


class Recorder(internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records everything that runs below autograd while it is the innermost mode.

    Attributes:
        builder: the graph so far.
        origins: how each view came to be.
        joined: storages of what an in-place operation on a view read besides that view, in grad mode.
        backward_reads: what a recorded backward has read, and at which node of the autograd graph.
        known: the values that depend on no argument.
        draws: the random draws so far.
        hooks: the hooks registered so far.
        inference: whether the call is made in inference mode.
    """

    def __init__(
        self, decompositions: dict[Any, Callable[..., Any]], lifetimes: Lifetimes, inference: bool = False
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lifetimes = lifetimes
        self.inference = inference
        self._inference_tensors = inference
        self.builder = GraphBuilder(internals.FakeTensorMode())
        self.states: dict[int, StorageState] = {}
        self._changes: dict[int, tuple[Tensor, list[Reshape | Rebind]]] = {}
        self._histories: dict[int, list[Node | None]] = {}
        self._entered_at: dict[int, int] = {}
        self._changed_at: dict[int, int] = {}
        self._places: dict[int, tuple[StorageState, Geometry]] = {}
        self.origins: dict[int, tuple[Tensor, ViewOrigin]] = {}
        self.joined: set[int] = set()
        self.backward_reads: list[tuple[Tensor, Node | None]] = []
        self.known = Known(self.builder)
        self.draws = Draws()
        self.hooks = Hooks(lambda: self.builder.backward)
        self._decompositions = decompositions

    supports_higher_order_operators = True  # they come to `dispatch` like others

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps every call of __torch_dispatch__ in torch._dynamo.disable

    def forget(self) -> None:
        """Let go of every tensor, when the trace is over: the recorder itself is part of reference cycles."""
        self.origins.clear()
        self.states.clear()
        self.backward_reads.clear()
        self._changes.clear()
        self._histories.clear()
        self._places.clear()

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
            raise internals.takes_functions(str(func))
        if func in self._decompositions:
            with self:
                result = self._decompositions[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        operation = classify(func)
        kind = operation.kind
        if kind is Kind.PURE:
            result = self.pure(func, operation, args, kwargs)
            if self._inference_tensors and self._ends_in_a_view(operation, func, args, kwargs):
                with internals.views_noticed(), self:
                    return result.view_as(result)
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
        if kind is Kind.COMPOSITE:
            with self:
                return internals.take_apart(func, args, kwargs)
        return self.special(func, args, kwargs)

    def _ends_in_a_view(
        self, operation: Operation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the one result of a pure operation is a view of what its kernel makes. Autograd hides that,
        but not where inference tensors go past it, outside of inference mode."""
        if torch.is_inference_mode_enabled() or operation.random:
            return False
        tensors = [a for arg in args for a in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        tensors = [t for t in tensors if isinstance(t, Tensor)]
        if not tensors or not all(t.is_inference() for t in tensors):
            return False
        if not internals.is_composite_below_autograd(func, tensors[0].device):
            return False
        result = self.builder.run_apart(func, self._nodes(args), kwargs)
        return isinstance(result, Tensor) and result._is_view()

    def pure(self, func: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A pure operation: append it, and make fakes for its results."""
        if func in _BATCH_NORM:
            written, training = _BATCH_NORM[func]
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
        recipe = self.builder.infer(func, node_args, node_kwargs)
        if recipe.aliases:
            if not internals.is_undeclared_view(func):
                raise errors.UnsupportedOperation(
                    f"{func} returns memory of its arguments although its schema does not say so; clone its "
                    f"result inside the operation"
                )
            return self.view(func, args, kwargs)
        node = self._call(func, node_args, node_kwargs, recipe, _draws(func, operation, args, kwargs))
        if not recipe.many and any(isinstance(a, Tensor) and (a.is_conj() or a.is_neg()) for a in args):
            return self._perhaps_lazy(func, args, kwargs, node)
        return self._results(node, recipe)

    def _perhaps_lazy(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: fx.Node
    ) -> Tensor:
        """The one result of an operation on lazy tensors, which may be lazy itself: a product of conjugates
        is the conjugate of a product."""
        with internals.modes_off(), internals.outside_inference_mode(), torch.no_grad():
            blanks = [_blank_like(a) if isinstance(a, Tensor) else a for a in args]
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
        self.settle(parent)
        state = self.state(parent)
        result = func(*args, **kwargs)
        rest = tuple(args[1:])
        mode = Mode.now()
        where = geometry(parent)
        if isinstance(result, Tensor):
            self._note_view(state, parent, where, result, ViewStep(func, rest, kwargs, None, mode))
        else:
            for i, part in enumerate(result):
                self._note_view(state, parent, where, part, ViewStep(func, rest, kwargs, i, mode))
        return result

    def _note_view(
        self, state: StorageState, parent: Tensor, where: Geometry, view: Tensor, step: ViewStep
    ) -> None:
        self._note_origin(self.lifetimes.note(view), parent, step)
        # An explicit offset is relative to the storage, not to the parent's current value, so the step
        # cannot be replayed on the latter; reading falls back to a relative as_strided. And values of the
        # graph are never lazy.
        if step.op not in (aten.as_strided.default, aten._conj.default, aten._neg_view.default):
            state.view(where, geometry(view), step)

    def mutation(self, func: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An in-place operation: append its functional form, and make the result the new value."""
        written = operation.written
        targets = [args[i] if isinstance(i, int) else kwargs[i] for i in written if _given(i, args, kwargs)]
        flat = [t for target in targets for t in (target if isinstance(target, (list, tuple)) else (target,))]
        self._check_overlap(func, flat)
        if len(flat) != len(targets):
            self._check_lists(func, flat, args)
        for target in flat:
            self._check_partial_overlap(target, args)
            if target._is_view() and torch.is_grad_enabled():
                self.joined.update(internals.storage_key(a) for a in args if isinstance(a, Tensor))
        if (
            operation.functional is None
            or any(isinstance(i, str) for i in written)
            or (operation.random and not all(t.is_contiguous() for t in flat))
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
        """Append a call; of a random one, only if it does not repeat an earlier draw. One that `overwrites`
        its first argument reads nothing of it but how it lies."""
        if not random:
            return self.builder.call(op, args, kwargs, metas)
        read = (self.builder.metas[args[0]], *args[1:]) if overwrites else args
        return self.draws.record(
            (op, read, kwargs),
            lambda: self.builder.call(op, args, kwargs, metas),
            again=not self.builder.backward,
        )

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

    def _check_lists(self, func: Any, targets: list[Tensor], args: tuple[Any, ...]) -> None:
        """An operation on lists goes through them in order, its functional form does not."""
        others = [t for a in args[1:] if isinstance(a, (list, tuple)) for t in a if isinstance(t, Tensor)]
        pairs = itertools.chain(itertools.combinations(targets, 2), itertools.product(targets, others))
        if any(_may_overlap(a, b) for a, b in pairs):
            raise errors.UnsupportedOperation(
                f"{func} on a list whose tensors share storage with each other or with what is read; call "
                f"it per tensor"
            )

    def _check_partial_overlap(self, target: Tensor, args: tuple[Any, ...]) -> None:
        """What ATen's `assert_no_partial_overlap` raises, by its rules."""
        where = geometry(target)
        for other in args:
            if not isinstance(other, Tensor) or other is target:
                continue
            there = geometry(other)
            if not _may_overlap(target, other) or not (is_dense(where) and is_dense(there)):
                continue
            if (where.offset, where.stop) != (there.offset, there.stop) or where.stride != there.stride:
                raise RuntimeError(
                    "unsupported operation: some elements of the input tensor and the written-to tensor "
                    "refer to a single memory location. Please clone() the tensor before performing the "
                    "operation."
                )

    def _check_overlap(self, func: Any, targets: list[Any]) -> None:
        for target in targets:
            if not isinstance(target, Tensor) or not geometry(target).overlaps_itself:
                continue
            if func not in _FILLS:
                # Meta kernels do not look; the text is TensorIterator's.
                raise RuntimeError(
                    "unsupported operation: more than one element of the written-to tensor refers to a "
                    "single memory location. Please clone() the tensor before performing the operation."
                )
            if target.requires_grad and torch.is_grad_enabled() and id(target) not in self.origins:
                raise errors.UnsupportedOperation(
                    f"{func} on an argument that requires grad and shows elements several times; pass the "
                    f"tensor that it was expanded from"
                )

    def on_clones(
        self, func: Any, written: tuple[int | str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation without a functional form: it runs on private copies of what it writes."""
        written = tuple(i for i in written if _given(i, args, kwargs))
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
        counted = classify(func).counted and func not in _BATCH_NORM
        random = classify(func).random
        # (An overload may be called like a keyword of Python, in which graphs are written.)
        called = f"{func._opname}.{func._overloadname}" if keyword.iskeyword(func._overloadname) else func
        node = self._call(call_on_clones, (called, written, node_args, node_kwargs), {}, metas, random)
        for i, fake in enumerate(fakes):
            value = self.builder.item(node, len(results) - len(fakes) + i)
            self._write(fake, value, counted)
        outputs: list[Any] = []
        for i, returned in enumerate(func._schema.returns):
            info = returned.alias_info
            if info is not None and info.is_write:
                outputs.append(fakes[len([r for r in func._schema.returns[:i] if r.alias_info is not None])])
            elif results[i] is None:
                outputs.append(None)
            else:
                outputs.append(self._fresh(self.builder.item(node, i), metas.metas[i]))
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
        state.write(fake, value, counted)

    def reshape(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A metadata mutation: the fake changes, the storage does not."""
        fake = args[0]
        self.settle(fake)
        state = self.state(fake)
        before = geometry(fake)
        result = func(*args, **kwargs)
        if func is aten.resize_.default and before == geometry(fake):
            return result  # which does not count as a change
        stale = fake.requires_grad and fake._is_view() and self._moved_unnoticed(fake)
        event = Reshape(func, tuple(args[1:]), kwargs, Mode.now(), stale)
        functional = functional_form(func)
        if functional not in (None, aten.as_strided.default, aten.resize.default):
            state.view(before, geometry(fake), ViewStep(functional, event.args, kwargs, None, event.mode))
        if id(fake) in self.origins:
            origin = self.origins[id(fake)][1]
            if (origin.state, origin.where) == (state, before):
                self._note_origin(fake, fake, ViewStep(func, event.args, kwargs, None, event.mode, True))
            else:
                del self.origins[id(fake)]  # it has been put elsewhere since: no steps lead there
        self._note_change(fake, event)
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
        self.settle(fake)
        count = 1
        for n in args[1]:
            count *= n
        nbytes = (geometry(fake).offset + count) * fake.dtype.itemsize
        larger = nbytes > fake.untyped_storage().nbytes()
        if count and larger and tuple(args[1]) != tuple(fake.shape):
            state = self.state(fake)
            if not state.grown or state.grown[-1].nbytes() < nbytes:
                state.grow(internals.memoryless_storage(nbytes, fake.device))
            internals.move(fake, state.grown[-1])
            self.states[internals.storage_key(fake)] = state
        return self.reshape(func, args, kwargs)

    def rebind(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`set_`: the fake moves to another storage."""
        fake = args[0]
        self.settle(fake)
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
        self._note_change(fake, Rebind(self.state(fake), geometry(fake), False, Mode.now()))
        return result

    # ---- changes of arguments

    def follow(self, fake: Tensor) -> None:
        """From here on, note when the argument `fake` is put elsewhere by ``x.data = y``, which no operation
        tells."""
        self._places[id(fake)] = (self.state(fake), geometry(fake))
        self._entered_at.setdefault(id(fake), internals.version(fake))

    def settle(self, fake: Tensor) -> None:
        """Note that an argument was put elsewhere since it was last looked at."""
        place = self._places.get(id(fake))
        if place is not None and place != (self.state(fake), geometry(fake)):
            if place[0].inference != self.state(fake).inference:
                raise errors.InferenceModeUnsupported(
                    "an inference tensor and another are put onto one storage (.data = ...); clone it first"
                )
            self._note_change(fake, Rebind(self.state(fake), geometry(fake), True, Mode.now()))

    def _note_change(self, fake: Tensor, event: Reshape | Rebind) -> None:
        self._changes.setdefault(id(fake), (fake, []))[1].append(event)
        base = fake._base if fake._is_view() else None
        self._histories.setdefault(id(fake), []).append((fake if base is None else base).grad_fn)
        # An operation moves the counter as soon as it returns to autograd; an assignment does not.
        self._changed_at[id(fake)] = internals.version(fake) + (
            isinstance(event, Reshape) or not event.assigned
        )
        if id(fake) in self._places:
            self.follow(fake)

    def changes_of(self, fake: Tensor) -> tuple[Reshape | Rebind, ...]:
        """What changed about a tensor besides its data, in order."""
        known = self._changes.get(id(fake))
        return () if known is None else tuple(known[1])

    def histories_of(self, fake: Tensor) -> tuple[Node | None, ...]:
        """The place in the autograd graph that the tensor, or its base, had at each of these changes."""
        return tuple(self._histories.get(id(fake), ()))

    def moves(self, fake: Tensor) -> bool:
        """Whether one of these changes moves the version counter."""
        return any(isinstance(event, Reshape) or not event.assigned for event in self.changes_of(fake))

    def _moved_unnoticed(self, fake: Tensor) -> bool:
        return internals.version(fake) != self._changed_at.get(id(fake), self._entered_at.get(id(fake), 0))

    def moved_since(self, fake: Tensor) -> bool:
        """Whether the version counter moved after the last of these changes."""
        return internals.version(fake) != self._changed_at[id(fake)]

    def reshaped(self, fake: Tensor) -> int:
        """How often something changed about a tensor besides its data."""
        known = self._changes.get(id(fake))
        return 0 if known is None else len(known[1])

    def _note_origin(self, view: Tensor, parent: Tensor, step: ViewStep) -> None:
        known = self.origins.get(id(parent))
        before = None if known is None else known[1]
        place = (self.state(parent), geometry(parent))
        if before is not None and not step.in_place and (before.state, before.where) != place:
            before = None  # it has been put elsewhere since
        version = internals.version(parent)
        if step.in_place and before is not None:
            # A metadata mutation moves the counter as soon as it returns to autograd, which takes note of it
            # only where there is a history.
            version = version + 1 if view.requires_grad and step.mode is Mode.GRAD else before.version
        origin = ViewOrigin(
            parent, step, before, self.reshaped(parent), version, self.state(view), geometry(view), place[1]
        )
        self.origins[id(view)] = (view, origin)

    def special(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Literals, and everything that a graph cannot say."""
        if func is aten.lift_fresh.default or func is aten.lift.default:
            (value,) = args
            if internals.storage_key(value) in self.states:
                return self.view(func, args, kwargs)
            node = self.builder.emit(aten.clone.default, self.builder.constant(value))
            return self._fresh(node, self.builder.metas[node])
        if func in _READS_GRAD_MODE:
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


def _blank_like(fake: Tensor) -> Tensor:
    """A tensor of zeros with the metadata of `fake`, and as lazy as that."""
    blank = torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=fake.device).zero_()
    internals.set_lazy(blank, fake.is_conj(), fake.is_neg())
    return blank


def call_on_clones(
    func: Any, written: tuple[int | str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Run a mutating operation, or the ATen operation of that name, on copies of what it writes, with the
    same strides.

    Returns:
        What the operation returned, then the written copies.
    """
    if isinstance(func, str):
        func = by_name(func)
    positional, named = list(args), dict(kwargs)
    clones = []
    for where in written:
        source = positional[where] if isinstance(where, int) else named[where]
        clone = torch.empty_strided(
            source.size(), source.stride(), dtype=source.dtype, device=source.device
        ).copy_(source)
        clones.append(clone)
        if isinstance(where, int):
            positional[where] = clone
        else:
            named[where] = clone
    result = func(*positional, **named)
    results = result if isinstance(result, (tuple, list)) else (result,)
    if not func._schema.returns:
        results = ()
    return (*results, *clones)


_OPERATIONS: dict[Any, Operation] = {}


def classify(func: Any) -> Operation:
    """What the recorder does with an operation; decided once per operation from its schema and tags."""
    known = _OPERATIONS.get(func)
    if known is None:
        known = _OPERATIONS[func] = _classify(func)
    return known


def _classify(func: Any) -> Operation:
    tags = func.tags
    name = func._schema.name.split("::")[1]
    random = torch.Tag.nondeterministic_seeded in tags
    if name in _STORAGE_OPS:
        return Operation(_STORAGE_OPS[name])
    if func in (aten.lift_fresh.default, aten.lift.default) or func in _READS_GRAD_MODE:
        return Operation(Kind.REFUSED)
    if internals.is_composite(func):
        return Operation(Kind.COMPOSITE)
    if torch.Tag.inplace_view in tags:
        return Operation(Kind.RESHAPE)
    written: list[int | str] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else i)
    if written:
        functional = functional_form(func) if written == [0] else None
        # Autograd counts writes of in-place operations and of out= alone, and what custom operators declare.
        counted = name.endswith("_") or isinstance(written[0], str) or func.namespace != "aten"
        return Operation(Kind.MUTATION, tuple(written), functional, random, counted=counted)
    if func.is_view:
        return Operation(Kind.VIEW)
    valued = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    return Operation(Kind.PURE, random=random, valued=valued)


def functional_form(func: Any) -> Any:
    """The operation that returns what an in-place one writes, or None.

    By ATen's naming rule: the same name without the trailing underscore, and the same arguments.
    """
    namespace, name = func._schema.name.split("::")
    if not name.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, namespace), _RENAMED.get(name, name[:-1]), None)
    if packet is None:
        return None
    ours = [(a.name, str(a.type)) for a in func._schema.arguments]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        theirs = [(a.name, str(a.type)) for a in candidate._schema.arguments]
        if ours == theirs and not candidate._schema.is_mutable:
            return candidate
    return None


def with_defaults(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The positional arguments with left-out defaults filled in: the functional form may have none."""
    missing = func._schema.arguments[len(args) :]
    return args + tuple(a.default_value for a in missing if not a.kwarg_only and a.name not in kwargs)


def _draws(func: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws random numbers: attention does not without dropout."""
    if not operation.random:
        return False
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool((args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)) != 0)
    return True


def _may_overlap(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors reach into the same stretch of one storage."""
    if first is second:
        return True
    if internals.storage_key(first) != internals.storage_key(second):
        return False
    a, b = geometry(first), geometry(second)
    return a.offset < b.stop and b.offset < a.stop


def _given(where: int | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is there: an optional one may be left out, or None."""
    if isinstance(where, int):
        return where < len(args) and args[where] is not None
    return kwargs.get(where) is not None
