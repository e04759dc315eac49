"""Operations of which ATen's code asks whether a dispatch mode is on, done as if none were.

One is on while tracing, and there ATen takes roads that are meant for tensor subclasses: it does not look at
values, and goes past kernels that are not differentiable. For these operations the dispatcher is given
kernels that decide as eager does. They stand at a dispatch key of their own, above autograd, that only a
thread that traces turns on; so they are found whatever name an operation is called by, and from within others
as well.

In: an operation and its arguments. Out: the same operation, as a whole (the graph then asks when it runs); or
one whose gradient leaves to the graph what ATen would decide by values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from aot.capture.intercept.patches import hook_patch_suspended
from aot.errors import DoubleBackwardUnsupported
from aot.tensors.version_counters import detached_in_place_error
from aot.torch_internals import autograd_graph, dispatcher, op_queries

aten = torch.ops.aten

Ordinary = Callable[..., Any]
Gradients = tuple[Tensor | None, ...]


def _differentiated(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def _as_if_no_mode_is_on(op: op_queries.OpOverload, condition: Callable[..., bool]) -> Callable[..., Any]:
    def call(ordinary: Ordinary, *args: Any, **kwargs: Any) -> Any:
        if not condition(*args, **kwargs):
            return ordinary(*args, **kwargs)
        with dispatcher.below_autograd(), dispatcher.trace_kernels_off():
            return op(*args, **kwargs)

    return call


def _has_classes(tensor: Tensor, num_classes: int = -1) -> bool:
    """Whether `one_hot` only checks values, and its result's shape does not depend on them."""
    return num_classes >= 0 and tensor.dtype is torch.int64


def _save(ctx: Any, given: Tensor, result: Tensor) -> None:
    """Save an argument and the result as ATen's functions do, which give no gradient where none comes."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(given, result)
    # (Weakly: autograd holds it, and what is written to later on may lead to this function.)
    ctx.given = None if given.grad_fn is None else weakref.ref(given)


def _saved(ctx: Any) -> tuple[Tensor, Tensor]:
    # (What Python's functions save, autograd gives back although it was detached.)
    given = None if ctx.given is None else ctx.given()
    if given is not None and given.grad_fn is None:
        raise detached_in_place_error()
    given, result = ctx.saved_tensors
    return given, result


class _Product(torch.autograd.Function):
    """The product of all elements, or of those along a dimension. Where there are zeros ATen's formula for
    the gradient is another one. Each of them is computed of ones where the other one is meant, so that its
    own gradient stays finite."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, op: Any, dim: int | None, keepdim: bool, options: Any) -> Tensor:
        product: Tensor = op(given, **options) if dim is None else op(given, dim, keepdim, **options)
        _save(ctx, given, product)
        ctx.dim, ctx.keepdim = dim, keepdim
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        given, product = _saved(ctx)
        if gradient is None:
            return None, None, None, None, None
        given = given.to(gradient.dtype)
        if ctx.dim is not None and not ctx.keepdim:
            gradient, product = gradient.unsqueeze(ctx.dim), product.unsqueeze(ctx.dim)
        if not given.numel():
            return gradient * (product / given).conj(), None, None, None, None
        alone = given.size(ctx.dim) == 1 if ctx.dim is not None else given.numel() == 1
        if alone and torch.is_grad_enabled() and not gradient.requires_grad:
            raise DoubleBackwardUnsupported(
                "create_graph=True through a product of single elements: whether its gradient requires grad "
                "depends on whether there are zeros; call the original function"
            )
        zeros = (given == 0).sum()
        none, one = zeros == 0, torch.ones_like(given, memory_format=torch.preserve_format)
        divisors = torch.where(none, given, one)
        if torch.is_grad_enabled():
            # (Of the product itself a gradient of zeros would go on to the infinities among the arguments.)
            product = divisors.prod() if ctx.dim is None else divisors.prod(ctx.dim, keepdim=True)
        quotients = gradient * (torch.where(none, product, 1) / divisors).conj()
        rows = torch.where(none, one, given)
        if ctx.dim is None:
            others = _without_each(rows.reshape(-1), 0).reshape(given.shape)
        else:
            others = _without_each(rows, ctx.dim)
        others = gradient * others.conj()
        if ctx.dim is None and not torch.is_grad_enabled():
            others = torch.where(zeros > 1, 0, others)
        return torch.where(none, quotients, others), None, None, None, None


def _without_each(given: Tensor, dim: int) -> Tensor:
    """For each element, the product of all others along the dimension."""
    first = torch.ones_like(given.narrow(dim, 0, 1))
    rest = given.size(dim) - 1
    before = torch.cat([first, given.narrow(dim, 0, rest)], dim).cumprod(dim)
    after = torch.cat([first, given.narrow(dim, 1, rest).flip(dim)], dim).cumprod(dim).flip(dim)
    return before * after


