"""Shape inference: the metadata of an operation's results, from kernels on zeros or from fake tensors.

In: an operation and its arguments as nodes. Out: a `ResultMeta`. The kernel runs on zeros if it may
(`ops.zero_probing`), because it is right by definition. For a GPU, fake tensors give the answer; if the CPU's
kernel says something else, the GPU's kernel decides.

Answers are remembered across traces: recorded operations are pure, so metadata depends on nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from aot import errors
from aot.graph.value_meta import (
    ResultMeta,
    Symbolic,
    UnbackedRows,
    ValueMeta,
    has_odd_unit_stride,
    intern,
    is_contiguous,
    lookup,
    result_meta_of,
    same_but_for_device,
    strides_in_order,
)
from aot.ops.call_targets import call_with_grad, is_custom
from aot.ops.zero_probing import (
    PIVOTED,
    as_pivots,
    can_probe,
    error_is_conclusive,
    error_is_conclusive_anywhere,
)
from aot.tensors.geometry import Geometry
from aot.tensors.symbolic_sizes import specialize_sizes, with_hints
from aot.torch_internals import (
    autograd_state,
    dispatcher,
    mode_stacks,
    op_queries,
    rng,
    tensor_impl,
    torch_fakes,
)

_CPU = torch.device("cpu")
_RECIPES: dict[tuple[Any, ...], ResultMeta] = {}
_RECIPES_LIMIT = 20_000  # for processes that compile for ever; far more than one program needs


class ShapeInference:
    """The metadata of values, and of what operations return for them.

    Attributes:
        mode: the fake tensor mode in which operations run.
        symbolic: sizes may be symbols.
        metas: node -> interned metadata; for an operation with several results a tuple, as in `ResultMeta`.
        offsets: node -> storage offset in elements, if it is not 0.
    """

    def __init__(self, mode: torch_fakes.FakeTensorMode) -> None:
        self.mode = mode
        self.symbolic = mode.shape_env is not None
        self.metas: dict[fx.Node, int | tuple[Any, ...]] = {}
        self.offsets: dict[fx.Node, int] = {}

    def adopt_mode(self, mode: torch_fakes.FakeTensorMode) -> None:
        """Use another fake tensor mode from now on. Its `shape_env` says if sizes may be symbols."""
        self.mode = mode
        self.symbolic = mode.shape_env is not None

    def meta(self, node: fx.Node) -> ValueMeta:
        """The metadata of a single-tensor value."""
        meta = self.metas[node]
        assert isinstance(meta, int)
        return lookup(meta)

    def fake(self, node: fx.Node) -> torch_fakes.FakeTensor:
        """A fake tensor with the metadata of `node`, on a storage of its own."""
        meta = self.metas[node]
        assert isinstance(meta, int)
        return self._fake(meta, self.offsets.get(node, 0))

    def infer(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ResultMeta:
        """Infer the metadata of what ``op`` returns for these arguments, which are nodes and constants.

        Raises:
            Exception: the error that the operation raises for arguments with this metadata.
            Unsupported: nothing says what the operation returns.
        """
        key: list[Any] | None = [op, torch.get_default_dtype()]
        key = self._inference_key(args, key)
        if kwargs:
            key = self._inference_key(tuple(kwargs.items()), key)
        frozen = None if key is None else tuple(key)
        if frozen is not None:
            known = _RECIPES.get(frozen)
            if known is not None:
                return known
        symbolic = frozen is None and self.symbolic
        recipe = None if symbolic else self.infer_by_kernel(op, args, kwargs)
        if recipe is None:
            recipe = self._infer_by_fakes(op, args, kwargs, symbolic)
            if not symbolic and self._is_doubtful_inference(recipe, op, args, kwargs):
                recipe = self._infer_by_kernel(op, args, kwargs) or recipe
        if frozen is not None:
            if len(_RECIPES) >= _RECIPES_LIMIT:
                _RECIPES.clear()
            _RECIPES[frozen] = recipe
        return recipe

    def infer_by_kernel(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any] | None = None,
    ) -> ResultMeta | None:
        """The metadata of what an operation's kernel returns for zeros; None if it must not run or cannot.

        `ops.zero_probing` says if it may run. If there is a `call`, ``call(args, kwargs)`` runs it.
        """
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        return self._infer_by_kernel(op, args, kwargs, call) if can_probe(op, metas, args, kwargs) else None

    def _is_doubtful_inference(
        self, recipe: ResultMeta, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the CPU's kernel contradicts the fake tensors, and the device's kernel may decide.

        Meta kernels, which all devices share, accept arguments that kernels refuse, and give results other
        strides. The CPU is asked first, because a run on a device takes far longer. A device kernel that does
        not take zeros may also leave the process without a working CUDA.
        """
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        if not any(meta.device.type == "cuda" for meta in metas):
            return False
        there = [meta._replace(device=_CPU) for meta in metas]
        if not can_probe(op, there, args, kwargs) or op_queries.may_be_random(op):
            return False
        try:
            by_cpu = self._infer_by_kernel(op, args, kwargs, at=_CPU)
        except Exception:
            return error_is_conclusive_anywhere(op, metas)
        return by_cpu is not None and not same_but_for_device(by_cpu.metas, recipe.metas)

    def _infer_by_kernel(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any] | None = None,
        at: torch.device | None = None,
    ) -> ResultMeta | None:
        """Do `infer_by_kernel` for any operation, with its arguments on the device `at`, if there is one."""
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        given: list[Tensor] = []

        def blank(node: fx.Node) -> Tensor:
            given.append(self._blank(node, at=at))
            return given[-1]

        def one(node: fx.Node) -> Tensor:
            return self._blank(node, at=at).fill_(1)

        def run(make: Callable[[fx.Node], Tensor]) -> Any:
            real = fx.node.map_arg((args, kwargs), make)
            return op(*real[0], **real[1]) if call is None else call(*real)

        apart = rng.preserving_generators() if op_queries.may_be_random(op) else contextlib.nullcontext()
        with (
            mode_stacks.dispatch_modes_off(),
            autograd_state.outside_inference_mode(),
            torch.no_grad(),
            apart,
        ):
            try:
                result = run(blank)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                return None  # the operation does not take a matrix of zeros
            except Exception:
                if op in _COUNT_FROM_THE_STORAGE or not error_is_conclusive(op, metas):
                    return None  # the error is due to the stand-in, whose storage is smaller
                # The error counts although a meta kernel may accept the arguments, such as factors of two
                # dtypes, or a wrong shape of the tensor that `addmm` adds.
                with contextlib.suppress(Exception):
                    run(one)
                    return None  # the operation refuses only zeros, for example as a divisor
                raise
        return result_meta_of(result, {tensor_impl.storage_key(tensor) for tensor in given})

    def _infer_by_fakes(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], symbolic: bool
    ) -> ResultMeta:
        fakes = fx.node.map_arg((args, kwargs), self.fake)
        if op in _WITHOUT_META:
            result = self.run(op, args, kwargs)
        else:
            result = self._inferred_result(op, args, kwargs, fakes, symbolic)
        storages = {tensor_impl.storage_key(f) for f in _tensors_for_inference(fakes)}
        recipe = result_meta_of(result, storages, numbers=is_custom(op) or op_queries.has_symint_results(op))
        metas = [self.meta(node) for node in _nodes((args, kwargs))] if symbolic else []
        odd = (
            any(map(has_odd_unit_stride, metas))
            and not is_custom(op)
            and not op_queries.is_nondeterministic_seeded(op)
        )
        if op not in _ROW_MAJOR and op not in _COPIES and (odd or op_queries.has_python_meta(op)):
            recipe = self.inferred_as_computed(recipe, op, args, kwargs, odd)
        return recipe

    def _inferred_result(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fakes: Any, symbolic: bool
    ) -> Any:
        """The result of an operation for fake tensors, or of its kernel for zeros if the former raises."""
        try:
            with (
                typed_refusals(),
                self.on_fakes(symbolic),
                autograd_state.outside_inference_mode(),
                torch.no_grad(),
            ):
                result = op(*fakes[0], **fakes[1])
                return result.clone() if op in _COPIES else result
        except errors.Unsupported:
            raise
        except Exception as error:
            if is_custom(op):  # its kernel runs only where the caller calls it
                raise errors.UnsupportedOperation(
                    f"{op} does not say what it returns: {type(error).__name__}: {error}; give it a kernel "
                    f"for fake tensors (register_fake) that takes these arguments"
                ) from error
            # Some meta kernels raise if the kernel does not, because they divide by a number of elements.
            # Others raise another error. So the kernel decides.
            return self.run(op, args, kwargs)

    @contextlib.contextmanager
    def on_fakes(self, symbolic: bool) -> Iterator[None]:
        """While it lasts, operations run on fake tensors, whose sizes are symbols if `symbolic`."""
        with self.mode, dispatcher.python_dispatcher_on() if symbolic else contextlib.nullcontext():
            yield

    def run(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: Callable[[Any], Any] = specialize_sizes,
    ) -> Any:
        """Run the operation's kernel on zeros with the arguments' metadata.

        `numbers` gives values to symbols in sizes and arguments.
        """
        with mode_stacks.dispatch_modes_off(), autograd_state.outside_inference_mode(), torch.no_grad():
            real = fx.node.map_arg(numbers((args, kwargs)), lambda node: self._blank(node, numbers))
            if op in PIVOTED:
                real = fx.node.map_aggregate(real, as_pivots)
            return op(*real[0], **real[1])

    def inferred_as_computed(
        self, recipe: ResultMeta, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], odd: bool = False
    ) -> ResultMeta:
        """Correct the dtypes and strides of `recipe` by those that the kernel gives.

        Meta kernels in Python are not always right for arguments of several dtypes, such as a norm of half
        precision with float32 parameters, or for arguments that are not contiguous. With symbols they may
        also be wrong for dimensions of one element (`odd`).
        """
        given = [with_hints(self.meta(node)) for node in _nodes((args, kwargs))]
        if any(None in meta.size for meta in given):
            return recipe  # a size depends on values
        mixed = len({meta.dtype for meta in given if meta.dtype.is_floating_point}) > 1
        plain = not odd and all(map(is_contiguous, given))
        if not mixed and (plain or any(0 in meta.size for meta in given)):
            return recipe
        try:
            result = self.run(op, args, kwargs, with_hints)
        except Exception:
            return recipe  # the kernel does not take zeros
        results = result if isinstance(result, (tuple, list)) else (result,)
        metas = list(recipe.metas)
        for i, (known, value) in enumerate(zip(recipe.metas, results, strict=True)):
            if isinstance(known, int) and isinstance(value, Tensor):
                meta = lookup(known)
                if with_hints(meta.size) == tuple(value.shape):
                    stride = meta.stride
                    if value.numel() and with_hints(stride) != value.stride():
                        stride = strides_in_order(meta.size, value.stride())
                    metas[i] = intern(meta._replace(stride=stride, dtype=value.dtype))
        return replace(recipe, metas=tuple(metas))

    def _blank(
        self, node: fx.Node, numbers: Callable[[Any], Any] = specialize_sizes, at: torch.device | None = None
    ) -> Tensor:
        meta = self.meta(node)
        size, stride = numbers(meta.size), numbers(meta.stride)
        return torch.empty_strided(size, stride, dtype=meta.dtype, device=at or meta.device).zero_()

    def _fake(self, meta: int, offset: int) -> torch_fakes.FakeTensor:
        size: tuple[Any, ...]
        size, stride, dtype, device = lookup(meta)
        nbytes: Any = Geometry(size, stride, offset, dtype).stop * dtype.itemsize
        if isinstance(meta, UnbackedRows):
            size, nbytes = (meta.count, *size[1:]), meta.count * nbytes
        return torch_fakes.fake_tensor(self.mode, nbytes, size, stride, offset, dtype, device)

    def _inference_key(self, values: Iterable[Any], key: list[Any] | None) -> list[Any] | None:
        """Extend a key of `_RECIPES` by `values`; None if one of them cannot be part of a key."""
        if key is None:
            return None
        for value in values:
            kind = type(value)
            if kind is fx.Node:
                meta, offset = self.metas[value], self.offsets.get(value, 0)
                if isinstance(meta, Symbolic) or type(offset) is not int:
                    return None
                key += (meta, offset)
            elif kind is tuple or kind is list:
                key.append(len(value))
                if self._inference_key(value, key) is None:
                    return None
            elif kind is float:
                key.append(value.hex())
            elif kind in _CONSTANTS:
                key.append(value)
            else:
                return None
            key.append(kind)
        return key


