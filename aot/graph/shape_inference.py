"""What an operation makes of its arguments' metadata: told by fake tensors, or by kernels on zeros.

What has been told is remembered across traces: everything recorded is pure, so that a result's metadata
depends on nothing else. Where a kernel may be asked (`ops.zero_probing`) it is, since it is right by
definition. For a GPU fake tensors are asked, and its kernel where that of the CPU says otherwise than they
do.
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
_RECIPES_LIMIT = 20_000  # a bound for processes that compile for ever; far above any one program's needs


class ShapeInference:
    """The metadata of values, and of what operations return for them.

    Attributes:
        mode: in which operations take fake tensors.
        symbolic: whether sizes may be symbols.
        metas: node -> interned metadata, a tuple of them for an operation with several results, as in
            `ResultMeta`.
        offsets: node -> its storage offset in elements, where that is not 0.
    """

    def __init__(self, mode: torch_fakes.FakeTensorMode) -> None:
        self.mode = mode
        self.symbolic = mode.shape_env is not None
        self.metas: dict[fx.Node, int | tuple[Any, ...]] = {}
        self.offsets: dict[fx.Node, int] = {}

    def adopt_mode(self, mode: torch_fakes.FakeTensorMode) -> None:
        """From now on, operations take fake tensors of another mode, and sizes may be symbols."""
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
        """The metadata of what ``op`` returns for these arguments, given as nodes and constants.

        Raises whatever the operation raises for such arguments.
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
        """What the kernel of an operation returns on zeros, if it may be asked (`ops.zero_probing`) and
        answers; it is called by ``call(args, kwargs)``, if there is that."""
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        return self._infer_by_kernel(op, args, kwargs, call) if can_probe(op, metas, args, kwargs) else None

    def _is_doubtful_inference(
        self, recipe: ResultMeta, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the kernel of a CPU says otherwise than fake tensors, and that of the device may be asked.

        Meta kernels that all devices share let pass what kernels refuse, and lay results out otherwise. It
        takes far longer to ask a device than to ask the CPU, and what a kernel there makes of zeros that it
        does not take can be the end of the process's CUDA.
        """
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        if not any(meta.device.type == "cuda" for meta in metas):
            return False
        there = [meta._replace(device=_CPU) for meta in metas]
        if not can_probe(op, there, args, kwargs) or op_queries.may_be_random(op):
            return False
        try:
            told = self._infer_by_kernel(op, args, kwargs, at=_CPU)
        except Exception:
            return error_is_conclusive_anywhere(op, metas)
        return told is not None and not same_but_for_device(told.metas, recipe.metas)

    def _infer_by_kernel(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any] | None = None,
        at: torch.device | None = None,
    ) -> ResultMeta | None:
        """The same of any operation; with its arguments on another device, if it is to be run `at` that."""
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
                return None  # It does not take such a matrix.
            except Exception:
                if op in _COUNT_FROM_THE_STORAGE or not error_is_conclusive(op, metas):
                    return None  # Its argument lies elsewhere, and in a larger one, than what stands for it.
                # (A meta kernel may let pass what the kernel refuses: factors of two dtypes, another shape
                # of what is added to a product.)
                with contextlib.suppress(Exception):
                    run(one)
                    return None  # It does not take zeros alone, to divide by for one.
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
        """What the operation returns for fake tensors; its kernel for zeros, where it does not take these."""
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
            if is_custom(op):  # of which the kernel is run where the caller calls it, and nowhere else
                raise errors.UnsupportedOperation(
                    f"{op} does not say what it returns: {type(error).__name__}: {error}; give it a kernel "
                    f"for fake tensors (register_fake) that takes these arguments"
                ) from error
            # Some meta kernels raise where the kernel does not (they divide by a number of elements), or
            # raise something else: the kernel itself decides.
            return self.run(op, args, kwargs)

    @contextlib.contextmanager
    def on_fakes(self, symbolic: bool) -> Iterator[None]:
        """While this lasts, operations take fake tensors, of which sizes are symbols if `symbolic`."""
        with self.mode, dispatcher.python_dispatcher_on() if symbolic else contextlib.nullcontext():
            yield

    def run(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: Callable[[Any], Any] = specialize_sizes,
    ) -> Any:
        """What the operation's kernel returns or raises for tensors of zeros with the arguments' metadata;
        `numbers` gives those that symbols stand for."""
        with mode_stacks.dispatch_modes_off(), autograd_state.outside_inference_mode(), torch.no_grad():
            real = fx.node.map_arg(numbers((args, kwargs)), lambda node: self._blank(node, numbers))
            if op in PIVOTED:
                real = fx.node.map_aggregate(real, as_pivots)
            return op(*real[0], **real[1])

    def inferred_as_computed(
        self, recipe: ResultMeta, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], odd: bool = False
    ) -> ResultMeta:
        """The same with the dtypes and strides that the kernel gives its results: meta kernels that are
        written in Python are not always right for arguments of several dtypes (a norm of half precision with
        parameters of another one), nor for those that do not lie in row-major order; of symbols, not for
        dimensions of one element (`odd`) either."""
        given = [with_hints(self.meta(node)) for node in _nodes((args, kwargs))]
        if any(None in meta.size for meta in given):
            return recipe  # sizes that depend on values
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
        """Extend a recipe key by `values`; None when one of them cannot be part of a key."""
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
    """Where an operation is run on fake tensors: this project's errors for what they cannot do."""
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


# Operations of which the kernel itself has to say what its results are: fake tensors take the shape for one
# that depends on data (it follows from the lengths, which are numbers), or do not know it, or give the result
# other strides.
_WITHOUT_META = {
    torch.ops.aten._ctc_loss.default,
    torch.ops.aten.fractional_max_pool2d.default,
    torch.ops.aten.fractional_max_pool3d.default,
    torch.ops.aten.log_sigmoid_forward.default,
    torch.ops.aten.max_pool1d.default,
    call_with_grad,
}

# Operations of which the result lies in row-major order however the arguments lie.
_ROW_MAJOR = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}

# Operations that are told where to look as seen from the start of a storage.
_COUNT_FROM_THE_STORAGE = {
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
}

# Operations that return a copy of an argument, where fake tensors return the argument.
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
