"""Every private torch name that aot uses, and every difference between supported torch versions.

Nothing else in this package imports private API (ruff's banned-api rule keeps that), so that a torch
upgrade touches this file alone. Supported: 2.11, 2.12, 2.13; no difference has been needed so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import logging
import operator
import platform
import re
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import Source
from torch._higher_order_ops.effects import _get_effect, _register_effectful_op, with_effects
from torch._higher_order_ops.scan import generic_scan
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch._library import custom_ops as _custom_ops
from torch._library import opaque_object as _opaque_object
from torch._library.custom_ops import OPDEFS
from torch._library.effects import EffectType
from torch._library.fake_class_registry import FakeScriptObject
from torch._meta_registrations import _meta_lib_dont_use_me_use_register_meta as _META_LIBRARY
from torch._ops import (
    _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    _higher_order_ops,
    _len_torch_dispatch_stack_pre_dispatch,
)
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd import forward_ad
from torch.autograd.graph import Node, get_gradient_edge
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.node import map_arg
from torch.nn.modules import module as _modules
from torch.overrides import (
    _get_current_function_mode_stack,
    enable_reentrant_dispatch,
    get_default_nowrap_functions,
)
from torch.utils._contextlib import _DecoratorContextManager, context_decorator
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from aot.errors import EscapedTensor

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

__all__ = [
    "ATTRIBUTES_OF_TORCH",
    "AUTOCAST_DEVICES",
    "AUTO_FUNCTIONALIZED",
    "COND",
    "CUDA_SYNCHRONIZE",
    "LEGACY_TYPES",
    "LEGACY_TYPE_IDS",
    "MAKE_TOKEN",
    "NO_ZEROS",
    "SAVE",
    "SINK_TOKENS",
    "WHILE_LOOP",
    "WITH_EFFECTS",
    "CreationMeta",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "LazyGraphModule",
    "OpOverload",
    "OpOverloadPacket",
    "ShapeEnv",
    "TagActivationCheckpoint",
    "TorchDispatchMode",
    "TreeSpec",
    "UnsupportedOperatorException",
    "accumulates",
    "all_operators",
    "ambient_key",
    "ambient_of_now",
    "ambient_test",
    "append_node",
    "apply_of",
    "are_kernels_deterministic",
    "are_tensors_transformed",
    "asked_for_memory",
    "asks_whether_collectives_are_traced",
    "auto_functionalized",
    "autocast_cache_key",
    "autocast_enabled",
    "autocast_states",
    "autocast_uncached",
    "autocasts",
    "backward_key",
    "below_autograd",
    "casts_have_history",
    "clone_of_mode",
    "computed",
    "context_decorator",
    "copy_creation_meta",
    "copy_each",
    "copy_node",
    "counts_writes",
    "creation_meta",
    "current_mode",
    "current_node",
    "custom_definition",
    "decomposed",
    "default_device",
    "default_dtype",
    "define_higher_order_kernels",
    "define_own_kernels",
    "disable_autocast",
    "dispatch_modes",
    "fake_tensor",
    "function_modes",
    "function_modes_are_on",
    "function_modes_replaced",
    "function_of",
    "global_module_hooks",
    "graph_is_retained",
    "has_derivative",
    "has_marks",
    "has_memory",
    "has_no_code",
    "has_symbolic_sizes",
    "hooks_of_all_modules",
    "hooks_on_saved_tensors",
    "inductor_compile",
    "inductor_copies",
    "inductor_decompositions",
    "inductor_options",
    "inductor_restrided",
    "inductor_settings",
    "inference_tensor",
    "is_autocast_leaf",
    "is_below_autograd",
    "is_collective",
    "is_composite",
    "is_composite_below_autograd",
    "is_device_mode",
    "is_dispatched_natively",
    "is_function_node",
    "is_imagined",
    "is_marked",
    "is_marked_static",
    "is_memoryless",
    "is_mode_of_tracer",
    "is_opaque",
    "is_ordered",
    "is_packed",
    "is_run",
    "is_script_object",
    "is_traced_elsewhere",
    "is_transforming",
    "is_view",
    "is_wrapper",
    "is_zeros_without_memory",
    "kept_by_autocast",
    "layout_of",
    "lie",
    "like_made_by_autocast",
    "lying",
    "made_by_autocast",
    "make_non_leaf",
    "may_draw",
    "memoryless",
    "memoryless_storage",
    "modes_are_on",
    "modes_off",
    "move",
    "nbytes_of",
    "negative_view",
    "new_symbol",
    "next_sequence_number",
    "noting_unpacked",
    "offset_of",
    "operator_functions",
    "operator_spaces",
    "ordered",
    "outside_inference_mode",
    "overloads",
    "plain_autograd",
    "process_key",
    "putting_together",
    "python_dispatcher",
    "python_source",
    "remember_getters",
    "replayed_view",
    "runs_its_graph",
    "saved_tensor_hooks",
    "sequence_number",
    "set_autocast_states",
    "set_creation_meta",
    "set_default_device",
    "set_dispatch_modes",
    "set_function_modes",
    "set_grad_enabled",
    "set_grad_mode",
    "set_hooks_on_saved_tensors",
    "set_lazy",
    "set_versions",
    "shape_computed",
    "shell",
    "skip_dynamo",
    "skipped",
    "stays_on",
    "storage_key",
    "storage_of",
    "take_apart",
    "takes_back_version",
    "tensor_test",
    "tensor_without_elements",
    "transform_of",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "unlogged",
    "untold",
    "user_function_modes_are_on",
    "views_noticed",
    "with_own_kernels",
    "without_dispatch_modes",
    "without_function_modes",
    "without_own_kernels",
    "zeros_without_memory",
]

AUTOCAST_DEVICES = ("cpu", "cuda")

# How Python attributes of tensors begin that torch keeps there for itself.
ATTRIBUTES_OF_TORCH = ("__", "_dynamo_")
CUDA_SYNCHRONIZE = (torch._C, "_cuda_synchronize")
"""Where `torch.cuda.synchronize` looks up what it calls. Only a torch with CUDA has it."""
_COMPOSITE_KEYS = (
    torch._C.DispatchKey.CompositeImplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
)
_AUTOGRAD_KEYS = (
    torch._C.DispatchKey.Autograd,
    torch._C.DispatchKey.AutogradCPU,
    torch._C.DispatchKey.AutogradCUDA,
)
_DEVICE_KEYS = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
_AUTOCAST_KEYS = [getattr(torch._C.DispatchKey, f"Autocast{device.upper()}") for device in AUTOCAST_DEVICES]
# What is included and excluded in every thread, besides what is turned on and off.
_ON = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_ON = _ON | torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_OFF = functools.reduce(operator.or_, map(torch._C.DispatchKeySet, _AUTOCAST_KEYS))
set_grad_enabled = torch._C._set_grad_enabled  # without the object that torch.set_grad_enabled makes
_PYTHON_DISPATCHER = torch._C.DispatchKeySet(torch._C.DispatchKey.PythonDispatcher)
# A dispatch key above autograd that nothing uses, and memoryless tensors have.
_MEMORYLESS_KEY = "TESTING_ONLY_GenericWrapper"
_MEMORYLESS = torch._C._dispatch_key_parse(_MEMORYLESS_KEY)
_PAST_MEMORYLESS = torch._C.DispatchKeySet(_MEMORYLESS)
_NATIVELY = (
    _PAST_MEMORYLESS
    | torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
)
_COUNTED = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)  # where versions are
_ATTRIBUTES = {
    "constant": None,
    "pytype": None,
    "dispatch_keys": None,
    "real_tensor": None,
    "_nonzero_memo": None,
    "_item_memo": None,
    "_unique_memo": None,
    "_unique_consecutive_memo": None,
    "_nested_int_memo": None,
}


is_wrapper: Callable[[object], bool] = is_traceable_wrapper_subclass


def skip_dynamo(function: Any) -> Any:
    """Let Dynamo trace neither `function` nor what it calls. Unlike `torch.compiler.disable`, it costs calls
    nothing more."""
    function._torchdynamo_disable = True  # as part of a caller
    frames = torch._C._dynamo.eval_frame
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def hooks_of_all_modules() -> tuple[dict[int, Any], ...]:
    """The registries of hooks that calls of all modules run (`register_module_forward_hook` and others)."""
    return (
        _modules._global_forward_pre_hooks,
        _modules._global_forward_hooks,
        _modules._global_backward_pre_hooks,
        _modules._global_backward_hooks,
    )


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """While this lasts, the default dtype is this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def storage_key(tensor: Tensor) -> int:
    """The address of the tensor's storage object: equal exactly for tensors that share it, while it lives."""
    return int(_untyped_storage(tensor)._cdata)


_untyped_storage: Any = torch._C.TensorBase.untyped_storage  # which is replaced in traces


@functools.cache
def load_fake_tensors() -> None:
    """Have torch load what its first fake tensor mode needs. It keeps errors of what cannot be imported, and
    with them the frames that led there: the trace must not be among these."""
    FakeTensorMode()