def _mode_insensitive_product(op: op_queries.OpOverload) -> Callable[..., Any]:
    def call(
        ordinary: Ordinary, given: Tensor, dim: int | None = None, keepdim: bool = False, **options: Any
    ) -> Any:
        if not (_differentiated(given) and given.dim()):
            return ordinary(given, **options) if dim is None else ordinary(given, dim, keepdim, **options)
        return _Product.apply(given, op, dim, keepdim, options)  # type: ignore[no-untyped-call]

    return call


class _Cumulated(torch.autograd.Function):
    """The products of the elements up to each one along a dimension, in the same way."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, op: Any, dim: int, options: Any) -> Tensor:
        products: Tensor = op(given, dim, **options)
        _save(ctx, given, products)
        ctx.dim = dim
        return products

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        given, products = _saved(ctx)
        if gradient is None:
            return None, None, None, None
        gradient = gradient.to(given.dtype)
        if not torch.is_grad_enabled():  # ATen's formula, which looks at the values when the graph runs
            return aten.cumprod_backward(gradient, given, ctx.dim, products), None, None, None
        none, one = (given == 0).sum() == 0, torch.ones_like(given, memory_format=torch.preserve_format)
        # (Of the products themselves a gradient of zeros would go on to the infinities among the arguments.)
        divisors = torch.where(none, given, one)
        terms = gradient * divisors.cumprod(ctx.dim, dtype=products.dtype).conj()
        quotients = terms.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim) / divisors.conj()
        rows, others = torch.where(none, one, given), torch.where(none, 1, products)
        others = aten.cumprod_backward(gradient, rows, ctx.dim, others)
        return torch.where(none, quotients, others), None, None, None


def _is_computed(gradient: Tensor, given: Tensor, dim: int, products: Tensor) -> bool:
    """Whether `cumprod_backward` looks at values (in some versions of torch), and is not differentiated."""
    return not torch.is_grad_enabled() and given.numel() > 1 and given.size(dim) > 1


def _cumulated(op: op_queries.OpOverload) -> Callable[..., Any]:
    def call(ordinary: Ordinary, given: Tensor, dim: int, **options: Any) -> Any:
        if not _differentiated(given) or given.numel() <= 1 or given.size(dim) == 1:
            return ordinary(given, dim, **options)
        return _Cumulated.apply(given, op, dim, options)  # type: ignore[no-untyped-call]

    return call


def _mode_insensitive_cumulation(ordinary: Ordinary, given: Tensor, dim: int, **options: Any) -> Any:
    result = ordinary(given, dim, **options)
    if _differentiated(result):

        def check(gradients: Gradients) -> None:
            if torch.is_grad_enabled():
                raise DoubleBackwardUnsupported(
                    "create_graph=True through cumprod_, whose gradient depends on whether there are zeros; "
                    "call cumprod, or the original function"
                )

        with hook_patch_suspended():
            result.grad_fn.register_prehook(check)
    return result


class _Chosen(torch.autograd.Function):
    """An operation whose result is one of its argument's elements, among which the gradient is distributed
    that are equal to it."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, op: Any) -> Tensor:
        chosen: Tensor = op(given)
        _save(ctx, given, chosen)
        return chosen

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        given, chosen = _saved(ctx)
        if gradient is None:
            return None, None
        mask = torch.where(chosen.isnan(), given.isnan(), given == chosen)
        zeros = gradient.new_zeros(given.shape)
        return zeros.masked_fill(mask, gradient / mask.sum()), None


def _chosen(op: op_queries.OpOverload) -> Callable[..., Any]:
    def call(ordinary: Ordinary, given: Tensor) -> Any:
        if not _differentiated(given) or given.device.type != "cpu":
            return ordinary(given)
        return _Chosen.apply(given, op)  # type: ignore[no-untyped-call]

    return call


