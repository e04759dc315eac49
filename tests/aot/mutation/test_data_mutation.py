"""Mutations of the data of arguments, for every kind of argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import KINDS, assert_agrees, checking_nop, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("input-data")]


def test_a_leaf_is_written_under_no_grad() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
        return x.sin()

    assert_agrees(f, lambda: [leaf(2, 3)])


@pytest.mark.parametrize("kind", KINDS)
def test_written_through_detach(kind: str) -> None:
    def f(x: Tensor) -> Tensor:
        x.detach().mul_(2)
        return x * 3

    assert_agrees(f, lambda: [KINDS[kind](2, 3)])


@pytest.mark.parametrize("kind", KINDS)
def test_written_through_data(kind: str) -> None:
    def f(x: Tensor) -> Tensor:
        x.data.mul_(2)
        return x * 3

    assert_agrees(f, lambda: [KINDS[kind](2, 3)])


@pytest.mark.parametrize("shape", [(2, 1), (2, 1, 1), (1, 2)])
def test_the_bits_of_nothing_that_was_written(shape: tuple[int, ...]) -> None:
    """What is computed of nothing may have strides of 0, and a view of another dtype looks at them."""

    def f(x: Tensor) -> Tensor:
        nothing = x[0:0]
        nothing.mul_(2.0)
        bits = nothing.view(torch.int16)
        bits.add_(1)
        return bits

    assert_agrees(f, lambda: [values(*shape)])


def test_written_through_detach_after_backward_has_kept_it() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        x.detach().mul_(2)
        return y

    assert_agrees(f, lambda: [leaf(2, 3)], backward_raises=True)


def test_written_through_data_after_backward_has_kept_something_else() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.exp()
        x.data.mul_(2)
        return y

    assert_agrees(f, lambda: [leaf(2, 3)])


def test_a_leaf_that_requires_grad_cannot_be_written() -> None:
    assert_agrees(lambda x: x.mul_(2), lambda: [leaf(2, 3)], raises=RuntimeError)


@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
class TestOneArgument:
    """One tensor, written in grad mode."""

    def check(self, kind: str, f: Callable[[Tensor], Any], *size: int, **expected: Any) -> None:
        assert_agrees(f, lambda: [KINDS[kind](*(size or (2, 3)))], **expected)

    def test_and_something_else_returned(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2)
            return x + 1

        self.check(kind, f)

    def test_and_returned(self, kind: str) -> None:
        self.check(kind, lambda x: x.mul_(2))

    def test_and_nothing_returned(self, kind: str) -> None:
        def f(x: Tensor) -> None:
            x.mul_(2)

        self.check(kind, f)

    def test_after_it_was_read(self, kind: str) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 3
            x.add_(y)
            return y, x * x

        self.check(kind, f)

    def test_several_times(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2)
            y = x.cos()
            x.add_(1)
            x.tanh_()
            return y

        self.check(kind, f, backward_raises=kind == "non_leaf")

    def test_through_a_view(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[0].mul_(2)
            return x.sum(0)

        self.check(kind, f)

    def test_through_a_chain_of_views(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.t()[1:].unsqueeze(0)[0, 1].add_(x[0, 0])
            return x * 2

        self.check(kind, f)

    def test_through_two_views_that_overlap(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[:, :2].mul_(2)
            x[:, 1:].mul_(3)
            return x[0] + x[1]

        self.check(kind, f)

    def test_a_view_taken_before_the_write_sees_it(self, kind: str) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            view = x.view(-1)
            x.mul_(2)
            return view, view * 2

        self.check(kind, f)

    def test_and_a_view_of_it_is_written(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2)
            view = x.t()
            view[0].mul_(3)
            return view

        self.check(kind, f)

    def test_by_copy(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.copy_(torch.arange(3))
            return x + 1

        self.check(kind, f)

    def test_by_a_copy_of_itself(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.copy_(x.clone() * 2)
            return x + 1

        self.check(kind, f)

    def test_by_slice_assignment(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[0] = 1
            x[1, 1:] = x[0, :2] * 3
            x[..., 0] += 2
            return x * x

        self.check(kind, f)

    def test_by_index_assignment(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[torch.tensor([1, 0]), torch.tensor([2, 1])] = x[0, :2] * 2
            return x * x

        self.check(kind, f)

    def test_by_mask(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[x > 0] = 0.5
            return x * 2

        self.check(kind, f)

    def test_by_zero_through_expand(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[0].expand(4, 3).zero_()
            return x * 2

        self.check(kind, f, backward_raises=kind == "non_leaf", refusable=kind == "non_leaf")

    def test_by_fill_through_expand(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[:, :1].expand(2, 5).fill_(7.0)
            return x * 2

        self.check(kind, f, backward_raises=kind == "non_leaf", refusable=kind == "non_leaf")

    def test_through_an_expanded_view_raises(self, kind: str) -> None:
        self.check(kind, lambda x: x[0].expand(4, 3).mul_(2), raises=RuntimeError)

    def test_by_a_write_of_another_dtype(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.add_(torch.ones(3, dtype=torch.float64))
            x.copy_(torch.arange(6, dtype=torch.int64).view(2, 3))
            return x

        self.check(kind, f)

    def test_by_broadcasting(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(torch.arange(1.0, 4.0)).sub_(x[:, :1].clone())
            return x

        self.check(kind, f)

    def test_without_a_dimension(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.select(0, 1).mul_(2)
            s = x[0]
            s.add_(1)
            return s * x.sum()

        self.check(kind, f, 4)

    def test_without_elements(self, kind: str) -> None:
        self.check(kind, lambda x: x.mul_(2), 0, 3)

    def test_cancelling_mutations(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2).mul_(0.5)
            return x + 1

        self.check(kind, f)

    def test_a_mutation_that_is_undone_by_a_copy(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            old = x.clone()
            x.zero_()
            y = x + 1
            x.copy_(old)
            return y

        self.check(kind, f)

    def test_a_write_of_what_is_there_already(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.copy_(x)
            return x * 2

        self.check(kind, f)

    def test_an_empty_slice(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x[2:].mul_(5)
            return x * 2

        self.check(kind, f)

    def test_swapping_halves(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            first = x[0].clone()
            x[0] = x[1]
            x[1] = first
            return x * 2

        self.check(kind, f)

    def test_a_write_partly_under_no_grad(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2)
            with torch.no_grad():
                x.add_(1)
            return x * 2

        self.check(kind, f)

    def test_the_detached_value_is_written_back(self, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.copy_(x.detach() * 2)
            return x * x

        self.check(kind, f)

    @pytest.mark.parametrize(
        "draw",
        [
            lambda x: x.bernoulli_(0.5),
            lambda x: x.uniform_(),
            lambda x: x.normal_(1, 2),
            lambda x: x[:, 1].uniform_(2, 3),
            lambda x: x.t().normal_(),
            lambda x: x.exponential_(),
            lambda x: x.random_(0, 10),
        ],
        ids=["bernoulli_", "uniform_", "normal_", "a column", "transposed", "exponential_", "random_"],
    )
    def test_in_place_draws(self, kind: str, draw: Callable[[Tensor], Tensor]) -> None:
        def f(x: Tensor) -> Tensor:
            draw(x)
            return x * 2

        self.check(kind, f)


LAYOUTS: dict[str, Callable[..., Tensor]] = {
    "transposed": lambda make: make(3, 2).t(),
    "strided": lambda make: make(4, 6)[::2, ::3],
    "with a gap": lambda make: make(4, 6)[1:3, 2:5],
    "channels_last": lambda make: make(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "permuted": lambda make: make(2, 3, 4).permute(2, 0, 1),
    "offset": lambda make: make(8)[3:],
    "scalar": lambda make: make(1).squeeze(0),
    "scalar of its own": lambda make: make(),
    "one element": lambda make: make(4)[2:3],
    "double": lambda make: make(4, dtype=torch.float64),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_layouts(layout: str, kind: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        x.mul_(3)
        return y, x.cos()

    assert_agrees(f, lambda: [LAYOUTS[layout](KINDS[kind])])


@pytest.mark.parametrize("requires_grad", [False, True])
def test_channels_last_is_written_through_a_view(requires_grad: bool) -> None:
    def make() -> list[Tensor]:
        x = values(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        return [x.requires_grad_(requires_grad) * 1]

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x[:, 1].mul_(2)
        return x, x.permute(0, 2, 3, 1).view(2, -1)

    assert_agrees(f, make)


def test_an_expanded_argument_can_be_filled() -> None:
    def f(x: Tensor) -> Tensor:
        x.fill_(4)
        return x + 1

    assert_agrees(f, lambda: [values(3, 1).expand(3, 4)])
    assert_agrees(f, lambda: [non_leaf(3, 1).expand(3, 4)], refusable=True)


def test_an_expanded_argument_cannot_be_multiplied() -> None:
    assert_agrees(lambda x: x.mul_(2), lambda: [values(3, 1).expand(3, 4)], raises=RuntimeError)


def test_only_some_arguments_are_written() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.add_(y)
        z.mul_(x)
        return y * z

    assert_agrees(f, lambda: [values(3), leaf(3, start=3), non_leaf(3, start=6)])


def test_a_buffer_starts_to_require_grad() -> None:
    def f(buffer: Tensor, x: Tensor) -> Tensor:
        buffer.mul_(0.5).add_(x)
        return buffer.sin()

    assert_agrees(f, lambda: [values(3), leaf(3, start=3)])


def test_a_buffer_is_updated_by_detached_values() -> None:
    def f(buffer: Tensor, x: Tensor) -> Tensor:
        buffer.mul_(0.5).add_(x.detach())
        return x * 2

    assert_agrees(f, lambda: [values(3), leaf(3, start=3)])


def test_a_counter_without_gradients() -> None:
    def f(count: Tensor, mask: Tensor, x: Tensor) -> Tensor:
        count += 1
        mask[0] = True
        return x * count * mask

    assert_agrees(f, lambda: [torch.tensor(3), torch.tensor([False, True]), leaf(2)])


def test_two_arguments_swap_their_values() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    assert_agrees(f, lambda: [non_leaf(3), non_leaf(3, start=3)])


def test_a_view_argument_of_a_base_that_is_no_argument() -> None:
    def f(view: Tensor) -> Tensor:
        view.mul_(2)
        return view + 1

    assert_agrees(f, lambda: [values(4, 4)[1:3, ::2]])
    assert_agrees(f, lambda: [non_leaf(4, 4)[1:3, ::2]])


def test_a_view_of_a_leaf_cannot_be_written() -> None:
    assert_agrees(lambda view: view.mul_(2), lambda: [leaf(4)[1:3]], raises=RuntimeError)


def test_a_write_to_one_of_several_views_made_at_once_raises() -> None:
    assert_agrees(lambda view: view.mul_(2), lambda: [non_leaf(4).unbind()[1]], raises=RuntimeError)


def test_out_arguments() -> None:
    def f(x: Tensor, out: Tensor) -> Tensor:
        torch.mul(x, 2, out=out)
        return out + x

    assert_agrees(f, lambda: [values(3), values(3, start=9)])


FOREACH: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "two": lambda x, y: torch._foreach_add_([x, y], 1.0),
    "one twice": lambda x, y: torch._foreach_add_([x, x], 1.0),
    "overlapping": lambda x, y: torch._foreach_add_([x[:2], x[1:]], 1.0),
    "rows": lambda x, y: torch._foreach_mul_(list(x.unbind()), 2.0),
    "each other": lambda x, y: torch._foreach_copy_([x, y], [y, x]),
    "one into the other": lambda x, y: torch._foreach_add_([x, y], [y, x]),
}


@pytest.mark.parametrize("operation", FOREACH)
def test_lists_of_tensors(operation: str) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        FOREACH[operation](x, y)
        return x + y

    refusable = operation not in ("two", "rows")  # the others write what they read, or write it twice
    assert_agrees(f, lambda: [values(3), values(3, start=7)], refusable=refusable)


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "view_as_real": torch.view_as_real,
    "of a slice": lambda z: z[1:].real,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_parts_of_complex_numbers(part: str, kind: str) -> None:
    def f(z: Tensor) -> Tensor:
        PARTS[part](z).mul_(2)
        return z + 1

    assert_agrees(f, lambda: [KINDS[kind](3, dtype=torch.complex64)])


def test_a_real_tensor_is_written_as_complex_numbers() -> None:
    assert_agrees(lambda x: torch.view_as_complex(x).mul_(2), lambda: [values(3, 2)])


def test_the_bits_of_a_tensor_are_written() -> None:
    def f(x: Tensor) -> Tensor:
        x.view(torch.int32).bitwise_xor_(1)
        return x * 2

    assert_agrees(f, lambda: [values(4)])


def test_an_argument_that_is_the_bits_of_another_is_written() -> None:
    assert_agrees(lambda bits: bits.add_(1), lambda: [values(4).view(torch.int32)])


def test_strides_of_single_elements_are_kept() -> None:
    """A convolution tells from them whether channels come last."""

    def f(x: Tensor) -> Tensor:
        x.transpose(-2, -1).exp_()
        return torch.nn.functional.conv1d(x, x, padding=1)

    assert_agrees(f, lambda: [values(2, 1, 2)])


def _three_times(x: Tensor) -> None:
    x.unsqueeze(0).select(1, 0).mul_(2)
    x.as_strided((2,), (2,), 2).mul_(3)
    x.view(-1)[2:].add_(1)


@pytest.mark.parametrize(
    "make, write",
    [
        (lambda: values(12).as_strided((1, 3), (4, 1), 1), lambda x: x.unsqueeze(0).select(2, 0).mul_(2)),
        (lambda: values(2, 3), lambda x: x[1:, 1:].unsqueeze(0).select(2, 0).mul_(2)),
        (lambda: values(12).as_strided((2, 3), (3, 1), 1), _three_times),
        (
            lambda: values(24).as_strided((1, 2, 1, 3), (9, 3, 1, 1), 2),
            lambda x: (x.squeeze(0).transpose(0, 1).select(2, 1).mul_(2), x[:, 1:].unsqueeze(0).neg_()),
        ),
    ],
    ids=["argument that begins later", "view that begins later", "several writes", "rows of single elements"],
)
def test_writes_to_views_of_what_begins_later(
    make: Callable[[], Tensor], write: Callable[[Tensor], Any]
) -> None:
    """torch's scatters keep the storage offset of their argument."""

    def f(x: Tensor) -> Tensor:
        write(x)
        return x + 1

    assert_agrees(f, lambda: [make()])


