"""The functions of the golden files: one for each kind of output, of write and of change, and for each shape
that a backward has.

Each is decorated with what makes its arguments and with the options of `aot.aot_function`; its docstring says
which rule it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor


@dataclass(frozen=True, slots=True)
class Example:
    """A function, what makes the arguments of a call, and how it is compiled."""

    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    options: dict[str, Any]


EXAMPLES: dict[str, Example] = {}


def example(arguments: Callable[[], tuple[Any, ...]], **options: Any) -> Callable[[Any], Any]:
    """Note the function below under its name."""

    def note(function: Any) -> Any:
        EXAMPLES[function.__name__] = Example(function, arguments, options)
        return function

    return note


def plain(*size: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(size).numel()).reshape(size)


def leaf(*size: int) -> Tensor:
    return plain(*size).requires_grad_()


def inner(*size: int) -> Tensor:
    """A tensor with a history."""
    return leaf(*size) * 1


# ---- outputs


@example(lambda: (plain(2),))
def outputs_that_are_no_tensors(x: Tensor) -> Any:
    """Constants, and one object twice."""
    y = x + 1
    return 3, "text", y, y


@example(lambda: (plain(2), plain(3)))
def argument_as_output(x: Tensor, y: Tensor) -> Any:
    """The argument itself comes back, and a value of the graph."""
    return y, x.sum()


@example(lambda: (plain(2, 3),))
def view_of_an_argument(x: Tensor) -> Any:
    """The wrapper takes the view: the graph returns nothing for it."""
    return x.t()[1:]


@example(lambda: (plain(2, 3),))
def view_of_a_result(x: Tensor) -> Any:
    """The graph returns the whole result, and the wrapper takes the view."""
    y = x + 1
    return y, y.view(-1)


@example(lambda: (leaf(2, 3),))
def two_views_of_what_is_not_returned(x: Tensor) -> Any:
    """The graph returns what both views share."""
    y = x.sin()
    return y[0], y[1]


@example(lambda: (plain(2, 3),))
def detached_aliases(x: Tensor) -> Any:
    """`detach` shares the version counter, `.data` does not."""
    y = x * 2
    return x.detach(), y, y.data


@example(lambda: (plain(4, 3)[1:3],))
def base_of_an_argument(x: Tensor) -> Any:
    """An output hangs on the base of an argument, which is no argument itself."""
    return x._base, x.view(-1)


@example(lambda: (plain(4),))
def view_of_another_dtype(x: Tensor) -> Any:
    """The same memory, shown as integers."""
    return x.view(torch.int32)


@example(lambda: (leaf(2, 3),))
def views_of_one_operation(x: Tensor) -> Any:
    """Autograd refuses to write to views of an operation with several results."""
    return x.sin().split(1)


@example(lambda: (inner(3),))
def view_taken_under_no_grad(x: Tensor) -> Any:
    """Autograd remembers the mode that a view was taken in."""
    with torch.no_grad():
        return x.view(3, 1)


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x[:2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.cat([gradient * 3, gradient * 5])


@example(lambda: (inner(4),))
def view_by_a_custom_function(x: Tensor) -> Any:
    """A view with a history of its own."""
    return Halves.apply(x)


@example(lambda: (plain(3),))
def leaf_made_inside(x: Tensor) -> Any:
    """An output that is a leaf which the function made."""
    return (x + 1).requires_grad_()


@example(lambda: (TwoTensor(plain(2), plain(2)),))
def wrapper_subclass(x: Tensor) -> Any:
    """Graphs are of the tensors that a wrapper subclass is made of."""
    return x.mul(2)


# ---- writes


@example(lambda: (plain(2, 3),))
def write_to_an_argument(x: Tensor) -> Any:
    """The graph computes the new value, and the wrapper copies it."""
    x.mul_(2)
    return x + 1


@example(lambda: (plain(2, 3),), keep_inference_input_mutations=True)
def write_by_the_graph(x: Tensor) -> Any:
    """On request, a graph without a backward writes itself."""
    x.mul_(2)
    return x + 1


@example(lambda: (inner(2, 3), leaf(3)))
def write_with_a_history(x: Tensor, w: Tensor) -> Any:
    """In grad mode the argument gets the history of what is written."""
    x.mul_(w)
    return x.sum()


@example(lambda: (inner(3), leaf(3)))
def write_under_no_grad(x: Tensor, w: Tensor) -> Any:
    """The argument keeps its history, and what eager's backward kept of it makes that raise."""
    y = (x * w).sum()
    with torch.no_grad():
        x.zero_()
    return y


