"""Tensors that show the same memory as other numbers: other dtypes, complex and real, conjugated, negated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.agreement import KINDS, assert_agrees, leaf, values

pytestmark = pytest.mark.clause("aliasing")


def numbers(*size: int, kind: str = "plain") -> Tensor:
    return KINDS[kind](*size, dtype=torch.complex64) * torch.tensor(1 - 0.5j)


DTYPES: dict[str, Callable[[], list[Tensor]]] = {
    "the bits of all": lambda: [x := values(6), x.view(torch.int32)],
    "the bits of a part": lambda: [x := values(6), x[2:5].view(torch.int32)],
    "bytes": lambda: [x := values(6), x.view(torch.uint8)],
    "bytes out of order": lambda: [(x := values(6))[4:].view(torch.uint8), x[:3]],
    "wider": lambda: [x := values(6), x[2:6].view(torch.float64)],
    "wider, at an odd place": lambda: [(x := values(8))[1:4], x[2:6].view(torch.float64)],
    "wider first": lambda: [(x := values(6))[2:6].view(torch.int64), x],
    "narrower columns": lambda: [x := values(4, 2), x.view(torch.int16)[:, 1:]],
    "transposed": lambda: [(x := values(4, 2)).t(), x.view(torch.int32)],
    "three dtypes": lambda: [x := values(4, 2), x.view(torch.int16), x.view(torch.int64)],
    "no elements": lambda: [(x := values(4))[:0].view(torch.int32), x],
    "complex and its parts": lambda: [z := numbers(3), torch.view_as_real(z)],
    "complex and its imaginary part": lambda: [z := numbers(3), z.imag],
    "real and as complex": lambda: [x := values(3, 2), torch.view_as_complex(x)],
}


def _bump(x: Tensor) -> Tensor:
    return x.add_(1) if x.dtype.is_floating_point or x.dtype.is_complex else x.bitwise_xor_(5)


@pytest.mark.parametrize("arguments", DTYPES)
@pytest.mark.parametrize("written", [0, -1, None], ids=["first", "last", "all"])
def test_arguments_of_several_dtypes_in_one_storage(arguments: str, written: int | None) -> None:
    def f(*tensors: Tensor) -> Any:
        seen = [t.clone() for t in tensors]
        for tensor in tensors if written is None else (tensors[written],):
            _bump(tensor)
        return seen, [t.clone() for t in tensors], tensors[-1].detach(), tensors[0][:1]

    assert_agrees(f, DTYPES[arguments])


@pytest.mark.parametrize("arguments", DTYPES)
def test_they_are_only_read(arguments: str) -> None:
    assert_agrees(lambda *tensors: [t * 2 for t in tensors] + [tensors[0].detach()], DTYPES[arguments])


def test_a_tensor_is_written_as_wider_numbers_inside() -> None:
    def f(x: Tensor) -> Any:
        made = x * 2
        made[2:6].view(torch.int64).bitwise_xor_(3)
        x[2:4].view(torch.int64).zero_()
        return made, made.view(torch.uint8), made[2:6].view(torch.int64)

    assert_agrees(f, lambda: [values(6)])


LAZY: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": lambda z: z.conj(),
    "conjugated part": lambda z: z[1:].conj(),
    "part of the conjugated": lambda z: z.conj()[1:],
    "negated": lambda z: z.conj().imag,
    "adjoint": lambda z: z.reshape(1, -1).mH,
    "conjugated twice": lambda z: z.conj().conj(),
    "real part of the conjugated": lambda z: z.conj().real,
}


@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
@pytest.mark.parametrize("lazy", LAZY)
class TestLazy:
    def test_returned(self, lazy: str, kind: str) -> None:
        assert_agrees(lambda z: (LAZY[lazy](z), LAZY[lazy](z * 2)), lambda: [numbers(3, kind=kind)])

    def test_computed_with(self, lazy: str, kind: str) -> None:
        def f(z: Tensor) -> Any:
            view = LAZY[lazy](z)
            return view * 2, view.sum(), view.clone(), view.reshape(-1) * z[0], view.resolve_conj()

        assert_agrees(f, lambda: [numbers(3, kind=kind)])

    def test_written(self, lazy: str, kind: str) -> None:
        def f(z: Tensor) -> Any:
            view = LAZY[lazy](z)
            view.mul_(3)
            return z * 1, view, view.detach()

        assert_agrees(f, lambda: [numbers(3, kind=kind)])

    def test_an_argument(self, lazy: str, kind: str) -> None:
        def f(x: Tensor) -> Any:
            return x * 2, x[:1], x.detach(), x.clone()

        assert_agrees(f, lambda: [LAZY[lazy](numbers(3, kind=kind))])

    def test_an_argument_that_is_written(self, lazy: str, kind: str) -> None:
        def f(x: Tensor) -> Any:
            with torch.no_grad():
                x.mul_(2)
            return x * 2, x.detach()

        assert_agrees(f, lambda: [LAZY[lazy](numbers(3, kind=kind)).detach()])

    def test_an_argument_written_in_grad_mode(self, lazy: str, kind: str) -> None:
        assert_agrees(lambda x: x.mul_(2), lambda: [LAZY[lazy](numbers(3, kind=kind))])

    def test_beside_its_base(self, lazy: str, kind: str) -> None:
        def f(x: Tensor, z: Tensor) -> Any:
            x.mul_(2)
            return z * 1, x * 1

        assert_agrees(f, lambda: [LAZY[lazy](z := numbers(3, kind=kind).detach()), z])


@pytest.mark.parametrize("product", [torch.dot, torch.vdot, torch.mul, torch.matmul])
@pytest.mark.parametrize("which", ["both", "first", "second"])
def test_a_product_of_conjugates(product: Callable[..., Tensor], which: str) -> None:
    """That of two is lazily conjugated itself, for some."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return product(x.conj() if which != "second" else x, y.conj() if which != "first" else y)

    dtype = torch.complex64
    assert_agrees(f, lambda: [values(3, dtype=dtype), values(3, dtype=dtype, start=5)])
    assert_agrees(f, lambda: [leaf(3, dtype=dtype), values(3, dtype=dtype, start=5)])


