"""Operations on memoryless tensors whose sizes are symbols, where kernels cannot be asked.

In eager, and in a trace of plain numbers, the kernels of views and of changes of metadata tell how a result
lies. Most take no symbols; fake tensors know how to do without. They tell, and the result is put there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from aot.capture.intercept.symints import symints_as_ints
from aot.graph.shape_inference import typed_refusals
from aot.ops.classify import OpKind, classify
from aot.tensors.geometry import geometry
from aot.tensors.symbolic_sizes import SymbolicSizes, has_symbols, specialize_sizes
from aot.tensors.views import may_alias
from aot.torch_internals import autograd_state, dispatcher, mode_stacks, plain_fakes, tensor_impl, torch_fakes

aten = torch.ops.aten

# What code that takes no symbols asks a tensor for.
ASKS_FOR_NUMBERS = {
    aten.size.default: lambda tensor: specialize_sizes(tuple(tensor.shape)),
    aten.stride.default: lambda tensor: specialize_sizes(tensor.stride()),
    aten.storage_offset.default: lambda tensor: specialize_sizes(tensor.storage_offset()),
    aten.numel.default: lambda tensor: specialize_sizes(tensor.numel()),
}


@contextlib.contextmanager
def symbolic_views(symbols: SymbolicSizes | None) -> Iterator[None]:
    """What a trace, and what looks at its tensors, runs in."""
    if symbols is None:
        yield
    else:
        with symints_as_ints(symbols.is_computed), SymbolicViewMode(symbols):
            yield


class SymbolicViewMode(mode_stacks.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this is on, memoryless tensors may have symbols for sizes."""

    def __init__(self, symbols: SymbolicSizes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = symbols.mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as for the recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensor = args[0] if args else None
        for kind in types:  # (of wrapper subclasses: what their own code calls comes by here)
            if hasattr(kind, "__tensor_flatten__"):
                with self:
                    result = kind.__torch_dispatch__(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
        if not isinstance(tensor, Tensor) or not plain_fakes.is_fake(tensor):
            return func(*args, **kwargs)
        kind = classify(func).kind
        if kind is OpKind.REBIND:
            return self._symbolic_set(tensor, *args[1:])
        if kind in (OpKind.RESHAPE, OpKind.RESIZE) and _symbolic(args, kwargs):
            return self._symbolic_reshape(func, args, kwargs)
        # (`detach` copies what there is, and `.data` of inference tensors gives it a counter.)
        if may_alias(func) and func is not aten.detach.default and _symbolic(args, kwargs):
            return self._symbolic_view(func, args, kwargs)
        return func(*args, **kwargs)

    def _fake(self, tensor: Tensor) -> torch_fakes.FakeTensor:
        size, stride, offset, dtype, conj, neg = geometry(tensor)
        nbytes = tensor.untyped_storage().nbytes()
        fake = torch_fakes.fake_tensor(self._mode, nbytes, size, stride, offset, dtype, tensor.device)
        tensor_impl.set_lazy_bits(fake, conj, neg)
        return fake

    def _on_fake(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._answering_symbolically():
            return func(self._fake(args[0]), *args[1:], **kwargs)

    @contextlib.contextmanager
    def _answering_symbolically(self) -> Iterator[None]:
        """While this lasts, fake tensors tell."""
        with (
            typed_refusals(),
            self._mode,
            dispatcher.python_dispatcher_on(),
            autograd_state.outside_inference_mode(),
            torch.no_grad(),
        ):
            yield

    def _symbolic_view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        storage, device = args[0].untyped_storage(), args[0].device

        def lying(one: Tensor) -> Tensor:
            size, stride, offset, dtype, conj, neg = geometry(one)
            with torch.inference_mode(args[0].is_inference()):
                view = plain_fakes.make_tensor(storage, size, stride, offset, dtype, device)
            tensor_impl.set_lazy_bits(view, conj, neg)
            return view

        result = self._on_fake(func, args, kwargs)
        return lying(result) if isinstance(result, Tensor) else [lying(one) for one in result]

    def _symbolic_reshape(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        tensor: Tensor = args[0]
        if func is aten.resize_.default:  # which fake tensors cannot do
            if tuple(tensor.shape) == tuple(args[1]):
                return tensor
            with self._answering_symbolically():
                made = torch.empty(args[1], dtype=tensor.dtype, device="meta", **kwargs)
            where = geometry(made)._replace(offset=geometry(tensor).offset)
        else:
            where = geometry(self._on_fake(func, args, kwargs))
        plain_fakes.set_geometry(tensor, tensor.untyped_storage(), where.size, where.stride, where.offset)
        return tensor

    def _symbolic_set(
        self, tensor: Tensor, source: Any = None, offset: Any = 0, size: Any = None, stride: Any = None
    ) -> Tensor:
        """`set_`."""
        if source is None:
            storage, size, stride = _empty(tensor.device), (0,), (1,)
        elif isinstance(source, Tensor):
            where = geometry(source)
            storage = source.untyped_storage()
            if size is None:
                offset, size, stride = where.offset, where.size, where.stride
        else:
            storage = source
            if size is None:
                size, stride = (storage.nbytes() // tensor.dtype.itemsize,), (1,)
        if not stride:
            with self._answering_symbolically():
                stride = torch.empty(size, device="meta").stride()
        plain_fakes.set_geometry(tensor, storage, size, stride, offset)
        return tensor


def _empty(device: torch.device) -> torch.UntypedStorage:
    return plain_fakes.make_storage(0, device, symbolic=True)


def _symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    nbytes = args[0].untyped_storage().nbytes()
    return tensor_impl.has_symbolic_sizes(args[0]) or has_symbols((nbytes, args[1:], kwargs))