_quiet = threading.local()
logging.getLogger(FakeTensorMode.__module__).addFilter(lambda _: not getattr(_quiet, "on", False))


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """While this lasts, what fake tensors raise in this thread is not logged as well: it is either the user's
    own error, or not even an error."""
    before = getattr(_quiet, "on", False)
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = before


def current_node() -> Node | None:
    """Inside a backward: the node that runs, if one does."""
    return torch._C._current_autograd_node()


def is_run(node: Node) -> bool:
    """Inside a backward: whether it runs a node. One that is asked for the gradients of some tensors runs
    what leads to these."""
    return bool(torch._C._will_engine_execute_node(node))


# Inside a backward: whether it was called with ``retain_graph=True``.
graph_is_retained: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without what it asks of `torch.func`: outside of its transforms, and of tensors that
    none has made. It takes two thirds of the time."""
    apply: Any = super(torch.autograd.Function, function)
    return apply.apply  # type: ignore[no-any-return]


# Write each tensor of a second list to that of a first one; on the CPU one after the other, as by `copy_`.
copy_each: Callable[[list[Tensor], list[Tensor]], None] = torch._foreach_copy_


# Statements in the forward of an `autograd.Function`: what its methods `set_materialize_grads` and
# `save_for_backward` do.
NO_ZEROS = "ctx.materialize_grads = False"
SAVE = "ctx.to_save = {}"


def memoryless_storage(nbytes: int, device: torch.device, *, symbolic: bool = False) -> torch.UntypedStorage:
    """A storage that says to have `nbytes` bytes and has none; for tensors with symbols if `symbolic`."""
    if device.type == "meta":
        with torch._C._DisableTorchDispatch():
            return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()
    if symbolic:  # (It takes three times as long.)
        with torch._C._ExcludeDispatchKeyGuard(_NATIVELY):
            return _wrapper(torch.uint8, device, storage_size=nbytes).untyped_storage()
    storage: Any = torch._C._construct_storage_from_data_pointer(0, device, nbytes)
    return storage  # type: ignore[no-any-return]


def memoryless(
    storage: torch.UntypedStorage,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """A plain tensor with the given geometry on a memoryless `storage`, outside autograd.

    For autograd it is a tensor like any other, which torch's own FakeTensor is not: the views of tensor
    subclasses derive their history by replaying the view, others by their geometry. Whoever asks for the
    address of its data gets a RuntimeError; a kernel that ran on it would crash, so none may: it has a
    dispatch key, as have the tensors made from it, at which operations are refused outside of
    `with_memoryless`. (On the device meta, where kernels read nothing, it has none.)
    """
    with torch._C._ExcludeDispatchKeyGuard(_NATIVELY):
        tensor: Tensor = _empty(dtype, device, torch.is_inference_mode_enabled())
        tensor = tensor.data
        if _all_ints(storage, offset, size, stride):
            tensor = tensor.set_(storage, offset, size, stride)
        else:  # (`set_` wants a storage that can grow)
            tensor = tensor.set_(storage, 0, (0,), (1,))
            lie = torch.ops.aten.as_strided.default._op_dk
            tensor = lie(torch._C.DispatchKey.Meta, tensor, size, stride, offset)
    torch._C._set_throw_on_mutable_data_ptr(tensor)
    if not tensor.is_inference():
        set_versions((tensor,), (0,))  # set_ has moved it
    return tensor


def _all_ints(storage: torch.UntypedStorage, offset: Any, size: Sequence[int], stride: Sequence[int]) -> bool:
    return {type(offset), type(storage.nbytes()), *map(type, size), *map(type, stride)} == _INT


_INT = {int}
_SET: Any = torch.ops.aten.set_.source_Storage_storage_offset
_NO_MEMORY = (
    "data is not allocated yet",  # kernels
    "Cannot access data pointer of Tensor",  # numpy(), data_ptr(), DLPack
    "unallocated storage",  # tolist()
    "invalid python storage",  # deepcopy, save
)


class _Wrapper(Tensor):
    """What torch lets have a dispatch key of one's choice. Its native alias has it as well."""

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


@functools.lru_cache(maxsize=1000)
def _empty(dtype: torch.dtype, device: torch.device, inference: bool) -> Tensor:
    if device.type == "meta":
        return torch.empty(0, dtype=dtype, device=device)
    return torch._C.TensorBase.detach(_wrapper(dtype, device))


def _wrapper(dtype: torch.dtype, device: torch.device, **kwargs: Any) -> Tensor:
    make: Any = Tensor._make_wrapper_subclass
    keys = _PAST_MEMORYLESS
    wrapper: Tensor = make(_Wrapper, (0,), dtype=dtype, device=device, _extra_dispatch_keys=keys, **kwargs)
    return wrapper


def refuse_memoryless(refuse: Callable[..., Any]) -> None:
    """Outside of `with_memoryless`, operations on memoryless tensors are ``refuse(op, *args, **kwargs)``."""
    _FALLBACKS.fallback(refuse, _MEMORYLESS_KEY)


def with_memoryless() -> contextlib.AbstractContextManager[Any]:
    """In this thread, operations take memoryless tensors as others."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(_PAST_MEMORYLESS)
    return manager


def memoryless_allowed() -> bool:
    """Whether this thread is in `with_memoryless`."""
    return bool(torch._C._dispatch_tls_is_dispatch_key_excluded(_MEMORYLESS))


def asked_for_memory(error: RuntimeError) -> bool:
    """Whether this is what torch raises when somebody asks for the data of a memoryless tensor."""
    return any(text in str(error) for text in _NO_MEMORY)


def takes_no_symbols(error: BaseException) -> bool:
    """Whether this is what torch raises where a kernel asks a tensor with symbols for numbers."""
    return "symbolic sizes/strides" in str(error)


def python_dispatcher() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, what composite operations are made of is asked of Python, where it is told there:
    kernels take no symbols for sizes."""
    manager: contextlib.AbstractContextManager[Any] = enable_python_dispatcher()
    return manager


def is_marked(tensor: Tensor, dimension: int) -> bool | None:
    """Whether a dimension is marked as one whose size changes (``torch._dynamo.mark_dynamic``), or as one
    whose size does not (``mark_static``); None if it is not marked."""
    for name, answer in _MARKS.items():
        if dimension in getattr(tensor, name, ()):
            return answer
    return None


_MARKS = {
    "_dynamo_dynamic_indices": True,
    "_dynamo_weak_dynamic_indices": True,
    "_dynamo_static_indices": False,
}


def has_marks(tensor: Tensor) -> bool:
    """Whether a dimension is marked as one whose size changes."""
    return any(getattr(tensor, name, ()) for name, answer in _MARKS.items() if answer)


def __getattr__(name: str) -> Any:
    """(What symbols are made of is imported when it is used: sympy takes a fifth of a second.)"""
    if name not in ("GuardOnDataDependentSymNode", "ShapeEnv"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from torch.fx.experimental import symbolic_shapes

    return getattr(symbolic_shapes, name)


@dataclasses.dataclass(frozen=True)
class _Place(Source):
    """Where a number is found in a call."""

    path: str

    @property
    def _name_template(self) -> str:
        return self.path


def new_symbol(env: ShapeEnv, name: str, hint: int) -> tuple[Any, Any]:
    """The symbol of a number which is `hint` in the call that is traced, the same for equal numbers, or the
    number itself where that is 0 or 1; and a ``SymInt`` of it."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = _Place(name)
    symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DUCK, constraint_dim=None)
    return symbol, env.create_symintnode(symbol, hint=hint, source=source)


def as_made(number: torch.SymInt) -> Any:
    """The expression that a number was made as, whatever has become known of its symbols since."""
    return number.node._expr


def python_source(expression: Any) -> str:
    """An expression of ``ShapeEnv``'s as Python source; the symbol ``s0`` is called ``n_s0`` there."""
    return str(_printer()().doprint(expression))


@functools.cache
def _printer() -> type[Any]:
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):
        def _print_Symbol(self, symbol: Any) -> str:
            return f"n_{symbol.name}"

    return Printer


