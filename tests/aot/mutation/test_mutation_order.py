"""Writes, views and changes of one argument, in different orders: what comes first decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from oracles import Arguments
from tests.support.agreement import KINDS, assert_agrees, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("input-data", "input-metadata")]

Function = Callable[..., Any]


def _program(*statements: str, names: str = "x, y") -> Function:
    """A function of `x` and `y`, or `names`, of these statements, the last of which is what it returns."""
    *body, result = statements
    source = "".join(f"    {line}\n" for line in (*body, f"return {result}"))
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def f({names}):\n{source}", scope)
    return scope["f"]  # type: ignore[no-any-return]


# Of tensors that do not require grad, x of shape (2, 3) and y of shape (2, 3).
PLAIN = (
    ("v = x[...]", "x.requires_grad_()", "v"),
    ("v = x[...]", "w = v[...]", "x.requires_grad_()", "w, v"),
    ("v, w = x.chunk(2)", "x.requires_grad_()", "w"),
    ("x.requires_grad_()", "v = x[1:]", "v, v * 2"),
    ("v = x[...]", "v.requires_grad_()", "v"),
    ("v = x[...]", "v.requires_grad_()", "v[1:]"),
    ("v = x[...]", "v.requires_grad_()", "v, v[1:]"),
    ("v = x[...]", "w = v[1:]", "v.requires_grad_()", "w"),
    ("v = x[...]", "x.data = y * 2", "v.requires_grad_()", "v"),
    ("v = x[...]", "x.data = y * 2", "v"),
    ("x.mul_(2)", "v = x[...]", "x.data = y * 2", "v"),
    ("v = x[...]", "x.mul_(2)", "x.data = y * 2", "v"),
    ("x.t_()", "x.mul_(2)", "v = x[...]", "x.requires_grad_()", "v"),
    ("x.mul_(2)", "x.t_()", "x.requires_grad_()", "x * 2"),
    ("v = x.t()", "v.data = x", "v.squeeze_(0)", "v"),
    ("x.data = y[:, :2]", "x[1:]"),
    ("v = x[...]", "x.mul_(2)", "v.requires_grad_()", "v"),
    ("v = x[...]", "x.mul_(2)", "x.requires_grad_()", "v"),
    ("v = x.t()", "v.t_()", "v.data = y", "v"),
    ("v = x[...]", "x.data = x.t()", "v"),
    ("v = x[...]", "x.data = x[1:]", "v * 2, v[:1]"),
    ("x.resize_(3, 3)", "x[2] = 1", "x.mul_(2)", "x[1:]"),
    ("x.mul_(2)", "x.resize_(3, 3)", "x[2] = 1", "None"),
)

# Of y that requires grad: history begins in x.
HISTORY = (
    ("x.mul_(y)", "x.t_()", "x * 2"),
    ("x.t_()", "x.mul_(y.t())", "x * 2"),
    ("with torch.no_grad(): x.t_()", "x.mul_(y.t())", "None"),
    ("with torch.no_grad(): x.t_()", "x.mul_(y.t())", "x, x[1:]"),
    ("x.mul_(y)", "with torch.no_grad(): x.unsqueeze_(0)", "None"),
    ("x.resize_(3, 3)", "x[2] = 1", "x[:2].mul_(y)", "x"),
    ("x.mul_(y)", "x.data = y.detach() * 3", "None"),
    ("x.mul_(y)", "x.data = y.detach() * 3", "x * 2"),
    ("x.data = y.detach() * 3", "x.mul_(y)", "x * 2"),
    ("v = x[...]", "x.mul_(y)", "x.data = y.detach() * 3", "v * 2"),
    ("v = x.data", "z = v * y", "z, v"),
    ("x.mul_(y)", "x.set_(x)", "None"),
)


@pytest.mark.parametrize("statements", PLAIN, ids="; ".join)
@pytest.mark.parametrize("size", [(2, 3), (0, 3)], ids=str)
def test_plain_arguments(statements: tuple[str, ...], size: tuple[int, ...]) -> None:
    if size[0] == 0 and "resize_" in str(statements):
        statements = ("x.resize_(3, 3)", "x[:] = 1", "x.mul_(2)")
    assert_agrees(_program(*statements), lambda: [values(*size), values(*size, start=5)])


@pytest.mark.parametrize("statements", HISTORY, ids="; ".join)
@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_where_history_begins(statements: tuple[str, ...], kind: str) -> None:
    if kind == "non_leaf" and "resize_" in str(statements):
        statements = ("x[1:].mul_(y[1:])", "x")  # eager does not resize what requires grad
    # Autograd does not see what is done to a tensor with a history without grad mode, and then complains.
    unseen = (kind == "non_leaf" and statements[0].startswith("with")) or "set_" in str(statements)
    assert_agrees(_program(*statements), lambda: [KINDS[kind](2, 3), leaf(2, 3)], backward_raises=unseen)


# What autograd notices moves gradients along, and what goes past it leaves them at their indices.
NOTICED_OR_NOT = (
    ("x.mul_(2)", "x.squeeze_(0)", "x.data = x.t()"),
    ("x.t_()", "x.mul_(2)", "x.data = x.t()"),
    ("x.mul_(2)", "x.unsqueeze_(0)", "x.data = x.transpose(1, 2)", "x.squeeze_(0)"),
    ("x[0].mul_(2)", "x.t_()", "with torch.no_grad(): x.t_()"),
    ("x.mul_(2)", "with torch.no_grad(): x.as_strided_((3, 3), (1, 3))", "x.swapdims_(0, 1)"),
    ("x.mul_(2)", "x.t_()", "x.data = y"),
    ("x.mul_(2)", "x.data = y", "x.t_()"),
    ("x.mul_(2)", "x.t_()", "with torch.no_grad(): x.set_(y)"),
)


@pytest.mark.parametrize("statements", NOTICED_OR_NOT, ids="; ".join)
def test_changes_that_autograd_notices_and_others(statements: tuple[str, ...]) -> None:
    assert_agrees(_program(*statements, "None"), lambda: [non_leaf(3, 3), values(3, 3, start=5)])


@pytest.mark.parametrize("change", ["x.as_strided_((3, 3), (1, 3))", "x.unsqueeze_(0)"])
def test_changes_that_autograd_notices_and_others_are_refused(change: str) -> None:
    """By strides, of which the history does not tell, and where the history has another shape."""
    other = "x.t_()" if "strided" in change else "x.squeeze_()"
    first = ("x.mul_(2)", change, f"with torch.no_grad(): {other}")
    with pytest.raises(errors.AutogradStateMutation, match="takes note"):
        aot.aot_function(_program(*first, "None"), aot.nop)(non_leaf(3, 3), None)


# What is returned at the end is a view that was taken before `.data =` put elsewhere what it is a view of.
LEFT_BY_DATA = (
    ("x.mul_(2)", "v = x[0]", "x.data = x.t()", "v"),
    ("x.mul_(2)", "x.t_()", "v = x[0][1:]", "x.data = x.t()", "v, x"),
    ("x.data = x.t()", "v = x[0]", "x.data = x.t()", "v, x * 2"),
    ("x.t_()", "v, w, u = x.unbind()", "x.data = x.t()", "v, w, x"),
    ("z = x * 2", "v = z[0]", "z.data = z.t()", "v, z"),
    ("z = x * 2", "z.t_()", "v = z[0]", "z.data = z.t()", "z.mul_(2)", "v, z"),
)


@pytest.mark.parametrize("statements", LEFT_BY_DATA, ids="; ".join)
def test_views_of_what_is_put_elsewhere_since(statements: tuple[str, ...]) -> None:
    assert_agrees(_program(*statements), lambda: [non_leaf(3, 3), None])


@pytest.mark.parametrize("view", ["x.view(9)", "x.as_strided((2,), (1,))", "x[0]"])
def test_views_that_cannot_be_taken_any_more_are_refused(view: str) -> None:
    put = "x[1:]" if view == "x[0]" else "x.t()"
    program = _program("x.data = x.t()", "x.data = x.t()", f"v = {view}", f"x.data = {put}", "v")
    with pytest.raises(errors.StorageMutation, match="put elsewhere since"):
        aot.aot_function(program, aot.nop)(non_leaf(3, 3), None)


def test_a_view_argument_that_begins_to_require_grad() -> None:
    def make() -> list[Tensor]:
        base = values(4, 4)
        return [base[:2], base]

    assert_agrees(_program("v = x[...]", "x.requires_grad_()", "v"), make)
    assert_agrees(_program("y.requires_grad_()", "x.expand_as(x)"), make)
    assert_agrees(_program("x.requires_grad_()", "x[1:] * 2"), make)


def test_views_from_before_and_after_are_refused() -> None:
    f = _program("v = x[...]", "x.requires_grad_()", "v[...]")
    with pytest.raises(aot.errors.AutogradStateMutation, match="outside of the function"):
        aot.aot_function(f, aot.nop)(values(2), None)


@pytest.mark.parametrize("before", ["None", "x.transpose_(0, 0)"])
def test_a_view_that_is_put_elsewhere_by_an_operation(before: str) -> None:
    """Autograd takes it for a write to its base, which it cannot differentiate."""
    assert_agrees(
        _program(before, "x[...].set_()", "None"), lambda: [non_leaf(4), None], backward_raises=True
    )


@pytest.mark.parametrize("make", [leaf, non_leaf])
@pytest.mark.parametrize("put", ["x.t()", "x[1:]", "x.t().detach() * 3"])
def test_a_view_of_an_argument_whose_data_are_exchanged_since(make: Any, put: str) -> None:
    program = _program("v = x[...]", "w = x[0]", f"x.data = {put}", "v, w")
    assert_agrees(program, lambda: [make(3, 3), None], refusable="*" in put)


def test_a_view_derives_its_history_anew_when_its_base_has_other_data() -> None:
    def f(base: Tensor, view: Tensor) -> None:
        base.data = view
        with torch.no_grad():
            view.mul_(2)

    def make() -> list[Tensor]:
        base = leaf(2, 3, 3)
        return [base, base.as_strided((2, 3, 3), (9, 1, 3), 0)]

    assert_agrees(f, make)


def test_a_storage_of_the_functions_grows_through_a_view_and_is_written_elsewhere() -> None:
    def f(x: Tensor) -> Tensor:
        whole = x * 1
        view = whole[...]
        view.resize_((2, 5))
        view[0:2] = 2
        whole.mul_(2.0)
        return view

    assert_agrees(f, lambda: [values(4)])


def test_an_argument_is_put_onto_the_storage_of_another_that_has_grown() -> None:
    program = _program("y.resize_as_(x)", "y[2:3] = 2", "x.set_(y)", "None")
    assert_agrees(program, lambda: [values(6)[3:], values(1, 2)])


def test_a_view_of_what_has_grown_is_taken_before_that_is_put_elsewhere() -> None:
    program = _program("x.resize_(3)", "x[2] = 3", "v = x[1:]", "x.set_()", "v")
    assert_agrees(program, lambda: [values(2), None], grad=True)


@pytest.mark.parametrize("view", ["x.expand(3, 2)", "x[0, 1].expand(3)"])
def test_what_has_grown_is_filled_through_a_view_that_shows_it_several_times(view: str) -> None:
    program = _program("x.resize_(1, 2)", f"v = {view}", "v.fill_(2)", "x[0, 0] = 1", "v")
    assert_agrees(program, lambda: [values(1), None])


def test_a_view_that_is_put_elsewhere_when_nothing_is_left_where_it_was() -> None:
    program = _program("v = y.expand_as(x)", "y.t_()", "x.set_()", "v.set_(x)", "v")

    def make() -> list[Tensor]:
        x = values(1, 1)
        return [x, x.as_strided((), (), 0)]

    assert_agrees(program, make)


@pytest.mark.parametrize("statements", ["with torch.no_grad(): v.set_()", "v.data = y"])
def test_a_result_whose_history_has_another_shape_is_refused(statements: str) -> None:
    with pytest.raises(errors.StorageMutation, match="a history of another shape"):
        aot.aot_function(_program("v = x * 2", statements, "v"), aot.nop)(leaf(2), values(3))


@pytest.mark.parametrize("view", ["x.conj()", "torch.view_as_real(x)"])
def test_a_lazy_view_of_what_is_reshaped_since_is_refused(view: str) -> None:
    """Eager's backward raises, or not, as the shapes happen to be."""
    program = _program(f"v = {view}", "x.as_strided_((3, 1), (1, 3), 3)", "v")
    with pytest.raises(errors.AutogradStateMutation, match="or conjugated"):
        aot.aot_function(program, aot.nop)(non_leaf(2, 3, dtype=torch.complex64), None)


