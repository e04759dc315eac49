"""Small programs for the tests of the judges: functions, and makers of their fresh arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oracles import Arguments


@dataclass(frozen=True)
class Case:
    """A program: the function and its arguments."""

    function: Callable[..., Any]
    make: Callable[[], Arguments]


CASES: dict[str, Case] = {}


def case(make: Callable[[], Arguments]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a program with these arguments."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = Case(function, make)
        return function

    return register


def grid(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Different values, none of them zero, half of them negative."""
    count = torch.Size(size).numel()
    return ((torch.arange(count, dtype=torch.float64) - count / 2 + 0.25) / 4).to(dtype).reshape(size)


def leaf() -> Arguments:
    w = grid(3, 4).requires_grad_()
    return Arguments((w,), {"w": w}, {"w": w})


def plain() -> Arguments:
    x = grid(3, 4)
    return Arguments((x,), {}, {"x": x})


def two_leaves() -> Arguments:
    w, v = grid(3, 4).requires_grad_(), grid(4).requires_grad_()
    return Arguments((w, v), {"w": w, "v": v}, {"w": w, "v": v})


def inner() -> Arguments:
    """An argument that requires grad and is no leaf, so that it may be written to."""
    w = grid(3, 4).requires_grad_()
    root = w * 1
    return Arguments((root,), {"w": w}, {"w": w, "root": root})


def overlapping() -> Arguments:
    """Two overlapping views on a hidden root that is no leaf."""
    w = grid(8).requires_grad_()
    root = w * 1
    return Arguments((root[:6], root[2:]), {"w": w}, {"w": w, "root": root})


def duplicate() -> Arguments:
    w = grid(3, 4).requires_grad_()
    root = w * 1
    return Arguments((root, root), {"w": w}, {"w": w, "root": root})


def with_base() -> Arguments:
    """A root and a detached view on it."""
    w = grid(6).requires_grad_()
    root = w * 1
    return Arguments((root, root.detach()[1:4]), {"w": w}, {"root": root})


def nested() -> Arguments:
    w, x = grid(2, 2).requires_grad_(), grid(2, 2)
    return Arguments(({"a": w, "b": [x, 3]}, None), {"w": w}, {"x": x})


def views_without_grad() -> Arguments:
    """Views of a leaf, taken without grad mode: they claim to require grad and lead nowhere."""
    w = grid(3, 4).requires_grad_()
    with torch.no_grad():
        return Arguments((w[1:], w.as_strided((2, 2), (4, 1), 2)), {"w": w}, {"w": w})


def numbers() -> Arguments:
    return Arguments((torch.arange(6).reshape(2, 3), torch.tensor([True, False, True])))


def odd_shapes() -> Arguments:
    s, e = torch.tensor(1.5, requires_grad=True), torch.empty(0, 3, requires_grad=True)
    return Arguments((s, e, grid(1, 4).expand(3, 4)), {"s": s, "e": e})


def low_precision() -> Arguments:
    w = grid(3, 4, dtype=torch.bfloat16).requires_grad_()
    return Arguments((w, grid(4, dtype=torch.float16)), {"w": w})


def complex_pair() -> Arguments:
    w = torch.complex(grid(4), grid(4) * 2).requires_grad_()
    root = w * 1
    return Arguments((root, w.detach().conj()), {"w": w}, {"root": root})


@case(leaf)
def sine(w: Tensor) -> Tensor:
    return w.sin()


@case(leaf)
def exponential(w: Tensor) -> Tensor:
    return w.exp()


