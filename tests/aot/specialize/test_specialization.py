"""One compiled function, many calls: each answered for what it is, none stale, none compiled twice."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import (
    assert_agrees,
    assert_each_agrees,
    checking_nop,
    compile_counted,
    leaf,
    non_leaf,
    values,
)

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]


def square_and_write(x: Tensor) -> Tensor:
    """Reads, writes and returns its argument."""
    y = x * x
    with torch.no_grad():
        x.add_(1)
    return y.detach() + 1


def test_shapes() -> None:
    sizes: list[tuple[int, ...]] = [(3,), (4,), (), (2, 2), (0,), (1,), (1, 3), (3, 1)]
    makes = [lambda size=size: [values(*size)] for size in sizes]
    assert_each_agrees(square_and_write, makes, specializations=len(sizes))


def test_dtypes() -> None:
    dtypes = [torch.float32, torch.float64, torch.int64, torch.complex64, torch.float16]
    makes = [lambda dtype=dtype: [values(3, dtype=dtype)] for dtype in dtypes]
    assert_each_agrees(square_and_write, makes, specializations=len(dtypes))


def test_strides_and_offsets() -> None:
    makes = [
        lambda: [values(4, 4)],
        lambda: [values(4, 4).t()],
        lambda: [values(8, 4)[:4]],
        lambda: [values(8, 4)[4:]],
        lambda: [values(8, 4)[::2]],
        lambda: [values(4, 8)[:, ::2]],
    ]
    assert_each_agrees(square_and_write, makes, specializations=6)


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Writes one of its arguments, then reads the other."""
    z = x * 2
    y.mul_(3)
    return x + z, y


def test_alias_and_duplicate_patterns() -> None:
    def aliased(first: slice, second: slice) -> Callable[[], list[Tensor]]:
        def make() -> list[Tensor]:
            x = values(8)
            return [x[first], x[second]]

        return make

    def duplicated() -> list[Tensor]:
        x = values(4)
        return [x, x]

    makes = [
        lambda: [values(4), values(4)],
        duplicated,
        aliased(slice(0, 4), slice(0, 4)),
        aliased(slice(0, 4), slice(4, 8)),
        aliased(slice(0, 4), slice(2, 6)),
        aliased(slice(2, 6), slice(0, 4)),
    ]
    assert_each_agrees(two, makes, specializations=6)


def test_duplicate_patterns_of_three() -> None:
    def three(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        y.mul_(2)
        return x + 10 * y + 100 * z

    def pattern(a: int, b: int, c: int) -> Callable[[], list[Tensor]]:
        def make() -> list[Tensor]:
            tensors = [values(3, start=3 * i) for i in range(3)]
            return [tensors[a], tensors[b], tensors[c]]

        return make

    patterns = [(0, 1, 2), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 0, 0)]
    assert_each_agrees(three, [pattern(*p) for p in patterns], specializations=5)
    assert_each_agrees(three, [pattern(0, 1, 0), pattern(2, 1, 2)], specializations=1)


def test_detached_and_data_aliases_count_apart() -> None:
    def detached() -> list[Tensor]:
        x = values(3)
        return [x, x.detach()]

    def data() -> list[Tensor]:
        x = values(3)
        return [x, x.data]

    def view() -> list[Tensor]:
        x = values(3)
        return [x, x.view(3)]

    assert_each_agrees(two, [detached, data, view], specializations=3)


def test_requires_grad_and_leafness() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    makes = [
        lambda: [values(3), values(3)],
        lambda: [leaf(3), values(3)],
        lambda: [values(3), leaf(3)],
        lambda: [leaf(3), leaf(3)],
        lambda: [non_leaf(3), leaf(3)],
    ]
    assert_each_agrees(f, makes, specializations=5)


def test_leafness_decides_whether_a_write_is_allowed() -> None:
    compiled, _ = compile_counted(lambda x: x.mul_(2))
    compiled(non_leaf(3))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        compiled(leaf(3))
    compiled(values(3))