def test_a_view_argument_that_is_put_elsewhere() -> None:
    assert_agrees(_program("x.set_(y)", "None"), lambda: [non_leaf(4)[:0], values(2, 3)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.uint8], ids=str)
def test_a_write_as_another_dtype_is_counted(dtype: torch.dtype) -> None:
    """The view of a leaf derives its history anew once its storage has been written to, as whatever."""

    def make() -> list[Tensor]:
        base = leaf(2, 4)
        return [base.detach().view(dtype), base[:1], base]

    def f(other: Tensor, view: Tensor, base: Tensor) -> Tensor:
        other.zero_()
        return view * 2

    assert_agrees(f, make)


@pytest.mark.parametrize("size", [(0, 2), (2, 2)], ids=str)
def test_a_data_alias_of_what_gets_a_history(size: tuple[int, ...]) -> None:
    def make() -> list[Tensor]:
        x = non_leaf(*size)
        return [x.data, x, torch.view_as_complex(x[:0])]

    assert_agrees(lambda alias, x, empty: [x.mul_(2)], make)
    assert_agrees(lambda alias, x, empty: empty.mul_(2).sum(), make)


def test_storages_that_hold_no_whole_number_of_elements() -> None:
    def as_complex() -> list[Tensor]:
        memory = values(3)
        return [torch.view_as_complex(memory[:2]), memory]

    assert_agrees(lambda z, x: (z.mul_(z), x * 2), as_complex)

    def as_bytes() -> list[Tensor]:
        memory = values(9)
        return [torch.view_as_complex(memory[:8].view(4, 2)).detach(), memory.view(torch.uint8)[:35]]

    assert_agrees(lambda z, b: (b.add_(1), z * 1), as_bytes)

    def grows(x: Tensor, b: Tensor) -> Tensor:
        b.resize_(14)
        b[12:] = 3
        return b[8:]

    assert_agrees(grows, lambda: [(x := values(3)), x.view(torch.uint8)[:4]])


