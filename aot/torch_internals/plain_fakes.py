"""Fakes: plain tensors without memory, which alias and differentiate as the tensors that they stand for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from aot.torch_internals import dispatcher, tensor_impl

__all__ = [
    "Poisoned",
    "are_fakes_allowed",
    "fakes_allowed",
    "geometry_replaced",
    "is_fake",
    "is_missing_memory_error",
    "make_storage",
    "make_tensor",
    "poison",
    "register_escape_error",
    "register_fallback",
    "set_geometry",
    "set_storage",
]

# A dispatch key above autograd that nothing uses, and fakes have.
_FAKE_KEY_NAME = "TESTING_ONLY_GenericWrapper"
_FAKE_KEY = torch._C._dispatch_key_parse(_FAKE_KEY_NAME)
_FAKE_KEY_SET = torch._C.DispatchKeySet(_FAKE_KEY)
_PYTHON_KEY_SET = (
    _FAKE_KEY_SET
    | torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
)


def make_storage(nbytes: int, device: torch.device, *, symbolic: bool = False) -> torch.UntypedStorage:
    """A storage that says to have `nbytes` bytes and has none; for tensors with symbols if `symbolic`."""
    if device.type == "meta":
        with torch._C._DisableTorchDispatch():
            return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()
    if symbolic:  # (It takes three times as long.)
        with torch._C._ExcludeDispatchKeyGuard(_PYTHON_KEY_SET):
            return _wrapper(torch.uint8, device, storage_size=nbytes).untyped_storage()
    storage: Any = torch._C._construct_storage_from_data_pointer(0, device, nbytes)
    return storage  # type: ignore[no-any-return]


def make_tensor(
    storage: torch.UntypedStorage,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """A plain tensor with the given geometry on a fake `storage`, outside autograd.

    For autograd it is a tensor like any other, which torch's own FakeTensor is not: the views of tensor
    subclasses derive their history by replaying the view, others by their geometry. Whoever asks for the
    address of its data gets a RuntimeError; a kernel that ran on it would crash, so none may: it has a
    dispatch key, as have the tensors made from it, at which operations are refused outside of
    `fakes_allowed`. (On the device meta, where kernels read nothing, it has none.)
    """
    with torch._C._ExcludeDispatchKeyGuard(_PYTHON_KEY_SET):
        tensor: Tensor = _empty(dtype, device, torch.is_inference_mode_enabled())
        tensor = tensor.data
        if _all_ints(storage, offset, size, stride):
            tensor = tensor.set_(storage, offset, size, stride)
        else:  # (`set_` wants a storage that can grow)
            tensor = tensor.set_(storage, 0, (0,), (1,))
            as_strided = torch.ops.aten.as_strided.default._op_dk
            tensor = as_strided(torch._C.DispatchKey.Meta, tensor, size, stride, offset)
    torch._C._set_throw_on_mutable_data_ptr(tensor)
    if not tensor.is_inference():
        tensor_impl.set_version_counters((tensor,), (0,))  # set_ has moved it
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
    keys = _FAKE_KEY_SET
    wrapper: Tensor = make(_Wrapper, (0,), dtype=dtype, device=device, _extra_dispatch_keys=keys, **kwargs)
    return wrapper


def register_fallback(refuse: Callable[..., Any]) -> None:
    """Outside of `fakes_allowed`, operations on fakes are ``refuse(op, *args, **kwargs)``."""
    dispatcher.FALLBACKS.fallback(refuse, _FAKE_KEY_NAME)


def fakes_allowed() -> contextlib.AbstractContextManager[Any]:
    """In this thread, operations take fakes as other tensors."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(_FAKE_KEY_SET)
    return manager


def are_fakes_allowed() -> bool:
    """Whether this thread is in `fakes_allowed`."""
    return bool(torch._C._dispatch_tls_is_dispatch_key_excluded(_FAKE_KEY))


def is_missing_memory_error(error: RuntimeError) -> bool:
    """Whether this is what torch raises when somebody asks for the data of a fake."""
    return any(text in str(error) for text in _NO_MEMORY)


class Poisoned(Tensor):
    """A tensor of a trace that is over: nobody but a trace that goes on may use it."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not are_fakes_allowed():
            raise _make_escape_error()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def poison(tensor: Tensor) -> None:
    """Let nobody but traces use a fake: whatever else is done with it raises what
    `register_escape_error` was given."""
    tensor.__class__ = Poisoned


_make_escape_error: Callable[[], Exception] = RuntimeError


def register_escape_error(make: Callable[[], Exception]) -> None:
    """Let the use of a poisoned tensor raise what `make` returns, in a thread that does not trace."""
    global _make_escape_error
    _make_escape_error = make


def set_storage(tensor: Tensor, storage: torch.UntypedStorage) -> None:
    """Put a fake onto another such storage, to lie as it did; autograd does not notice."""
    set_geometry(tensor, storage, tensor.size(), tensor.stride(), tensor.storage_offset())


def set_geometry(
    tensor: Tensor, storage: torch.UntypedStorage, size: Sequence[int], stride: Sequence[int], offset: Any
) -> None:
    """Put a fake somewhere; autograd does not notice."""
    with dispatcher.below_autograd(), torch._C._ExcludeDispatchKeyGuard(dispatcher.INPLACE_OR_VIEW):
        if _all_ints(storage, offset, size, stride) and not tensor_impl.has_symbolic_sizes(tensor):
            tensor.set_(storage, offset, size, stride)
        else:  # the kernels of devices with memory take no symbols
            _SET._op_dk(torch._C.DispatchKey.Meta, tensor, storage, offset, list(size), list(stride))
    torch._C._set_throw_on_mutable_data_ptr(tensor)


@contextlib.contextmanager
def geometry_replaced(
    tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> Iterator[None]:
    """While this lasts, a fake lies otherwise in its storage; autograd does not notice, and its
    operations are not recorded."""
    before = tensor.size(), tensor.stride()
    start = tensor.storage_offset()
    with fakes_allowed():
        set_geometry(tensor, tensor.untyped_storage(), size, stride, offset)
        try:
            yield
        finally:
            set_geometry(tensor, tensor.untyped_storage(), *before, start)


def is_fake(value: Any) -> bool:
    """Whether it is a tensor on which no kernel may run."""
    return isinstance(value, Tensor) and torch._C._dispatch_keys(value).has(_FAKE_KEY)
