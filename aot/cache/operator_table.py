"""Operator table: the operators that a stored graph may name, and the arguments that a call may have.

In: names from a file. Out: `OpOverload`s. An operator is in the table by its schema. It writes to none of its
arguments, it returns tensors, and its arguments are tensors, numbers, flags and names that torch checks. Some
operators have such a schema and still are not safe: they open a file, use memory without a check of its
bounds, or call packed code. They are listed here by name.
"""

from __future__ import annotations

import functools
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from aot.ops.call_targets import call_by_name, call_with_grad
from aot.ops.classify import BATCH_NORM, READS_GRAD_MODE, OpKind, call_on_clones, classify, is_present
from aot.torch_internals import op_queries

Names = frozenset[tuple[str, str]]  # custom operators as (name, overload)

TORCHS = ("aten", "prims")
TENSOR = object()  # stands for a tensor among the arguments of a call, as nodes do

# Names of operators without namespace and overload, in groups with the reason.
_DENIED = re.compile(
    "|".join(
        (
            "from_file",  # opens a file
            r"_print|.*_(?:make|sink)_tokens?|_make_dep_token",  # have external effects, or order them
            # Views of memory whose bounds are not checked, and results in memory that is larger.
            r"_reshape_alias.*|_nested_.*|_padded_dense.*|_jagged_to.*|to_padded_tensor|_lazy_clone",
            r"set|resize.*|_resize.*|_copy_from.*|copy_strided|copy_to|device_put",
            # Layouts whose parts are not checked.
            r".*sparse.*|_?(?:indices|values)(?:_copy)?|c?(?:row|col)_indices(?:_copy)?",
            r"_?coalesced?|hspmm|_spdiags",
            r"_cslt.*|_spsolve|_dim[IV]|_nnz|segment_reduce|_segment_reduce.*|is_coalesced|dense_dim",
            r"to_mkldnn.*|_mkldnn.*|mkldnn_reorder.*",
            # Quantized tensors, and memory that holds packed weights or pointers to them.
            r".*quantized.*|quantize_.*|dequantize|int_repr|q_.*|qscheme|_make_per_.*",
            r".*int[48]pack.*|_dyn_quant.*",
            r"fbgemm.*|_wrapped.*|_nnpack.*|_mixed_dtypes.*",
            r"_pin_memory|pin_memory|is_pinned",
            # Internals of autograd, and operators for torch's tests.
            r"_fw_primal.*|_make_dual.*|_backward|set_data|requires_grad_|retain_grad|.*_version",
            r"_test.*|_foobar|.*_debug.*",
            # These write to arguments, although their schemas do not say so.
            r"batch_norm_(?:update|gather)_stats.*|_cudnn_rnn_flatten_weight",
        )
    )
)

# The strings that operators take: names of modes, which kernels compare, and messages of errors.
_TEXTS = frozenset(
    (
        *("rounding_mode", "approximate", "reduce", "driver", "UPLO", "mode", "side"),
        *("assert_msg", "api_name"),
    )
)


def find_operator(name: str, overload: str, operators: Names) -> op_queries.OpOverload | None:
    """The operator with this name in its schema (``aten::add``) and this overload.

    None if torch has no such operator, or if it is a custom operator that is not in `operators`.
    """
    namespace, _, packet = name.partition("::")
    if namespace not in TORCHS and (name, overload) not in operators:
        return None
    if not all(_WORD.fullmatch(part) for part in (namespace, packet, overload)):
        return None
    if any(part.startswith("__") and part not in _SHIFTS for part in (packet, overload)):
        return None
    op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    is_it = type(op) is op_queries.OpOverload and (op._schema.name, op._overloadname) == (name, overload)
    return op if is_it else None


_WORD = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_SHIFTS = ("__lshift__", "__rshift__", "__ilshift__", "__irshift__")


@functools.cache
def is_computing_operator(op: op_queries.OpOverload) -> bool:
    """Whether a graph may call an operator: it reads its arguments, and returns tensors or checks them."""
    operation = classify(op)
    if op.namespace in TORCHS:
        if operation.kind not in (OpKind.PURE, OpKind.VIEW) and op not in READS_GRAD_MODE:
            return False
        if not _has_plain_schema(op):
            return False
    elif operation.kind not in (OpKind.PURE, OpKind.VIEW, OpKind.COMPOSITE):
        return False
    return not op._schema.is_mutable