def test_what_is_kept_under_a_counter_of_its_own() -> None:
    """A result shares memory with what the backward keeps, and is what eager's backward keeps."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x.data
        return torch.dot(v, x), v

    x = leaf(3)
    y, v = aot.aot_function(f, aot.nop)(x)
    v.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_tangent_that_is_lazily_conjugated() -> None:
    assert_agrees(lambda x: x.to(torch.complex64).conj(), lambda: [leaf(3)])


def test_a_leaf_that_is_released_and_written() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        x.requires_grad_(False)
        x.mul_(y)

    assert_agrees(f, lambda: [leaf(3), leaf(3)], grad=True)


# PART lets no gradient through `x` any more. A view `p` of it leads to where it was if autograd has derived
# its history between the last write to their storage (through `b`, which shows them as bytes) and then.
PARTED = (
    ("b.add_(5)", "p.sum()", "PART", "None"),
    ("b.add_(5)", "PART", "p.sum()"),
    ("b.add_(5)", "z = p * 2", "PART", "z, p"),
    ("b.add_(5)", "p.sum()", "b.add_(5)", "PART", "None"),
    ("b.add_(5)", "p.sum()", "PART", "b.add_(5)", "None"),
    ("b.add_(5)", "p.sum()", "PART", "x.unsqueeze_(0)", "p"),
    ("with torch.no_grad(): x.unsqueeze_(0)", "p.sum()", "PART", "p"),
    ("b.add_(5)", "v = x[:1]", "PART", "v, v * 2, x * 3"),
    ("b.add_(5)", "v = p[:1]", "p.sum()", "PART", "v, p"),
    ("with torch.no_grad(): x.unsqueeze_(0)", "v = x[0, 1:]", "PART", "v"),
    ("b.add_(5)", "v, w = x.chunk(2)", "PART", "w"),
)


@pytest.mark.parametrize("statements", PARTED, ids="; ".join)
@pytest.mark.parametrize("make, part", [(leaf, "x.requires_grad_(False)"), (non_leaf, "x.detach_()")])
def test_views_of_what_requires_no_grad_any_more(
    statements: tuple[str, ...], make: Function, part: str
) -> None:
    body = _program(*(part if line == "PART" else line for line in statements), names="b, x, p")

    assert_agrees(body, _with_view(make))


def test_a_view_of_what_was_written_and_detached_is_refused() -> None:
    program = _program("x.mul_(3)", "v = x[:1]", "x.detach_()", "v")
    with pytest.raises(errors.AutogradStateMutation, match="detached in place"):
        aot.aot_function(program, aot.nop)(non_leaf(6), None)


# What a view's history counts by is how it and its base lie when autograd derives it, after a write.
DERIVED = (
    ("b.add_(5)", "p.data = torch.ones(2)", "None"),
    ("b.add_(5)", "p.data = torch.ones(2)", "p.sum()"),
    ("b.add_(5)", "p.sum()", "p.data = torch.ones(2)", "b.add_(5)", "None"),
    ("b.add_(5)", "z = p * 2", "x.data = torch.ones(6)", "z"),
)


def _with_view(make: Function) -> Function:
    def arguments() -> list[Tensor]:
        x = make(6)
        return [x.view(torch.uint8), x, x[2:4]]

    return arguments


@pytest.mark.parametrize("statements", DERIVED, ids="; ".join)
@pytest.mark.parametrize("make", [leaf, non_leaf])
def test_how_a_view_lies_when_its_history_is_derived(statements: tuple[str, ...], make: Function) -> None:
    assert_agrees(_program(*statements, names="b, x, p"), _with_view(make))


@pytest.mark.parametrize("put", ["p.data = torch.ones(2)", "x.data = torch.ones(3)"])
@pytest.mark.parametrize("make", [leaf, non_leaf])
def test_how_a_view_lay_when_its_history_was_derived_is_refused(put: str, make: Function) -> None:
    program = _program("b.add_(5)", "z = p * 2", put, "z", names="b, x, p")
    with pytest.raises(errors.StorageMutation, match="and the view used"):
        aot.aot_function(program, aot.nop)(*_with_view(make)())


@pytest.mark.parametrize("grad", [True, False])
def test_a_write_to_a_list_is_counted(grad: bool) -> None:
    def f(view: Tensor, base: Tensor) -> Tensor:
        with torch.set_grad_enabled(grad):
            torch._foreach_mul_([base], 2.0)
        return view * 2

    def make() -> list[Tensor]:
        base = non_leaf(2, 3)
        return [base[1], base]

    assert_agrees(f, make)


@pytest.mark.parametrize("through", ["itself", "view", "argument"])
@pytest.mark.parametrize("change, raises", [(lambda x: x.unsqueeze_(1), True), (lambda x: x.t_(), False)])
def test_metadata_that_is_changed_past_autograd_after_a_write(
    through: str, change: Function, raises: bool
) -> None:
    """The write's history is that of a tensor of the size that it had then. (A gradient of the argument
    itself does not fit that any more, and raises in eager.)"""

    def f(x: Tensor, part: Tensor) -> Tensor:
        written = {"itself": x, "view": x[:, 1:], "argument": part}[through].mul_(3)
        result = written * 2
        with torch.no_grad():
            change(x)
        return result

    def make() -> Arguments:
        base = leaf(2, 2)
        x = base * 1
        return Arguments((x, x[:, 1:]), {"base": base})

    assert_agrees(f, make, backward_raises=raises)


def test_the_strides_of_what_a_kernel_lays_out_anew() -> None:
    def f(x: Tensor) -> None:
        x.data = torch.nn.functional.logsigmoid(x.t())

    assert_agrees(f, lambda: [values(3, 3)])


@pytest.mark.parametrize("first", [0, 1])
def test_views_of_one_base_that_are_changed_in_turn(first: int) -> None:
    """Each change is one of the base for autograd, so their order decides where gradients go."""

    def f(a: Tensor, b: Tensor) -> None:
        one, other = (a, b) if first == 0 else (b, a)
        one.as_strided_((3, 3), (2, 2), 2)
        other.as_strided_((2, 2), (1, 2), 8)

    def make() -> Arguments:
        base = leaf(2, 2, 4)
        root = base * 1
        views = root.as_strided((2, 2, 2), (8, 4, 2), 0), root.as_strided((4, 2, 2), (1, 4, 8), 0)
        return Arguments(views, {"base": base}, {"root": root})

    assert_agrees(f, make)


def test_an_assignment_of_data_before_a_write() -> None:
    def f(a: Tensor, b: Tensor) -> None:
        b.data = a
        b.mul_(2)

    def make() -> Arguments:
        base = leaf(2, 2)
        root = base * 1
        return Arguments((root.as_strided((2, 2), (1, 2), 0), root), {"base": base})

    assert_agrees(f, make)


def test_a_view_of_a_view_that_was_put_elsewhere_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        first, second = x.split(1)
        second.data = first
        return second[...]

    with pytest.raises(aot.errors.StorageMutation, match="put elsewhere"):
        aot.aot_function(f, aot.nop)(leaf(2, 2))


def test_a_part_that_is_written_with_what_is_a_view_of_an_argument() -> None:
    def f(base: Tensor, part: Tensor) -> Tensor:
        view = part[...]
        base.t_()
        view.unsqueeze_(0)
        return view

    def make() -> Arguments:
        start = leaf(2, 2)
        base = start * 1
        return Arguments((base, base.as_strided((2,), (1,), 2)), {"start": start})

    assert_agrees(f, make)


@pytest.mark.parametrize("change", ["x.detach_()", "x.requires_grad_(False)"])
@pytest.mark.parametrize("write", ["x.mul_(v)", "x[:1].copy_(v[1:])", "torch._foreach_add_([x], [v])"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_a_leaf_is_written_to_with_what_depends_on_it(change: str, write: str, dtype: torch.dtype) -> None:
    """Its old edge is that of a node which adds up gradients in it. Autograd takes it away from that node
    where a custom function is said to write to it."""
    program = _program("v = x * 3", change, write, "x * 2", names="x")
    assert_agrees(program, lambda: [torch.arange(6).reshape(2, 3).to(dtype).requires_grad_()])


def test_a_leaf_is_written_to_that_required_grad_before_the_call() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        x.mul_(y)

    for call in (f, aot.aot_function(f, aot.nop)):
        x, y = leaf(3), leaf(3)
        earlier = x * 2
        x.requires_grad_(False)
        call(x, y)
        assert torch.autograd.grad(x.sum(), y)[0] is not None
        with pytest.raises(RuntimeError, match="leaf variable has been moved"):
            earlier.sum().backward()