@example(lambda: (plain(3),))
def write_past_the_version_counter(x: Tensor) -> Any:
    """A write through `.data` moves no version counter."""
    x.data.mul_(2)


@example(lambda: (plain(3).expand(2, 3),))
def write_to_shared_elements(x: Tensor) -> Any:
    """The wrapper writes each element once."""
    x.fill_(1)


@example(lambda: ((lambda x: (x, x[1]))(plain(3, 2)),))
def write_seen_by_another_argument(pair: tuple[Tensor, Tensor]) -> Any:
    """Two arguments on one storage: a write to one changes the other."""
    x, row = pair
    row.add_(1)
    return x * 2


@example(lambda: (plain(4),))
def writes_to_two_slices(x: Tensor) -> Any:
    """Partial writes become one value of the whole."""
    x[:2].zero_()
    x[2:].mul_(3)


@example(lambda: (plain(3),))
def write_to_a_view_that_is_returned(x: Tensor) -> Any:
    """The view exists before the write."""
    y = x.view(-1)
    x.add_(1)
    return y


@example(lambda: (inner(3),))
def view_before_a_write(x: Tensor) -> Any:
    """Autograd derives the history of a view anew when its base was written."""
    y = x.view(3, 1)
    x.mul_(2)
    return y


# ---- changes


@example(lambda: (plain(2, 3),))
def metadata_mutation(x: Tensor) -> Any:
    """The wrapper repeats what changes the metadata of an argument."""
    x.t_()
    x.mul_(2)
    return x[0]


@example(lambda: (plain(2),))
def grown_storage(x: Tensor) -> Any:
    """`resize_` gives the storage more memory."""
    x.resize_(4)
    x.zero_()


@example(lambda: (plain(2), plain(3)))
def other_storage_by_set(x: Tensor, y: Tensor) -> Any:
    """An argument is put onto the storage of another."""
    x.set_(y)


@example(lambda: (plain(2), plain(3)))
def other_storage_by_data(x: Tensor, y: Tensor) -> Any:
    """An argument is put onto memory that the function made."""
    x.data = y * 2


@example(lambda: (plain(2),))
def begins_to_require_grad(x: Tensor) -> Any:
    """An argument becomes a leaf that requires grad, and there is a backward to it."""
    x.requires_grad_()
    return (x * 3).sum()


@example(lambda: (leaf(2),))
def ceases_to_require_grad(x: Tensor) -> Any:
    """A view of it is taken before."""
    y = x.view(1, 2)
    x.requires_grad_(False)
    return y


@example(lambda: (inner(2),))
def detached_in_place(x: Tensor) -> Any:
    """The history of an argument is cut off."""
    y = x * 2
    x.detach_()
    return y


@example(lambda: (leaf(2),))
def retained_gradient(x: Tensor) -> Any:
    """`retain_grad` is called again on what the caller gets."""
    y = x * 2
    y.retain_grad()
    return y


# ---- backwards


@example(lambda: (leaf(3),))
def results_with_backwards_of_their_own(x: Tensor) -> Any:
    """Two segments: a backward of the loss alone leaves what that of the logits needs."""
    logits = x.exp()
    return logits, logits.sum()


@example(lambda: (leaf(3), plain(3)))
def saved_argument(x: Tensor, y: Tensor) -> Any:
    """What eager keeps for its backward is watched."""
    return (x * y).sum()


class Counting(torch.autograd.Function):
    """Counts in an attribute of its context, which autograd does not check."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
        ctx.count = count
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.count.add_(1)
        return gradient * ctx.count, None


@example(lambda: (leaf(3), plain(3)))
def backward_that_writes(x: Tensor, count: Tensor) -> Any:
    """A backward writes to memory of the forward, as it finds it."""
    return Counting.apply(x, count)


@example(lambda: (leaf(4),))
def backward_that_raises(x: Tensor) -> Any:
    """What eager keeps was written to: its backward raises, and so does this one."""
    y = x.exp()
    z = y.sin()
    y.mul_(2)
    return z


@example(lambda: (leaf(3),), functionalize_rng_ops=True)
def functional_random_draw(x: Tensor) -> Any:
    """The graph takes and returns the state of the generator."""
    return torch.nn.functional.dropout(x, 0.5)


@example(lambda: (plain(2, 3), leaf(3)), dynamic=True)
def symbolic_sizes(x: Tensor, w: Tensor) -> Any:
    """Sizes are symbols; views and writes are made with those of the call."""
    x.mul_(2)
    return x.view(-1), x * w