OVERLAPPING: dict[str, Callable[[Tensor], Any]] = {
    "a tensor and its transpose": lambda x: x.view(4, 4).add_(x.view(4, 4).t()),
    "two stretches": lambda x: x[:8].mul_(x[4:12]),
    "a list of one": lambda x: torch._foreach_add_([x[:8]], [x[4:12]]),
    "a list of one and its transpose": lambda x: torch._foreach_mul_([x.view(4, 4)], [x.view(4, 4).t()]),
    "a list of one and two others": lambda x: torch._foreach_addcmul_([x[:8]], [x[8:].clone()], [x[4:12]]),
}


@pytest.mark.parametrize("case", OVERLAPPING)
def test_writes_to_what_is_read_in_part_raise_as_in_eager(case: str) -> None:
    def told(function: Callable[..., Any]) -> str:
        with pytest.raises(RuntimeError) as caught:
            function(values(16))
        return str(caught.value)

    assert told(aot.aot_function(OVERLAPPING[case], aot.nop)) == told(OVERLAPPING[case])


def test_a_write_by_strides_of_another_size() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, torch.ones(1), (2,), (2,))

    for function in (f, aot.aot_function(f, checking_nop)):
        with pytest.raises(RuntimeError, match="size"):
            function(values(6))


def copies_its_whole_part(a: Tensor) -> None:
    [part] = a.split(2, 2)
    a.copy_(part)


def copies_its_view(a: Tensor) -> Tensor:
    a.copy_(a[:])
    return a.sum()


@pytest.mark.parametrize("function", [copies_its_whole_part, copies_its_view], ids=lambda one: one.__name__)
def test_a_copy_of_elements_that_share_places_into_themselves_does_nothing(function: Any) -> None:
    """Of any other write to a tensor that shows elements several times eager makes an error."""

    def arguments() -> tuple[Tensor]:
        return (torch.arange(4.0).reshape(2, 2).as_strided((2, 2, 2), (0, 2, 1), 0),)

    assert_agrees(function, arguments)


def test_its_backward_raises_as_eagers_does() -> None:
    def expanded(x: Tensor) -> Tensor:
        y = (x * 2).expand(3, 3)
        y.copy_(y[:])
        return y * x

    assert_agrees(expanded, lambda: (leaf(3),), backward_raises=True)