def computed(expression: Any, inputs: Mapping[Any, torch.fx.Node], graph: torch.fx.Graph) -> Any:
    """Nodes that compute an expression of ``ShapeEnv``'s from the values of its symbols, or a constant."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    proxies = {symbol: torch.fx.Proxy(node, tracer) for symbol, node in inputs.items()}
    value = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    return value.node if isinstance(value, torch.fx.Proxy) else value


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Operations go to their kernels directly, past autograd and its modes."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return manager


# A dispatch key above autograd that nothing uses: operations with kernels of our own there are called with
# them in threads that turn it on, and in no others.
_OWN_KEY = "TESTING_ONLY_GenericMode"
_OWN = torch._C._dispatch_key_parse(_OWN_KEY)
_BELOW_OWN = torch._C._dispatch_keyset_full_after(_OWN)
_LIBRARY: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_FALLBACKS: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
_FALLBACKS.fallback(torch.library.fallthrough_kernel, _OWN_KEY)
_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_OWN)
for _operator in _higher_order_ops.values():
    _operator.fallthrough(_OWN)  # type: ignore[no-untyped-call]


def define_own_kernels(kernels: Mapping[OpOverload, Callable[..., Any]]) -> None:
    """Let operations be ``kernel(ordinary, *args, **kwargs)`` in threads that use own kernels, where
    ``ordinary(*args, **kwargs)`` is what they are otherwise. (Autocast and functorch come first.)"""
    for op, kernel in kernels.items():
        _LIBRARY.impl(op, _own_kernel(op, kernel), _OWN_KEY, with_keyset=True)


def define_higher_order_kernels(kernels: Mapping[str, Callable[..., Any]]) -> None:
    """Let operators that take functions, by name, be ``kernel(dense, *args, **kwargs)`` in threads that use
    own kernels, where ``dense`` runs them step by step. (functorch comes first.)"""
    for name, kernel in kernels.items():
        op = _higher_order_ops[name]
        dense = op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
        if name == "scan":  # whose kernel is the same, and a check that no mode is on
            dense = _scan
        op.non_fallthrough_keys = op.non_fallthrough_keys.add(_OWN)
        op.py_impl(_OWN)(functools.partial(kernel, dense))


def _scan(function: Callable[..., Any], init: Any, xs: Any, others: Any) -> Any:
    run: Any = generic_scan
    return run(function, init, xs, additional_inputs=others)


def current_mode() -> Any:
    """The innermost dispatch mode of this thread, if one is on."""
    return _get_current_dispatch_mode()


def _own_kernel(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        def ordinary(*args: Any, **kwargs: Any) -> Any:
            return op.redispatch(keys & _BELOW_OWN, *args, **kwargs)

        if function_modes_are_on():
            return without_function_modes(call)(keys, *args, **kwargs)
        if are_tensors_transformed():
            return ordinary(*args, **kwargs)
        if any(map(is_wrapper, args)):  # for which ATen takes the roads for tensor subclasses in eager, too
            return ordinary(*args, **kwargs)
        if any(keys.has(key) and _has_kernel(op, key) for key in _AUTOCAST_KEYS):
            return ordinary(*args, **kwargs)
        return kernel(ordinary, *args, **kwargs)

    return call


def is_transforming() -> bool:
    """Whether this is inside of a transform of `torch.func`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_VIEWS = torch._C.DispatchKey.ADInplaceOrView


def is_below_autograd() -> bool:
    """Whether autograd has been passed: in the code of a tensor subclass or of an operator, where views are
    none, and writes are not counted. (Inference mode alone is not below it.)"""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    return excluded(_AUTOGRAD) and (excluded(_VIEWS) or not torch.is_inference_mode_enabled())


def are_tensors_transformed() -> bool:
    """Whether tensors may be more than they show: inside of such a transform, or of forward-mode AD."""
    return forward_ad._current_level >= 0 or is_transforming()


def _tangent(tensor: Tensor) -> Tensor | None:
    tangent: Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return tangent


def transform_of(tensor: Tensor) -> str | None:
    """What is more to a tensor than it shows, if there is anything."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "is being transformed by torch.func"
    if forward_ad._current_level >= 0 and _tangent(tensor) is not None:
        return "has a tangent of forward-mode automatic differentiation"
    return None


_PROXIES = torch._C._TorchDispatchModeKey.PROXY
_FAKES = torch._C._TorchDispatchModeKey.FAKE
_mode_on = torch._C._get_dispatch_mode


def is_traced_elsewhere() -> bool:
    """Whether a tracer of torch's own is on, to which operations come after all other dispatch modes."""
    return _mode_on(_PROXIES) is not None or _mode_on(_FAKES) is not None


def is_collective(op: OpOverload) -> bool:
    """Whether an operation is one of those in which several processes take part, or waits for one."""
    return op.namespace == "_c10d_functional"


def asks_whether_collectives_are_traced() -> tuple[Any, str] | None:
    """The function, by its module and its name, that decides whether a collective returns what has been
    waited for, or a tensor subclass that waits when it is used; None where none can be called."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return importlib.import_module("torch.distributed._functional_collectives"), "_are_we_tracing"


def is_opaque(value: object) -> bool:
    """Whether it is an object of a class that torch lets graphs take as a whole (a mesh of devices)."""
    return bool(_opaque_object.is_opaque_type(type(value)))


def is_imagined() -> bool:
    """Whether what is on is a mode of fake tensors alone."""
    return _mode_on(_PROXIES) is None and _mode_on(_FAKES) is not None


def with_own_kernels() -> contextlib.AbstractContextManager[Any]:
    """In this thread, operations are done by own kernels where they have one."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._IncludeDispatchKeyGuard(_OWN)
    return manager


def without_own_kernels() -> contextlib.AbstractContextManager[Any]:
    """In this thread, operations are done as they are otherwise."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(_OWN)
    )
    return manager


def outside_inference_mode() -> contextlib.AbstractContextManager[Any]:
    """Leave inference mode, if it is on, for as long as it lasts."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING


def inference_tensor(value: Tensor) -> Tensor:
    """An inference tensor on the memory of `value`."""
    with torch.inference_mode():
        alias = torch.empty(0, dtype=value.dtype, device=value.device)
        return alias.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())


class Reserved(Tensor):
    """A tensor of a trace that is over: nobody but a trace that goes on may use it."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not memoryless_allowed():
            raise escaped()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def reserve(tensor: Tensor) -> None:
    """Let nobody but traces use a memoryless tensor: whatever else is done with it raises EscapedTensor."""
    tensor.__class__ = Reserved


_IN_A_LIST = next(map(sys.getrefcount, [object()]))
_use_count: Callable[[Tensor], int] = getattr(Tensor, "_use_count", lambda _: 0)


@functools.cache
def _keeps_its_object() -> bool:
    """Whether C++ holds a reference to a tensor's Python object for as long as C++ refers to the tensor.

    (It is not asked at import: ``python -W error::aot.RecompileWarning`` imports so early that torch aborts.)
    """
    with torch.inference_mode(False):
        tensor = torch.empty(0, device="cpu")
        before = sys.getrefcount(tensor)
        view = tensor.view(-1)
        return view._base is tensor and sys.getrefcount(tensor) > before


def python_references(tensors: list[Tensor]) -> list[int]:
    """Count what refers to each tensor in a list from Python: objects other than the list, and frames.

    Where torch does not tell what of it C++ holds, the count may be one too high, and is never too low.
    """
    counts = list(map(sys.getrefcount, tensors))
    kept = _keeps_its_object()
    shared = [kept and uses > 1 for uses in map(_use_count, tensors)]
    return [count - _IN_A_LIST - by_torch for count, by_torch in zip(counts, shared, strict=True)]


def layout_of(tensor: Tensor) -> torch.layout:
    """Its layout, also of one that nobody may use."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.layout


def escaped() -> EscapedTensor:
    """The refusal of a tensor of a trace, in a thread that does not trace."""
    return EscapedTensor(
        "this tensor was made while a function was compiled, and stored by it somewhere else than in its "
        "result: it has no values; return it instead"
    )


def move(tensor: Tensor, storage: torch.UntypedStorage) -> None:
    """Put a memoryless tensor onto another such storage, to lie as it did; autograd does not notice."""
    lie(tensor, storage, tensor.size(), tensor.stride(), tensor.storage_offset())


def has_symbolic_sizes(tensor: Tensor) -> bool:
    """Whether kernels without symbols refuse it: its sizes are symbols, or have been."""
    return bool(tensor._has_symbolic_sizes_strides)


def lie(
    tensor: Tensor, storage: torch.UntypedStorage, size: Sequence[int], stride: Sequence[int], offset: Any
) -> None:
    """Put a memoryless tensor somewhere; autograd does not notice."""
    with below_autograd(), torch._C._ExcludeDispatchKeyGuard(_COUNTED):
        if _all_ints(storage, offset, size, stride) and not has_symbolic_sizes(tensor):
            tensor.set_(storage, offset, size, stride)
        else:  # the kernels of devices with memory take no symbols
            _SET._op_dk(torch._C.DispatchKey.Meta, tensor, storage, offset, list(size), list(stride))
    torch._C._set_throw_on_mutable_data_ptr(tensor)


