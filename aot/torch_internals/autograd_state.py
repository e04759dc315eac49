"""What autograd keeps of a tensor and of a thread: creation metadata, saved-tensor hooks, inference mode."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from aot.torch_internals import plain_fakes

__all__ = [
    "CreationMeta",
    "call_view_func",
    "can_accumulate_grad",
    "copy_creation_meta",
    "creation_meta",
    "gradient_edge",
    "inference_alias",
    "make_non_leaf",
    "outside_inference_mode",
    "plain_autograd",
    "restore_saved_tensor_hooks",
    "saved_tensor_hooks",
    "set_creation_meta",
    "set_grad_enabled",
]

_NOTHING = contextlib.nullcontext()

set_grad_enabled = torch._C._set_grad_enabled  # without the object that torch.set_grad_enabled makes


def outside_inference_mode() -> contextlib.AbstractContextManager[Any]:
    """Leave inference mode, if it is on, for as long as it lasts."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING


def gradient_edge(tensor: Tensor) -> GradientEdge:
    """Where gradients of a tensor go (`get_gradient_edge`), of a leaf that was made in inference mode, too:
    torch takes a view to find out, and views of such a leaf have no history."""
    if not tensor.is_inference():
        return get_gradient_edge(tensor)
    with outside_inference_mode(), torch.enable_grad():
        result = _Reaches.apply(tensor)  # type: ignore[no-untyped-call]
    target, number = result.grad_fn.next_functions[
        0
    ]  # (torch 2.11: the node lives no longer than its result)
    return GradientEdge(target, number)


class _Reaches(torch.autograd.Function):
    """Has a history that leads to its argument, which it does not read."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return torch.empty(0, device="meta")


def inference_alias(value: Tensor) -> Tensor:
    """An inference tensor on the memory of `value`."""
    with torch.inference_mode():
        alias = torch.empty(0, dtype=value.dtype, device=value.device)
        return alias.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())


def saved_tensor_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None:
    """The innermost saved-tensor hooks (pack, unpack) that the caller has entered, if there are any."""
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top  # type: ignore[no-any-return]


@contextlib.contextmanager
def plain_autograd() -> Iterator[None]:
    """Autograd for a trace: with fakes, and without the saved-tensor hooks, the anomaly mode and
    the compiled autograd that the caller has entered, which are for the tensors of the call."""
    hooks = []
    while (top := saved_tensor_hooks()) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        with plain_fakes.fakes_allowed(), _without_compiled_autograd():
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


_NON_LEAF: list[Tensor] = []


def can_accumulate_grad(tensor: Tensor) -> bool:
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


def make_non_leaf(tensor: Tensor) -> None:
    """Give `tensor` a fresh gradient edge of its own, as a non-leaf that requires grad.

    Views that were taken before keep their old edge: that is how a trace tells the gradient that enters
    through a view argument from the gradient that enters through its base.
    """
    if not _NON_LEAF:
        _NON_LEAF.append(torch.zeros((), requires_grad=True).view_as(torch.zeros(())))
    torch._mirror_autograd_meta_to(_NON_LEAF[0], tensor)  # type: ignore[attr-defined]


CreationMeta = Literal["DEFAULT", "NO_GRAD_MODE", "MULTI_OUTPUT_NODE", "IN_CUSTOM_FUNCTION", "INFERENCE_MODE"]


def creation_meta(view: Tensor) -> CreationMeta:
    """How autograd remembers the making of a differentiable view."""
    return cast(CreationMeta, torch._C._autograd._get_creation_meta(view).name)


def set_creation_meta(view: Tensor, name: CreationMeta) -> None:
    """Make autograd remember that the view `view` was made in the way called `name`."""
    torch._C._autograd._set_creation_meta(view, getattr(torch._C._autograd.CreationMeta, name))


def call_view_func(view: Tensor, base: Tensor, instead: Callable[[Tensor], Tensor]) -> Any:
    """A view of `base`, made by the operations that made `view` one of its own base; they are given what
    `instead` gives for the other tensors that they were given then."""
    return view._view_func_unsafe(base, lambda number: number, instead)


def copy_creation_meta(source: Tensor, destination: Tensor) -> None:
    """Make autograd treat writes to the view `destination` as it treats writes to the view `source`."""
    torch._C._autograd._set_creation_meta(destination, torch._C._autograd._get_creation_meta(source))


def restore_saved_tensor_hooks(hooks: object) -> None:
    """Take away those that were put on since these."""
    while (now := saved_tensor_hooks()) is not None and now != hooks:
        torch._C._autograd._pop_saved_tensors_default_hooks()
