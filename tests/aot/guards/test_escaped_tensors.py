"""Tensors that a function stores somewhere else than in its result: refused, and never read."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import io
import pickle
import queue
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import aot
from aot import errors
from aot.guards.reachable import ReachableObjects
from aot.torch_internals import autograd_state, plain_fakes, tensor_impl
from tests.support.agreement import checking_nop, leaf, values
from tests.support.aot.programs import KeepsByAttribute

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("refusals")]

LOG: list[Any] = []
last: Any = None
HERE = sys.modules[__name__]
Case = tuple[Callable[[Tensor], None], Callable[[], Any]]


class Holder:
    def __init__(self) -> None:
        self.seen: list[Tensor] = []


class Slotted:
    __slots__ = ("last",)


def global_list() -> Case:
    LOG.clear()
    return LOG.append, lambda: LOG[0]


def global_variable() -> Case:
    def store(x: Tensor) -> None:
        global last
        last = x

    return store, lambda: last


def variable_of_the_closure() -> Case:
    kept = None

    def store(x: Tensor) -> None:
        nonlocal kept
        kept = x

    return store, lambda: kept


def attribute() -> Case:
    holder = Holder()

    def store(x: Tensor) -> None:
        holder.last = x  # type: ignore[attr-defined]

    return store, lambda: holder.last  # type: ignore[attr-defined]


def attribute_of_a_class() -> Case:
    class Local(Holder):
        pass

    def store(x: Tensor) -> None:
        Local.last = x  # type: ignore[attr-defined]

    return store, lambda: Local.last  # type: ignore[attr-defined]


def attribute_of_a_module() -> Case:
    layer = nn.ReLU()

    def store(x: Tensor) -> None:
        layer.last = layer(x)

    return store, lambda: layer.last


def attribute_of_a_function() -> Case:
    def store(x: Tensor) -> None:
        store.last = x  # type: ignore[attr-defined]

    return store, lambda: store.last  # type: ignore[attr-defined]


def slot() -> Case:
    holder = Slotted()

    def store(x: Tensor) -> None:
        holder.last = x

    return store, lambda: holder.last


def list_of_an_object() -> Case:
    holder = Holder()
    return holder.seen.append, lambda: holder.seen[0]


def list_that_a_helper_gets() -> Case:
    seen: list[Tensor] = []

    def helper(where: list[Tensor], x: Tensor) -> None:
        where.append(x)

    return lambda x: helper(seen, x), lambda: seen[0]


def within_something_new() -> Case:
    holder = Holder()

    def store(x: Tensor) -> None:
        holder.seen = [{"x": (x,)}]  # type: ignore[list-item]

    return store, lambda: holder.seen[0]["x"][0]  # type: ignore[call-overload]


def entry_of_a_dict() -> Case:
    seen: dict[Any, Tensor] = {}

    def store(x: Tensor) -> None:
        seen[len(x)] = x

    return store, lambda: seen[3]


def queue_of_two_ends() -> Case:
    seen: deque[Tensor] = deque()
    return seen.appendleft, lambda: seen[0]


def queue_of_a_library() -> Case:
    seen: queue.Queue[Tensor] = queue.Queue()
    return seen.put, lambda: seen.queue[0]


def namespace() -> Case:
    space = types.SimpleNamespace()

    def store(x: Tensor) -> None:
        space.last = x

    return store, lambda: space.last


def variable_of_a_context() -> Case:
    seen: contextvars.ContextVar[Tensor] = contextvars.ContextVar("seen")
    return lambda x: seen.set(x) and None, seen.get


def attribute_of_a_thread() -> Case:
    local = threading.local()

    def store(x: Tensor) -> None:
        local.last = x

    return store, lambda: local.last


def global_that_no_code_names() -> Case:
    LOG.clear()

    def store(x: Tensor) -> None:
        sys._getframe().f_globals["L" + "OG"].append(x)

    return store, lambda: LOG[0]


def deep_inside_of_one() -> Case:
    nested: list[Any] = [("x", {"deep": deque([[]])})]

    def store(x: Tensor) -> None:
        nested[0][1]["deep"][0].append(x)

    return store, lambda: nested[0][1]["deep"][0][0]


CASES = [
    *(global_list, global_variable, variable_of_the_closure, attribute, attribute_of_a_class),
    *(attribute_of_a_module, attribute_of_a_function, slot, list_of_an_object, list_that_a_helper_gets),
    *(within_something_new, entry_of_a_dict, queue_of_two_ends, queue_of_a_library, namespace),
    *(variable_of_a_context, attribute_of_a_thread, global_that_no_code_names, deep_inside_of_one),
]
STORED: dict[str, Callable[[Tensor], Tensor]] = {
    "argument": lambda x: x,
    "view": lambda x: x[1:],
    "saved": lambda x: x.exp(),
    "not saved": lambda x: x + 1,
    "detached": lambda x: x.exp().detach(),
    "data": lambda x: x.exp().data,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_is_stored_is_refused(case: Callable[[], Case], grad: bool) -> None:
    store, stored = case()

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
        y = x.exp()
        store(y)
        return y.sin()

    def found() -> Any:
        try:
            return stored()
        except (IndexError, KeyError, AttributeError, LookupError, queue.Empty) as error:
            return type(error)

    compiled = aot.aot_function(f, checking_nop)
    x = values(3).requires_grad_(grad)
    before = found()
    with pytest.raises(errors.EscapedTensor):
        compiled(x)
    assert torch.equal(x, values(3))
    assert x._version == 0
    assert compiled.specializations == ()
    if case is global_that_no_code_names:  # so that nobody can tell what was there
        with pytest.raises(errors.EscapedTensor, match="has no values"):
            stored().sum()
    else:
        assert found() is before  # nothing of the trace is anywhere
        store(x)
        assert isinstance(found(), Tensor)
    HERE.last = None


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", STORED)
def test_whatever_tensor_it_is(kind: str, grad: bool) -> None:
    seen: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        y = x.exp() if kind == "argument" else STORED[kind](x)
        seen.append(x if kind == "argument" else y)
        return y * x[1:].sum()

    with pytest.raises(errors.EscapedTensor, match="return it"):
        aot.aot_function(f, checking_nop)(values(3).requires_grad_(grad))
    assert seen == []


@pytest.mark.parametrize("make", [values, leaf])
def test_the_refusal_names_the_place(make: Callable[[int], Tensor]) -> None:
    holder = Holder()

    def f(x: Tensor) -> Tensor:
        holder.seen.append(x)
        holder.seen.append(x * 2)
        return x.exp()

    with pytest.raises(errors.EscapedTensor, match=r"at holder\.seen\[\d\]; return it"):
        aot.aot_function(f, checking_nop)(make(3))


@pytest.mark.parametrize("make", [values, leaf])
def test_a_place_that_was_frozen_is_found(make: Callable[[int], Tensor]) -> None:
    """The collector tells of no referrer that was there before a `gc.freeze`."""
    seen: list[Tensor] = []
    gc.freeze()

    def f(x: Tensor) -> Tensor:
        seen.append(x * 2)
        return x.exp()

    with pytest.raises(errors.EscapedTensor, match=r"at seen\[0\]; return it"):
        aot.aot_function(f, checking_nop)(make(3))


READS: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + 1,
    "sum": torch.sum,
    "write": lambda x: x.mul_(2),
    "stack": lambda x: torch.stack([torch.ones(3), x]),
    "copy": lambda x: torch.ones(3).copy_(x),
    "matmul": lambda x: torch.ones(3) @ x,
    "index": lambda x: x[0],
    "item": lambda x: x[0].item(),
    "list": Tensor.tolist,
    "numpy": lambda x: x.detach().numpy(),
    "print": repr,
    "format": lambda x: f"{x}",
    "shape": lambda x: x.shape,
    "length": len,
    "dtype": lambda x: x.dtype,
    "history": lambda x: x.grad_fn,
    "truth": bool,
    "equal": lambda x: x == x,
    "pickle": pickle.dumps,
    "save": lambda x: torch.save(x, io.BytesIO()),
    "copy object": copy.copy,
    "as a parameter": nn.Parameter,
    "to numpy": numpy.asarray,
    "move": lambda x: x.to(torch.float64),
    "grad": lambda x: torch.autograd.grad(x, x),
    "deepcopy": copy.deepcopy,
    "address": Tensor.data_ptr,
    "backward": lambda x: x.sum().backward(),
    "data": lambda x: x.data,
    "another call": aot.aot_function(torch.sin, aot.nop),
    "within a call": lambda x: aot.aot_function(lambda y: x + y, aot.nop)(values(3)),
}


@pytest.mark.parametrize("read", READS)
def test_what_is_stored_where_nobody_looks_cannot_be_used(read: str) -> None:
    hidden = asyncio.Future[Tensor](loop=asyncio.new_event_loop())  # which C keeps

    def f(x: Tensor) -> Tensor:
        y = x.exp()
        hidden.set_result(y)
        return y.sin()

    compiled = aot.aot_function(f, checking_nop)
    x = leaf(3)
    y = compiled(x)
    hidden.get_loop().close()
    stored = hidden.result()
    with pytest.raises(aot.Unsupported):
        READS[read](stored)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    z = x.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(z.exp().sin().sum(), z, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(expected.sum(), z)[0])
    with pytest.raises(errors.EscapedTensor, match="has no values"):
        stored.sum()


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_module_of_torchs_keeps_for_itself_is_put_back(grad: bool) -> None:
    layer = nn.LSTM(2, 2)
    kept = list(layer._flat_weights)

    def f(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))[0]

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        parameters = {n: p.detach().clone().requires_grad_(grad) for n, p in layer.named_parameters()}
        torch.testing.assert_close(compiled(parameters, torch.ones(1, 1, 2)), layer(torch.ones(1, 1, 2))[0])
    assert all(one is other for one, other in zip(layer._flat_weights, kept, strict=True))
    assert len(compiled.specializations) == 1


def test_what_the_functions_own_objects_hold_is_its_own_business() -> None:
    def f(x: Tensor) -> Tensor:
        holder = Holder()
        holder.seen.append(x * 3)
        return KeepsByAttribute.apply(x) * holder.seen[0]

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        got = []
        for function in (f, compiled):
            x = leaf(3)
            (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(gradient.sum(), x)
            got.append((gradient.detach(), second))
        torch.testing.assert_close(got[0], got[1])


def test_a_reserved_tensor_is_one_for_traces() -> None:
    fake = plain_fakes.make_tensor(
        plain_fakes.make_storage(12, torch.device("cpu")),
        (3,),
        (1,),
        0,
        torch.float32,
        torch.device("cpu"),
    )
    plain_fakes.poison(fake)
    with autograd_state.plain_autograd():
        assert fake.shape == (3,)
        assert type(fake[1:]) is Tensor
    with pytest.raises(errors.EscapedTensor):
        fake.shape  # noqa: B018


def test_a_tensor_that_only_autograd_keeps_has_not_escaped() -> None:
    """The node of such an operation keeps the tensor that it belongs to, in eager as well."""

    def f(x: Tensor) -> None:
        x.addcmul_(x, x, value=2.0)

    x = torch.ones(2, requires_grad=True) * 1
    aot.aot_function(f, aot.nop)(x)
    assert torch.equal(x, torch.full((2,), 3.0))


def test_nor_have_the_parts_of_a_wrapper_that_only_autograd_keeps() -> None:
    def f(x: Tensor) -> None:
        x.addcmul_(x, x, value=2.0)

    parts = [torch.ones(2, requires_grad=True) for _ in range(2)]
    x = TwoTensor(*parts) * 1
    aot.aot_function(f, aot.nop)(x)
    assert x.a.tolist() == x.b.tolist() == [3.0, 3.0]


def test_a_part_that_is_stored_besides_has_escaped() -> None:
    kept: list[Tensor] = []

    def f(x: TwoTensor) -> None:
        x.addcmul_(x, x, value=2.0)
        kept.append(x.a)

    x = TwoTensor(*(torch.ones(2, requires_grad=True) for _ in range(2))) * 1
    with pytest.raises(errors.EscapedTensor):
        aot.aot_function(f, aot.nop)(x)


def returned(x: Tensor, store: Callable[[Tensor], object]) -> Any:
    y = x.exp()
    store(y)
    return y, [y, y[1:]]


def put_elsewhere(x: Tensor, store: Callable[[Tensor], object]) -> Any:
    y = x.exp()
    with torch.no_grad():
        x.data = torch.ones(5)
    store(x)
    return y


def grown(x: Tensor, store: Callable[[Tensor], object]) -> Any:
    y = x.detach().exp()
    y.resize_(7)
    y.fill_(2)
    store(y)
    return x.sin() * y.sum(), y


def conditional(x: Tensor, store: Callable[[Tensor], object]) -> Any:
    y = x.exp()
    store(y)
    return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))


def twice(x: Tensor, store: Callable[[Tensor], object]) -> Any:
    y = x.exp()
    store(y)
    (gradient,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    return gradient


class Cube(torch.autograd.Function):
    """It keeps a tensor as an attribute of its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, store: Callable[[Tensor], object]) -> Tensor:
        ctx.squared = x * x
        store(ctx.squared)
        return ctx.squared * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 3 * ctx.squared * gradient, None


