"""Classification: the kind and properties of an operation, from its schema and tags.

In: an overload. Out: an `OpInfo`, made once for each overload. Some properties of a call depend on how eager
runs its kernel. For those eager runs on zeros, outside of all modes. How a mutating operation runs on copies
is here too (`call_on_clones`).
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot.ops.call_targets import by_name, call_by_name, is_custom
from aot.tensors.symbolic_sizes import specialize_sizes
from aot.torch_internals import (
    autocast_state,
    higher_order_ops,
    mode_stacks,
    op_queries,
    pytree,
    rng,
    tensor_impl,
)

aten = torch.ops.aten


class OpKind(enum.Enum):
    """What an operation does to its arguments."""

    PURE = "pure"
    VIEW = "view"
    MUTATION = "mutation"
    RESHAPE = "reshape"  # changes the metadata of its first argument, not its data
    RESIZE = "resize"  # as RESHAPE, and enlarges the storage if it is too small
    REBIND = "rebind"  # gives its first argument another storage
    COMPOSITE = "composite"  # made of others; autograd decomposes it, except for inference tensors
    METADATA = "asks about the metadata of tensors"
    RANGE = "opens or closes a range of the profiler"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class OpInfo:
    """An operation as the recorder treats it.

    Attributes:
        kind: what it does to its arguments.
        written: the arguments that it writes to, by position or name.
        functional: the operation that returns what this one writes, or None.
        random: it draws random numbers.
        valued: its result is a Python number, or has a shape that depends on values.
        counted: autograd counts its writes.
        made: it is made of other operations, below autograd.
        underived: autograd has no formula for it. In eager autograd records the operations that its kernel
            calls.
        placed: it depends on the storage offset of its arguments, or on their storage.
    """

    kind: OpKind
    written: tuple[int | str, ...] = ()
    functional: Any = None
    random: bool = False
    valued: bool = False
    counted: bool = True
    made: bool = False
    underived: bool = False
    placed: bool = False


# Names of functional forms that do not follow from the in-place name.
_RENAMED = {"normal_": "normal_functional"}

# Operations that write to arguments although their schema does not say so: the positions that are written,
# and the position of the argument `training`, which must be true
# (https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/native_functions.yaml).
BATCH_NORM = {
    aten.native_batch_norm.default: ((3, 4), 5),
    aten.cudnn_batch_norm.default: ((3, 4), 5),
    aten.miopen_batch_norm.default: ((3, 4), 5),
}

# Operations whose kernels return a result in a storage that is larger, because they summed or sorted in it.
LEAVE_ROOM = {
    aten.binary_cross_entropy.default,
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.soft_margin_loss.default,
    aten._embedding_bag_forward_only.default,
    aten.linalg_lstsq.default,
}

# Operations that raise for some values: an index out of range, a target that is no class, NaN in a matrix.
# (After `inv`, ATen checks with a separate operation. That one has no result and is never removed.)
_RAISES = frozenset(
    (
        *("index", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "index_select"),
        *("gather", "put", "scatter", "scatter_add", "scatter_reduce", "take", "masked_scatter"),
        *("embedding", "_embedding_bag", "_embedding_bag_forward_only", "embedding_renorm"),
        *("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss", "multilabel_margin_loss_forward"),
        *("binary_cross_entropy", "_ctc_loss", "max_unpool2d", "max_unpool3d", "histc", "segment_reduce"),
        *("linalg_eig", "_linalg_eigh", "_linalg_svd", "_linalg_eigvals", "linalg_eigvals", "linalg_lstsq"),
    )
)
# These raise for integers if the divisor is zero.
_DIVIDES = frozenset(("div", "floor_divide", "fmod", "remainder"))

# Operations whose result depends on the metadata and storages of tensors only.
ASK_FOR_METADATA = {
    aten._has_same_storage_numel.default,
    aten.is_same_size.default,
    aten.is_set_to.default,
}

# Operations whose kernel reads the grad mode. Graphs run with grad mode off.
READS_GRAD_MODE = {aten.mkldnn_rnn_layer.default}

_STORAGE_OPS = {"set_": OpKind.REBIND, "resize_": OpKind.RESIZE, "resize_as_": OpKind.RESIZE}


@functools.cache
def may_raise(op: Any, whole: bool) -> bool:
    """Whether an operation raises for some values. `whole` says that its result has an integer dtype."""
    name = op._schema.name.removeprefix("aten::").removesuffix("_")
    return name in _RAISES or (whole and name in _DIVIDES)


def zeros_like_fake(fake: Tensor) -> Tensor:
    """A tensor of zeros with the metadata of `fake`, with its conj and neg bits."""
    size, stride = specialize_sizes(fake.size()), specialize_sizes(fake.stride())
    blank = torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device).zero_()
    tensor_impl.set_lazy_bits(blank, fake.is_conj(), fake.is_neg())
    return blank


def call_on_clones(
    func: Any, written: tuple[int | str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Run a mutating operation on copies of the arguments that it writes to, with the same strides.

    `func` is the operation, or the name of an ATen overload.

    Returns:
        The results that are no written arguments, then the written copies, with those of lists one by one.
    """
    if isinstance(func, str):
        func = by_name(func)
    positional, named = list(args), dict(kwargs)
    clones: list[Tensor] = []
    for where in written:
        if isinstance(where, int):
            positional[where] = _clone_argument(positional[where], clones)
        else:
            named[where] = _clone_argument(named[where], clones)
    result = func(*positional, **named)
    results = result if isinstance(result, (tuple, list)) else (result,)
    returned = (r for r, kind in zip(results, func._schema.returns, strict=False) if not is_written(kind))
    return (*returned, *clones)


