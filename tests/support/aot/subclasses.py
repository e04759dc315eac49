"""Wrapper subclasses for tests, and everything that can be seen of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import aot

aten = torch.ops.aten
_VIEWS = (aten.detach.default, aten.view.default, aten.t.default, aten.clone.default, aten.expand.default)


class Scaled(Tensor):
    """`stored` times `scale`, a number; what does not know it computes with the product, and gives that."""

    stored: Tensor
    scale: float

    @staticmethod
    def __new__(cls, stored: Tensor, scale: float) -> Scaled:
        made: Any = Tensor._make_wrapper_subclass(
            cls, stored.shape, strides=stored.stride(), dtype=stored.dtype, device=stored.device
        )
        made.stored, made.scale = stored, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["stored"], {"scale": self.scale}

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["stored"], context["scale"])

    def dense(self) -> Tensor:
        return self.stored * self.scale

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        x = args[0]
        if op in _VIEWS:
            made = Scaled(op(x.stored, *args[1:], **kwargs), x.scale)
            return return_and_correct_aliasing(op, args, kwargs, made)
        if op is aten.mul.Tensor and not isinstance(args[1], Tensor):
            return Scaled(x.stored, x.scale * args[1])
        dense_args = pytree.tree_map_only(Scaled, Scaled.dense, args)
        if op in (aten.mul_.Tensor, aten.add_.Tensor):
            functional = aten.mul.Tensor if op is aten.mul_.Tensor else aten.add.Tensor
            x.stored.copy_(functional(*dense_args) / x.scale)
            return x
        return op(*dense_args, **kwargs)


class Masked(Tensor):
    """`shown` where `mask`, zeros elsewhere; the mask of a result is that of all operands."""

    shown: Tensor
    mask: Tensor

    @staticmethod
    def __new__(cls, shown: Tensor, mask: Tensor) -> Masked:
        made: Any = Tensor._make_wrapper_subclass(
            cls, shown.shape, strides=shown.stride(), dtype=shown.dtype, device=shown.device
        )
        made.shown, made.mask = shown, mask
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["shown", "mask"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Masked:
        return Masked(inner["shown"], inner["mask"])

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        x = args[0]
        if op in _VIEWS:
            shown, mask = (op(part, *args[1:], **kwargs) for part in (x.shown, x.mask))
            return return_and_correct_aliasing(op, args, kwargs, Masked(shown, mask))
        if op._schema.name.endswith("_"):
            op(*pytree.tree_map_only(Masked, lambda one: one.shown, args), **kwargs)
            return x
        filled = pytree.tree_map_only(Masked, lambda one: torch.where(one.mask, one.shown, 0), args)
        result = op(*filled, **kwargs)
        masks = [one.mask for one in args if isinstance(one, Masked)]
        if result.shape != masks[0].shape:
            return result
        for mask in masks[1:]:
            masks[0] = masks[0] & mask
        return Masked(result, masks[0])


class Replacing(Tensor):
    """Another tensor, which operations in place replace."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Replacing:
        made: Any = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)
        made.held = held
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Replacing:
        return Replacing(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = pytree.tree_map_only(Replacing, lambda one: one.held, args)
        if op is aten.mul_.Tensor:
            args[0].held = plain[0] * plain[1]
            return args[0]
        return pytree.tree_map_only(Tensor, Replacing, op(*plain, **(kwargs or {})))


class Coercing(TwoTensor):
    """One that makes plain gradients such, and is itself a plain one by the sum of its parts."""

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return TwoTensor.__torch_dispatch__.__func__(cls, op, types, args, kwargs)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Coercing:
        return Coercing(inner["a"], inner["b"])

    def __coerce_same_metadata_as_tangent__(self, context: Any, kind: type = Tensor) -> Tensor | None:
        return self.a + self.b if kind is Tensor else None


class ToTwo(torch.autograd.Function):
    """A plain tensor as a subclass; its gradient is a plain one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return TwoTensor(x.detach().clone(), x.detach() * 2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Tensor:
        return gradient.a + 2 * gradient.b


class FromTwo(torch.autograd.Function):
    """A subclass as a plain tensor; its gradient is a subclass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        return x.a + x.b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return TwoTensor(gradient.clone(), gradient * 1)


def seen(value: Any, gradient: bool = False) -> Any:
    """All that can be seen of a tensor, or of a container of such: type, standing with autograd, context, and
    what it is made of."""
    if isinstance(value, (tuple, list)):
        return [seen(one, gradient) for one in value]
    if not isinstance(value, Tensor):
        return value
    found = [type(value).__name__, str(value.dtype), value.requires_grad, value.is_leaf]
    found += [] if gradient else [value._is_view()]
    if hasattr(value, "__tensor_flatten__") and type(value) not in (Tensor, torch.nn.Parameter):
        names, context = value.__tensor_flatten__()
        sizes = [None if isinstance(n, torch.SymInt) else n for n in value.shape]
        return [*found, sizes, context, *(seen(getattr(value, name), True) for name in names)]
    return [*found, value.tolist()]


def story(function: Callable[..., Any], args: list[Any], tangent: Callable[[Tensor], Tensor] | None) -> Any:
    """What a call and the backward of each of its results leave behind; or the error that is raised."""
    versions = [one._version for one in args if isinstance(one, Tensor)]
    try:
        results = function(*args)
        flat = pytree.tree_leaves(results)
        told: list[Any] = [seen(flat), seen(args), [[one is arg for arg in args] for one in flat]]
        now = [one._version for one in args if isinstance(one, Tensor)]
        told.append([after > before for after, before in zip(now, versions, strict=True)])
        for one in flat:
            if isinstance(one, Tensor) and one.requires_grad:
                if tangent is None:
                    one.sum().backward(retain_graph=True)
                else:
                    one.backward(tangent(one), retain_graph=True)
        told.append([seen(one.grad, True) for one in args if isinstance(one, Tensor) and one.is_leaf])
        return told
    except aot.AotError:
        raise
    except Exception as error:
        return type(error)


def assert_like_eager(
    function: Callable[..., Any],
    make: Callable[[], list[Any]],
    tangent: Callable[[Tensor], Tensor] | None = None,
    compiler: Any = aot.nop,
) -> aot.CompiledFunction:
    """A call, and the same once more, leave what eager leaves."""
    compiled = aot.aot_function(function, compiler)
    expected = story(function, make(), tangent)
    for _ in range(2):
        assert story(compiled, make(), tangent) == expected
    assert len(compiled.specializations) == (0 if isinstance(expected, type) else 1)
    return compiled
