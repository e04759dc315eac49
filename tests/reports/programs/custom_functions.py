"""Reports about functions with a backward of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.reports.report import Program, Report, Stock
from tests.support.agreement import leaf, non_leaf, values


class Dirty(torch.autograd.Function):
    """Writes to what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Ranked(torch.autograd.Function):
    """Two results, one of which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(0, order, gradient)


class Unmaterialized(torch.autograd.Function):
    """Notices which of its results are differentiated; saves what is not a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.factor = factor
        return x * factor, x + 1

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, None]:
        if first is None:
            return second, None
        return (first * ctx.factor if second is None else first * ctx.factor + second), None


class Viewing(torch.autograd.Function):
    """Makes a view inside, and reads it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.view(-1)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y * 2


class Counting(torch.autograd.Function):
    """Adds what comes in to a tensor of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(total)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (total,) = ctx.saved_tensors
        total.add_(gradient)
        return gradient.clone(), None


class AsItIs(torch.autograd.Function):
    """Returns what it is given, and scales the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Shifted(torch.autograd.Function):
    """The product of two tensors and both of them."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b + a + b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return gradient * (b + 1), gradient * (a + 1)


class Joining(torch.autograd.Function):
    """Puts one gradient where the other was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x * 2

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first.add_(second)


class WithRow(torch.autograd.Function):
    """Returns what it has made and a view of that, and saves a view of the view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x * 2
        row = whole[0]
        ctx.save_for_backward(row.unsqueeze(-1))
        return whole, row

    @staticmethod
    def backward(ctx: Any, whole: Tensor, row: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        return torch.cat([whole[:1] * 2 + row * saved.squeeze(-1), whole[1:] * 2])


class RowFirst(torch.autograd.Function):
    """The views come first, one of an alias of the memory; what they show is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        whole = x.exp()
        part = whole[1:].detach()
        ctx.save_for_backward(whole, part[0])
        return part[0], whole[0], part, whole

    @staticmethod
    def backward(ctx: Any, row: Tensor, first: Tensor, part: Tensor, whole: Tensor) -> Tensor:
        saved, saved_row = ctx.saved_tensors
        rows = torch.stack([first, row * saved_row])
        return whole * saved + torch.cat([rows, part[1:]])


class AsAnotherDtype(torch.autograd.Function):
    """The same memory as complex and as real numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.stack([x, x * 2], -1)
        return torch.view_as_complex(pairs), pairs

    @staticmethod
    def backward(ctx: Any, number: Tensor, pairs: Tensor) -> Tensor:
        return number.real + pairs.sum(-1)


RETURNING_VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "a row": WithRow.apply,
    "rows first": RowFirst.apply,
    "another dtype": AsAnotherDtype.apply,
}


def _returning_views(f: Callable[[Tensor], Any], make: Callable[..., Tensor]) -> list[Program]:
    def made() -> list[Tensor]:
        return [make(3, 2)]

    return [
        Program(lambda x: f(x)[0], made),
        Program(lambda x: f(x)[1], made),
        Program(lambda x: [y[1:] for y in f(x)], made),
        *(
            Program(g, made, differentiate=some)
            for g in (f, lambda x: [y * 3 for y in f(x)])
            for some in (None, (0,), (1,))
        ),
    ]


def _writes_what_is_dirty(x: Tensor) -> Tensor:
    return Dirty.apply(x * 1).sin()  # type: ignore[no-any-return]


def _custom(f: Callable[[Tensor], Any]) -> list[Program]:
    return [Program(f, lambda: [non_leaf(3)], grad=True, differentiate=some) for some in (None, (0,), (1,))]


def _writes_to_what_came_back(x: Tensor) -> Tensor:
    y = AsItIs.apply(x)
    with torch.no_grad():
        y.mul_(2)
    return x.sin()


def _counts_in_a_result(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x.detach().clone()
    return Counting.apply(x, total), total


def _counts_in_an_argument(x: Tensor, total: Tensor) -> Tensor:
    return Counting.apply(x, total)  # type: ignore[no-any-return]


def _gives_one_twice(x: Tensor) -> Tensor:
    return Shifted.apply(x, x)  # type: ignore[no-any-return]


def _joins(x: Tensor) -> tuple[Tensor, Tensor]:
    return Joining.apply(x)  # type: ignore[no-any-return]


REPORTS = (
    Report(
        118396,
        "a custom function writes to what it is given",
        Program(_writes_what_is_dirty, lambda: [non_leaf(3)], grad=True),
        variants=(
            *_custom(_writes_what_is_dirty),
            *_custom(lambda x: (Dirty.apply(x).sin(), x)),
            *_custom(lambda x: Ranked.apply(x * 2)),
            *_custom(lambda x: Unmaterialized.apply(x * 1, 3.0)),
            *_custom(lambda x: Viewing.apply(x).sin()),
        ),
    ),
    Report(
        172956,
        "a custom backward writes to a tensor of the forward",
        Program(_counts_in_a_result, lambda: [leaf(3)], grad=True),
        Stock("raises", "raises"),
        needs=None,
        variants=(Program(_counts_in_an_argument, lambda: [leaf(3), values(3)], grad=True),),
    ),
    Report(
        194534,
        "what a custom function returns as it was is written",
        Program(_writes_to_what_came_back, lambda: [leaf(3)]),
        variants=(
            Program(_writes_to_what_came_back, lambda: [values(3)]),
            Program(_writes_to_what_came_back, lambda: [non_leaf(3)]),
            *(
                Program(_writes_to_what_came_back, lambda make=make: [make(3)], grad=False)
                for make in (values, leaf, non_leaf)
            ),
        ),
    ),
    Report(
        183604,
        "a custom function gets one tensor twice",
        Program(_gives_one_twice, lambda: [leaf(3)]),
        older=Stock(eager="gradients"),
    ),
    Report(
        141111,
        "a custom backward writes to its gradient",
        Program(_joins, lambda: [leaf(3)], grad=True, refused="return a new one"),
        Stock("gradients", "gradients"),
        needs=None,
        variants=(
            Program(lambda x: sum(part.sin() for part in Joining.apply(x)), lambda: [leaf(3)], grad=True),
        ),
    ),
    Report(
        94990,
        "a custom function returns a view of its result",
        Program(RETURNING_VIEWS["a row"], lambda: [leaf(3, 2)]),
        Stock("autograd-metadata", "autograd-metadata"),
        as_reported=False,
        variants=tuple(
            program
            for f in RETURNING_VIEWS.values()
            for make in (leaf, non_leaf)
            for program in _returning_views(f, make)
        ),
    ),
)
