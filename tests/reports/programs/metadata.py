"""Reports about what tensors are besides their data: shapes, storages, `requires_grad`."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import aot
from tests.reports.report import Program, Report, Stock
from tests.support.agreement import checking_nop, leaf, non_leaf, values


def _resizes(x: Tensor) -> Tensor:
    x.resize_(6)
    x.mul_(0)
    return x


def _grows_from_nothing(x: Tensor) -> None:
    view = x.view(0)
    x.resize_(20)
    x.fill_(2)
    view.fill_(3)


def _resizes_an_alias(x: Tensor) -> Tensor:
    base = x + 1
    base.view(-1).resize_(12)
    return base + 1


def _with_an_alias(alias: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, alias(y)

    return f


_as_a_row, _as_itself, _detached = (
    _with_an_alias(lambda y: y.view(-1)),
    _with_an_alias(lambda y: y.view_as(y)),
    _with_an_alias(lambda y: y.detach()),
)


def _shows_another(base: Tensor) -> Tensor:
    column = base[1:, 0]
    empty = torch.empty(0)
    empty.set_(column)
    return empty[0]


def _set_and_back(x: Tensor) -> Tensor:
    before = x.detach()
    x.set_(torch.cat([x, x]))
    result = x * 2
    x.set_(before)
    return result


def _flat_parameter(flat: Tensor, part: Tensor) -> Tensor:
    with torch.no_grad():
        part.set_(flat[0:2])
    return flat


def _flat_and_part() -> list[Tensor]:
    flat = leaf(4)
    return [flat, flat[0:2]]


def _as_another_dtype(x: Tensor) -> Tensor:
    x.data = x.to(torch.bfloat16)
    return x * 2


def _read_before_and_after(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    before = x.sin()
    x.set_(x + 1)
    return before, x.sin(), w**2


def _viewed_before(x: Tensor) -> Tensor:
    part = x[:]
    x.set_(torch.ones(3, 4).untyped_storage())
    return part


def _viewed_before_an_assignment(x: Tensor) -> Tensor:
    part = x[:]
    x.data = torch.ones(3, 4)
    return part


def _passes_memory_on(x: Tensor, y: Tensor) -> Tensor:
    x.data = y
    y.data = torch.zeros(0)
    return x


def _unsqueezes_a_value(x: Tensor) -> Tensor:
    y = x * 2
    y.unsqueeze_(0)
    return y


def _squeezes(x: Tensor) -> Tensor:
    return x.squeeze_(dim=1)


def _unsqueezes(x: Tensor) -> Tensor:
    return x.unsqueeze_(0)


def _unsqueezes_and_adds(x: Tensor) -> Tensor:
    return torch.Tensor.unsqueeze_(x, 0) + 1


def _switches_requires_grad(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    x.requires_grad = True
    y = x * 2
    x.requires_grad = False
    return x, y, x * 3 * s * y


def _makes_a_leaf() -> tuple[Tensor, Tensor]:
    x = torch.ones(3, requires_grad=True)
    return x, x + 2


def _detaches(x: Tensor) -> Tensor:
    return x.detach()


def _detaches_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.detach_()
    return y + 1, y


def _begins_to_require_grad(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = x @ w
    hidden.requires_grad_()
    return (hidden @ v).square().mean()


def _with_grad_mode_on(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return x + 1


def _parameter(x: Tensor) -> Tensor:
    y = x + 1
    parameter = torch.nn.Parameter(y)
    with torch.no_grad():
        parameter.mul_(2)
    return y + parameter


def _grows(x: Tensor) -> Tensor:
    return x.resize_(10)


def _shrinks(x: Tensor) -> Tensor:
    return x.resize_(3)


def _quantized() -> list[Tensor]:
    with warnings.catch_warnings(action="ignore"):  # such tensors are deprecated
        return [torch.quantize_per_tensor(torch.arange(5.0), 0.1, 10, torch.qint8)]


def _a_quantized_argument_is_refused_as_what_it_is() -> None:
    (argument,) = _quantized()
    with pytest.raises(aot.Unsupported, match="is quantized"):
        aot.aot_function(_grows, checking_nop)(argument)
    assert argument.shape == (5,)


REPORTS = (
    Report(
        113707,
        "a quantized argument is resized",
        Program(_shrinks, _quantized, refused="is quantized"),
        Stock("raises", "right"),
        since=(2, 13),
        as_reported=False,
        checks=(_a_quantized_argument_is_refused_as_what_it_is,),
    ),
    Report(
        97921,
        "an argument is resized and written",
        Program(_resizes, lambda: [values(4)], grad=False),
        Stock("raises", "right"),
    ),
    Report(
        93780,
        "an empty argument grows",
        Program(_grows_from_nothing, lambda: [torch.empty(0)]),
        Stock("raises", "right"),
        as_reported=False,
    ),
    Report(
        191449,
        "a view is resized, and what it is a view of stays as it is",
        Program(_as_a_row, lambda: [values(3)]),
        variants=(
            *(
                Program(f, make)
                for f in (_as_a_row, _as_itself, _detached)
                for make in (lambda: [values(3)], lambda: [leaf(3)])
            ),
            Program(_resizes_an_alias, lambda: [values(1)]),
        ),
    ),
    Report(
        197399,
        "an empty tensor is set to a column of an argument",
        Program(_shows_another, lambda: [values(2, 2)]),
        Stock("raises", "raises"),
    ),
    Report(
        110842,
        "an argument is set to something else, and back",
        Program(_set_and_back, lambda: [values(4)]),
        Stock("versions", "right"),
        as_reported=False,
    ),
    Report(
        110843,
        "a view is set to a part of a flat parameter",
        Program(_flat_parameter, _flat_and_part),
        Stock("autograd-metadata", "right"),
        as_reported=False,
    ),
    Report(
        152162,
        "the data of an argument become another dtype",
        Program(_as_another_dtype, lambda: [values(3)]),
        Stock("input-metadata", "right"),
        as_reported=False,
    ),
    Report(
        132200,
        "an argument is read before and after it is set",
        Program(_read_before_and_after, lambda: [values(3), leaf(3, start=5)]),
        Stock("raises", "right"),
        as_reported=False,
    ),
    Report(
        94773,
        "a view is returned that was taken before its base got other memory",
        Program(_viewed_before, lambda: [values(2, 3)]),
        Stock("raises", "right"),
        as_reported=False,
        variants=(Program(_viewed_before_an_assignment, lambda: [values(2, 3)]),),
    ),
    Report(
        113030,
        "memory passes from one argument to another",
        Program(_passes_memory_on, lambda: [values(6), values(6, start=6)], grad=False),
        Stock("input-metadata", "versions"),
        newer=((2, 15), Stock("input-metadata", "once")),
        as_reported=False,
        variants=(Program(_passes_memory_on, lambda: [values(6), leaf(6, start=6)], grad=False),),
    ),
    Report(
        90507,
        "a value that was unsqueezed in place is no view, and may be written by the caller",
        Program(_unsqueezes_a_value, lambda: [leaf(2)]),
        Stock("autograd-metadata", "autograd-metadata"),
        needs=("metadata: intermediate",),
    ),
    Report(
        95277,
        "an argument is squeezed in place",
        Program(_squeezes, lambda: [values(4, 1)]),
        variants=(Program(_squeezes, lambda: [non_leaf(4, 1)]),),
    ),
    Report(
        93259,
        "an argument is unsqueezed in place",
        Program(_unsqueezes, lambda: [values(1)]),
        variants=(Program(_unsqueezes, lambda: [non_leaf(1)]),),
    ),
    Report(
        143889,
        "an argument is unsqueezed by a method of the class",
        Program(_unsqueezes_and_adds, lambda: [values(4)]),
    ),
    Report(
        113290,
        "an argument requires grad for a while",
        Program(_switches_requires_grad, lambda: [values(3), leaf(3, start=4)]),
        Stock("gradients", "right"),
        as_reported=False,
    ),
    Report(
        99455,
        "a leaf is made inside and returned",
        Program(_makes_a_leaf, lambda: [], refused="make the leaf outside"),
        Stock("autograd-metadata", "right"),
        needs=("operator: requires_grad_",),
    ),
    Report(
        1052,
        "a detached argument does not require grad",
        Program(_detaches, lambda: [leaf(1)]),
        repository="pytorch/functorch",
    ),
    Report(
        176854,
        "a value is detached in place",
        Program(_detaches_in_place, lambda: [leaf(3)]),
    ),
    Report(
        123713,
        "an intermediate begins to require grad",
        Program(_begins_to_require_grad, lambda: [values(2, 3), leaf(3, 3), leaf(3, 2)]),
    ),
    Report(
        114338,
        "grad mode is entered under no_grad",
        Program(_with_grad_mode_on, lambda: [leaf(3)], grad=False),
    ),
    Report(
        125284,
        "a parameter is made of a value",
        Program(_parameter, lambda: [leaf(2)]),
        Stock("right", "raises"),
        as_reported=False,
    ),
)
