"""Tensor state: read everything of a tensor that a program may read, as plain data.

In: the tensors of an observation, by path. Out: a `TensorState` for each.

`Register` names each tensor object once, `BeforeCall` keeps what is needed to see afterwards what the call
did to it, and `capture_tensors` reads the states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from oracles.observation.records import TensorState, Value
from oracles.observation.result_structure import (
    PLAIN,
    Parts,
    Unobservable,
    class_of,
    has_memory,
    value_in_words,
    wrapper_subclass_parts,
)

_NUMPY_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)
INTEGER_OF_SIZE: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}
"""The integer dtype of each element size, to read raw elements of dtypes that NumPy does not have."""


@dataclass(frozen=True, slots=True)
class Known:
    """A live tensor, its name, and a function that reads its elements at the time of the call."""

    path: str
    tensor: torch.Tensor
    read: Callable[[], bytes | None]


class Register:
    """The tensors that one observation knows, each object once, under the path that came first.

    Example:
        register = Register()
        register.add("arg[0]", x)    # "arg[0]"
        register.add("out", x)       # "arg[0]": the output is the argument
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._names: dict[int, str] = {}

    def add(self, path: str, tensor: torch.Tensor) -> str:
        """Add a tensor and return its name, which is an earlier path if the object is already known."""
        name = self._names.get(id(tensor))
        if name is None:
            # The register keeps the tensor alive, so that its id stays its own.
            self._tensors.append((path, tensor))
            self._names[id(tensor)] = name = path
        return name

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name of a known object, or None."""
        return self._names.get(id(tensor))

    def items(self) -> tuple[tuple[str, torch.Tensor], ...]:
        """All (name, tensor), in order of appearance."""
        return tuple(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True, slots=True)
class BeforeCall:
    """A tensor's version, storage and dtype before the call, to see afterwards what the call did to it."""

    version: int | None
    storage: torch.UntypedStorage | None
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> BeforeCall:
        """Record a tensor's version and dtype, and keep its storage alive."""
        strided = has_memory(tensor)
        return BeforeCall(
            version=None if tensor.is_inference() else tensor._version,
            storage=tensor.untyped_storage() if strided else None,
            dtype=tensor.dtype,
        )

    def kept_storage(self, tensor: torch.Tensor) -> bool | None:
        """Whether the tensor still has the storage that it had; None without a storage."""
        if self.storage is None or not has_memory(tensor):
            return None
        # Both addresses are read now: a storage that was resized has moved, and is still the same storage.
        return self.storage.data_ptr() == tensor.untyped_storage().data_ptr()

    def bumped_version(self, tensor: torch.Tensor) -> bool | None:
        """Whether autograd has counted a write since; None for a tensor of inference mode."""
        return None if self.version is None or tensor.is_inference() else tensor._version != self.version