def _with_half_an_element() -> Tensor:
    """Two complex numbers in a storage of five floats."""
    return torch.view_as_complex(values(5)[:4].view(2, 2))


WRITTEN: dict[str, Callable[[Tensor], Any]] = {
    "by strides": lambda z: z.as_strided((1,), (2,), 0)[0:1:2].fill_(2),
    "by strides twice": lambda z: z.as_strided((1,), (2,)).as_strided((1, 1), (1, 1))[0, :1].mul_(2),
    "as wider numbers": lambda z: z.view(torch.float64)[:1].mul_(2),
    "as wider numbers and back": lambda z: z.view(torch.float64)[:1].view(torch.complex64)[:1].mul_(2),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_a_part_is_written_where_the_storage_ends_within_an_element(way: str) -> None:
    assert_agrees(WRITTEN[way], lambda: [_with_half_an_element()])


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "a result": lambda x: x * 2,
    "one of two results": lambda x: x.view(5, 1).max(1)[0],
    "one of three views": lambda x: (torch.stack((x, x, x)) * 2).unbind(0)[0],
}


@pytest.mark.parametrize("way", MADE)
def test_the_same_of_what_is_made_inside(way: str) -> None:
    def f(x: Tensor) -> Any:
        made = MADE[way](x)
        wider = made[:4].view(2, 2).view(torch.int64)
        before = wider[:1] * 2
        wider[:1].bitwise_xor_(3)
        return made, before

    assert_agrees(f, lambda: [values(5)])


@pytest.mark.parametrize(
    "take",
    [lambda z: z.conj().t(), lambda z: z.conj().imag.t(), lambda z: z.conj()[None].transpose(0, 2)],
)
def test_what_is_computed_of_a_lazy_view_of_repeated_elements_lies_as_in_eager(
    take: Callable[[Tensor], Tensor],
) -> None:
    assert_agrees(lambda z: (torch.zeros_like(take(z)), take(z) * 2), lambda: [numbers(2).expand(2, 2)])


RESHAPED: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda y: y.t_(),
    "with an axis more": lambda y: y.unsqueeze_(0),
    "a view": lambda y: y[1].unsqueeze_(0),
}


@pytest.mark.parametrize("written", ["nothing", "the number"])
@pytest.mark.parametrize("how", [torch.view_as_real, torch.conj, torch.imag], ids=lambda f: f.__name__)
@pytest.mark.parametrize("reshaped", RESHAPED)
def test_what_the_function_has_made_and_reshaped_is_shown_otherwise(
    reshaped: str, how: Callable[[Tensor], Tensor], written: str
) -> None:
    """As `stft` does: autograd repeats such a view of what lies by then as it did."""

    def f(x: Tensor) -> Any:
        y = x.sin()
        z = RESHAPED[reshaped](y)
        shown = how(z)
        if written == "the number":
            y.mul_(3)
        return shown, y

    assert_agrees(f, lambda: [numbers(2, 3, kind="non_leaf")])