def custom(x: Tensor, store: Callable[[Tensor], object]) -> Tensor:
    return Cube.apply(x, store).sin()


HELD = [returned, put_elsewhere, grown, conditional, twice, custom]


def test_what_a_context_keeps_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes as long as there are objects in the process."""
    searches: list[Sequence[Tensor]] = []
    monkeypatch.setattr(ReachableObjects, "find_stored", lambda self, tensors: searches.append(tensors))
    x, compiled = leaf(3), aot.aot_function(lambda x: custom(x, id), aot.nop)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    assert searches == []
    assert torch.equal(gradient, torch.autograd.grad(custom(x, id).sum(), x)[0])


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("function", HELD)
def test_a_tensor_that_the_trace_holds_as_well_has_escaped(
    function: Callable[[Tensor, Callable[[Tensor], object]], Any], part: bool
) -> None:
    seen: list[Tensor] = []

    def f(x: Tensor) -> Any:
        return function(x, seen.append)

    x = torch.ones(4)[:3].detach().requires_grad_() if part else leaf(3)
    with pytest.raises(errors.EscapedTensor, match=r"at seen\[0\]; return it"):
        aot.aot_function(f, aot.nop)(x)


def test_an_argument_that_is_a_part_has_escaped() -> None:
    """Of parameters in a flat buffer the trace holds a list."""
    seen: list[Tensor] = []

    def f(a: Tensor, b: Tensor) -> Tensor:
        seen.append(b)
        return a * b

    buffer = torch.ones(6)
    with pytest.raises(errors.EscapedTensor, match=r"at seen\[0\]; return it"):
        aot.aot_function(f, aot.nop)(buffer[:3].requires_grad_(), buffer[3:].requires_grad_())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_references_from_python_are_counted(count: int) -> None:
    x = leaf(3)
    y = x.exp()
    z = y.sin()  # for which autograd keeps y
    tensors = [y]
    holders = [y for _ in range(count)]
    del y
    assert tensor_impl.count_python_references(tensors) == [count]
    del z, holders
    assert tensor_impl.count_python_references(tensors) == [0]


def _fails(x: Tensor) -> None:
    raise ValueError("no such thing")


def _hooks_and_fails(x: Tensor) -> None:
    x.register_hook(lambda gradient: gradient * 2)
    raise ValueError("no such thing")


@pytest.mark.parametrize("function", [_fails, _hooks_and_fails])
def test_a_function_that_raises_lets_go_of_its_arguments(function: Callable[[Tensor], None]) -> None:
    """At once, and without a collection: a hook on what stood for one lives on."""
    x, compiled = leaf(3), aot.aot_function(function, aot.nop)
    argument = weakref.ref(x)
    with without_collections():
        with contextlib.suppress(ValueError):
            compiled(x)
        del x
        assert argument() is None


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