def storage_as_tensor(storage: torch.UntypedStorage, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """A whole storage as a tensor of one dimension; of bytes if its size is no multiple of the dtype's."""
    if storage.nbytes() % dtype.itemsize:
        dtype = torch.uint8
    whole = torch.empty(0, dtype=dtype, device=storage.device)
    whole.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
    return whole


def element_reader(tensor: torch.Tensor, *, copying: bool = False) -> Callable[[], bytes | None]:
    """A function that reads the tensor's elements in row-major order, each time it is called.

    On the CPU it is a NumPy view that is made once. It is right as long as the tensor keeps its storage and
    its shape. It gives None for a tensor without readable elements, and for a wrapper subclass, which has
    none of its own. If `copying`, it makes no NumPy view, because a storage that NumPy shows cannot be
    resized.
    """
    if wrapper_subclass_parts(tensor) is not None:
        return lambda: None
    detached = tensor.detach()
    if detached._is_zerotensor():  # a zero gradient of autograd, without memory
        detached = torch.zeros(detached.shape, dtype=detached.dtype)
    if detached.layout is not torch.strided:
        return lambda: _bytes(detached.to_dense())
    if not _is_storage_readable(detached):
        return lambda: None
    if detached.device.type != "cpu" or detached.is_conj() or detached.is_neg():
        return lambda: _bytes(detached.resolve_conj().resolve_neg().cpu())
    if copying:
        return lambda: _bytes(detached.clone())
    if detached.dtype not in _NUMPY_DTYPES:
        detached = detached.view(INTEGER_OF_SIZE[detached.element_size()])
    return detached.numpy().tobytes


def _bytes(tensor: torch.Tensor) -> bytes | None:
    if tensor.dtype not in _NUMPY_DTYPES:
        tensor = tensor.view(INTEGER_OF_SIZE[tensor.element_size()])
    return tensor.numpy().tobytes()


def _is_storage_readable(tensor: torch.Tensor) -> bool:
    """Whether the storage holds all elements, which it does not after a resize to 0, nor on `meta`."""
    if tensor.device.type == "meta":
        return False
    count = tensor.numel()
    if count == 0:
        return True
    end = int(tensor.storage_offset())
    if tensor.is_contiguous():
        end += count
    else:
        end += 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return end * tensor.element_size() <= int(tensor.untyped_storage().nbytes())


def value_of(tensor: torch.Tensor) -> Value | None:
    """A copy of a tensor's elements, or None if they cannot be read."""
    parts = wrapper_subclass_parts(tensor)
    if parts is not None:
        return _value_of_wrapped_parts(tensor, parts)
    data = element_reader(tensor)()
    return None if data is None else Value(tensor.dtype, tuple(tensor.shape), data)


def _value_of_wrapped_parts(tensor: torch.Tensor, parts: Parts) -> Value:
    names = ", ".join(name for name, _ in parts.tensors)
    kind = f"{type(tensor).__qualname__}({names}) with context {parts.context}"
    data, count = b"", 0
    for _, part in parts.tensors:
        value = value_of(part)
        if value is not None:
            kind += f"; {value.kind or tuple(part.shape)}"
            elements = value.tensor().to(tensor.dtype).reshape(-1)
            count += elements.numel()
            data += _bytes(elements) or b""
    return Value(tensor.dtype, (count,), data, kind)


def tensor_attributes_of(tensor: torch.Tensor) -> tuple[tuple[str, str], ...]:
    """What Python code has stored on a plain tensor or parameter, by name, each in words.

    Names that begin with an underscore are left out: they are torch's and compilers'.
    """
    if not tensor.__dict__ or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return ()
    return tuple(
        sorted(
            (name, value_in_words(value) if issubclass(type(value), PLAIN) else class_of(value))
            for name, value in vars(tensor).items()
            if not name.startswith("_")
        )
    )


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """A tensor's shape, with -1 for a symbolic length, as that of a nested tensor's ragged dimension."""
    return tuple(length if type(length) is int else -1 for length in tensor.shape)


def leaf_and_grad_fn(tensor: torch.Tensor) -> tuple[bool | None, Node | None]:
    """A tensor's `is_leaf` and `grad_fn`; (None, None) if torch raises when they are read.

    torch raises RuntimeError for a view of `unbind` or `split` whose base was written to. It takes a view of
    a wrapper subclass anew when it is asked, and raises that view's error if the subclass is smaller by now.
    """
    try:
        return tensor.is_leaf, tensor.grad_fn
    except (RuntimeError, IndexError):
        return None, None


def capture_tensors(
    register: Register, witnesses: Mapping[str, BeforeCall], *, copying: bool = False
) -> tuple[tuple[TensorState, ...], tuple[Known, ...]]:
    """The state of each known tensor, and the live tensors with their readers, in the same order.

    If `copying`, copies are read (`element_reader`).

    Raises:
        Unobservable: a tensor raises when it is looked at.
    """
    storages: dict[int, int] = {}
    hidden: dict[int, tuple[str, torch.Tensor]] = {}
    states: list[TensorState] = []
    known: list[Known] = []
    for path, tensor in register.items():
        try:
            read = element_reader(tensor, copying=copying)
            known.append(Known(path, tensor, read))
            states.append(
                _tensor_state(path, tensor, read(), register, storages, hidden, witnesses.get(path))
            )
        except Exception as error:
            raise Unobservable.of(path, tensor, error) from error
    return tuple(states), tuple(known)


def _tensor_state(
    path: str,
    tensor: torch.Tensor,
    data: bytes | None,
    register: Register,
    storages: dict[int, int],
    hidden: dict[int, tuple[str, torch.Tensor]],
    witness: BeforeCall | None,
) -> TensorState:
    shape = shape_of(tensor)
    strided = has_memory(tensor)
    is_leaf, grad_fn = leaf_and_grad_fn(tensor)
    is_view = tensor._is_view()
    storage: int | None = None
    storage_bytes = offset = 0
    stride: tuple[int | None, ...] = ()
    if strided:
        memory = tensor.untyped_storage()
        storage_bytes = int(memory.nbytes())
        if storage_bytes and (address := memory.data_ptr()):
            storage = storages.setdefault(address, len(storages))
        offset = int(tensor.storage_offset()) * tensor.element_size()
        stride = _meaningful(shape, tensor.stride())
    grad = tensor.grad if is_leaf else None
    return TensorState(
        path=path,
        value=None if data is None else Value(tensor.dtype, shape, data),
        dtype=tensor.dtype,
        shape=shape,
        stride=stride,
        device=tensor.device,
        layout=tensor.layout,
        conj=tensor.is_conj(),
        neg=strided and tensor.is_neg(),
        requires_grad=tensor.requires_grad,
        is_leaf=is_leaf,
        has_grad_fn=None if is_leaf is None else grad_fn is not None,
        retains_grad=tensor.retains_grad,
        is_view=is_view,
        base=_base_of_tensor(tensor, register, hidden) if is_view else "",
        offset=offset,
        storage=storage,
        storage_bytes=storage_bytes,
        storage_kept=None if witness is None else witness.kept_storage(tensor),
        version_moved=None if witness is None else witness.bumped_version(tensor),
        grad=None if grad is None else value_of(grad),
        attributes=tensor_attributes_of(tensor),
    )


def _meaningful(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int | None, ...]:
    """Strides with None for dimensions of size 1, and for all dimensions of a tensor without elements."""
    if 0 in shape:
        return (None,) * len(shape)
    if 1 not in shape:
        return stride
    return tuple(None if length == 1 else step for length, step in zip(shape, stride, strict=True))


def _base_of_tensor(
    tensor: torch.Tensor, register: Register, hidden: dict[int, tuple[str, torch.Tensor]]
) -> str:
    base = tensor._base
    if base is None:
        return "hidden"
    name = register.name_of(base)
    if name is not None:
        return name
    # The base is kept beside its name: a new object could get the id of a base that was freed.
    return hidden.setdefault(id(base), (f"hidden {len(hidden)}", base))[0]