@contextlib.contextmanager
def lying(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Iterator[None]:
    """While this lasts, a memoryless tensor lies otherwise in its storage; autograd does not notice, and its
    operations are not recorded."""
    before = tensor.size(), tensor.stride()
    start = tensor.storage_offset()
    with with_memoryless():
        lie(tensor, tensor.untyped_storage(), size, stride, offset)
        try:
            yield
        finally:
            lie(tensor, tensor.untyped_storage(), *before, start)


def unknown_number() -> torch.SymInt:
    """A symbol for a number that is not known before something is computed."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return ShapeEnv().create_unbacked_symint()


def fake_tensor(
    mode: FakeTensorMode,
    nbytes: int,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> FakeTensor:
    """A fake tensor with the given geometry on a storage of `nbytes` bytes, outside autograd.

    The same that `FakeTensor(mode, meta, device)` makes, without its checks, which are several microseconds
    each.
    """
    with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(_PYTHON_DISPATCHER):
        storage = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
        meta = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, size, stride)
        fake: FakeTensor = Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
    fake.fake_device = device
    fake.__dict__.update(_ATTRIBUTES)
    fake.fake_mode = mode
    if not fake.is_inference():
        set_versions((fake,), (0,))  # set_ has moved it
    return fake


def has_python_meta(op: Any) -> bool:
    """Whether what an operation returns for fake tensors is told by a kernel that is written in Python, and
    the operation may be run on other values without being noticed."""
    return (
        isinstance(op, OpOverload)
        and op.name().replace("::", "/") + "/Meta" in _META_LIBRARY._op_impls  # type: ignore[no-untyped-call]
        and not is_seeded(op)
    )


@functools.cache
def is_seeded(op: Any) -> bool:
    """Whether what an operation returns follows from the state of a random generator, or from a seed that it
    is given. (A kernel takes a seed for memory of whatever device it expects it on.)"""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def is_dispatched_natively(kind: type) -> bool:
    """Whether torch runs operations on a wrapper subclass itself, and not that one's `__torch_dispatch__`, of
    which nothing else can be told than that torch calls it not."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and kind is distributed.DTensor


@functools.cache
def may_draw(op: OpOverload) -> bool:
    """Whether an operation may move a random generator. (What is given the seed of another one repeats what
    that has drawn, as backwards of attention do, of which torch says the contrary.)"""
    return is_seeded(op) and all(argument.name != "philox_seed" for argument in op._schema.arguments)


@functools.cache
def returns_sizes(op: Any) -> bool:
    """Whether an operation returns whole numbers that follow from sizes, as attention does beside tensors."""
    return isinstance(op, OpOverload) and any(
        isinstance(result.real_type, torch._C.SymIntType) for result in op._schema.returns
    )


def is_composite(op: OpOverload) -> bool:
    """Whether `op` is made of others, for autograd too, and no device has a kernel for it."""
    made_of_others = _has_kernel(op, torch._C.DispatchKey.CompositeImplicitAutograd)
    return made_of_others and not any(_has_kernel(op, key) for key in _DEVICE_KEYS)


def is_composite_below_autograd(op: OpOverload) -> bool:
    """Whether `op` is an operation of its own for autograd, and made of others on every device."""
    return _composite_key(op) is not None and not any(_has_kernel(op, key) for key in _DEVICE_KEYS)


def has_derivative(op: OpOverload) -> bool:
    """Whether autograd knows `op`: how to differentiate it, or that it cannot be."""
    return any(_has_kernel(op, key) and not _falls_through(op, key) for key in _AUTOGRAD_KEYS)


def counts_writes(op: OpOverload) -> bool:
    """Whether autograd has been told how to count the writes of `op`."""
    return _has_kernel(op, torch._C.DispatchKey.ADInplaceOrView)


def is_ordered(op: OpOverload) -> bool:
    """Whether torch's registry of effects says that calls of `op` keep their order and number."""
    return _get_effect(op) is not None


# What a graph orders by values (`aot.graph.effect_tokens`) is called by the first; the others begin and end a
# chain.
WITH_EFFECTS = with_effects
MAKE_TOKEN = torch.ops.prims._make_token.default
SINK_TOKENS = torch.ops.prims._sink_tokens.default


# The operators that call graphs of their own, as a value says.
COND = torch.ops.higher_order.cond
WHILE_LOOP = torch.ops.higher_order.while_loop
STACKING_LOOP = torch.ops.higher_order.while_loop_stack_output  # what is carried after each turn, stacked


AUTO_FUNCTIONALIZED: Any = torch.ops.higher_order.auto_functionalized


def auto_functionalized(op: OpOverload, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What `op` returns for arguments by name, or None, and then each of those that it would write to, as it
    would leave them: in a graph, by the operator that Inductor takes apart again."""
    results: tuple[Any, ...] = AUTO_FUNCTIONALIZED(op, **arguments)
    return results


@contextlib.contextmanager
def ordered(ops: Iterable[OpOverload]) -> Iterator[None]:
    """While this lasts, torch's registry of effects says of these that their calls are to stay in order."""
    with contextlib.ExitStack() as stack:
        for op in ops:
            if _get_effect(op) is None:
                stack.callback(_register_effectful_op(op, EffectType.ORDERED).destroy)
        yield


def is_script_object(value: Any) -> bool:
    """Whether it is an object of a class that C++ or TorchScript has defined."""
    return isinstance(value, (torch.ScriptObject, FakeScriptObject))


def _composite_key(op: OpOverload) -> Any:
    return next((key for key in _COMPOSITE_KEYS if _has_kernel(op, key)), None)


def autocasts() -> dict[str, torch.dtype]:
    """Inside a dispatch mode: for which devices autocast was on when an operation came, and the dtypes."""
    with enable_reentrant_dispatch():
        return {
            device: torch.get_autocast_dtype(device)
            for device in AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        }


def take_apart(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: bool, inside: bool
) -> Any:
    """Run the kernel of a composite operation, inside a dispatch mode that it came to as a whole; `inside` of
    the code of a tensor subclass, where autograd, and what notes views and versions, have been passed.

    What it is made of is noticed by what notes views and versions, resolves lazy tensors, and casts (if
    `autocast`, and it was on when the operation came), unless that waits for what `op` returns.
    (`op.decompose` would prefer Python versions, which are not always the same: that of dropout clones what
    the kernel returns as it is.)
    """
    off = [torch._C.DispatchKeySet(_OWN)]
    for key in (torch._C.DispatchKey.ADInplaceOrView, *_AUTOCAST_KEYS):
        if inside or _has_kernel(op, key) or (key in _AUTOCAST_KEYS and not autocast):
            off.append(torch._C.DispatchKeySet(key))
    with (
        enable_reentrant_dispatch(),  # what was on when the operation came is on again
        below_autograd(),
        torch._C._ExcludeDispatchKeyGuard(functools.reduce(operator.or_, off)),
    ):
        return op._op_dk(_composite_key(op), *args, **kwargs)


def untold(op: OpOverload, *args: Any, **kwargs: Any) -> None:
    """Run an operation of which neither autograd, nor what counts versions, nor a tensor subclass is told."""
    with below_autograd(), torch._C._ExcludeDispatchKeyGuard(_COUNTED), torch._C._DisableTorchDispatch():
        op(*args, **kwargs)


def shell(wrapper: Tensor) -> Tensor:
    """What shares the version counter of a wrapper subclass, and is made of nothing."""
    with torch._C._DisableTorchDispatch():
        return wrapper.detach()


def changes_metadata(op: Any) -> bool:
    """Whether an operation changes what its first argument shows, and not its data."""
    return isinstance(op, OpOverload) and torch.Tag.inplace_view in op.tags


def views_noticed() -> contextlib.AbstractContextManager[Any]:
    """Inside a dispatch mode: what notes views and versions notices operations once more."""
    guard = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False)
    manager: contextlib.AbstractContextManager[Any] = guard
    return manager


def _falls_through(op: OpOverload, key: Any) -> bool:
    ask: Any = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough
    return bool(ask(op._name, key))


def _has_kernel(op: OpOverload, key: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))  # type: ignore[no-untyped-call]


def has_memory(tensor: Tensor) -> bool:
    """Whether there is memory for what a strided tensor shows."""
    try:
        return tensor.untyped_storage().data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


def is_memoryless(value: Any) -> bool:
    """Whether it is a tensor on which no kernel may run."""
    return isinstance(value, Tensor) and torch._C._dispatch_keys(value).has(_MEMORYLESS)