@contextlib.contextmanager
def typed_refusals() -> Iterator[None]:
    """While it lasts, errors of fake tensors about unsupported operations become this project's errors."""
    try:
        with torch_fakes.without_error_logs():
            yield
    except torch_fakes.DataDependentOutputException as error:
        raise errors.DataDependentValue(
            f"the function reads a tensor's value ({error.func}); compute with the tensor instead"
        ) from error
    except torch_fakes.DynamicOutputShapeException as error:
        raise errors.DataDependentValue(
            f"the shape of the result of {error.func} depends on its argument's values"
        ) from error
    except torch_fakes.UnsupportedOperatorException as error:
        raise errors.UnsupportedOperation(
            f"{error.func} has no meta kernel, so it cannot be traced"
        ) from error


# Operations whose kernel has to give the metadata. Fake tensors take a shape for data-dependent that follows
# from lengths given as numbers, or do not know it, or give the result other strides.
_WITHOUT_META = {
    torch.ops.aten._ctc_loss.default,
    torch.ops.aten.fractional_max_pool2d.default,
    torch.ops.aten.fractional_max_pool3d.default,
    torch.ops.aten.log_sigmoid_forward.default,
    torch.ops.aten.max_pool1d.default,
    call_with_grad,
}

# Operations whose result is contiguous for all layouts of the arguments.
_ROW_MAJOR = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}

# Operations with an offset that counts from the start of a storage.
_COUNT_FROM_THE_STORAGE = {
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
}

# Operations that return a copy of an argument, although their fake kernels return the argument itself.
_COPIES = {torch.ops.aten._functional_assert_async.msg}


_CONSTANTS: frozenset[type] = frozenset(
    {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, complex}
)


def _nodes(values: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.node.map_arg(values, nodes.append)
    return nodes


def _tensors_for_inference(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors_for_inference(tuple(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors_for_inference(value)
