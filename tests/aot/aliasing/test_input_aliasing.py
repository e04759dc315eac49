"""Arguments that share memory with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from oracles import Arguments
from tests.support.agreement import (
    KINDS,
    assert_agrees,
    assert_same_story,
    checking_nop,
    leaf,
    non_leaf,
    values,
)

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("aliasing")]

PAIRS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "the same object": lambda r: (r, r),
    "base and view": lambda r: (r, r[1:3]),
    "view and base": lambda r: (r[:, 1], r),
    "base and transposed": lambda r: (r, r.t()),
    "overlapping": lambda r: (r[:3], r[1:]),
    "disjoint": lambda r: (r[:2], r[2:]),
    "interleaved": lambda r: (r[:, ::2], r[:, 1::2]),
    "crossing": lambda r: (r[1], r[:, 2]),
    "the same metadata": lambda r: (r[1:3], r[1:3]),
    "whole view": lambda r: (r, r.view(4, 4)),
    "flattened": lambda r: (r, r.view(16)),
    "nested": lambda r: (r[1:, 1:], r[1:, 1:][:2, 0]),
    "detached": lambda r: (r, r.detach()),
    "detached part": lambda r: (r[:2], r.detach()[1:]),
    "data": lambda r: (r, r.data),
    "data part": lambda r: (r[1:], r.data[:2]),
    "split": lambda r: (r.narrow(0, 0, 2), r.narrow(0, 2, 2)),
    "expanded and its source": lambda r: (r[0], r[0].expand(3, 4)),
}

WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "first": lambda a, b: a.mul_(2),
    "both": lambda a, b: (a.mul_(2), b.add_(1)),
    "second, then first": lambda a, b: (b.mul_(2), a.add_(b.sum())),
}

# Eager itself refuses, or leaves undefined, some of it.
_EXPANDED = {("expanded and its source", "both"), ("expanded and its source", "second, then first")}
COMBINATIONS = [(p, w) for p in PAIRS for w in WRITES if (p, w) not in _EXPANDED]


@pytest.mark.parametrize(("pair", "write"), COMBINATIONS)
@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_two_arguments_in_one_storage(pair: str, write: str, kind: str) -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        WRITES[write](a, b)
        return a + 1, b * 3

    def make() -> Arguments:
        root = KINDS[kind](4, 4)
        return Arguments(PAIRS[pair](root), tensors={"root": root})

    assert_agrees(f, make)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", KINDS)
def test_neither_is_written(pair: str, kind: str) -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return a.sin(), b * 3, a[0]

    def make() -> Arguments:
        root = KINDS[kind](4, 4)
        return Arguments(PAIRS[pair](root), tensors={"root": root})

    assert_agrees(f, make)


@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_a_tensor_and_a_slice_of_it_are_both_written(kind: str) -> None:
    def f(x: Tensor, tail: Tensor) -> Tensor:
        tail.mul_(2)
        x.add_(1)
        tail.add_(x[0])
        return x

    def make() -> list[Tensor]:
        x = KINDS[kind](4)
        return [x, x[1:]]

    assert_agrees(f, make)


@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_a_write_is_seen_through_an_alias_that_was_read_before(kind: str) -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = b * 2
        a.add_(1)
        return y, b * 2

    def make() -> list[Tensor]:
        a = KINDS[kind](6, 6)
        return [a, a[1:5, 1:5]]

    assert_agrees(f, make)


def test_slices_of_one_flat_buffer() -> None:
    def f(weights: list[Tensor], x: Tensor) -> Tensor:
        for i, weight in enumerate(weights):
            weight.mul_(i + 1)
            x = x * weight.sum()
        return x

    def make() -> list[Any]:
        flat = values(12)
        return [[flat[0:4], flat[4:6].view(1, 2), flat[6:12].view(2, 3)], leaf(2)]

    assert_agrees(f, make)


def test_slices_of_one_flat_buffer_that_requires_grad() -> None:
    def f(weights: list[Tensor], x: Tensor) -> Tensor:
        weights[0].mul_(2)
        return x @ weights[1].view(2, 2) + weights[0]

    def make() -> Arguments:
        flat = leaf(12)
        parts = flat * 1
        return Arguments(([parts[0:2], parts[4:8]], values(3, 2)), {"flat": flat}, {"parts": parts})

    assert_agrees(f, make)


@pytest.mark.parametrize("kind", KINDS)
def test_duplicates_in_containers(kind: str) -> None:
    def f(tree: dict[str, Any], x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            tree["a"][0].mul_(2)
        return {"sum": tree["a"][1] + tree["b"] + x, "same": tree["b"]}

    def make() -> list[Any]:
        x = KINDS[kind](3)
        return [{"a": [x, x], "b": x}, x]

    assert_agrees(f, make)


def test_a_duplicate_is_written_and_both_are_returned() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return y, x

    def make() -> list[Tensor]:
        x = non_leaf(3)
        return [x, x]

    assert_agrees(f, make)


def test_three_arguments_of_which_the_middle_is_written() -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        b.mul_(2)
        return a.sum() * c, c.view(-1)

    def make() -> list[Tensor]:
        root = non_leaf(4, 4)
        return [root[:3], root[1:], root[0]]

    assert_agrees(f, make)


def test_a_view_taken_under_no_grad_as_an_argument() -> None:
    def f(x: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, view * 3

    def make() -> list[Tensor]:
        x = non_leaf(4)
        with torch.no_grad():
            view = x[1:]
        return [x, view]

    assert_agrees(f, make)


def part_of_a_leaf(requires_grad: bool) -> tuple[Tensor, Tensor]:
    whole = leaf(4)
    with torch.no_grad():
        part = whole[1:3]
    return whole, part.requires_grad_(True) if requires_grad else part


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("begins", [True, False])
def test_a_part_of_a_leaf_is_a_leaf_itself_once_it_is_asked_to_require_grad(
    requires_grad: bool, begins: bool
) -> None:
    """Without, it only says that it requires grad."""

    def f(whole: Tensor, part: Tensor) -> Any:
        before = part * 3
        if begins:
            part.requires_grad_(True)
        return part * 2, whole * 5, part[1:], part, before

    assert_agrees(f, lambda: Arguments(part_of_a_leaf(requires_grad)))
    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        for requires in (requires_grad, not requires_grad):
            gradients = []
            for function in (f, compiled):
                whole, part = part_of_a_leaf(requires)
                sum(result.sum() for result in function(whole, part)).backward()
                gradients.append((whole.grad, part.grad))
            torch.testing.assert_close(gradients[0], gradients[1])
    assert len(compiled.specializations) == 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_part_of_a_leaf_where_gradients_are_off(mode: Callable[[], Any]) -> None:
    def f(whole: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        return part * 2, whole * 5

    compiled = aot.aot_function(f, checking_nop)
    for requires in (True, False):
        arguments = part_of_a_leaf(requires)
        with mode():
            results = compiled(*arguments)
        assert all(map(torch.equal, results, f(*arguments)))
        sum(result.sum() for result in compiled(*arguments)).backward()
        assert (arguments[1].grad is not None) is requires


def test_a_leaf_that_is_a_view_of_memory_without_gradients() -> None:
    """As in ``torch.arange(6.0).view(2, 3).requires_grad_()``."""
    assert_agrees(lambda x: (x * 2, x[0]), lambda: [values(6).view(2, 3).requires_grad_()])


def test_views_of_a_parameter_in_a_flat_buffer_that_is_written_to() -> None:
    """Used before the write, or taken after it; past autograd's notice, a view keeps its history."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        before = x[1:].sum()
        kept = x[:2]
        x.data.mul_(2)
        return before, kept, x[1:] * 3, x[0]

    def g(x: Tensor) -> tuple[Tensor, ...]:
        before = x[1:].sum()
        with torch.no_grad():
            x.mul_(2)
        return before, x[1:] * 3, x[0]

    for function in (f, g):
        assert_agrees(function, lambda: [torch.nn.Parameter(values(6)[:3])])


