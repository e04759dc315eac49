"""Outputs that share memory with arguments or with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import aot
from oracles import Arguments
from tests.support.agreement import KINDS, assert_agrees, assert_same_story, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("identity", "aliasing", "autograd-metadata")]

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda x: x,
    "alias": lambda x: x.view_as(x),
    "view": lambda x: x.view(-1),
    "transposed": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "chain": lambda x: x.t()[1:].unsqueeze(0).squeeze(0)[0],
    "expanded": lambda x: x[0].expand(3, 4),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "unbind": lambda x: x.unbind(),
    "split": lambda x: x.split(2, 1),
    "one of several": lambda x: x.chunk(2)[1],
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "twice": lambda x: (x[0], x[0]),
    "the same twice": lambda x: [x[0]] * 2,
    "with its base": lambda x: (x, x[0]),
    "base last": lambda x: (x[0], x),
    "nested views": lambda x: (x[0], x[0][1:], x[0][1:][0]),
    "overlapping": lambda x: (x[:, :3], x[:, 1:]),
    "detached": lambda x: x.detach(),
    "detached view": lambda x: x.detach()[1:],
    "detached with base": lambda x: (x, x.detach(), x.detach()),
    "data": lambda x: x.data,
    "data with base": lambda x: (x, x.data),
    "bits": lambda x: x.view(torch.int32),
    "reshape that copies": lambda x: x.t().reshape(-1),
    "reshape that does not": lambda x: x.reshape(2, -1),
    "contiguous": lambda x: x.contiguous(),
    "real part": lambda x: torch.view_as_complex(x.view(-1, 2)).real,
    "list and dict": lambda x: {"k": [x[0], (x, None, 3)], "l": x.sum()},
}


def _no_grad(view: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def under(x: Tensor) -> Any:
        with torch.no_grad():
            return view(x)

    return under


@pytest.mark.parametrize("view", VIEWS)
class TestOutputs:
    """Outputs that are views of something."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_an_argument(self, view: str, kind: str) -> None:
        assert_agrees(VIEWS[view], lambda: [KINDS[kind](2, 4)])

    @pytest.mark.parametrize("kind", ["plain", "leaf"])
    def test_of_an_intermediate(self, view: str, kind: str) -> None:
        assert_agrees(lambda x: VIEWS[view](x * 2), lambda: [KINDS[kind](2, 4)])

    @pytest.mark.parametrize("kind", ["plain", "non_leaf"])
    def test_of_a_written_argument(self, view: str, kind: str) -> None:
        assert_agrees(lambda x: VIEWS[view](x.mul_(2)), lambda: [KINDS[kind](2, 4)])

    def test_of_a_written_intermediate(self, view: str) -> None:
        def f(x: Tensor) -> Any:
            y = x * 2
            y[0].mul_(3)
            return VIEWS[view](y)

        assert_agrees(f, lambda: [leaf(2, 4)])

    def test_under_no_grad(self, view: str) -> None:
        assert_agrees(_no_grad(VIEWS[view]), lambda: [non_leaf(2, 4)])

    def test_of_an_intermediate_under_no_grad(self, view: str) -> None:
        assert_agrees(lambda x: _no_grad(VIEWS[view])(x * 2), lambda: [leaf(2, 4)])

    def test_of_a_view_argument(self, view: str) -> None:
        def make() -> list[Tensor]:
            return [non_leaf(6, 4)[1:3]]

        assert_agrees(VIEWS[view], make)


@pytest.mark.parametrize("view", ["view", "slice", "chain", "expanded", "as_strided", "overlapping", "twice"])
@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_a_view_is_taken_and_its_base_written_afterwards(view: str, kind: str) -> None:
    def f(x: Tensor) -> Any:
        result = VIEWS[view](x)
        x.mul_(2)
        return result

    assert_agrees(f, lambda: [KINDS[kind](2, 4)])


@pytest.mark.parametrize("view", ["view", "slice", "chain", "overlapping", "twice"])
def test_a_view_of_an_intermediate_that_is_written_afterwards(view: str) -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        result = VIEWS[view](y)
        y.mul_(2)
        return result

    assert_agrees(f, lambda: [leaf(2, 4)])


