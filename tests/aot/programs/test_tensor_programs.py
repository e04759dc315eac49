"""The operations of everyday tensor programs, forward and backward, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.agreement import assert_agrees
from tests.support.aot.programs import Programs, d, h, i

pytestmark = pytest.mark.clause("values")

program = Programs()


@program(h(3, 4))
def cumulative_products(x: Tensor) -> tuple[Tensor, ...]:
    return x.cumprod(0), x.prod(), x.prod(1), x.cumsum(1), x.logcumsumexp(0)


@program(h(4))
def a_product_with_a_zero(x: Tensor) -> Tensor:
    return (x * torch.tensor([1.0, 0.0, 2.0, 1.0])).prod()


@program(h(3, 4))
def cumulative_extrema(x: Tensor) -> tuple[Tensor, ...]:
    return *x.cummax(0), *x.cummin(1)


@program(h(5), h(2), i(3, 1))
def index_put(x: Tensor, new: Tensor, where: Tensor) -> Tensor:
    x[where] = new
    return x * 2


@program(h(5), h(4), i(3, 1, 1, 3))
def index_put_accumulating(x: Tensor, new: Tensor, where: Tensor) -> Tensor:
    x.index_put_((where,), new, accumulate=True)
    return x * 2


@program(h(3, 4), h(2, 4), i(2, 0))
def index_operations(x: Tensor, new: Tensor, where: Tensor) -> tuple[Tensor, ...]:
    return (
        x.index_select(0, where),
        x.index_add(0, where, new, alpha=2),
        x.index_copy(0, where, new),
        x.index_fill(0, where, 7.0),
        x.take(where),
    )


@program(h(3, 4), h(2, 4))
def scatter(x: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    where = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 1]])
    y = x.scatter(0, where, new)
    x.scatter_add_(0, where, new)
    return y, x * 2


@program(h(3, 4))
def gather(x: Tensor) -> Tensor:
    return x.gather(1, torch.tensor([[0, 0], [3, 1], [2, 2]]))


@program(h(3, 4), h(3, 4, start=5))
def where_and_masks(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.where(x > y, x, y * 2), x.masked_fill(y < 0, 3.0), torch.where(x > 0, x, 0.0)


@program(h(3, 4))
def sorting(x: Tensor) -> tuple[Tensor, ...]:
    return *x.sort(1, descending=True), *x.topk(2, 0), *x.kthvalue(2, 1), *x.median(0)


@program(h(3, 4))
def reductions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.mean(0),
        x.var(1),
        x.std(),
        x.norm(),
        x.logsumexp(0),
        x.amax(1),
        x.amin(0),
        x.max(),
        x.sum((0, 1)),
    )


@program(h(3, 4))
def soft_functions(x: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(0), x.log_softmax(1), functional.softplus(x), functional.silu(x), functional.elu(x)


@program(h(3, 4))
def hard_functions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        functional.leaky_relu(x, 0.1),
        functional.hardtanh(x),
        x.clamp(-1, 1),
        x.clamp_min(0.5),
        functional.hardswish(x),
        x.abs(),
        x.sign(),
        x.relu(),
    )


@program(h(2, 3), h(3, 4), h(2, 4), h(4))
def products(a: Tensor, b: Tensor, c: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return torch.addmm(c, a, b), a @ b @ v, torch.einsum("ij,jk->ki", a, b), torch.outer(v, v), v.dot(v)


@program(h(2, 2, 3), h(2, 3, 2))
def batched_products(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return a.bmm(b), torch.baddbmm(a[:, :, :2], a, b), torch.tensordot(a, b, dims=([2], [1]))


@program(h(2, 2))
def linear_algebra(x: Tensor) -> tuple[Tensor, ...]:
    a = x @ x.t() + 3 * torch.eye(2, dtype=x.dtype)
    return torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.cholesky(a), torch.linalg.solve(a, x)


@program(h(2, 3), h(2, 3, start=7))
def joining(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.cat([x, y]), torch.stack([x, y], 1), torch.cat([x, y[:, :1]], 1), torch.hstack((x, y))


@program(h(4, 6))
def splitting(x: Tensor) -> tuple[Any, ...]:
    a, b = x.chunk(2)
    c, e, f = x.split([1, 2, 3], 1)
    return a * b, c.sum() * f, x.tensor_split(3), e.unbind(1)


@program(h(2, 3, 4))
def rearranging(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.permute(2, 0, 1).flatten(1),
        x.transpose(0, 2).reshape(4, 6),
        x.flip(0),
        x.roll(1, 2),
        x.repeat(1, 2, 1),
    )


@program(h(3, 3))
def diagonals(x: Tensor) -> tuple[Tensor, ...]:
    y = x.triu() + x.tril(-1)
    y.diagonal().mul_(2)
    return y, torch.diag_embed(x[0]), x.trace(), x.diagonal(1)


@program(h(3), h(3, start=3), h(2, 2))
def foreach(a: Tensor, b: Tensor, c: Tensor) -> tuple[Any, ...]:
    sums = torch._foreach_add([a, b], 1.0)
    products = torch._foreach_mul([a, c], [2.0, 3.0])
    return sums, products, torch._foreach_norm([a, b, c])


@program(d(3), d(3, start=3), d(2, 2), d(2, 2, start=9))
def foreach_in_place(a: Tensor, b: Tensor, c: Tensor, e: Tensor) -> Tensor:
    torch._foreach_mul_([a, c], 0.9)
    torch._foreach_add_([a, c], [b, e], alpha=0.1)
    torch._foreach_sqrt_([b.abs_(), e.abs_()])
    return a + b


@program(d(3), d(3), d(3))
def out_variants(x: Tensor, y: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    torch.add(x, y, out=out)
    other = torch.empty(3, dtype=x.dtype)
    torch.mul(out, 2, out=other)
    return other, torch.cat([x, y], out=torch.empty(6, dtype=x.dtype))


@program(h(3, 2))
def out_with_several_results(x: Tensor) -> tuple[Tensor, Tensor]:
    best, where = torch.empty(2, dtype=x.dtype), torch.empty(2, dtype=torch.int64)
    torch.max(x.detach(), 0, out=(best, where))
    return best * x, where


@program(h(3))
def literals(x: Tensor) -> Tensor:
    weights = torch.tensor([0.5, 1.5, 2.5])
    weights[0] = 3.0
    return x * weights + torch.tensor(2) + torch.as_tensor([1.0, 2.0, 3.0])


@program(h(3))
def literals_that_are_returned(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = torch.tensor([1.0, 2.0])
    return a, a[1:], torch.zeros(2)


@program(h(3))
def creation(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.arange(3) * x,
        torch.ones_like(x) + torch.full((3,), 2.0),
        torch.linspace(0, 1, 3) * x,
        x.new_zeros(2),
        torch.eye(3) @ x.float(),
        torch.zeros_like(x).add_(x),
    )


@program(h(3))
def conversions(x: Tensor) -> tuple[Tensor, ...]:
    return x.double() * 2, x.to(torch.float16), x.to(x.dtype), x.type_as(x), x.int(), x.bool(), x.to("cpu")


@program(h(2, 3))
def copies(x: Tensor) -> tuple[Tensor, ...]:
    return x.clone(), x.contiguous(), x.t().contiguous(), torch.empty_like(x).copy_(x), x + 0


@program(h(2, 3, 2, 2))
def memory_formats(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.contiguous(memory_format=torch.channels_last)
    return y, y * 2


@program(h(4), h(4, start=4))
def arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x / y,
        x.detach() // 2,
        x % 2,
        -x,
        x**2,
        2**x,
        x - y * 2,
        1 / y,
        torch.lerp(x, y, 0.3),
        torch.addcmul(x, x, y),
    )


@program(h(4), h(4, start=4))
def in_place_arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 1
    z += y
    z *= 2
    z /= 3
    z -= 1
    z **= 2
    x.addcmul_(z, y, value=0.5).lerp_(y, 0.25)
    return z, x + 1


@program(h(4), h(4, start=4))
def comparisons(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x > y, x.eq(y), torch.maximum(x, y), torch.isclose(x, y), (x > 0) & ~(y > 0), x.isnan().any()


@program(h(2, 3), h(2, 3, start=7))
def complex_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(x.detach(), y.detach())
    return z.abs(), z + 1


@program(h(8))
def fourier(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.fft.rfft(x.detach()), torch.fft.fftshift(x)


@program(h(2, 4))
def einops_by_views(x: Tensor) -> Tensor:
    y = x.view(2, 2, 2).transpose(1, 2)
    y.add_(1)
    return y.reshape(2, 4)


@program(h(3), lambda dtype: 2.5, lambda dtype: {"scale": 3, "name": "x"})
def constants_in_and_out(x: Tensor, factor: float, options: dict[str, Any]) -> dict[str, Any]:
    return {"y": x * factor * options["scale"], "name": options["name"], "none": None, "list": [1, 2.0, True]}


@pytest.mark.parametrize("name", program)
def test_programs(name: str) -> None:
    function, make = program[name]
    assert_agrees(function, lambda: make(torch.float32), double=lambda: make(torch.float64))