def test_a_parameter_in_a_flat_buffer() -> None:
    def f(x: Tensor, buffer: Tensor) -> Tensor:
        return x * 2 + buffer.sum()

    def make() -> list[Tensor]:
        buffer = values(6)
        return [torch.nn.Parameter(buffer[:3]), buffer]

    assert_agrees(f, make)


def test_arguments_of_two_dtypes_on_one_storage_that_is_only_read() -> None:
    def f(x: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, bits + 1

    def make() -> list[Tensor]:
        x = values(4)
        return [x, x.view(torch.int32)]

    assert_agrees(f, make)


def _apart(root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    flat = root.view(-1)
    return flat[1:5], flat[5:9].view(2, 2), flat[11:14]


ACROSS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "none": lambda a, b, c: None,
    "read": lambda a, b, c: a.as_strided((13,), (1,), 1) * 1,
    "read between": lambda a, b, c: a.as_strided((2, 2), (3, 1), 4) * 1,
    "read outside": lambda a, b, c: a.as_strided((3,), (1,), 0) * 1,
    "read nothing": lambda a, b, c: c.as_strided((0,), (1,), 0).exp(),
    "written": lambda a, b, c: a.as_strided((6,), (2,), 2).mul_(3),
    "read as another dtype": lambda a, b, c: c.view(torch.int32) + 1,
    "moved": lambda a, b, c: a.as_strided_((3, 2), (1, 4), 3),
}


@pytest.mark.parametrize("across", ACROSS)
@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_slices_that_do_not_overlap(across: str, kind: str) -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> tuple[Any, ...]:
        a.mul_(2)
        c.add_(a.sum())
        between = ACROSS[across](a, b, c)
        b.mul_(c[0])
        return between, a * b.sum(), c[1:]

    def make() -> Arguments:
        root = KINDS[kind](4, 4)
        return Arguments(_apart(root), tensors={"root": root})

    assert_agrees(f, make)


def test_slices_that_do_not_overlap_need_no_base() -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        a.mul_(2)
        b.add_(1)
        return c + 1

    compiled = aot.aot_function(f, aot.nop)
    compiled(*_apart(values(4, 4)))
    (only,) = compiled.specializations
    targets = [str(node.target) for node in only.forward.graph.nodes if node.op == "call_function"]
    assert targets == ["aten.mul.Tensor", "aten.add.Tensor", "aten.add.Tensor"]
    assert "as_strided" not in only.wrapper


def _columns(root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return root[:, 0], root[:, 1:3], root[:3, 3]


def _blocks(root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parts = root.view(2, 2, 2, 2)
    return parts[:, 0, :, 0], parts[:, :, 0, 1].t(), parts[:, 1, 1, 0]


def _alternating(root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return root[::2, 1:], root[1::2], root[::2, 0]


INTERLEAVED = {"columns": _columns, "blocks": _blocks, "alternating": _alternating}
BETWEEN: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "nothing": lambda a, b, c: None,
    "views": lambda a, b, c: (b[1:] * 2, b.t()[0].mul_(3), b.reshape(-1)[2:] + 1, a.unsqueeze(0)),
    "diagonal": lambda a, b, c: b.diagonal().mul_(3),
    "empty": lambda a, b, c: (a[0:0].add_(1), c[3:].sum()),
    "read across": lambda a, b, c: a.as_strided((12,), (1,), 0) * 1,
    "written across": lambda a, b, c: a.as_strided((6,), (2,), 2).mul_(3),
    "read as another dtype": lambda a, b, c: b.view(torch.int32) + 1,
    "written as smaller ones": lambda a, b, c: c.detach().unsqueeze(-1).view(torch.int16).zero_(),
    "moved": lambda a, b, c: a.as_strided_((3, 2), (1, 4), 3),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("lie", INTERLEAVED)
@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_interleaved_arguments_that_do_not_overlap(between: str, lie: str, kind: str) -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> tuple[Any, ...]:
        a.mul_(2)
        c.add_(a.sum())
        found = BETWEEN[between](a, b, c)
        b.mul_(c[0])
        return found, a.sum() * b, c[1:], b.t()

    def make() -> Arguments:
        root = KINDS[kind](4, 4)
        return Arguments(INTERLEAVED[lie](root), tensors={"root": root})

    assert_agrees(f, make)


@pytest.mark.parametrize("lie", INTERLEAVED)
def test_interleaved_arguments_need_no_base(lie: str) -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        a.mul_(2)
        b.add_(1)
        return c + 1

    compiled = aot.aot_function(f, aot.nop)
    compiled(*INTERLEAVED[lie](values(4, 4)))
    (only,) = compiled.specializations
    nodes = only.forward.graph.nodes
    targets = [str(node.target) for node in nodes if node.op == "call_function"]
    assert targets == ["aten.mul.Tensor", "aten.add.Tensor", "aten.add.Tensor"]
    assert len(only.forward.graph.find_nodes(op="placeholder")) == 3
    assert "as_strided" not in only.wrapper


def test_an_interleaved_argument_that_another_one_shows_a_part_of() -> None:
    def f(wide: Tensor, narrow: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        narrow.add_(1)
        wide.mul_(narrow.sum())
        other.sub_(wide[:, 0])
        return narrow * 2, wide[1:, 1]

    def make() -> list[Tensor]:
        root = non_leaf(4, 5)
        return [root[:, 1:4], root[:, 2], root[:, 4]]

    assert_agrees(f, make)


def _elsewhere() -> Arguments:
    """A tensor that has been given other memory, a view that was taken of it before, and another tensor."""
    x = values(2, 2)
    view = x[...]
    x.set_(values(2, 2, start=5))
    return Arguments((x, view, leaf(2, 2, start=3)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, view, w: (view.mul_(2), x + 1),
        lambda x, view, w: (x.mul_(2), view + 1),
        lambda x, view, w: (view[0], x[0], view.view(-1) * w[0, 0]),
        lambda x, view, w: (x.copy_(view), view.add_(1), view * w),
    ],
)
def test_a_view_whose_base_lies_elsewhere_by_now_shares_nothing_with_it(f: Callable[..., Any]) -> None:
    assert_agrees(f, _elsewhere)


def test_where_a_base_lies_is_a_part_of_what_is_compiled_for() -> None:
    together = torch.ones(2, 2)
    double = aot.aot_function(lambda x, view: (x.mul_(2), view * 2)[1], aot.nop)
    assert torch.equal(double(together, together[...]), torch.full((2, 2), 4.0))
    x, view, _ = _elsewhere().args
    assert torch.equal(double(x, view), view * 2)
    x.set_()  # which leaves it no memory at all
    assert torch.equal(aot.aot_function(lambda view: view * 2, aot.nop)(view), view * 2)


@pytest.mark.parametrize("f", [lambda x, view, w: view.mul_(w), lambda x, view, w: x.mul_(w)])
def test_a_history_for_a_base_that_lies_elsewhere_is_refused(f: Callable[..., Any]) -> None:
    x, view, w = _elsewhere().args
    before = x.clone(), view.clone()
    with pytest.raises(aot.errors.UnsupportedArgument, match="other memory by now"):
        aot.aot_function(f, aot.nop)(x, view, w)
    assert torch.equal(x, before[0]) and torch.equal(view, before[1])
    assert not x.requires_grad and not view.requires_grad


def test_a_view_that_requires_grad_of_a_base_that_lies_elsewhere_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    view = x.view(2)
    with torch.no_grad():
        x.set_(torch.zeros(2))
    with pytest.raises(aot.errors.UnsupportedArgument, match="other memory by now"):
        aot.aot_function(torch.sin, aot.nop)(view)


@pytest.mark.parametrize("last", [torch.view_as_complex, lambda t: t.view(torch.int32), lambda t: t])
def test_a_stretch_of_numbers_beside_an_argument_of_another_dtype(last: Callable[..., Tensor]) -> None:
    """The stretch that two arguments show is of their dtype, whichever argument it is taken from."""

    def f(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        a.mul_(1.5)
        return torch.nn.functional.selu(b), c.clone()

    def make() -> list[Tensor]:
        whole = values(2, 4)
        return [whole.as_strided((1, 4), (4, 1), 4), whole.as_strided((4,), (1,), 4), last(whole[0, 2:])]

    assert_agrees(f, make)


@pytest.mark.parametrize("lazily", [torch._neg_view, torch.conj, lambda x: x], ids=["neg", "conj", "not"])
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.as_strided((7,), (1,), 0),
        lambda a: a.as_strided((7,), (1,), 0)[1:],
        lambda a: a[1:].as_strided((7,), (1,), 0),
        lambda a: a.as_strided((3,), (2,), 2),
    ],
)
def test_what_a_view_of_a_lazy_argument_shows_besides(
    view: Callable[[Tensor], Tensor], lazily: Callable[[Tensor], Tensor]
) -> None:
    """No gradient comes to that, where autograd repeats the operation on the lazy view."""

    def f(a: Tensor) -> Tensor:
        shown = view(a)
        a.mul_(2.0)
        return shown

    def story(function: Callable[..., Tensor]) -> list[Any]:
        given = (torch.arange(1.0, 9.0) * (1 + 2j)).requires_grad_()
        result = function(lazily((given * 1).as_strided((4,), (2,), 0)))
        cotangent = torch.arange(1.0, result.numel() + 1) * (1 - 1j)
        (gradient,) = torch.autograd.grad(result, given, cotangent)
        return [result.tolist(), gradient.tolist()]

    assert_same_story(f, story)


def _part(kind: str) -> Tensor:
    """What requires grad, and is a view of what does not."""
    if kind == "leaf in a buffer":
        return torch.ones(4).view(2, 2).requires_grad_()
    base = torch.ones(4, requires_grad=True) * 1
    part = base.view(2, 2)
    base.detach_()
    return part


PARTS = ["leaf in a buffer", "detached since"]


@pytest.mark.parametrize("kind", PARTS)
def test_a_view_without_grad_of_a_part_is_not_made_to_require_grad(kind: str) -> None:
    def f(a: Tensor) -> Tensor:
        with torch.no_grad():
            view = a.view(4)
        return view.requires_grad_()

    with pytest.raises(errors.AutogradStateMutation, match="made to require grad"):
        aot.aot_function(f, aot.nop)(_part(kind))


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


# What computes without grad mode, and says that its result requires grad where its argument says so.
IN_FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "returned": _Same.apply,
    "one after another": lambda view: _Same.apply(_Same.apply(view)),
    "viewed": lambda view: _Same.apply(view)[1:],
    "used": lambda view: _Same.apply(view) * 2,
    "put into another": lambda view: torch.zeros(4).copy_(_Same.apply(view)),
    "max": torch.max,
    "cumprod": lambda view: view.cumprod(0),
}


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("use", IN_FUNCTIONS)
def test_nor_are_custom_functions_given_one(kind: str, use: str) -> None:
    def f(a: Tensor) -> Any:
        with torch.no_grad():
            view = a.view(4)
        return IN_FUNCTIONS[use](view)

    assert not f(_part(kind)).requires_grad
    with pytest.raises(errors.AutogradStateMutation, match="used in grad mode"):
        aot.aot_function(f, aot.nop)(_part(kind))


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("use", IN_FUNCTIONS)
def test_custom_functions_are_given_views_that_have_a_history(kind: str, use: str) -> None:
    assert_agrees(lambda a: IN_FUNCTIONS[use](a.view(4)), lambda: [_part(kind)])