def has_external_effect(op: Any) -> bool:
    """Whether a call of an operation is seen outside of the program, and so keeps its order.

    It is if the operation prints, is a collective, is a custom operator in torch's registry of effects, or is
    a custom operator that returns nothing and writes to no argument. Among torch's own operations only
    `_print` counts; the registry also has one of torch's checks, which only raises.
    """
    if not is_custom(op):
        return op is aten._print.default
    schema = op._schema
    ordered = higher_order_ops.is_ordered(op) or op_queries.is_collective(op)
    return ordered or not (schema.returns or schema.is_mutable)


def operation_of(node: fx.Node) -> op_queries.OpOverload | None:
    """The overload that a node calls, directly or through a function of this package; None for others."""
    target: Any = node.target
    if node.op != "call_function":
        return None
    if isinstance(target, op_queries.OpOverload):
        return target
    if target in (call_by_name, call_on_clones) and isinstance(node.args[0], str):
        target = by_name(node.args[0])
    else:
        target = next((a for a in node.args if isinstance(a, op_queries.OpOverload)), None)
    return target if isinstance(target, op_queries.OpOverload) else None


def _clone_argument(source: Any, clones: list[Tensor]) -> Any:
    """Copy a tensor with its strides, or the tensors of a list, and append the copies to `clones`."""
    if source is None:
        return None
    if isinstance(source, (list, tuple)):
        return [_clone_argument(one, clones) for one in source]
    size, stride = source.size(), source.stride()
    clones.append(torch.empty_strided(size, stride, dtype=source.dtype, device=source.device))
    return clones[-1].copy_(source)


def is_written(value: Any) -> bool:
    """Whether an argument or a result of a schema is written to."""
    return value.alias_info is not None and value.alias_info.is_write


_OPERATIONS: dict[Any, OpInfo] = {}


def classify(func: Any) -> OpInfo:
    """The `OpInfo` of an overload, made once from its schema and tags."""
    known = _OPERATIONS.get(func)
    if known is None:
        known = _OPERATIONS[func] = _classify_operation(func)
    return known


def _classify_operation(func: Any) -> OpInfo:
    tags = func.tags
    name = func._schema.name.split("::")[1]
    random = op_queries.may_be_random(func)
    if name in _STORAGE_OPS:
        return OpInfo(_STORAGE_OPS[name], placed=True)
    if func in (aten.lift_fresh.default, aten.lift.default) or func in READS_GRAD_MODE:
        return OpInfo(OpKind.REFUSED)
    # Dynamo of torch 2.15 calls `shallow_copy_data_` for `.data = ...`, which the event log records.
    if func in ASK_FOR_METADATA or name == "shallow_copy_data_":
        return OpInfo(OpKind.METADATA, placed=True)
    if func.namespace == "profiler":
        return OpInfo(OpKind.RANGE)
    if op_queries.is_composite(func) and func not in WHOLE:
        return OpInfo(OpKind.COMPOSITE)
    if torch.Tag.inplace_view in tags:
        return OpInfo(OpKind.RESHAPE, placed=True)
    underived = is_custom(func) and not op_queries.has_derivative(func)
    placed = "as_strided" in name or "storage" in name
    written: list[int | str] = []
    for i, argument in enumerate(func._schema.arguments):
        if is_written(argument):
            written.append(argument.name if argument.kwarg_only else i)
    if written:
        functional = functional_form(func) if written == [0] and not is_custom(func) else None
        # Autograd counts writes of in-place operations, to out= arguments, and those that custom operators
        # declare.
        counted = name.endswith("_") or isinstance(written[0], str) or is_custom(func)
        return OpInfo(
            OpKind.MUTATION,
            tuple(written),
            functional,
            random,
            counted=counted,
            underived=underived,
            placed=placed,
        )
    if func.is_view:
        return OpInfo(OpKind.VIEW, underived=underived, placed=placed)
    valued = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    valued |= bool(func._schema.returns) and not any("Tensor" in str(r.type) for r in func._schema.returns)
    made = not random and op_queries.is_composite_below_autograd(func)
    return OpInfo(OpKind.PURE, random=random, valued=valued, made=made, underived=underived, placed=placed)