def test_views_of_bases_that_differ() -> None:
    def of(base: Callable[..., Tensor]) -> Callable[[], list[Tensor]]:
        return lambda: [base(6)[:3]]

    def f(x: Tensor) -> Tensor:
        return x * 2

    def whole() -> list[Tensor]:
        return [non_leaf(3)]

    assert_each_agrees(f, [of(non_leaf), of(values), of(leaf), whole], specializations=4)


def test_grad_mode() -> None:
    def f(x: Tensor) -> tuple[Tensor, bool]:
        return x * 2, torch.is_grad_enabled()

    make = lambda: [leaf(3)]  # noqa: E731
    assert_each_agrees(f, [(make, True), (make, False)], specializations=2)


SCALARS = [0.0, -0.0, 1.0, 1, True, False, 0, None, "a", "b", float("inf"), 1j, 2, 2.0]


@pytest.mark.parametrize("first", range(len(SCALARS)))
def test_python_scalars(first: int) -> None:
    def f(x: Tensor, scalar: Any) -> tuple[Any, ...]:
        if scalar is None or isinstance(scalar, str):
            return x * 2, scalar
        return (
            x * scalar,
            torch.full_like(x, 1).copysign(scalar) if isinstance(scalar, float) else None,
            scalar,
        )

    order = SCALARS[first:] + SCALARS[:first]
    compiled, counted = compile_counted(f)
    for scalar in [*order, *order]:
        x = values(2)
        expected, got = f(x, scalar), compiled(x, scalar)
        assert repr(expected) == repr(got), f"for the scalar {scalar!r}"
    assert counted.calls == len(SCALARS)


def test_nan_is_one_specialization() -> None:
    compiled, counted = compile_counted(lambda x, scalar: x * scalar)
    assert compiled(values(2), float("nan")).isnan().all()
    assert compiled(values(2), -float("nan")).isnan().all()
    compiled(values(2), float("nan"))
    assert counted.calls <= 2


