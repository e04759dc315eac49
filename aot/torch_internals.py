"""Every private torch name that aot uses, and every difference between supported torch versions.

Nothing else in this package imports private API (ruff's banned-api rule keeps that), so that a torch
upgrade touches this file alone. Supported: 2.11, 2.12, 2.13; no difference has been needed so far.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch._meta_registrations import _meta_lib_dont_use_me_use_register_meta as _META_LIBRARY
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from aot.errors import EscapedTensor, UnsupportedOperation

__all__ = [
    "AUTOCAST_DEVICES",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "TreeSpec",
    "UnsupportedOperatorException",
    "ambient_key",
    "asked_for_memory",
    "autocast_enabled",
    "backward_key",
    "below_autograd",
    "copy_creation_meta",
    "counter_groups",
    "creation_meta",
    "current_node",
    "default_generators",
    "disable_autocast",
    "disarm",
    "fake_tensor",
    "function_of",
    "graph_is_retained",
    "has_counter",
    "hooks_on",
    "inference_tensor",
    "is_composite",
    "is_composite_below_autograd",
    "is_function_node",
    "is_memoryless",
    "is_packed",
    "is_undeclared_view",
    "make_non_leaf",
    "may_alias",
    "memoryless",
    "memoryless_storage",
    "modes_off",
    "move",
    "move_on",
    "moved_version",
    "negative_view",
    "outside_inference_mode",
    "plain_autograd",
    "reserve",
    "saved_tensor_hooks",
    "set_creation_meta",
    "set_grad_enabled",
    "set_lazy",
    "skip_dynamo",
    "storage_key",
    "take_apart",
    "takes_functions",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "version",
    "views_noticed",
    "watched",
]

AUTOCAST_DEVICES = ("cpu", "cuda")
set_grad_enabled = torch._C._set_grad_enabled  # without the object that torch.set_grad_enabled makes
_PYTHON_DISPATCHER = torch._C.DispatchKeySet(torch._C.DispatchKey.PythonDispatcher)
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


def skip_dynamo(function: Any) -> Any:
    """Let Dynamo trace neither `function` nor what it calls. Unlike `torch.compiler.disable`, it costs calls
    nothing more."""
    frames = torch._C._dynamo.eval_frame
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def storage_key(tensor: Tensor) -> int:
    """The address of the tensor's storage object: equal exactly for tensors that share it, while it lives."""
    return int(tensor.untyped_storage()._cdata)


def current_node() -> Node | None:
    """Inside a backward: the node that runs, if one does."""
    return torch._C._current_autograd_node()


def graph_is_retained() -> bool:
    """Inside a backward: whether it was called with ``retain_graph=True``."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def default_generators() -> tuple[torch.Generator, ...]:
    """The generators that draws come from unless they name one: the CPU's, and those of CUDA if it is in
    use."""
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *cuda)


def move_on(generator: torch.Generator) -> None:
    """Move a generator to a state that it has not had before."""
    if generator.device.type == "cuda":
        generator.set_offset(generator.get_offset() + 4)
    else:
        with modes_off():
            torch.empty(()).uniform_(generator=generator)


def memoryless_storage(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    """A storage that says to have `nbytes` bytes and has none."""
    if device.type == "meta":
        with torch._C._DisableTorchDispatch():
            return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()
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
    address of its data gets a RuntimeError; a kernel that ran on it would crash, so none may.
    """
    with torch._C._DisableTorchDispatch():
        tensor: Tensor = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, size, stride)
    torch._C._set_throw_on_mutable_data_ptr(tensor)
    if not tensor.is_inference():
        torch._C._autograd._unsafe_set_version_counter((tensor,), (0,))  # set_ has moved it
    return tensor


_NO_MEMORY = (
    "data is not allocated yet",  # kernels
    "Cannot access data pointer of Tensor",  # numpy(), data_ptr(), DLPack
    "unallocated storage",  # tolist()
    "invalid python storage",  # deepcopy, save
)


def asked_for_memory(error: RuntimeError) -> bool:
    """Whether this is what torch raises when somebody asks for the data of a memoryless tensor."""
    return any(text in str(error) for text in _NO_MEMORY)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Operations go to their kernels directly, past autograd and its modes."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return manager