def test_views_of_arguments_views_of_intermediates_and_new_tensors() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        z = x @ y.t()
        return x[0], z[0], y.detach()[1], z.sum(), z, y, None, 2.5

    assert_agrees(f, lambda: [leaf(2, 4), non_leaf(3, 4)])


def test_an_argument_that_is_returned_twice() -> None:
    assert_agrees(lambda x: (x, [x]), lambda: [leaf(2)])


def test_an_intermediate_that_is_returned_twice() -> None:
    def f(x: Tensor) -> list[Tensor]:
        y = x * 2
        return [y, y]

    assert_agrees(f, lambda: [leaf(2)])


def test_two_detached_aliases_of_an_intermediate() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return y.detach(), y.detach()[1:], y

    assert_agrees(f, lambda: [leaf(3)])


def test_a_detached_alias_is_written_inside() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = y.detach()
        z.mul_(3)
        return y, z

    assert_agrees(f, lambda: [leaf(3)])


def test_an_output_that_requires_no_grad_beside_one_that_does() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.argmax(0), (x > 0), x * 2

    assert_agrees(f, lambda: [leaf(3)])


def test_a_scalar_view_of_an_argument() -> None:
    assert_agrees(lambda x: (x[1], x.sum().view(1)), lambda: [leaf(3)])


def test_outputs_without_elements() -> None:
    assert_agrees(lambda x: (x[3:], x[3:] * 2, (x * 2)[3:]), lambda: [leaf(3)])


def test_values_that_are_no_tensors() -> None:
    def f(x: Tensor) -> tuple[Any, ...]:
        return x.shape, x.dtype, x.device, float("-inf"), -0.0, 1j, "s", True, x.is_leaf, x._version

    assert_agrees(f, lambda: [leaf(3, 2)])
    assert_agrees(f, lambda: [non_leaf(3, 2)])


class _Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view(2, 3) * 5


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 5


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:1], x[1:]

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([2 * first, 3 * second])


def _written(x: Tensor) -> Tensor:
    view: Tensor = _Flat.apply(x)
    x.mul_(2)
    return view


def _made_inside(x: Tensor) -> tuple[Tensor, Tensor]:
    product = x * 2
    return product, _Flat.apply(product)


def _without_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        view = _Flat.apply(x)
    return view, view[1:]


FUNCTION_VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "alone": _Flat.apply,
    "sliced": lambda x: _Flat.apply(x)[1:],
    "chunked": lambda x: _Flat.apply(x).chunk(2),
    "with its slice": lambda x: ((view := _Flat.apply(x)), view[1:4], x * 2),
    "of a view": lambda x: _Flat.apply(x.t().t()),
    "twice": lambda x: _Flat.apply(_Flat.apply(x).view(2, 3)),
    "several": _Halves.apply,
    "parts of several": lambda x: [part.t() for part in _Halves.apply(x)],
    "made inside": _made_inside,
    "without grad mode": _without_grad,
    "detached": lambda x: _Flat.apply(x).detach(),
    "as complex numbers": lambda x: torch.view_as_complex(_Flat.apply(x).view(3, 2)),
    "after a write": lambda x: (x.mul_(2), _Flat.apply(x)),
    "before a write": _written,
}


# (Eager does not write to a leaf that requires grad.)
@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n in FUNCTION_VIEWS for k in KINDS if k != "leaf" or "a write" not in n]
)
def test_views_made_by_a_custom_function(name: str, kind: str) -> None:
    assert_agrees(FUNCTION_VIEWS[name], lambda: [KINDS[kind](2, 3)])


def test_a_custom_function_that_writes_its_argument() -> None:
    assert_agrees(lambda x: _Dirty.apply(x) + 1, lambda: [non_leaf(2, 3)])


def test_an_inference_tensor_is_returned() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x * 2

    assert_agrees(f, lambda: [values(3)], refusable=True)