def test_trees() -> None:
    def f(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {k: v * 2 for k, v in tree.items()}
        return [t * 3 for t in tree]

    compiled, counted = compile_counted(f)
    x, y = values(2), values(2, start=2)
    for tree in ({"a": x, "b": y}, {"a": x, "c": y}, [x, y], (x, y), [x], {"a": x, "b": y}):
        expected, got = f(tree), compiled(tree)
        assert repr(expected) == repr(got)
    assert counted.calls == 5


def test_keyword_arguments() -> None:
    def f(x: Tensor, *, scale: float = 2.0, other: Tensor | None = None) -> Tensor:
        return x * scale if other is None else x * scale + other

    compiled = aot.aot_function(f, aot.nop)
    x, y = values(2), values(2, start=2)
    for kwargs in ({}, {"scale": 2.0}, {"scale": 3.0}, {"other": y}, {"scale": 3.0, "other": y}):
        assert torch.equal(compiled(x, **kwargs), f(x, **kwargs))
    assert len(compiled.specializations) == 5


def test_default_dtype() -> None:
    compiled, counted = compile_counted(lambda x: x + torch.tensor(0.1) + torch.ones(2))
    dtypes = [compiled(torch.tensor([1, 2])).dtype]
    torch.set_default_dtype(torch.float64)
    dtypes.append(compiled(torch.tensor([1, 2])).dtype)
    torch.set_default_dtype(torch.float32)
    dtypes.append(compiled(torch.tensor([1, 2])).dtype)
    assert dtypes == [torch.float32, torch.float64, torch.float32]
    assert counted.calls == 2


def test_deterministic_mode() -> None:
    compiled, counted = compile_counted(lambda x: torch.empty(2).fill_(1.0) + x)
    compiled(values(2))
    torch.use_deterministic_algorithms(True)
    try:
        compiled(values(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.calls == 2


def test_autocast() -> None:
    compiled, counted = compile_counted(lambda x, y: x @ y)
    x, y = values(2, 2), values(2, 2)
    assert compiled(x, y).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x, y).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        assert compiled(x, y).dtype is torch.float16
    assert compiled(x, y).dtype is torch.float32
    assert counted.calls == 3


def test_a_backward_outside_autocast_of_a_forward_inside() -> None:
    grads = []
    for function in (torch.matmul, aot.aot_function(torch.matmul, aot.nop)):
        x, y = leaf(2, 2), leaf(2, 2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = function(x, y)
        z.sum().backward()
        grads.append([x.grad.tolist(), y.grad.dtype])
    assert grads[0] == grads[1]


def test_a_parameter_is_not_a_plain_tensor() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, torch.nn.Parameter) else x * 3

    compiled, _ = compile_counted(f)
    for x in (torch.nn.Parameter(values(2)), leaf(2), torch.nn.Parameter(values(2))):
        assert torch.equal(compiled(x), f(x))


def test_gradients_that_arguments_hold() -> None:
    def with_gradient() -> list[Tensor]:
        x = leaf(3)
        x.grad = values(3)
        return [x]

    assert_agrees(lambda x: x * 2 if x.grad is None else x * 3, with_gradient, refusable=True)
    assert_agrees(lambda x: x.grad * 3, with_gradient, refusable=True)
    assert_each_agrees(lambda x: x * 2 if x.grad is None else x * 3, [lambda: [leaf(3)]], specializations=1)


def test_a_default_dtype_that_the_function_leaves_behind() -> None:
    def f(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return torch.zeros(2)

    assert_agrees(f, lambda: [values(2)], refusable=True)


def test_numbers_of_the_closure() -> None:
    scale = 2.0

    def f(x: Tensor) -> Tensor:
        return x * scale

    compiled = aot.aot_function(f, aot.nop)
    assert torch.equal(compiled(values(2)), values(2) * 2)
    scale = 3.0
    assert torch.equal(compiled(values(2)), values(2) * 3)


def test_the_python_runs_once_for_each_specialization() -> None:
    printed = io.StringIO()

    def f(x: Tensor) -> Tensor:
        print(tuple(x.shape), file=printed)
        return (x * x).sum()

    compiled = aot.aot_function(f, fw_compiler=checking_nop)
    for size in (2, 3, 2, 3, 2):
        compiled(leaf(size)).backward()
    assert printed.getvalue().split("\n") == ["(2,)", "(3,)", ""]


def test_compilers_run_once_for_each_specialization() -> None:
    compiled_graphs: list[int] = []

    def compiler(module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        compiled_graphs.append(len(example_inputs))
        return module.forward

    compiled = aot.aot_function(lambda x: x.sin(), compiler)
    for _ in range(3):
        compiled(leaf(2)).sum().backward()
    assert len(compiled_graphs) == 2


def test_a_failed_compilation_is_not_remembered() -> None:
    fail = [True]

    def f(x: Tensor) -> Tensor:
        if fail[0]:
            raise ValueError("not yet")
        return x * 2

    compiled = aot.aot_function(f, aot.nop)
    with pytest.raises(ValueError, match="not yet"):
        compiled(values(2))
    fail[0] = False
    assert torch.equal(compiled(values(2)), values(2) * 2)
    assert len(compiled.specializations) == 1


def test_threads_that_call_it_first_at_the_same_time() -> None:
    count, workers = 4, 4
    barrier = threading.Barrier(workers)
    compiled, counted = compile_counted(lambda x: (x.mul_(2) * x).sum())
    results: list[tuple[int, float, list[float]]] = []
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            barrier.wait()
            for size in range(1, count + 1):
                root = leaf(size, start=worker)
                y = compiled(root * 1)
                y.backward()
                expected = ((root.detach() * 2) ** 2).sum()
                torch.testing.assert_close(y.detach(), expected)
                torch.testing.assert_close(root.grad, root.detach() * 8)
                results.append((worker, y.item(), root.grad.tolist()))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(results) == count * workers
    assert counted.calls == count


def test_threads_under_different_grad_modes() -> None:
    compiled, counted = compile_counted(lambda x: x * 2)
    barrier = threading.Barrier(2)
    seen: dict[bool, bool] = {}

    def work(grad: bool) -> None:
        barrier.wait()
        with torch.set_grad_enabled(grad):
            seen[grad] = all(compiled(leaf(3)).requires_grad is grad for _ in range(20))

    threads = [threading.Thread(target=work, args=(grad,)) for grad in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {False: True, True: True}
    assert counted.calls == 2