class _Checked(torch.autograd.Function):
    """A gradient as it is, once the graph has found that a condition holds; else it raises."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, condition: Tensor, message: str) -> Tensor:
        checked: Tensor = aten._functional_assert_async.msg(condition, message, gradient)
        return checked

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


_ILL_DEFINED = (
    "The {} vectors of a complex matrix are defined up to multiplication by e^{{i phi}}, and the loss "
    "depends on phi, so it is ill-defined."
)


def _mode_insensitive_eigenvectors(ordinary: Ordinary, *args: Any, **kwargs: Any) -> Any:
    """With a gradient that raises in the graph where the loss depends on the phases of the vectors."""
    values, vectors = ordinary(*args, **kwargs)
    if vectors.is_complex() and vectors.requires_grad:
        mine = vectors.detach()

        def check(gradients: Gradients) -> Gradients | None:
            of_values, of_vectors = gradients
            if of_vectors is None:
                return None
            if of_values is not None and of_values.dtype != of_vectors.dtype and torch.is_grad_enabled():
                raise DoubleBackwardUnsupported(
                    "create_graph=True through linalg.eigh of a complex matrix, of which both values and "
                    "vectors are used: ATen's formula for tracing puts one into the other in a way that has "
                    "no derivative; call the original function"
                )
            with torch.no_grad():
                phases = _diagonal(mine.mH @ of_vectors)
                independent = _close(phases, torch.zeros_like(phases))
            return of_values, _Checked.apply(of_vectors, independent, _ILL_DEFINED.format("eigen"))  # type: ignore[no-untyped-call]

        with hook_patch_suspended():
            vectors.grad_fn.register_prehook(check)
    return values, vectors


def _mode_insensitive_singular_vectors(ordinary: Ordinary, *args: Any, **kwargs: Any) -> Any:
    """The same; here ATen asks for values, which the recorder answers (`checks_eigenvector_phases`)."""
    left, values, right = ordinary(*args, **kwargs)
    if left.is_complex() and left.requires_grad:
        rank = values.shape[-1]
        my_left, my_right = left.detach()[..., :rank], right.detach()[..., :rank, :]

        def check(gradients: Gradients) -> Gradients | None:
            of_left, of_values, of_right = gradients
            if of_left is None and of_right is None:
                return None
            with torch.no_grad():
                phases = opposite = torch.zeros_like(values)
                if of_left is not None:
                    phases = 2 * _diagonal(my_left.mH @ of_left[..., :rank])
                if of_right is not None:
                    opposite = -2 * _diagonal(my_right @ of_right[..., :rank, :].mH)
                independent = _close(phases, opposite)
            message = _ILL_DEFINED.format("singular")
            if of_left is not None:
                of_left = _Checked.apply(of_left, independent, message)  # type: ignore[no-untyped-call]
            else:
                of_right = _Checked.apply(of_right, independent, message)  # type: ignore[no-untyped-call]
            return of_left, of_values, of_right

        with hook_patch_suspended():
            left.grad_fn.register_prehook(check)
    return left, values, right


def _close(one: Tensor, other: Tensor) -> Tensor:
    return torch.isclose(one, other, rtol=1e-2, atol=1e-2).all()


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(0, -2, -1).imag


def _mode_insensitive_mean_of_losses(
    ordinary: Ordinary,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """`ctc_loss`, where ATen writes the lengths into memory to divide by them."""
    if reduction != 1:  # no mean
        loss: Tensor = ordinary(
            log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        )
        return loss
    losses = ordinary(log_probs, targets, input_lengths, target_lengths, blank, 0, zero_infinity)
    lengths = [max(length, 1) for length in target_lengths]
    mean: Tensor = (losses / torch.tensor(lengths, dtype=log_probs.dtype, device=log_probs.device)).mean()
    return mean


_in_quantile = ContextVar("_in_quantile", default=False)


def _checked_quantile(ordinary: Ordinary, given: Tensor, q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`quantile` at a tensor's values, which the graph checks where ATen does."""
    if given.device.type == "cpu" and q.dtype == given.dtype:
        holds = q.detach().ge(0).logical_and(q.detach().le(1)).all()
        aten._assert_async.msg(holds, "quantile() q values must be in the range [0, 1]")
    token = _in_quantile.set(True)
    try:
        result: Tensor = ordinary(given, q, *args, **kwargs)
    finally:
        _in_quantile.reset(token)
    return result


def checks_quantiles(op: op_queries.OpOverload) -> bool:
    """Whether it is ATen's `quantile` that calls `op`, to find out whether to raise (torch 2.11)."""
    return op is aten.equal.default and _in_quantile.get()


def checks_eigenvector_phases(op: op_queries.OpOverload) -> bool:
    """Whether it is ATen's formula for singular vectors that calls `op`, to find out whether to raise."""
    node = autograd_graph.current_node() if op is aten.allclose.default else None
    return node is not None and node.name().startswith("LinalgSvdBackward")


dispatcher.register_trace_kernels(
    {
        **{
            op: _as_if_no_mode_is_on(op, lambda tensor, *_, **__: not _differentiated(tensor))
            for op in (
                aten.linalg_svdvals.default,
                aten.linalg_eigvals.default,
                aten.linalg_eigvalsh.default,
            )
        },
        aten.max_pool1d.default: _as_if_no_mode_is_on(
            aten.max_pool1d.default,
            lambda tensor, *_, **__: tensor.device.type == "cpu" and not _differentiated(tensor),
        ),
        aten.one_hot.default: _as_if_no_mode_is_on(aten.one_hot.default, _has_classes),
        **{op: _mode_insensitive_product(op) for op in (aten.prod.default, aten.prod.dim_int)},
        aten.cumprod.default: _cumulated(aten.cumprod.default),
        aten.cumprod_.default: _mode_insensitive_cumulation,
        aten.cumprod_backward.default: _as_if_no_mode_is_on(aten.cumprod_backward.default, _is_computed),
        **{
            op: _chosen(op)
            for op in (
                aten.max.default,
                aten.min.default,
                aten.median.default,
                aten.nanmedian.default,
            )
        },
        **dict.fromkeys((aten.quantile.default, aten.nanquantile.default), _checked_quantile),
        aten.ctc_loss.IntList: _mode_insensitive_mean_of_losses,
        aten.linalg_eig.default: _mode_insensitive_eigenvectors,
        aten._linalg_eigh.default: _mode_insensitive_eigenvectors,
        aten._linalg_svd.default: _mode_insensitive_singular_vectors,
    }
)