def functional_form(func: Any) -> Any:
    """The operation that returns what an in-place operation writes, or None.

    It follows from ATen's naming rule: the same name without the trailing underscore, and the same arguments.
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
    """The positional arguments with omitted defaults filled in, because the functional form may have none."""
    missing = func._schema.arguments[len(args) :]
    return args + tuple(a.default_value for a in missing if not a.kwarg_only and a.name not in kwargs)


def is_random_call(func: Any, operation: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws random numbers."""
    return operation.random and not drops_nothing(func, args, kwargs)


def drops_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has a `dropout_p` of 0, as attention without dropout, and so draws nothing."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool((args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)) == 0)
    return False


def is_present(where: int | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an optional argument was given and is not None."""
    if isinstance(where, int):
        return where < len(args) and args[where] is not None
    return kwargs.get(where) is not None


def bypasses_autograd(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call passes autograd, but not the kernel that tracks views (ADInplaceOrView).

    That is so for a call outside of inference mode whose tensors are all inference tensors.
    """
    if torch.is_inference_mode_enabled():
        return False
    inference = [tensor.is_inference() for tensor in tensors_in(args, kwargs)]
    return bool(inference) and all(inference)


def ends_in_views(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, ...]:
    """For each result of a pure operation that passes autograd, whether it is a view of an inner tensor.

    Autograd would hide that. Eager decides on zeros, because it depends on how the kernel calls other
    operations. The result is empty if the kernel raises for zeros. (Convolutions pass a missing bias as an
    undefined tensor, and such a call does not pass autograd.)
    """
    with _eager(func):
        with torch.inference_mode():
            blanks = pytree.tree_map(_blank_if_tensor, (args, kwargs))
        try:
            result = func(*blanks[0], **blanks[1])
        except Exception:
            return ()
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(isinstance(r, Tensor) and r._is_view() for r in results)


@contextlib.contextmanager
def _eager(func: Any) -> Iterator[None]:
    """While it lasts, operations run as in eager, outside of all modes, and random states are preserved."""
    apart = rng.preserving_generators() if op_queries.may_be_random(func) else contextlib.nullcontext()
    with mode_stacks.outside_all_modes(), apart:
        yield


def run_on_zeros(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run an operation in eager on zeros with the metadata of the arguments, to raise what eager raises."""

    def blank(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        with torch.inference_mode(value.is_inference()):
            return zeros_like_fake(value)

    with _eager(func), torch.no_grad():
        blanks = pytree.tree_map(blank, (args, kwargs))
        func(*blanks[0], **blanks[1])


def casts_within(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether autocast casts inside an operation, below autograd, so that its results have other dtypes.

    Eager decides on zeros, once for each operation, dtypes and autocast state.
    """
    autocasts = autocast_state.dtypes_before_dispatch()
    if not autocasts:
        return False
    dtypes = tuple(tensor.dtype for tensor in tensors_in(args, kwargs))
    key = func, dtypes, tuple(autocasts.items())
    known = _CASTS.get(key)
    if known is None:
        blanks = pytree.tree_map(_blank_if_tensor, (args, kwargs))
        with contextlib.ExitStack() as stack:
            stack.enter_context(_eager(func))
            without = _dtypes(func, *blanks)
            for device, dtype in autocasts.items():
                stack.enter_context(torch.autocast(device, dtype))
            known = _CASTS[key] = without is not None and without != _dtypes(func, *blanks)
    return known


_CASTS: dict[object, bool] = {}


def _dtypes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.dtype] | None:
    try:
        return [tensor.dtype for tensor in tensors_in((func(*args, **kwargs),), {})]
    except Exception:
        return None  # it does not take zeros


def _blank_if_tensor(value: Any) -> Any:
    return zeros_like_fake(value) if isinstance(value, Tensor) else value


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among the arguments of an operation."""
    for value in (*args, *kwargs.values()):
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, Tensor):
                yield part


def is_sum(node: fx.Node) -> bool:
    """Whether a node adds two nodes with ``aten.add.Tensor``, without `alpha`."""
    return (
        node.target is torch.ops.aten.add.Tensor
        and not node.kwargs
        and len(node.args) == 2
        and all(isinstance(a, fx.Node) for a in node.args)
    )


# FSDP frees the memory of parameters with it, and allocates it again. Its schema does not say that it writes.
RESIZES_STORAGE = torch.ops.inductor.resize_storage_bytes_.default


# Composite operations that the graph holds as one node.
WHOLE = {
    aten.linalg_svdvals.default,
    aten.linalg_eigvals.default,
    aten.linalg_eigvalsh.default,
    aten.max_pool1d.default,
    aten.one_hot.default,
    aten.cumprod_backward.default,
}