@case(leaf)
def unbound(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w * 2
    return y.unbind(0)[0], y


@case(leaf)
def split_and_written(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w * 2
    first, _ = y.split(2, 1)
    y.mul_(2)
    return first, y


@case(leaf)
def transposed(w: Tensor) -> Tensor:
    return (w * 2).t()


@case(leaf)
def view_of_argument(w: Tensor) -> tuple[Tensor, Tensor]:
    return w[1:], w.detach().t()


@case(leaf)
def returns_argument(w: Tensor) -> tuple[Tensor, Tensor]:
    return w, w * 2


@case(leaf)
def same_result_twice(w: Tensor) -> list[Tensor]:
    y = w.exp()
    return [y, y, y.view(-1)]


@case(leaf)
def hidden_base(w: Tensor) -> dict[str, Any]:
    y = w.cos()
    return {"row": y[0], "column": y[:, 1], "n": 3, "none": None, "text": "t"}


@case(leaf)
def leaf_written_without_grad(w: Tensor) -> Tensor:
    with torch.no_grad():
        w.mul_(2)
    return w + 1


@case(leaf)
def leaf_written(w: Tensor) -> Tensor:
    w.mul_(2)
    return w


@case(leaf)
def detached_result(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w.tanh()
    return y, y.detach()


@case(leaf)
def view_without_grad(w: Tensor) -> Tensor:
    y = w * 3
    with torch.no_grad():
        return y.view(-1)


@case(leaf)
def expanded_result(w: Tensor) -> Tensor:
    return w.sum(0).expand(2, 4)


@case(leaf)
def dropout(w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.nn.functional.dropout(w, 0.5), torch.rand(3)


@case(leaf)
def without_grad(w: Tensor) -> Tensor:
    with torch.no_grad():
        return w * 2


@case(leaf)
def new_parameter_class(w: Tensor) -> Tensor:
    return torch.nn.Parameter(w.detach() * 2)


@case(leaf)
def modified_saved(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w.exp()
    z = y.sin()
    y.mul_(2)
    return z, y


@case(plain)
def becomes_leaf(x: Tensor) -> Tensor:
    x.requires_grad_()
    return x * 2


@case(plain)
def metadata_written(x: Tensor) -> Tensor:
    x.t_()
    return x + 1


@case(plain)
def moved_to_other_storage(x: Tensor) -> Tensor:
    y = x * 2
    x.mul_(3)
    x.data = y[1:]
    return y


@case(plain)
def resized(x: Tensor) -> Tensor:
    y = x.clone()
    x.resize_(2, 4)
    return y


@case(plain)
def storage_freed(x: Tensor) -> Tensor:
    y = x.clone()
    x.untyped_storage().resize_(0)
    return y


@case(plain)
def integers(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.argmax(0), x > 0, x.to(torch.int32)


@case(plain)
def not_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x - x) / (x - x), x / (x - x)


@case(plain)
def bytes_of(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(torch.uint8), x.view(torch.int16)


@case(two_leaves)
def one_unused(w: Tensor, v: Tensor) -> Tensor:
    return w * w


@case(two_leaves)
def broadcast(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return w * v, (v * v).sum()


@case(two_leaves)
def raises(w: Tensor, v: Tensor) -> Tensor:
    return w @ v.reshape(2, 2)


@case(inner)
def written(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.sin()


@case(inner)
def written_through_view(x: Tensor) -> tuple[Tensor, Tensor]:
    x[0].mul_(3)
    return x.t(), x[0]


@case(inner)
def written_hidden(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x * 2


@case(inner)
def written_and_raises(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.reshape(5)


@case(inner)
def detached_in_place(x: Tensor) -> Tensor:
    y = x * 2
    x.detach_()
    return y


@case(overlapping)
def overlapping_written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x[:4] * y[:4]


@case(overlapping)
def overlapping_read(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x[:4] * y[:4]).sin(), y[1:]


@case(duplicate)
def duplicate_read(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@case(duplicate)
def duplicate_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return y * 3, y


@case(with_base)
def detached_alias_written(x: Tensor, alias: Tensor) -> Tensor:
    alias.zero_()
    return x * 2


@case(nested)
def containers(tree: dict[str, Any], nothing: None) -> tuple[Any, ...]:
    return {"k": [tree["a"] * 2, tree["b"][1]]}, nothing, (tree["b"][0],), 1.5, torch.float16


@case(nested)
def container_changed(tree: dict[str, Any], nothing: None) -> Tensor:
    tree["c"] = tree["a"] * 2
    return tree["a"]


@case(views_without_grad)
def read_without_grad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, y


@case(numbers)
def integer_arithmetic(i: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    i.add_(1)
    return i * 2, ~b, i[0][b]


@case(odd_shapes)
def odd(s: Tensor, e: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return s * 2, e.t(), x * s, e.sum(), x[0], s.view(1)


@case(low_precision)
def low(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return w.sin().t(), w.float() * v


@case(complex_pair)
def complex_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    return x * y, x.real, y.imag, x.conj(), torch.view_as_real(x)