@pytest.mark.parametrize("take", [lambda x: x[:, :2], lambda x: x.chunk(2, 1)[0]])
def test_a_view_of_an_alias_that_is_no_view(take: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        view = take(x)
        alias = view.unsafe_split(2, 0)[1]
        return alias[...], view, alias

    assert_agrees(f, lambda: [leaf(4, 4)])


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@pytest.mark.parametrize("grad", [True, False])
def test_a_view_of_a_custom_functions_view_of_a_view_whose_base_was_written(grad: bool) -> None:
    def f(x: Tensor) -> Tensor:
        view = x[...]
        with torch.no_grad():
            x.mul_(2)
        with torch.set_grad_enabled(grad):
            made = Doubling.apply(view)
        return made[...]  # type: ignore[no-any-return]

    assert_agrees(f, lambda: [non_leaf(4)])


@pytest.mark.parametrize("strides", [(1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize(
    "take",
    [
        lambda x: x.conj(),
        lambda x: x.conj().conj(),
        torch.view_as_real,
        lambda x: torch.view_as_real(x.t())[1],
        lambda x: x[1:].conj().t(),
    ],
)
def test_a_lazy_view_whose_history_is_derived_anew(
    take: Callable[[Tensor], Tensor], strides: tuple[int, int]
) -> None:
    """Autograd repeats what shows elements as other numbers; a view by strides shares out the gradient of
    an element that is shown several times."""

    def f(whole: Tensor, x: Tensor) -> Tensor:
        view = take(x)
        whole.transpose_(0, 0)  # moves the version counter that both have
        return view

    def make() -> list[Tensor]:
        whole = values(2, 2, dtype=torch.complex64)
        return [whole, whole.as_strided((2, 2), strides).detach().requires_grad_()]

    assert_agrees(f, make)


def _of_a_late_leaf() -> Arguments:
    x = values(2)
    view = x[...]
    return Arguments((view, x.requires_grad_()))


def test_a_view_of_a_leaf_that_has_come_to_require_grad_says_so_and_has_no_history() -> None:
    assert_agrees(lambda view, x: (view[...], view * 2, view * x), _of_a_late_leaf)
    view, x = _of_a_late_leaf().args
    assert view.requires_grad and view.is_leaf
    outputs = aot.aot_function(lambda view, x: (view * 2, view * x), aot.nop)(view, x)
    assert torch.autograd.grad(outputs[0].sum(), x, allow_unused=True) == (None,)
    assert torch.equal(torch.autograd.grad(outputs[1].sum(), x)[0], view)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[0].mul_(2),
        lambda x: (x[...], x.mul_(2), x[1])[::2],
        lambda x: (x.t(), x.view(4)[1:], x.add_(1)),
        lambda x: (x.add_(1), x[0], x.mul_(2), x[1])[1::2],  # between two writes
    ],
)
def test_a_view_is_taken_before_a_write_that_it_was_there_for(f: Callable[[Tensor], Any]) -> None:
    def gradients(function: Callable[[Tensor], Any]) -> list[Any]:
        x = values(2, 2)
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        x.requires_grad_()  # what was there before a write takes part in that, and other views do not
        found: list[Any] = [result.is_leaf for result in results]
        for result in results:
            if not result.is_leaf:
                found += torch.autograd.grad(result.sum(), x)[0].tolist()
        return found

    assert gradients(aot.aot_function(f, aot.nop)) == gradients(f)


def test_a_view_of_a_result_that_was_there_before_a_write_is_older_than_it() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        before, apart = y[0], y.detach()[1]
        part = before[:1]
        y.add_(1)
        return y, y[1], before, part, y.t(), apart

    def gradients(function: Callable[[Tensor], Any]) -> list[Any]:
        y, *views = function(values(2, 2))
        y.requires_grad_()
        found: list[Any] = [view.is_leaf for view in views]
        assert not all(found)
        for view in views:
            if not view.is_leaf:
                found += torch.autograd.grad(view.sum(), y)[0].tolist()
        return found

    assert gradients(aot.aot_function(f, aot.nop)) == gradients(f)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_view_that_was_written_to_may_be_written_to_at_once_and_another_may_not(dtype: torch.dtype) -> None:
    def write(view: Tensor, other: Tensor, w: Tensor) -> None:
        view.mul_(w)

    for function in (write, aot.aot_function(write, aot.nop)):
        base = torch.ones(2, 3, dtype=dtype)
        view, other, w = base[0], base[1], torch.ones(3, dtype=dtype, requires_grad=True)
        function(view, other, w)
        with pytest.raises(RuntimeError, match="a leaf Variable"):
            other.mul_(2)  # whose history autograd has not been asked for yet
        view.mul_(2)
        assert torch.autograd.grad(view.sum(), w)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("make", [lambda: [non_leaf(4, 4)], lambda: [leaf(4, 4)]], ids=["argument", "own"])
@pytest.mark.parametrize(
    "write", [lambda base, view: view.mul_(2), lambda base, view: base.mul_(2), lambda base, view: None]
)
@pytest.mark.parametrize("offset", [0, 2, 5, 6])
def test_as_strided_beyond_the_view_that_it_is_called_on(make: Any, write: Any, offset: int) -> None:
    """No gradient comes to what it shows besides, once the view's history has been derived anew."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        base = x if not x.is_leaf else x * 1
        view = base[1:3, :3]
        before = view.as_strided((2, 2), (3, 1), offset)
        write(base, view)
        return view.as_strided((2, 2), (3, 1), offset), before.as_strided((2,), (1,), offset) * 2

    assert_agrees(f, make)


def test_values_of_what_overlaps_itself_do_not_depend_on_how_they_lie() -> None:
    """A write to a part of it reaches each place where the element is shown, with dense inputs too."""

    def dense(module: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        def run(*args: Tensor) -> Any:
            return module(*(arg.contiguous() for arg in args))

        return run

    def f(x: Tensor) -> Tensor:
        x[:, 4:5] = 3
        return x + 1

    def make() -> tuple[Tensor, Tensor]:
        whole = torch.arange(8)
        return whole, whole.as_strided((2, 7), (1, 1))

    (expected, x), (given, y) = make(), make()
    assert torch.equal(aot.aot_function(f, dense)(y), f(x))
    assert torch.equal(given, expected)


def test_a_view_of_what_was_detached_since_is_written_to_without_grad_and_returned() -> None:
    def make() -> list[Tensor]:
        base = non_leaf(3)
        part = base.view(3)
        base.detach_()
        return [part]

    def f(a: Tensor) -> Tensor:
        view = a[...]
        view.mul_(2)
        return view

    assert_agrees(f, make, grad=False)


def _written_without_grad(view: Tensor) -> None:
    with torch.no_grad():
        view.mul_(2)


def _older(x: Tensor) -> Tensor:
    view = x[...]
    _written_without_grad(x)
    return view


def _of_older(x: Tensor) -> Tensor:
    view = x[...]
    _written_without_grad(x)
    return view[0]


def _younger(x: Tensor) -> Tensor:
    _written_without_grad(x)
    return x[0]


def _between(x: Tensor) -> Tensor:
    _written_without_grad(x)
    view = x[0]
    _written_without_grad(x)
    return view


@pytest.mark.parametrize("f", [_older, _of_older, _younger, _between])
def test_a_view_of_what_was_detached_since_leads_to_an_argument_if_it_is_younger_than_the_write(
    f: Callable[..., Tensor],
) -> None:
    """Autograd derives the history of older ones from what both are views of, which has none any more."""

    def story(function: Callable[..., Tensor]) -> Any:
        start = torch.ones(2, 2, requires_grad=True)
        base = start * 1
        part = base.view(2, 2)
        base.detach_()
        result = function(part)
        return torch.autograd.grad(result.pow(2).sum(), [part, result, start], allow_unused=True)

    assert_same_story(f, story)


@pytest.mark.parametrize("begins", [(0, 0), (2, 2), (2, 3)])
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.unsqueeze(0).select(1, 0).mul_(2),
        lambda a: a.unsqueeze(0)[:, :1].mul_(2),
        lambda a: a.unsqueeze(1).t()[0].mul_(2),
        lambda a: a.expand(1, -1).diagonal().mul_(2),
        lambda a: a.view(1, -1).squeeze(0).narrow(0, 0, 1).mul_(2),
    ],
)
@pytest.mark.parametrize("written", [0, 1])
def test_writes_through_views_of_views_of_what_begins_somewhere(
    begins: tuple[int, int], sizes: tuple[int, int], write: Callable[[Tensor], Tensor], written: int
) -> None:
    """Torch's scatters lay out their result where their argument lies in its storage."""

    def make() -> list[Tensor]:
        whole = values(8)
        return [whole.as_strided((size,), (1,), begin) for size, begin in zip(sizes, begins, strict=True)]

    def f(a: Tensor, b: Tensor) -> Tensor:
        write((a, b)[written])
        return a.sum() + b.sum()

    assert_agrees(f, make, grad=False)