def outside_inference_mode() -> contextlib.AbstractContextManager[Any]:
    """Leave inference mode, if it is on, for as long as it lasts."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def inference_tensor(value: Tensor) -> Tensor:
    """An inference tensor on the memory of `value`."""
    with torch.inference_mode():
        alias = torch.empty(0, dtype=value.dtype, device=value.device)
        return alias.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())


def disarm(tensor: Tensor) -> None:
    """Make a memoryless tensor an empty one, so that nothing that is done with it can crash."""
    with torch._C._DisableTorchDispatch(), torch.inference_mode(tensor.is_inference()):
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


class Reserved(Tensor):
    """A tensor of a trace that is over: nobody but a trace that goes on may use it."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not getattr(_tracing, "depth", 0):
            raise EscapedTensor(
                "this tensor was made while a function was compiled, and stored by it somewhere else than in "
                "its result: it has no values; return it instead"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


_tracing = threading.local()


def reserve(tensor: Tensor) -> None:
    """Let nobody but traces use a memoryless tensor: whatever else is done with it raises EscapedTensor."""
    tensor.__class__ = Reserved


def move(tensor: Tensor, storage: torch.UntypedStorage) -> None:
    """Put a memoryless tensor onto another such storage, where it lies as it did."""
    tensor.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    torch._C._set_throw_on_mutable_data_ptr(tensor)


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
        torch._C._autograd._unsafe_set_version_counter((fake,), (0,))  # set_ has moved it
    return fake


def has_python_meta(op: Any) -> bool:
    """Whether what an operation returns for fake tensors is told by a kernel that is written in Python, and
    the operation may be run on other values without being noticed."""
    return (
        isinstance(op, OpOverload)
        and op.name().replace("::", "/") + "/Meta" in _META_LIBRARY._op_impls  # type: ignore[no-untyped-call]
        and torch.Tag.nondeterministic_seeded not in op.tags
    )


def may_alias(op: OpOverload) -> bool:
    """Whether a result of `op` may lie in its first argument's memory, by its schema, its tags, or although
    neither says so."""
    return op.is_view or torch.Tag.maybe_aliasing_or_mutating in op.tags or is_undeclared_view(op)


def is_composite(op: OpOverload) -> bool:
    """Whether `op` is made of others, for autograd too."""
    return _has_kernel(op, torch._C.DispatchKey.CompositeImplicitAutograd)


def is_composite_below_autograd(op: OpOverload, device: torch.device) -> bool:
    """Whether `op` is made of others on that device, but for autograd is an operation of its own."""
    own = getattr(torch._C.DispatchKey, device.type.upper(), None)
    composite = _has_kernel(op, torch._C.DispatchKey.CompositeExplicitAutograd)
    return composite and not (own is not None and _has_kernel(op, own))


def take_apart(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the kernel of a composite operation, inside a dispatch mode that it came to as a whole.

    What it is made of is noticed by what notes views and versions (unless that waits for what `op` returns),
    resolves lazy tensors, and casts. (`op.decompose` would prefer Python versions, which are not always
    the same: that of dropout clones what the kernel returns as it is.)
    """
    keys = [torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative]
    keys += [
        getattr(torch._C.DispatchKey, f"Autocast{device.upper()}")
        for device in AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    ]
    kernel = torch._C.DispatchKey.CompositeImplicitAutograd
    if not is_composite(op):
        kernel = torch._C.DispatchKey.CompositeExplicitAutograd
    with contextlib.ExitStack() as stack:
        if not _has_kernel(op, torch._C.DispatchKey.ADInplaceOrView):
            stack.enter_context(views_noticed())
        for key in keys:
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        return op._op_dk(kernel, *args, **kwargs)


def views_noticed() -> contextlib.AbstractContextManager[Any]:
    """Inside a dispatch mode: what notes views and versions notices operations once more."""
    guard = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False)
    manager: contextlib.AbstractContextManager[Any] = guard
    return manager


def _has_kernel(op: OpOverload, key: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))  # type: ignore[no-untyped-call]


def is_undeclared_view(op: OpOverload) -> bool:
    """Whether `op` is a view although its schema says that its result is new: autograd treats it as new."""
    return op in _UNDECLARED_VIEWS


_UNDECLARED_VIEWS = {
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
    torch.ops.aten.unsafe_chunk.default,
}


_WATCHED = ("register_hook", "register_post_accumulate_grad_hook")
_watch = threading.local()
_watching = 0
_watching_lock = threading.Lock()


def _watched(name: str, original: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
    @functools.wraps(original)
    def register(self: Tensor, hook: Any) -> Any:
        watch = getattr(_watch, "now", None)
        return original(self, hook if watch is None else watch(name, self, hook))

    return register


def _watched_node(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    def register(hooks: Any, hook: Any) -> Any:
        watch = getattr(_watch, "node", None)
        return original(hooks, hook if watch is None else watch(hooks, hook))

    return register


def _watched_module(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def create(self: Any, module: Any, hooks: Any, prehooks: Any) -> None:
        watch = getattr(_watch, "node", None)
        if watch is not None:
            hooks, prehooks = ([watch(None, hook) for hook in given] for given in (hooks, prehooks))
        original(self, module, hooks, prehooks)

    return create


def _watched_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(outputs: Any, *options: Any, **flags: Any) -> Any:
        watch = getattr(_watch, "engine", None)
        if watch is not None:
            watch(options[3])  # what is differentiated with respect to
        return original(outputs, *options, **flags)

    return run


def _shown(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def show(self: Tensor, **options: Any) -> str:
        if getattr(_watch, "now", None) is None or self.layout is not torch.strided or _has_memory(self):
            return original(self, **options)
        return f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype})"

    return show


def _has_memory(tensor: Tensor) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


def is_memoryless(value: Any) -> bool:
    """Whether it is a tensor on which no kernel may run, as it has elements and no memory."""
    if type(value) is Reserved:
        return True
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.device.type == "meta":
        return False
    return value.layout is torch.strided and not _has_memory(value)


def _one_hot_without_looking(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
        looks = num_classes < 0 or tensor.dtype is not torch.int64
        if looks or getattr(_watch, "now", None) is None or _has_memory(tensor):
            return original(tensor, num_classes)
        torch._assert_async((tensor >= 0).all(), "Class values must be non-negative.")
        torch._assert_async((tensor < num_classes).all(), "Class values must be smaller than num_classes.")
        classes = torch.arange(num_classes, device=tensor.device)
        return (tensor.unsqueeze(-1) == classes).to(torch.int64)

    return one_hot


def takes_functions(name: str) -> UnsupportedOperation:
    """The refusal of an operator that takes functions."""
    return UnsupportedOperation(
        f"the function calls {name}, an operator that takes functions, which cannot be recorded; write what "
        f"it does in Python, or compute it outside"
    )


def _refusing_operators_that_take_functions(original: Callable[..., Any]) -> Callable[..., Any]:
    def module(frame: Any) -> str:
        return str(frame.f_globals.get("__name__", ""))

    @functools.wraps(original)
    def compile(*args: Any, **options: Any) -> Any:
        frame: Any = sys._getframe(1)
        if getattr(_watch, "now", None) is not None and module(frame).startswith(_COMPILES):
            while frame.f_back is not None and module(frame.f_back).startswith("torch."):
                frame = frame.f_back
            raise takes_functions(f"{module(frame)}.{frame.f_code.co_name}")
        return original(*args, **options)

    return compile


def _handing_on(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        elsewhere = getattr(_watch, "elsewhere", None)
        if elsewhere is not None:
            self.run = elsewhere(self.run)  # type: ignore[method-assign]
        original(self)

    return start


def _handing_over(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        elsewhere = getattr(_watch, "elsewhere", None)
        return original(self, function if elsewhere is None else elsewhere(function), *args, **kwargs)

    return submit


_COMPILES = ("torch._higher_order_ops.", "torch.nn.attention.flex_attention")


class _Product(torch.autograd.Function):
    """The product of all elements. ATen's formula for its gradient looks whether there are zeros among them,
    and while a dispatch mode is on it goes the way for zeros without looking; this one leaves it to the
    graph. Each way is gone with ones where the other one is meant, so that its own gradient stays finite.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        product = given.prod()
        ctx.save_for_backward(given, product)
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        given, product = ctx.saved_tensors
        some = (given == 0).any()
        one = torch.ones_like(product)
        quotients = gradient * (torch.where(some, one, product) / torch.where(some, one, given)).conj()
        row = torch.where(some, given, one).reshape(-1)
        before = torch.cat([one.reshape(1), row[:-1]]).cumprod(0)
        after = torch.cat([one.reshape(1), row.flip(0)[:-1]]).cumprod(0).flip(0)
        others = gradient * (before * after).reshape(given.shape).conj()
        return torch.where(some, others, quotients)


def _prod_without_looking(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def prod(given: Any, *args: Any, **kwargs: Any) -> Tensor:
        traced = getattr(_watch, "now", None) is not None and isinstance(given, Tensor)
        if args or kwargs or not traced or not given.dim() or not given.numel():
            return original(given, *args, **kwargs)
        if not (given.requires_grad and torch.is_grad_enabled() and given.dtype.is_floating_point):
            return original(given)
        product: Tensor = _Product.apply(given)  # type: ignore[no-untyped-call]
        return product

    return prod


_REPLACED: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    *((Tensor, name, functools.partial(_watched, name)) for name in _WATCHED),
    # (Nodes are C++ classes; all their methods that register a Python hook call this one.)
    (torch.autograd.Function, "_register_hook", _watched_node),
    (torch.utils.hooks.BackwardHook, "__init__", _watched_module),
    (torch.autograd, "_engine_run_backward", _watched_engine),
    (Tensor, "__repr__", _shown),
    (torch.nn.functional, "one_hot", _one_hot_without_looking),
    (torch, "prod", _prod_without_looking),
    (Tensor, "prod", _prod_without_looking),
    (torch, "compile", _refusing_operators_that_take_functions),
    (threading.Thread, "start", _handing_on),
    (ThreadPoolExecutor, "submit", _handing_over),
)


@contextlib.contextmanager
def watched(
    watch: Callable[[str, Tensor, Any], Any],
    node: Callable[[dict[int, Any] | None, Any], Any],
    elsewhere: Callable[[Callable[..., Any]], Callable[..., Any]],
    engine: Callable[[Sequence[Any]], None] | None = None,
) -> Iterator[None]:
    """For as long as it lasts, what this thread registers on a tensor as a hook is `watch(method's name,
    tensor, hook)`, and on a node of the autograd graph `node(the hooks that it has, hook)`; what it gives
    another thread to run is `elsewhere(function)`; what it differentiates with respect to goes to `engine`;
    a memoryless tensor can be printed, for which torch would run kernels on it; `one_hot` checks its
    argument in the graph, where torch looks at the values at once; and `torch.cond` and its like are refused
    before they call Dynamo, which an error that passes through it leaves unusable.

    There is nothing else that tells: a plain tensor does not say which hooks its history has. So the
    functions are replaced while any thread traces; for other threads they do what they always do.
    """
    global _watching
    before = tuple(getattr(_watch, name, None) for name in ("now", "node", "elsewhere", "engine"))
    with _watching_lock:
        _watching += 1
        if _watching == 1:
            for owner, name, replace in _REPLACED:
                setattr(owner, name, replace(getattr(owner, name)))
    _watch.now, _watch.node, _watch.elsewhere, _watch.engine = watch, node, elsewhere, engine
    try:
        yield
    finally:
        _watch.now, _watch.node, _watch.elsewhere, _watch.engine = before
        with _watching_lock:
            _watching -= 1
            if _watching == 0:
                for owner, name, _ in _REPLACED:
                    setattr(owner, name, getattr(owner, name).__wrapped__)


def hooks_on(node: Node) -> list[Any]:
    """The Python hooks on a node of the autograd graph. It is told them when another one is registered."""
    found: list[Any] = []

    def look(hooks: dict[int, Any] | None, hook: Any) -> Any:
        found.extend((hooks or {}).values())
        return hook

    with watched(lambda name, tensor, hook: hook, look, lambda function: function):
        for register in (node.register_hook, node.register_prehook):
            register(lambda *gradients: None).remove()
    return found


def saved_tensor_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None:
    """The innermost saved-tensor hooks (pack, unpack) that the caller has entered, if there are any."""
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top  # type: ignore[no-any-return]


@contextlib.contextmanager
def plain_autograd() -> Iterator[None]:
    """Autograd for a trace: without the saved-tensor hooks and the anomaly mode that the caller has entered,
    which are for the tensors of the call, and with the tensors of a trace that is over."""
    _tracing.depth = getattr(_tracing, "depth", 0) + 1
    hooks = []
    while (top := saved_tensor_hooks()) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        yield
    finally:
        _tracing.depth -= 1
        torch.set_anomaly_enabled(anomaly, check_nan)
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def modes_off() -> contextlib.AbstractContextManager[Any]:
    """Run real tensor code in the middle of a trace."""
    manager: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return manager


_NON_LEAF: list[Tensor] = []


def is_function_node(node: Node | None) -> bool:
    """Whether a node of the autograd graph is one of a custom `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def function_of(node: Any) -> type[torch.autograd.Function]:
    """The `autograd.Function` whose node it is."""
    function: type[torch.autograd.Function] = node._forward_cls
    return function


def is_packed(node: torch.autograd.graph.Node, name: str) -> bool:
    """Whether a pack hook got what `node` has saved as its attribute `name` (``_saved_...``)."""
    raw = getattr(node, f"_raw{name}", ())
    return any(r.unpack_hook is not None for r in (raw if isinstance(raw, (tuple, list)) else (raw,)))


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


def creation_meta(view: Tensor) -> str:
    """How autograd remembers the making of a differentiable view: ``DEFAULT``, ``NO_GRAD_MODE``,
    ``MULTI_OUTPUT_NODE``, ``IN_CUSTOM_FUNCTION`` or ``INFERENCE_MODE``."""
    return str(torch._C._autograd._get_creation_meta(view).name)


def set_creation_meta(view: Tensor, name: str) -> None:
    """Make autograd remember that the view `view` was made in the way called `name`."""
    torch._C._autograd._set_creation_meta(view, getattr(torch._C._autograd.CreationMeta, name))


def copy_creation_meta(source: Tensor, destination: Tensor) -> None:
    """Make autograd treat writes to the view `destination` as it treats writes to the view `source`."""
    torch._C._autograd._set_creation_meta(destination, torch._C._autograd._get_creation_meta(source))


def counter_groups(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor, which of them is the first that counts its in-place writes together with it
    (`detach`), and not apart (`.data`); an inference tensor has no counter, and is its own first.

    There is no query for it: each counter is set to a number of its own, all are looked at, and set back.
    What is written by another thread meanwhile is counted. It takes one look where no two counters are equal.
    """
    groups = list(range(len(tensors)))
    by_version: dict[int, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if not tensor.is_inference():
            by_version.setdefault(tensor._version, []).append(i)
    places = [i for same in by_version.values() if len(same) > 1 for i in same]
    if not places:
        return tuple(groups)
    alike = [tensors[i] for i in places]
    apart = 2**31 // len(alike)  # counters have 32 bits
    with _setting_counters:
        before = [tensor._version for tensor in alike]
        # Of those that share one, the first is the last to set it.
        marks = [k * apart for k in range(len(alike))]
        _set_counters(alike[::-1], marks[::-1])
        firsts = [tensor._version // apart for tensor in alike]
        chosen = [k for k, first in enumerate(firsts) if k == first]
        moved = [alike[k]._version % apart for k in chosen]
        _set_counters([alike[k] for k in chosen], [before[k] + m for k, m in zip(chosen, moved, strict=True)])
    for i, first in zip(places, firsts, strict=True):
        groups[i] = places[first]
    return tuple(groups)


def _set_counters(tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


_setting_counters = threading.Lock()


def has_counter(tensor: Tensor) -> bool:
    """Whether a tensor has a version counter: an inference tensor has none."""
    try:
        return tensor._version >= 0
    except RuntimeError:
        return False


def version(tensor: Tensor) -> int:
    """The version counter of a tensor; 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def moved_version(tensor: Tensor) -> Iterator[None]:
    """As if `tensor` had been written to, for as long as it lasts."""
    before = tensor._version
    torch.autograd.graph.increment_version(tensor)
    try:
        yield
    finally:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (before,))


def ambient_key() -> tuple[object, ...]:
    """Everything outside the arguments that changes what a trace records."""
    autocast = torch._C._is_any_autocast_enabled()
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        str(torch.get_default_device()),
        tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in AUTOCAST_DEVICES
        )
        if autocast
        else None,
        torch.is_inference_mode_enabled(),
    )


def backward_key() -> tuple[object, ...]:
    """What of the ambient state changes what the formulas of a backward record."""
    autocast = tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
    )
    deterministic = torch.are_deterministic_algorithms_enabled()
    return (autocast if torch._C._is_any_autocast_enabled() else None, deterministic)


def autocast_enabled() -> bool:
    """Whether any device is under autocast."""
    return bool(torch._C._is_any_autocast_enabled())


def disable_autocast() -> contextlib.AbstractContextManager[Any]:
    """Graphs hold the casts that autocast made while tracing; running them must not cast again."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._DisableAutocast()
    return manager