GROWN: dict[str, Callable[[Tensor], Tensor]] = {
    "by resize_": lambda y: y.resize_(3),
    "by strides": lambda y: y.as_strided((2,), (1,), 1),
}


@pytest.mark.parametrize("shown", [4, 3])
@pytest.mark.parametrize("grown", GROWN)
def test_a_smaller_dtype_reaches_into_the_element_beside_an_argument(grown: str, shown: int) -> None:
    def f(a: Tensor) -> Tensor:
        a.add_(1)
        return GROWN[grown](a.view(torch.int16)) * 1

    assert_agrees(f, lambda: [torch.arange(shown, dtype=torch.int32)[:1]])
    # (The storage does not end with an element of the argument's dtype.)
    assert_agrees(f, lambda: [torch.arange(shown | 1, dtype=torch.int16)[:2].view(torch.int32)])


def _turned(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.transpose_(-1, -2)


TURNED: dict[str, Callable[[Tensor], Any]] = {
    "the parts": lambda z: _turned(torch.view_as_real(z)),
    "of a part": lambda z: _turned(torch.view_as_real(z[:2])),
    "and a part of it": lambda z: _turned(torch.view_as_real(z))[:1],
    "and computed with": lambda z: (v := _turned(torch.view_as_real(z)), v * 2),
    "conjugated": lambda z: _turned(z.conj()),
    "negated": lambda z: _turned(z.conj().imag),
    "twice": lambda z: _turned(torch.view_as_real(_turned(z[...]))),
}


@pytest.mark.parametrize("kind", ["leaf", "non_leaf"])
@pytest.mark.parametrize("turned", TURNED)
def test_what_shows_other_numbers_is_turned_past_autograd(turned: str, kind: str) -> None:
    """Autograd repeats the view, as it was, where the history is asked for, and does not turn that."""
    assert_agrees(TURNED[turned], lambda: [numbers(2, 2, kind=kind)])


def _multiplied(x: Tensor) -> Tensor:
    return x.mul_(2) if x.is_complex() or x.is_floating_point() else x.bitwise_xor_(5)


WIDER: dict[str, Callable[[Tensor], Tensor]] = {
    "complex": lambda x: torch.view_as_complex(x.view(-1, 2)),
    "float64": lambda x: x.view(torch.float64),
    "int64": lambda x: x.view(torch.int64),
    "complex64": lambda x: x.view(torch.complex64),
    "complex128, by way of complex64": lambda x: x.view(torch.complex64)[1:3].view(torch.complex128),
}
# Each begins two elements after the start of the storage, an argument begins one after it.
REACHED: dict[str, Callable[[Tensor], Tensor]] = {
    "a slice": lambda a: a[1:9],
    "a slice of a slice that was written to": lambda a: a[:12].mul_(3)[1:9],
    "one of several slices": lambda a: a[1:13].split([8, 4])[0],
    "a row": lambda a: a[1:13].view(3, 4)[1:].view(8),
    "by strides": lambda a: a[1:].as_strided((8,), (1,)),
}


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize("wider", WIDER)
def test_wider_elements_begin_at_a_multiple_of_their_size_in_the_storage_and_not_in_the_argument(
    wider: str, reached: str
) -> None:
    """What is computed for an argument begins where it does, and there the same view may be impossible."""

    def f(a: Tensor) -> tuple[Tensor, Tensor]:
        a.mul_(2)
        shown = WIDER[wider](REACHED[reached](a))
        computed = shown.clone()
        _multiplied(shown)
        a.add_(1)
        return computed, shown

    assert_agrees(f, lambda: [values(20)[1:]])


@pytest.mark.parametrize("wider", WIDER)
@pytest.mark.parametrize("swapped", [False, True])
def test_arguments_that_begin_between_wider_elements_overlap(swapped: bool, wider: str) -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (b, a) if swapped else (a, b)
        shown = WIDER[wider](a)
        _multiplied(shown)
        return shown.clone(), b * 2

    def arguments() -> list[Tensor]:
        x = values(20)
        two = [x[2:18] if wider.startswith("complex128") else x[2:10], x.as_strided((3, 3), (4, 1), 1)]
        return two[::-1] if swapped else two

    assert_agrees(f, arguments)


def test_wider_elements_of_what_was_computed_have_gradients() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        x = a * b
        y = x[1:].mul_(2)
        shown = torch.view_as_complex(y[1:9].view(-1, 2)) * 1j
        return torch.view_as_real(shown).sum() + (x**2).sum()

    assert_agrees(f, lambda: [leaf(16)[1:], leaf(15, start=3)])
