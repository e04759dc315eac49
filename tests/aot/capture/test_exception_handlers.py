"""Functions that catch what an operation raises for some values."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.errors import DataDependentValue

pytestmark = pytest.mark.clause("errors")

Function = Callable[..., Any]
GOOD, BAD = torch.eye(2), -torch.eye(2)
CAUGHT = (KeyError, RuntimeError)


def cholesky(a: Tensor) -> Tensor:
    result: Tensor = torch.linalg.cholesky(a)
    return result


def tries(a: Tensor) -> Tensor:
    try:
        return cholesky(a)
    except RuntimeError:
        return a * 5


def tries_on_one_line(a: Tensor) -> Tensor:
    # fmt: off
    try: return cholesky(a)  # noqa: E701
    except: return a * 5  # noqa: E701, E722
    # fmt: on


def tries_a_tuple(a: Tensor) -> Tensor:
    try:
        return cholesky(a)
    except CAUGHT as error:
        return a * len(str(error))


def translates(a: Tensor) -> Tensor:
    try:
        return cholesky(a)
    except Exception as error:
        raise ValueError("no factor") from error


def suppresses(a: Tensor) -> Tensor:
    with contextlib.suppress(RuntimeError):
        return cholesky(a)
    return a * 5


@contextlib.contextmanager
def forgiving() -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        len("forgiven")


def enters_a_generator(a: Tensor) -> Tensor:
    with forgiving():
        return cholesky(a)
    return a * 5


@forgiving()
def is_decorated(a: Tensor) -> Tensor:
    return cholesky(a)


class Swallowing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> bool:
        return True


def enters_an_object(a: Tensor) -> Tensor:
    manager = Swallowing()
    with torch.no_grad(), manager:
        return cholesky(a)
    return a * 5


def returns_at_last(a: Tensor) -> Tensor:
    result = a
    try:
        result = cholesky(a)
    finally:
        return result * 2  # noqa: B012


def catches_an_index(a: Tensor) -> Tensor:
    try:
        return torch.eye(2)[a.long().sum(0)]
    except IndexError:
        return a * 5


CATCHING: list[Function] = [
    tries,
    tries_on_one_line,
    tries_a_tuple,
    translates,
    suppresses,
    enters_a_generator,
    enters_an_object,
    returns_at_last,
]


@pytest.mark.parametrize("function", CATCHING)
def test_what_is_caught_is_refused(function: Function) -> None:
    compiled = aot.aot_function(function, aot.nop)
    for _ in range(2):
        torch.testing.assert_close(compiled(GOOD), function(GOOD))
        here = r"_LinAlgError .* catches at .*test_exception_handlers.py:\d+"
        with pytest.raises(DataDependentValue, match=here):
            compiled(BAD)
    assert len(compiled.specializations) == 1


def test_a_decorator_that_catches_is_refused() -> None:
    compiled = aot.aot_function(is_decorated, aot.nop)
    torch.testing.assert_close(compiled(GOOD), GOOD)
    with pytest.raises(DataDependentValue, match="catches at"):
        compiled(BAD)


def test_an_index_out_of_range_is_refused() -> None:
    compiled = aot.aot_function(catches_an_index, aot.nop)
    torch.testing.assert_close(compiled(GOOD), catches_an_index(GOOD))
    with pytest.raises(DataDependentValue, match="IndexError"):
        compiled(GOOD * 9)


def test_code_without_source_is_refused_as_well() -> None:
    space: dict[str, Any] = {"torch": torch}
    text = "def f(a):\n  try:\n    return torch.linalg.cholesky(a)\n  except RuntimeError:\n    return a * 5"
    exec(text, space)
    with pytest.raises(DataDependentValue, match="<string>"):
        aot.aot_function(space["f"], aot.nop)(BAD)


@pytest.mark.parametrize("manager", ["torch.no_grad()", "contextlib.nullcontext()", "open('/dev/null')"])
def test_a_with_statement_without_source_is_no_handler(manager: str) -> None:
    space: dict[str, Any] = {"torch": torch, "contextlib": contextlib}
    exec(f"def f(a):\n  with {manager}:\n    return torch.linalg.cholesky(a)", space)
    with pytest.raises(torch.linalg.LinAlgError):
        aot.aot_function(space["f"], aot.nop)(BAD)


def test_a_finally_without_source_is_no_handler() -> None:
    space: dict[str, Any] = {"torch": torch}
    exec("def f(a):\n  try:\n    return torch.linalg.cholesky(a)\n  finally:\n    len('')", space)
    with pytest.raises(torch.linalg.LinAlgError):
        aot.aot_function(space["f"], aot.nop)(BAD)


def closes(a: Tensor) -> Tensor:
    try:
        return cholesky(a)
    finally:
        len("closed")


def catches_something_else(a: Tensor) -> Tensor:
    try:
        return cholesky(a)
    except (ValueError, KeyError):
        return a * 5


def raises_on(a: Tensor) -> Tensor:
    try:
        return cholesky(a)
    except RuntimeError:
        len("seen")
        raise


def raises_it(a: Tensor) -> Tensor:
    try:
        return cholesky(a)
    except RuntimeError as error:
        len(str(error))
        raise error


def enters_torchs(a: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return cholesky(a)


def enters_others(a: Tensor) -> Tensor:
    with contextlib.nullcontext(), threading.Lock():
        return cholesky(a)


@contextlib.contextmanager
def closing() -> Iterator[None]:
    try:
        yield
    finally:
        len("closed")


def enters_a_closing_generator(a: Tensor) -> Tensor:
    with closing():
        return cholesky(a)


def catches_elsewhere(a: Tensor) -> Tensor:
    try:
        b = a * 1
    except RuntimeError:
        b = a * 5
    return cholesky(b)


@torch.no_grad()
def decorated(a: Tensor) -> Tensor:
    return cholesky(a)


@pytest.mark.parametrize(
    "function",
    [
        cholesky,
        closes,
        catches_something_else,
        raises_on,
        raises_it,
        enters_torchs,
        enters_others,
        enters_a_closing_generator,
        decorated,
    ],
)
def test_what_is_not_caught_is_raised(function: Function) -> None:
    with pytest.raises(torch.linalg.LinAlgError):
        function(BAD)
    with pytest.raises(torch.linalg.LinAlgError):
        aot.aot_function(function, aot.nop)(BAD)


class Module(torch.nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return tries(a)


FRONT_ENDS: dict[str, Callable[[], Function]] = {
    "aot_module": lambda: aot.aot_module(Module(), aot.nop),
    "dynamic": lambda: aot.aot_function(tries, aot.nop, dynamic=True),
    "torch_compile": lambda: torch.compile(tries, backend="aotfuzz"),
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_front_ends_refuse_it_too(front_end: str) -> None:
    torch._dynamo.reset()
    compiled = FRONT_ENDS[front_end]()
    torch.testing.assert_close(compiled(GOOD), tries(GOOD))
    with pytest.raises(DataDependentValue, match="catches at"):
        compiled(BAD)


def test_a_refused_call_has_drawn_nothing() -> None:
    def f(a: Tensor) -> Tensor:
        noise = torch.rand(2, 2)
        try:
            return cholesky(a) + noise
        except RuntimeError:
            return noise

    compiled = aot.aot_function(f, aot.nop)
    compiled(GOOD)
    before = torch.get_rng_state()
    with pytest.raises(DataDependentValue):
        compiled(BAD)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("function", [tries, suppresses])
def test_lines_of_dynamos_graphs_tell_what_is_caught(function: Function) -> None:
    torch._dynamo.reset()
    with pytest.raises(DataDependentValue, match="catches at"):
        torch.compile(function, backend="aotfuzz")(BAD)


@pytest.mark.parametrize("function", [cholesky, closes, catches_something_else, enters_torchs])
def test_lines_of_dynamos_graphs_tell_what_is_not_caught(function: Function) -> None:
    torch._dynamo.reset()
    with pytest.raises(torch.linalg.LinAlgError):
        torch.compile(function, backend="aotfuzz")(BAD)


def test_beside_sizes_that_depend_on_values() -> None:
    """What is caught is refused there as well; other sizes are compiled for themselves."""

    def f(a: Tensor, x: Tensor) -> Tensor:
        return tries(a) * x[x > 0].sum()

    compiled = aot.aot_function(f, aot.nop)
    for x in (torch.tensor([1.0, -1, 2]), torch.tensor([1.0, -1, -2]), torch.tensor([-1.0, -1, -2])):
        assert torch.equal(compiled(GOOD, x), f(GOOD, x))
        with pytest.raises(DataDependentValue, match="which the function catches at"):
            compiled(BAD, x)