@functools.cache
def runs_on_clones(op: op_queries.OpOverload) -> bool:
    """Whether `call_on_clones` may call an operator, which writes to copies of its arguments."""
    custom = op.namespace not in TORCHS
    if (
        classify(op).kind is not OpKind.MUTATION
        and op not in BATCH_NORM
        and not (custom and op._schema.is_mutable)
    ):
        return False
    return op.namespace not in TORCHS or _has_plain_schema(op)


@functools.cache
def is_view_step(op: op_queries.OpOverload) -> bool:
    """Whether the wrapper may take a view with an operator."""
    return classify(op).kind is OpKind.VIEW and is_computing_operator(op)


@functools.cache
def changes_metadata(op: op_queries.OpOverload) -> bool:
    """Whether the wrapper may change an argument's size, strides, offset or history with an operator."""
    return op.namespace in TORCHS and (
        classify(op).kind is OpKind.RESHAPE or op is torch.ops.aten.resize_.default
    )


def _has_plain_schema(op: op_queries.OpOverload) -> bool:
    schema = op._schema
    if _DENIED.fullmatch(op._schema.name.partition("::")[2].removesuffix("_")):
        return False
    if any(_kind_of(argument) not in _KINDS for argument in schema.arguments):
        return False
    if any("str" in _kind_of(argument) and argument.name not in _TEXTS for argument in schema.arguments):
        return False
    returned = [str(result.type) for result in schema.returns]
    return not returned or any("Tensor" in kind for kind in returned)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """An argument of an operator's schema. `takes` tests if it accepts a value."""

    name: str
    takes: Callable[[Any], bool]
    by_name: bool
    is_needed: bool


@functools.cache
def _schema_parameters(op: op_queries.OpOverload) -> tuple[_Parameter, ...]:
    return tuple(
        _Parameter(
            argument.name,
            _KINDS.get(_kind_of(argument), _anything),  # custom operators may take other types
            argument.kwarg_only,
            not argument.has_default_value(),
        )
        for argument in op._schema.arguments
    )


def accepts_arguments(op: op_queries.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator's schema accepts these arguments. Nodes stand for tensors and for integers."""
    parameters = _schema_parameters(op)
    if len(args) > len(parameters):
        return False
    named = 0
    for i, parameter in enumerate(parameters):
        if i < len(args):
            if parameter.by_name or not parameter.takes(args[i]):
                return False
        elif parameter.name in kwargs:
            named += 1
            if not parameter.takes(kwargs[parameter.name]):
                return False
        elif parameter.is_needed:
            return False
    return named == len(kwargs)


@functools.cache
def _named(text: str) -> op_queries.OpOverload | None:
    packet, _, overload = text.partition(".")
    return find_operator(f"aten::{packet}", overload, frozenset()) if keyword.iskeyword(overload) else None


def has_right_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operators: Names) -> bool:
    """Whether a node may call its target with these arguments.

    The target is an operator, or a function of this compiler that calls one.
    """
    if isinstance(target, op_queries.OpOverload):
        known = (
            _is_listed(target, operators)
            and is_computing_operator(target)
            and accepts_arguments(target, args, kwargs)
        )
        return known and not _updates_statistics(target, args, kwargs)
    if not args:
        return False
    op, *rest = args
    if target is call_with_grad:
        return op in READS_GRAD_MODE and accepts_arguments(op, rest, kwargs)
    if target is call_by_name:
        op = _named(op) if type(op) is str else None
        return op is not None and is_computing_operator(op) and accepts_arguments(op, rest, kwargs)
    return target is call_on_clones and _is_right_on_clones(op, rest, kwargs, operators)