@functools.lru_cache(maxsize=100)
def tensor_without_elements(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of no elements that has the dispatch keys of a device, as fakes have not."""
    with nothing_on(), torch._C.DisableTorchFunction(), torch.inference_mode(False):
        return torch.empty(0, dtype=dtype, device=device)


# ``FloatTensor`` and its like, classes that are asked whether a tensor is an instance.
LEGACY_TYPES = frozenset(kind.__name__ for kind in torch._tensor_classes)
LEGACY_TYPE_IDS = frozenset(map(id, torch._tensor_classes))


# Nodes are C++ classes; all their methods that register a Python hook call this one.
REGISTERS_ON_NODES = (torch.autograd.Function, "_register_hook")
# What `backward` and `grad` call.
RUNS_BACKWARD = (torch.autograd, "_engine_run_backward")


def saved_tensor_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None:
    """The innermost saved-tensor hooks (pack, unpack) that the caller has entered, if there are any."""
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top  # type: ignore[no-any-return]


@contextlib.contextmanager
def plain_autograd() -> Iterator[None]:
    """Autograd for a trace: with memoryless tensors, and without the saved-tensor hooks, the anomaly mode and
    the compiled autograd that the caller has entered, which are for the tensors of the call."""
    hooks = []
    while (top := saved_tensor_hooks()) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        with with_memoryless(), _without_compiled_autograd():
            yield
    finally:
        torch.set_anomaly_enabled(anomaly, check_nan)
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def _without_compiled_autograd() -> contextlib.AbstractContextManager[Any]:
    """Have torch's engine run backwards itself, and not hand them to compiled autograd."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is None or not compiled.compiled_autograd_enabled:
        return _NOTHING
    manager: contextlib.AbstractContextManager[Any] = compiled._disable()
    return manager


def modes_off() -> contextlib.AbstractContextManager[Any]:
    """Run real tensor code in the middle of a trace."""
    before = _len_torch_dispatch_stack_pre_dispatch()  # type: ignore[no-untyped-call]
    if not before and not torch._C._len_torch_dispatch_stack():
        return _NOTHING  # torch's own would look again, and import what it compares modes with
    manager: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return manager


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def nothing_on() -> Iterator[None]:
    """In the middle of a trace, run real tensor code as in a thread in which no mode is on, nor autocast, and
    which is in no operation: autograd, and what notes views, take part."""
    with modes_off(), torch._C._ForceDispatchKeyGuard(_ON, _OFF):
        yield


_NON_LEAF: list[Tensor] = []


def is_function_node(node: Node | None) -> bool:
    """Whether a node of the autograd graph is one of a custom `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def function_of(node: Any) -> type[torch.autograd.Function]:
    """The `autograd.Function` whose node it is."""
    function: type[torch.autograd.Function] = node._forward_cls
    return function


def hides_saved(node: Node) -> bool:
    """Whether a node of the autograd graph does not show what it checks of what it has saved: those of
    operators on lists unpack all of it, and most have no class of their own; a write to a view has the node
    of what was written inside of its own."""
    name = type(node).__name__
    return name == "CppFunction" or name.startswith("Foreach") or is_view_write(node)


def is_view_write(node: Node) -> bool:
    """Whether a node of the autograd graph is that of an operation in place on a view, in its base's
    history."""
    return type(node).__name__ == "CopySlices"


def run_node(node: Any, gradients: Sequence[Tensor]) -> None:
    """Run a node of the autograd graph by itself, and keep what it has saved."""
    run = node.apply if is_function_node(node) else node
    run(*gradients)


def looks_of_gradients(node: Any) -> tuple[tuple[tuple[int, ...], torch.dtype, torch.device], ...]:
    """The size, dtype and device of each gradient that comes to a node of the autograd graph."""
    return tuple(looks_of_gradient(node, number) for number in range(len(node._input_metadata)))


def looks_of_gradient(node: Any, number: int) -> tuple[tuple[int, ...], torch.dtype, torch.device]:
    """The size, dtype and device that a gradient has which comes to a node of the autograd graph."""
    known = node._input_metadata[number]
    return tuple(known.shape), known.dtype, known.device


@contextlib.contextmanager
def skipped(nodes: Sequence[Any]) -> Iterator[None]:
    """While this lasts, backwards do not call the custom functions of these nodes; they give no gradients."""
    for node in nodes:
        node.apply = functools.partial(_no_gradients, len(node.needs_input_grad))
    try:
        yield
    finally:
        for node in nodes:
            del node.apply


def _no_gradients(count: int, *gradients: Tensor | None) -> tuple[None, ...]:
    return (None,) * count


@contextlib.contextmanager
def noting_unpacked(nodes: Collection[Any], unpacked: set[Node]) -> Iterator[None]:
    """While this lasts, the custom functions among `nodes` whose backward asks for `ctx.saved_tensors` are
    added to `unpacked`: autograd then checks all of these, whichever are used."""
    original: Any = vars(torch._C._FunctionBase)["saved_tensors"]

    def saved_tensors(node: Any) -> Any:
        unpacked.add(node)
        return original.__get__(node)

    with contextlib.ExitStack() as stack:
        for kind in {type(node) for node in nodes if is_function_node(node)}:  # one for each function's class
            before = vars(kind).get("saved_tensors")  # of a backward that is recorded around this one
            if before is None:
                stack.callback(delattr, kind, "saved_tensors")
            else:
                stack.callback(setattr, kind, "saved_tensors", before)
            kind.saved_tensors = property(saved_tensors)
        yield


def shape_computed(tensor: Tensor) -> torch.Size:
    """The shape of what a tensor's history has computed."""
    node: Any = tensor.grad_fn
    return torch.Size(node._input_metadata[tensor.output_nr].shape)


def is_packed(node: torch.autograd.graph.Node, name: str, *, in_checkpoints: bool = True) -> bool:
    """Whether a pack hook got what `node` has saved as its attribute `name` (``_saved_...``); perhaps not if
    it was a checkpoint's, which keeps its inputs itself, and has autograd check them."""
    raw = getattr(node, f"_raw{name}", ())
    for one in raw if isinstance(raw, (tuple, list)) else (raw,):
        hook = one.unpack_hook
        if hook is not None and (in_checkpoints or hook.__module__ != torch.utils.checkpoint.__name__):
            return True
    return False


def inputs_of_checkpoints(node: torch.autograd.graph.Node, name: str) -> tuple[Tensor, ...]:
    """What the checkpoint was called with that got what `node` has saved as its attribute `name`: it unpacks
    all of it before it runs anything again.

    Raises:
        RuntimeError: autograd finds that some of it was written to since, or freed.
    """
    raw = getattr(node, f"_raw{name}", ())
    return tuple(_inputs_of_checkpoints(raw if isinstance(raw, (tuple, list)) else (raw,)))


def _inputs_of_checkpoints(saved: Sequence[Any]) -> Iterator[Tensor]:
    for one in saved:
        frame = _frame_of_checkpoint(one.unpack_hook)
        if frame is not None:
            yield from _inputs_of_checkpoint(frame)


def _frame_of_checkpoint(unpack: Any) -> Any:
    """The checkpoint that an unpack hook belongs to, if it does to one (what runs again has hooks, too)."""
    if getattr(unpack, "__module__", "") != torch.utils.checkpoint.__name__:
        return None
    return inspect.getclosurevars(unpack).nonlocals.get("frame")


def _inputs_of_checkpoint(frame: Any) -> Iterator[Tensor]:
    saver = getattr(frame, "input_saver", None)  # torch 2.11
    inputs = frame.saved_args if saver is None else saver.grad_fn._raw_saved_tensors
    inputs = [one for one in inputs if hasattr(one, "unpack_hook")]
    # (Those of a checkpoint inside of another one are had by running that one again.)
    if any(one.unpack_hook is not None for one in inputs):
        yield from _inputs_of_checkpoints(inputs)
    else:
        yield from (one.unpack() for one in inputs) if saver is None else saver.grad_fn.saved_tensors


class _Asked(Exception):
    """A checkpoint is asked for what it has kept."""


def inputs_asked_for(hooks: tuple[Any, Any], run: Callable[[], object]) -> tuple[Tensor, ...] | None:
    """What a checkpoint, given by its saved-tensor hooks, was called with, if `run` asks it for what it has
    kept, which is then not computed: it raises inside of `run`, which does not let that out. Else None.

    Raises:
        RuntimeError: autograd finds that some of it was written to since, or freed.
    """
    frame = _frame_of_checkpoint(hooks[1])
    if frame is None:
        return None
    asked = []

    def stop(*args: object) -> None:
        asked.append(args)
        raise _Asked

    function, frame.recompute_fn = frame.recompute_fn, stop
    try:
        run()
    finally:
        frame.recompute_fn = function
    return tuple(_inputs_of_checkpoint(frame)) if asked else None


def accumulates(tensor: Tensor) -> bool:
    """Whether gradients may be accumulated into a tensor without a history. A view that was taken of a leaf
    without grad mode says that it requires grad, and does so only once `requires_grad_` was called on it."""
    if not tensor._is_view():
        return tensor.is_leaf and tensor.requires_grad
    try:
        if not (tensor.is_leaf and tensor.requires_grad):
            return False
        with outside_inference_mode():
            get_gradient_edge(tensor)
    except (AssertionError, RuntimeError):  # (Autograd may not even say whether a view is a leaf.)
        return False
    return True


def sequence_number(node: Node) -> int:
    """When a node was made: the engine runs the youngest of those that can run."""
    return int(node._sequence_nr())


def next_sequence_number() -> int:
    """That of the node that this thread makes next."""
    return int(torch._C._autograd._get_sequence_nr())


def make_non_leaf(tensor: Tensor) -> None:
    """Give `tensor` a fresh gradient edge of its own, as a non-leaf that requires grad.

    Views that were taken before keep their old edge: that is how a trace tells the gradient that enters
    through a view argument from the gradient that enters through its base.
    """
    if not _NON_LEAF:
        _NON_LEAF.append(torch.zeros((), requires_grad=True).view_as(torch.zeros(())))
    torch._mirror_autograd_meta_to(_NON_LEAF[0], tensor)  # type: ignore[attr-defined]


def negative_view(tensor: Tensor) -> Tensor:
    """A view that shows the negative of every element, lazily."""
    view: Tensor = torch._neg_view(tensor)
    return view


def set_lazy(tensor: Tensor, conj: bool, neg: bool) -> None:
    """Let `tensor` itself show its memory lazily conjugated, negated or neither."""
    torch._C._set_conj(tensor, conj)
    torch._C._set_neg(tensor, neg)


def is_zeros_without_memory(tensor: Tensor) -> bool:
    """Whether `tensor` is made by ``torch._efficientzerotensor``, as some derivatives are."""
    return tensor._is_zerotensor()


def zeros_without_memory(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """What ``torch._efficientzerotensor`` gives, whatever traces it. It has memory nowhere."""
    with torch._C._DisableTorchDispatch():
        zeros: Tensor = torch._efficientzerotensor(size, dtype=dtype, device=device)
    return zeros


CreationMeta = Literal["DEFAULT", "NO_GRAD_MODE", "MULTI_OUTPUT_NODE", "IN_CUSTOM_FUNCTION", "INFERENCE_MODE"]


def creation_meta(view: Tensor) -> CreationMeta:
    """How autograd remembers the making of a differentiable view."""
    return cast(CreationMeta, torch._C._autograd._get_creation_meta(view).name)


def set_creation_meta(view: Tensor, name: CreationMeta) -> None:
    """Make autograd remember that the view `view` was made in the way called `name`."""
    torch._C._autograd._set_creation_meta(view, getattr(torch._C._autograd.CreationMeta, name))


def replayed_view(view: Tensor, base: Tensor, instead: Callable[[Tensor], Tensor]) -> Any:
    """A view of `base`, made by the operations that made `view` one of its own base; they are given what
    `instead` gives for the other tensors that they were given then."""
    return view._view_func_unsafe(base, lambda number: number, instead)


def copy_creation_meta(source: Tensor, destination: Tensor) -> None:
    """Make autograd treat writes to the view `destination` as it treats writes to the view `source`."""
    torch._C._autograd._set_creation_meta(destination, torch._C._autograd._get_creation_meta(source))


def set_versions(tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Set version counters, one tensor after the other."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def tensor_test(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A test of as many objects: whether each is a tensor like the one here in type, size, stride, dtype,
    device, layout, requires_grad, conj and neg bit (and, outside of inference mode, in being an inference
    tensor), and no two are one. It costs some 0.04 us for each."""
    sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
    strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
    guards = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    )
    test: Callable[..., bool] = guards.check
    return test


# What a tensor and a storage tell, as functions to map over many of them.
storage_of = torch._C.TensorBase.untyped_storage
offset_of = torch._C.TensorBase.storage_offset
is_view: Callable[[Tensor], bool] = torch._C.TensorBase._is_view
nbytes_of = torch.UntypedStorage.nbytes


def putting_together(spec: TreeSpec) -> Callable[[list[Any]], Any]:
    """What `tree_unflatten` does with this tree; at once where it is a leaf, or a tuple or list of leaves."""
    numbers = list(range(spec.num_leaves))
    if spec == tree_flatten(0)[1]:
        return operator.itemgetter(0)
    for kind in (tuple, list):
        if spec == tree_flatten(kind(numbers))[1]:
            return kind
    return functools.partial(tree_unflatten, treespec=spec)


def _default_device() -> str:
    """`torch.get_default_device`, which imports what it needs at each call."""
    context = _GLOBAL_DEVICE.__dict__.get("device_context")
    if context is None and not _modes_of_functions():
        return "cpu"
    return str(torch.get_default_device())


def ambient_key() -> tuple[object, ...]:
    """Everything outside the arguments that changes what a trace records."""
    autocast = torch._C._is_any_autocast_enabled()
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        _default_device(),
        (autocast_states(), torch.is_autocast_cache_enabled()) if autocast else None,
        torch.is_inference_mode_enabled(),
        torch._C._is_torch_function_enabled(),
        torch._C._is_torch_function_all_disabled(),
    )


def ambient_test(tensors: Sequence[Tensor]) -> tuple[str, dict[str, Any]]:
    """An expression that is true only where `ambient_key` gives what it gives now, where
    `are_tensors_transformed` and `is_below_autograd` are false, and the names in it. It is asked when
    `tensor_test` of these has passed, and costs a third of all of these.
    """
    key, own = ambient_key(), _GLOBAL_DEVICE
    names: dict[str, Any] = {"peek": torch._C._functorch.peek_interpreter_stack, "levels": forward_ad}
    tests = ["levels._current_level < 0", "peek() is None"]
    if torch.is_inference_mode_enabled() or all(tensor.is_inference() for tensor in tensors):
        tests += ["not below()", f"inference() is {torch.is_inference_mode_enabled()}"]
        names.update(below=is_below_autograd, inference=torch.is_inference_mode_enabled)
    # (Else the dispatch keys, as a thread changes them, have told both.)
    plain = torch._C._is_torch_function_enabled()
    if own.__dict__ or _modes_of_functions() or torch._C._is_any_autocast_enabled() or not plain:
        tests += ["ambient() == here", "not modes()"]
        names.update(ambient=ambient_key, here=key, modes=user_function_modes_are_on)
        return " and ".join(tests), names
    tests += [
        f"grad() is {key[0]}",
        "dtype() is default",
        f"deterministic() is {key[2]}",
        "not autocast()",
        "not modes()",
        "functions()",
        "not own.__dict__",
    ]
    names.update(
        grad=torch.is_grad_enabled,
        dtype=torch.get_default_dtype,
        default=key[1],
        deterministic=are_kernels_deterministic,
        autocast=autocast_enabled,
        modes=_modes_of_functions,
        functions=torch._C._is_torch_function_enabled,
        own=own,
    )
    return " and ".join(tests), names


_GLOBAL_DEVICE = torch._GLOBAL_DEVICE_CONTEXT  # what a thread has set, where it has
_modes_of_functions: Callable[[], int] = torch._C._len_torch_function_stack


def ambient_of_now() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What sets all that `ambient_key` looks at to what it is now, for as long as it lasts; inference mode
    aside."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    device = _default_device()
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]

    within, cached = autocast_cache_key()

    @contextlib.contextmanager
    def ambient() -> Iterator[None]:
        before = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
        with contextlib.ExitStack() as stack:
            if within:
                torch.autocast_increment_nesting()
                stack.callback(_end_region)
            stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
            torch.set_autocast_cache_enabled(cached)
            for kind, enabled, of in autocast:
                if (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) != (enabled, of):
                    stack.enter_context(torch.autocast(kind, of, enabled))
            if _default_device() != device:
                stack.enter_context(torch.device(device))
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.callback(_set_defaults, *before)
            _set_defaults(dtype, deterministic)
            yield

    return ambient


def _end_region() -> None:
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


def _set_defaults(dtype: torch.dtype, deterministic: bool) -> None:
    torch.set_default_dtype(dtype)
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)


def backward_key() -> tuple[object, ...]:
    """What of the ambient state changes what the formulas of a backward record."""
    autocast = tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
    )
    deterministic = torch.are_deterministic_algorithms_enabled()
    return (autocast if torch._C._is_any_autocast_enabled() else None, deterministic)


# Whether any device is under autocast.
autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled
are_kernels_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms


@contextlib.contextmanager
def autocast_uncached() -> Iterator[None]:
    """While this lasts, autocast keeps no cast of a leaf for the next operation that takes it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def autocast_cache_key() -> tuple[bool, bool]:
    """Whether this thread is in a region of autocast, and whether casts of leaves are kept until it ends."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0, torch.is_autocast_cache_enabled()


def is_autocast_leaf(tensor: Tensor) -> bool:
    """Whether autocast keeps the cast of such a tensor. (A view that is asked may get another history.)"""
    return (
        tensor.dtype is torch.float32
        and not tensor._is_view()
        and tensor.requires_grad
        and tensor.is_leaf
        and tensor.device.type in AUTOCAST_DEVICES
    )


class _NotKept(Exception):
    """Autocast keeps no cast of a leaf."""


class _Operand(TorchDispatchMode):
    """Catches what autocast makes of the operand of a product. `make` is given what does the cast, and gives
    what is kept; if it is None, there is to be none."""

    def __init__(self, make: Callable[[Callable[[], Tensor]], Tensor] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.make = make
        self.caught: Tensor | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as that of what records

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _MM:  # The kernel is not run, so that the shape does not matter.
            self.caught = args[0]
            with modes_off():
                return torch.empty(())
        if self.make is None:
            raise _NotKept
        return self.make(functools.partial(func, *args, **(kwargs or {})))


_MM = torch.ops.aten.mm.default
_multiply: Callable[[Tensor, Tensor], Tensor] = torch._C._VariableFunctions.mm
_multiply_any: Callable[..., Tensor] = torch._C._VariableFunctions.matmul
_PRODUCTS: dict[int, Callable[..., Tensor]] = {2: _multiply, 3: torch._C._VariableFunctions.bmm}


@contextlib.contextmanager
def _casting(device: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast is on for a device, with its cache, and with another dtype if that is given."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype or before[1])
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.set_autocast_cache_enabled(cached)


def kept_by_autocast(
    leaf: Tensor, make: Callable[[Callable[[], Tensor]], Tensor] | None = None
) -> Tensor | None:
    """The cast of a leaf that autocast keeps; if there is none, what `make` gives, which autocast keeps from
    now on."""
    mode = _Operand(make)
    with (
        _casting(leaf.device.type, None),
        torch._C.DisableTorchFunction(),
        contextlib.suppress(_NotKept),
        mode,
    ):
        _multiply(leaf, leaf)
    return mode.caught


def _does(cast: Callable[[], Tensor]) -> Tensor:
    return cast()


def made_by_autocast(leaf: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """What autocast, as it is now but for the dtype, gives an operation that takes a leaf: the cast that it
    keeps, or one that it makes."""
    device = leaf.device.type
    now = torch.get_autocast_dtype(device)
    as_it_is = (
        dtype in (None, now) and torch.is_autocast_enabled(device) and torch.is_autocast_cache_enabled()
    )
    with _NOTHING if as_it_is else _casting(device, dtype), torch._C.DisableTorchFunction():
        if _shows_what_it_saves(leaf):
            cast = _saved_cast(leaf, dtype or now)
            if cast is not None:
                return cast
        mode = _Operand(_does)
        with mode:
            _multiply(leaf, leaf)
    assert mode.caught is not None
    return mode.caught


def _shows_what_it_saves(leaf: Tensor) -> bool:
    """Whether autograd records a product of a leaf as it is, and nobody watches."""
    return (
        leaf.dim() > 0
        and type(leaf) in (Tensor, torch.nn.Parameter)
        and not torch._C._len_torch_dispatch_stack()
        and saved_tensor_hooks() is None
        and (torch.is_grad_enabled() or casts_have_history())
    )


def _saved_cast(leaf: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The cast of a leaf that a product with nothing saves for its gradient. This costs a fourth of watching
    a product. None where it saves something else."""
    grad, dims = torch.is_grad_enabled(), leaf.dim()
    set_grad_enabled(True)
    try:
        rows = leaf.shape[:1] if dims == 3 else ()
        nothing = torch.empty((*rows, leaf.shape[-1], 0), dtype=dtype, device=leaf.device, requires_grad=True)
        node: Any = _PRODUCTS.get(dims, _multiply_any)(leaf, nothing).grad_fn
    except RuntimeError:  # what is kept has another dtype
        return None
    finally:
        set_grad_enabled(grad)
    if dims in _PRODUCTS:
        cast: Tensor = node._saved_self
        return cast
    # It takes a view of the cast as a matrix.
    while node is not None and not hasattr(node, "_saved_mat2"):
        node = node.next_functions[0][0]
    base: Tensor | None = None if node is None or node._saved_self is None else node._saved_self._base
    return base if base is not None and base.shape == leaf.shape else None


@functools.cache
def casts_have_history() -> bool:
    """Whether a cast that autocast keeps has a history although it is made without grad mode. (It depends on
    torch's version.)"""
    with modes_off(), torch.inference_mode(False), torch.no_grad(), _casting("cpu", None):
        mode = _Operand(_does)
        with torch._C.DisableTorchFunction(), mode:
            leaf = torch.zeros(1, 1, requires_grad=True)
            _multiply(leaf, leaf)
    return mode.caught is not None and mode.caught.requires_grad


def like_made_by_autocast(leaf: Tensor) -> Tensor:
    """A tensor like what `made_by_autocast` would make, of which autocast knows nothing."""
    with torch.set_grad_enabled(torch.is_grad_enabled() or casts_have_history()):
        return leaf.to(torch.get_autocast_dtype(leaf.device.type))


def disable_autocast() -> contextlib.AbstractContextManager[Any]:
    """Graphs hold the casts that autocast made while tracing; running them must not cast again."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._DisableAutocast()
    return manager


def process_key(devices: Iterable[str]) -> tuple[object, ...]:
    """What a trace depends on of this process and its machine, for tensors on these devices: versions, and
    switches that choose kernels, of which results have other strides or other operations are recorded."""
    backends = torch.backends
    found: list[object] = [
        str(torch.__version__),
        torch.version.git_version,
        sys.version,
        platform.machine(),
        backends.cpu.get_cpu_capability(),
        torch._C._has_mkldnn and torch._C._get_mkldnn_enabled(),
        torch._C._get_nnpack_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.__future__.get_overwrite_module_params_on_conversion(),
    ]
    found += [backends.opt_einsum.enabled, backends.opt_einsum.strategy]
    found += [getattr(backends.cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math")]
    kinds = {torch.device(device).type for device in devices} - {"cpu", "meta"}
    if kinds:
        found += [torch.version.cuda, backends.cudnn.version()]  # type: ignore[no-untyped-call]
        found += [backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic]
        found += [str(torch.get_device_module(kind).get_device_properties()) for kind in sorted(kinds)]
    return tuple(found)


def set_grad_mode(enabled: bool) -> None:
    """Set grad mode for good."""
    torch._C._set_grad_enabled(enabled)


def autocast_states() -> tuple[tuple[str, bool, torch.dtype], ...]:
    """For each device, whether autocast is on and which dtype it casts to."""
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
    )


def set_autocast_states(states: Sequence[tuple[str, bool, torch.dtype]]) -> None:
    """Set those for good."""
    for device, enabled, dtype in states:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are on, the innermost last."""
    return list(_get_current_dispatch_mode_stack())


def set_dispatch_modes(modes: Sequence[Any]) -> None:
    """Let just these be on. (What their own `__enter__` and `__exit__` would do is left out.)"""
    now = dispatch_modes()
    same = _common(now, modes)
    for mode in reversed(now[same:]):
        TorchDispatchMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]
    for mode in modes[same:]:
        TorchDispatchMode.__enter__(mode)  # type: ignore[no-untyped-call]


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many of the first ones are the same objects."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))


def default_device() -> DeviceContext | None:
    """What `torch.set_default_device` has set in this thread."""
    context: DeviceContext | None = _GLOBAL_DEVICE.__dict__.get("device_context")
    return context


def set_default_device(context: DeviceContext | None) -> None:
    """Let it be this, which is or is not among the modes of functions already."""
    if context is None:
        _GLOBAL_DEVICE.__dict__.pop("device_context", None)
    else:
        _GLOBAL_DEVICE.device_context = context


def hooks_on_saved_tensors() -> object:
    """The hooks on saved tensors that are on, the innermost ones; None where there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def set_hooks_on_saved_tensors(hooks: object) -> None:
    """Take away those that were put on since these."""
    while (now := hooks_on_saved_tensors()) is not None and now != hooks:
        torch._C._autograd._pop_saved_tensors_default_hooks()


# Whether torch's functions ask modes, in this thread.
function_modes_are_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled


def function_modes() -> tuple[Any, ...]:
    """The torch function modes of this thread, outermost first."""
    return tuple(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def is_device_mode(mode: Any) -> bool:
    """Whether a torch function mode does nothing but set a default device."""
    return type(mode) is DeviceContext


def is_mode_of_tracer(mode: Any) -> bool:
    """Whether it is one by which `make_fx` notes what is called."""
    return type(mode).__module__ == "torch.fx.experimental.proxy_tensor"


def stays_on(mode: Any) -> bool:
    """Whether a torch function mode is torch's own: that of a default device, or of a tracer."""
    return is_device_mode(mode) or is_mode_of_tracer(mode)


def user_function_modes_are_on() -> bool:
    """Whether a torch function mode of the user's is asked by this thread's calls of torch."""
    return function_modes_are_on() and not all(map(stays_on, function_modes()))


@contextlib.contextmanager
def function_modes_replaced(modes: Sequence[Any]) -> Iterator[None]:
    """While this lasts, these are the torch function modes of this thread."""
    before = function_modes()
    set_function_modes(modes)
    try:
        yield
    finally:
        set_function_modes(before)


def set_function_modes(modes: Sequence[Any]) -> None:
    """Let just these be the torch function modes of this thread."""
    while _modes_of_functions():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def without_function_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this package that torch calls in the middle of the user's, whose modes are not for it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not function_modes_are_on():
            return function(*args, **kwargs)
        with function_modes_replaced(tuple(filter(is_device_mode, function_modes()))):
            return function(*args, **kwargs)

    return call


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, dispatch modes of the user's are off; another tracer's stay on."""
    return _NOTHING if is_traced_elsewhere() else modes_off()


def modes_are_on() -> bool:
    """Whether a mode may change what a trace records: one of functions, other than that for a default device,
    or one of operations."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(type(mode) is not DeviceContext for mode in stack) or _get_current_dispatch_mode() is not None


def global_module_hooks() -> bool:
    """Whether hooks are registered for all modules."""
    return any(bool(hooks) for name, hooks in vars(torch.nn.modules.module).items() if _is_global_hook(name))


def _is_global_hook(name: str) -> bool:
    return name.startswith("_global_") and name.endswith("hooks")


def append_node(
    graph: torch.fx.Graph,
    op: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None = None,
) -> torch.fx.Node:
    """`graph.create_node`, in a third of its time: that looks through all arguments for what it warns of, and
    makes the same name of the same target again each time."""
    if graph.owning_module is not None:  # which may have asked to be told
        return graph.create_node(op, target, args, kwargs, name)
    space = graph._graph_namespace
    name = _unused_name(space, _name_of_target(target)) if name is None else space.create_name(name, None)
    node = torch.fx.Node(graph, name, op, target, args, kwargs)
    space.associate_name_with_obj(name, node)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def _unused_name(space: Any, wanted: str) -> str:
    """`space.create_name`, which takes a name apart to find by what others of the kind were counted."""
    names, counts = space._used_names, space._base_count
    if wanted in names and wanted in counts:
        name = f"{wanted}_{counts[wanted] + 1}"
        if name not in names:
            names.add(name)
            counts[wanted] += 1
            return name
    made: str = space.create_name(wanted, None)
    return made


def copy_node(graph: torch.fx.Graph, node: torch.fx.Node, copies: Mapping[Any, Any]) -> torch.fx.Node:
    """`graph.node_copy`, where `copies` has what stands for each node that it is given."""
    args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
    copy = append_node(graph, node.op, node.target, args, kwargs, node.name)
    if node.type is not None:
        copy.type = node.type
    copy.meta.update(node.meta)
    return copy


_name_of_target = functools.lru_cache(maxsize=1024)(torch.fx.Graph()._target_to_str)


def remember_getters() -> None:
    """Have torch note which attributes of tensors a subclass gets as they are, before these are replaced: it
    looks once, and would take what stands for them then for them ever after."""
    get_default_nowrap_functions()


def runs_its_graph(module: GraphModule) -> bool:
    """Whether a call of the module runs its graph as it is now, in order, and nothing else."""
    kind, codegen = type(module).__mro__[1], type(module.graph._codegen)
    if kind not in (GraphModule, LazyGraphModule) or codegen is not torch.fx.graph.CodeGen:
        return False
    if has_no_code(module):
        return True
    return bool(module.code == module.graph.python_code("self").src)


def has_no_code(module: GraphModule) -> bool:
    """Whether the Python of a plain module's graph is not made until somebody asks for it."""
    lazy = isinstance(module, LazyGraphModule) and module._needs_recompile()
    return lazy and type(module.graph._codegen) is torch.fx.graph.CodeGen


def overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """The operators of one name."""
    names = packet.overloads()  # type: ignore[no-untyped-call]
    return [getattr(packet, name) for name in names]


def custom_definition(op: OpOverload) -> tuple[Any, dict[str, Any]] | None:
    """What a custom operator was made by (`torch.library.custom_op`), and functions of it that a trace calls.
    (No kernels: these run at each call.)

    There is none if anything else was registered for the operator as well, in Python or in C++.
    """
    name = op._schema.name
    definition: Any = OPDEFS.get(name)
    if definition is None or definition._opoverload is not op or op.py_kernels:
        return None
    if definition._torch_dispatch_fns or any(path != _CUSTOM_OPS for path in _registered_at(name)):
        return None
    parts = {part: getattr(definition, part) for part in _TRACED_PARTS}
    return definition, {**parts, "_autocast_dtype": tuple(sorted(definition._autocast_dtype.items()))}


_TRACED_PARTS = ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn")
_CUSTOM_OPS = inspect.getfile(_custom_ops)


def _registered_at(name: str) -> list[str]:
    """The files from which kernels are registered for an operator."""
    dump: str = torch._C._dispatch_dump(name)
    return re.findall(r": registered at (.+?):\d+ :: ", dump)


clone_of_mode: Any = _DecoratorContextManager.clone


def operator_functions() -> Any:
    """What holds the functions of `torch` that call operators."""
    return torch._C._VariableFunctions


def operator_spaces() -> tuple[Any, ...]:
    """Modules of nothing but functions that call operators."""
    return tuple(getattr(torch._C, name) for name in ("_nn", "_special", "_linalg", "_fft"))


@functools.cache
def all_operators() -> frozenset[str]:
    """The names of the operators that the dispatcher has."""
    return frozenset(torch._C._dispatch_get_all_op_names())


# Inductor is imported when it is used: it is most of what torch.compile loads.


def inductor_settings(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `torch.compile` sets Inductor's configuration to; RuntimeError for what it does not know."""
    from torch._inductor import list_mode_options

    of_mode: Any = list_mode_options(mode) if mode else {}
    settings = {**of_mode, **{name.replace("-", "_"): value for name, value in (options or {}).items()}}
    unknown = settings.keys() - inductor_options()
    if unknown:
        raise RuntimeError(f"Inductor has no option called {', '.join(sorted(unknown))}")
    return settings


def inductor_options() -> set[str]:
    """The names in Inductor's configuration."""
    from torch._inductor import config

    return set(config.get_config_copy())


def _load_inductor() -> None:
    """Import what torch.compile does before it compiles: Inductor's modules name each other as attributes of
    their package, as `decomposition` does `lowering` for `max_pool2d`, and do not import what they name."""
    importlib.import_module("torch._inductor.compile_fx")


def inductor_decompositions(settings: Mapping[str, Any]) -> dict[Any, Callable[..., Any]]:
    """Operations that Inductor does not compile, and functions that compute them by others."""
    _load_inductor()
    from torch._inductor import config, decomposition

    with config.patch(dict(settings)):
        return dict(decomposition.select_decomp_table())


def decomposed(
    function: Callable[..., Any], inputs: Sequence[Any], decompositions: Mapping[Any, Callable[..., Any]]
) -> GraphModule:
    """The graph of what `function` computes from fake tensors, operations decomposed."""
    from torch.fx.experimental.proxy_tensor import make_fx

    # (Some kernels take symbols in Python alone. Graphs have all of theirs as inputs.)
    symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
    dispatcher = python_dispatcher() if symbolic else contextlib.nullcontext()
    with _mode_of(inputs), dispatcher, torch.no_grad(), disable_autocast():
        graph = make_fx(function, dict(decompositions))(*inputs)
    # (What reads a number from a fake tensor fails, and stays in the graph if the failure is caught.)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default):
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def with_symbols(inputs: Sequence[Any]) -> list[Any]:
    """Fake tensors like others, of a mode in which sizes may be symbols that nobody knows the values of."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    known: dict[Any, torch.SymInt] = {}

    def size(number: Any) -> Any:
        if not isinstance(number, torch.SymInt):
            return number
        if as_made(number) not in known:
            known[as_made(number)] = env.create_unbacked_symint()
        return known[as_made(number)]

    def like(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        sizes = [size(number) for number in value.shape]
        return torch.empty_strided(sizes, value.stride(), dtype=value.dtype, device=value.device)

    with FakeTensorMode(shape_env=env), env.ignore_fresh_unbacked_symbols():
        return [like(value) for value in inputs]


def _mode_of(inputs: Sequence[Any]) -> FakeTensorMode:
    return next((value.fake_mode for value in inputs if isinstance(value, FakeTensor)), FakeTensorMode())


def inductor_copies() -> set[Any]:
    """Operations that are no views, and that Inductor takes away where they only copy an argument."""
    _load_inductor()
    from torch._inductor.fx_passes import post_grad

    return {op for op in post_grad.noop_registry if not op.is_view}


def inductor_restrided(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """A copy with dimensions in the order that these strides have, in a graph for Inductor."""
    from torch._inductor import inductor_prims

    restrided: Tensor = inductor_prims.force_stride_order(tensor, list(stride))
    return restrided


def is_marked_static(node: torch.fx.Node) -> bool:
    """Whether Dynamo has marked an input of its graph as lying in one place from call to call."""
    return bool(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def takes_back_version(function: Any) -> bool:
    """Whether this is what Dynamo calls on a tensor after `set_` where the program assigns ``.data``."""
    return getattr(function, "__name__", "") == "_lower_version_count_by_1"


def inductor_compile(
    graph: GraphModule,
    inputs: Sequence[Any],
    which: str,
    settings: Mapping[str, Any],
    donated: Sequence[int],
    static: Sequence[int],
    names: list[str],
) -> tuple[Callable[..., Any], list[tuple[int, ...] | None]]:
    """Inductor's code for a graph without mutations, but for those of its inputs at its end.

    Args:
        which: "forward", "backward" or "inference".
        donated: the inputs that may be overwritten.
        static: those that lie in one place from call to call.
        names: what it is called in the code.

    Returns:
        A boxed callable, and the strides of its results, as far as it tells them.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile_fx, config

    # (A graph without inputs has fake tensors, too.)
    context = TracingContext(_mode_of([*inputs, *(node.meta.get("val") for node in graph.graph.nodes)]))
    context.output_strides = []
    context.aot_graph_name = names
    # All that is read of it.
    context.fw_metadata = types.SimpleNamespace(
        bw_donated_idxs=list(donated), static_input_indices=list(static)
    )
    with config.patch(dict(settings)), tracing(context), disable_autocast():
        compiled = compile_fx.compile_fx_inner(
            graph,
            inputs,
            static_input_idxs=list(static),
            is_backward=which == "backward",
            is_inference=which == "inference",
        )
    return compiled, list(context.output_strides)


_registering = threading.Lock()


def registers_for_dynamo(backend: Callable[..., Any], name: str) -> bool:
    """Register a backend if Dynamo is loading it by its entry point, once for all threads that do.

    The caller is a module's ``__getattr__``, asked by ``EntryPoint.load``. Dynamo's `lookup_backend`
    registers what `load` returns, and raises for a name that another thread has registered meanwhile. None is
    not registered: `register_backend` takes it for its use as a decorator. Dynamo looks the name up then.
    """
    registry = sys.modules.get("torch._dynamo.backends.registry")
    loading = sys._getframe(1).f_back
    asking = None if loading is None else loading.f_back
    if registry is None or asking is None or asking.f_code is not registry.lookup_backend.__code__:
        return False
    with _registering:
        if name not in registry._COMPILER_FNS:
            registry.register_backend(backend, name=name)
    return True
