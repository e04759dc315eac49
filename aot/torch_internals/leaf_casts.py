"""The cast of a leaf that autocast caches: how to read it, and how to have another one cached."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from aot.torch_internals import autocast_state, autograd_state, mode_stacks

__all__ = [
    "are_casts_differentiable",
    "cached_cast",
    "cast_leaf",
    "is_cacheable_leaf",
    "uncached_cast",
]

_NOTHING = contextlib.nullcontext()


def is_cacheable_leaf(tensor: Tensor) -> bool:
    """Whether autocast keeps the cast of such a tensor. (A view that is asked may get another history.)"""
    return (
        tensor.dtype is torch.float32
        and not tensor._is_view()
        and tensor.requires_grad
        and tensor.is_leaf
        and tensor.device.type in autocast_state.AUTOCAST_DEVICES
    )


class _NotCached(Exception):
    """Autocast keeps no cast of a leaf."""


class _CastCatcher(TorchDispatchMode):
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
            with mode_stacks.dispatch_modes_off():
                return torch.empty(())
        if self.make is None:
            raise _NotCached
        return self.make(functools.partial(func, *args, **(kwargs or {})))


_MM = torch.ops.aten.mm.default
_multiply: Callable[[Tensor, Tensor], Tensor] = torch._C._VariableFunctions.mm
_multiply_any: Callable[..., Tensor] = torch._C._VariableFunctions.matmul
_PRODUCTS: dict[int, Callable[..., Tensor]] = {2: _multiply, 3: torch._C._VariableFunctions.bmm}


@contextlib.contextmanager
def _autocast_on(device: str, dtype: torch.dtype | None) -> Iterator[None]:
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


def cached_cast(leaf: Tensor, make: Callable[[Callable[[], Tensor]], Tensor] | None = None) -> Tensor | None:
    """The cast of a leaf that autocast keeps; if there is none, what `make` gives, which autocast keeps from
    now on."""
    mode = _CastCatcher(make)
    with (
        _autocast_on(leaf.device.type, None),
        torch._C.DisableTorchFunction(),
        contextlib.suppress(_NotCached),
        mode,
    ):
        _multiply(leaf, leaf)
    return mode.caught


def _run_cast(cast: Callable[[], Tensor]) -> Tensor:
    return cast()


def cast_leaf(leaf: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """What autocast, as it is now but for the dtype, gives an operation that takes a leaf: the cast that it
    keeps, or one that it makes."""
    device = leaf.device.type
    now = torch.get_autocast_dtype(device)
    as_it_is = (
        dtype in (None, now) and torch.is_autocast_enabled(device) and torch.is_autocast_cache_enabled()
    )
    with _NOTHING if as_it_is else _autocast_on(device, dtype), torch._C.DisableTorchFunction():
        if _is_saved_cast_visible(leaf):
            cast = _saved_cast(leaf, dtype or now)
            if cast is not None:
                return cast
        mode = _CastCatcher(_run_cast)
        with mode:
            _multiply(leaf, leaf)
    assert mode.caught is not None
    return mode.caught


def _is_saved_cast_visible(leaf: Tensor) -> bool:
    """Whether autograd records a product of a leaf as it is, and nobody watches."""
    return (
        leaf.dim() > 0
        and type(leaf) in (Tensor, torch.nn.Parameter)
        and not torch._C._len_torch_dispatch_stack()
        and autograd_state.saved_tensor_hooks() is None
        and (torch.is_grad_enabled() or are_casts_differentiable())
    )


def _saved_cast(leaf: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The cast of a leaf that a product with nothing saves for its gradient. This costs a fourth of watching
    a product. None where it saves something else."""
    grad, dims = torch.is_grad_enabled(), leaf.dim()
    autograd_state.set_grad_enabled(True)
    try:
        rows = leaf.shape[:1] if dims == 3 else ()
        nothing = torch.empty((*rows, leaf.shape[-1], 0), dtype=dtype, device=leaf.device, requires_grad=True)
        node: Any = _PRODUCTS.get(dims, _multiply_any)(leaf, nothing).grad_fn
    except RuntimeError:  # what is kept has another dtype
        return None
    finally:
        autograd_state.set_grad_enabled(grad)
    if dims in _PRODUCTS:
        cast: Tensor = node._saved_self
        return cast
    # It takes a view of the cast as a matrix.
    while node is not None and not hasattr(node, "_saved_mat2"):
        node = node.next_functions[0][0]
    base: Tensor | None = None if node is None or node._saved_self is None else node._saved_self._base
    return base if base is not None and base.shape == leaf.shape else None


@functools.cache
def are_casts_differentiable() -> bool:
    """Whether a cast that autocast keeps has a history although it is made without grad mode. (It depends on
    torch's version.)"""
    with (
        mode_stacks.dispatch_modes_off(),
        torch.inference_mode(False),
        torch.no_grad(),
        _autocast_on("cpu", None),
    ):
        mode = _CastCatcher(_run_cast)
        with torch._C.DisableTorchFunction(), mode:
            leaf = torch.zeros(1, 1, requires_grad=True)
            _multiply(leaf, leaf)
    return mode.caught is not None and mode.caught.requires_grad


def uncached_cast(leaf: Tensor) -> Tensor:
    """A tensor like what `cast_leaf` would make, of which autocast knows nothing."""
    with torch.set_grad_enabled(torch.is_grad_enabled() or are_casts_differentiable()):
        return leaf.to(torch.get_autocast_dtype(leaf.device.type))