def _updates_statistics(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a batch norm writes to its running statistics."""
    if op not in BATCH_NORM:
        return False
    written, training = BATCH_NORM[op]
    is_plain = not kwargs and len(args) > training
    return not is_plain or (args[training] is not False and any(args[i] is not None for i in written))


def _is_right_on_clones(op: Any, rest: Sequence[Any], kwargs: Mapping[str, Any], operators: Names) -> bool:
    if type(op) is str:
        op = _named(op)
    if kwargs or len(rest) != 3 or not isinstance(op, op_queries.OpOverload):
        return False
    written, args, named = rest
    if type(written) is not tuple or not isinstance(args, (tuple, list)) or not isinstance(named, dict):
        return False
    if not (_is_listed(op, operators) and runs_on_clones(op) and accepts_arguments(op, args, named)):
        return False
    # All written arguments must be listed: one that is missing would not be copied, and be the caller's.
    return written == tuple(where for where in written_arguments(op) if is_present(where, tuple(args), named))


def _is_listed(op: op_queries.OpOverload, operators: Names) -> bool:
    return op.namespace in TORCHS or (op._schema.name, op._overloadname) in operators


def written_arguments(op: op_queries.OpOverload) -> tuple[int | str, ...]:
    """The arguments that an operator writes to, by position or name."""
    return BATCH_NORM[op][0] if op in BATCH_NORM else classify(op).written


_KEPT_OUT = re.compile(r"^Optional\[(.*)\]$")  # any result may be None


def schema_results_of(node: fx.Node) -> tuple[str, ...] | str:
    """The type of a node's result in the words of schemas, or a tuple of types for several results."""
    target: Any = node.target
    if node.op != "call_function":
        return "Tensor"
    if target is operator.getitem:
        source, number = node.args
        given = schema_results_of(source) if isinstance(source, fx.Node) else ()
        if isinstance(given, str):
            return given.removeprefix("List[").removesuffix("]")
        return given[number] if isinstance(number, int) and 0 <= number < len(given) else ()
    if target is call_on_clones:
        return "List[Tensor]"
    if target in (call_by_name, call_with_grad):
        target = _named(node.args[0]) if isinstance(node.args[0], str) else node.args[0]
    return _results(target)


@functools.cache
def _results(op: op_queries.OpOverload) -> tuple[str, ...] | str:
    returned = tuple(_KEPT_OUT.sub(r"\1", str(result.type)) for result in op._schema.returns)
    return returned[0] if len(returned) == 1 else returned


def _kind_of(argument: Any) -> str:
    return str(argument.type)


def _anything(value: Any) -> bool:
    return True


def _is_one(value: Any) -> bool:
    """Whether a value is a node with one result."""
    if not isinstance(value, fx.Node):
        return False
    given = schema_results_of(value)
    return isinstance(given, str) and not given.startswith("List")


def _is_tensor(value: Any) -> bool:
    if isinstance(value, fx.Node):
        return schema_results_of(value) == "Tensor"
    return _is_number(value) or value is TENSOR  # torch makes a tensor of a number


def _is_int(value: Any) -> bool:
    return type(value) in (int, torch.dtype, torch.layout, torch.memory_format) or _is_one(value)


def _is_float(value: Any) -> bool:
    return type(value) in (int, float) or _is_one(value)


def _is_bool(value: Any) -> bool:
    return type(value) is bool or _is_one(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool, complex) or _is_one(value)


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_device(value: Any) -> bool:
    return type(value) is torch.device


def _is_nothing(value: Any) -> bool:
    return value is None


def _optional(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or kind(value)


def _schema_list_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def is_list(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(kind, value))
        if kind is _is_tensor:
            return isinstance(value, fx.Node) and schema_results_of(value) == "List[Tensor]"
        return kind(value)  # one value stands for a list of equal ones

    return is_list


_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "Tensor": _is_tensor,
    "int": _is_int,
    "float": _is_float,
    "bool": _is_bool,
    "number": _is_number,
    "str": _is_text,
    "Device": _is_device,
}
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    **_PLAIN,
    **{f"Optional[{name}]": _optional(kind) for name, kind in _PLAIN.items()},
    **{f"List[{name}]": _schema_list_of(kind) for name, kind in _PLAIN.items()},
    **{f"Optional[List[{name}]]": _optional(_schema_list_of(kind)) for name, kind in _PLAIN.items()},
    "List[Optional[Tensor]]": _schema_list_of(_optional(_is_tensor)),
    "Optional[Generator]": _is_nothing,
}
