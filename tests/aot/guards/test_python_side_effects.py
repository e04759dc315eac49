"""What a function changes of the Python program around it: done at each call as in eager."""

from __future__ import annotations

import contextvars
import copy
import functools
import operator
import queue
import random
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import aot
from aot import errors
from tests.support.agreement import checking_nop, leaf, values
from tests.support.aot.programs import Holder

pytestmark = pytest.mark.clause("once")

Program = tuple[Callable[[Tensor], Any], Callable[[], Any]]
"""A function, and what shows the state that it changes."""
STEPS = 0
CONTEXT = contextvars.ContextVar("CONTEXT", default=0)
UNSET = contextvars.ContextVar[int]("UNSET")


class Slotted:
    __slots__ = ("count",)


def counter_of_an_object() -> Program:
    holder = types.SimpleNamespace(calls=0, total=0.1, text="", flag=None)

    def f(x: Tensor) -> Tensor:
        holder.calls += 1
        holder.total += 0.2
        holder.text += "ab"
        holder.flag = True
        return x * 2

    return f, lambda: vars(holder)


def counter_in_another_way() -> Program:
    holder = types.SimpleNamespace(doubled=1, less=10, masked=7, power=2.0)

    def f(x: Tensor) -> Tensor:
        holder.doubled *= 2
        holder.less -= 3
        holder.masked &= ~1
        holder.power **= 1.5
        return x * 2

    return f, lambda: vars(holder)


def counter_of_a_class() -> Program:
    class Local:
        made = 0

    local = Local()

    def f(x: Tensor) -> Tensor:
        Local.made += 1
        local.made += 10
        return x * 2

    return f, lambda: (Local.made, local.made, type(local.made))


def counter_of_a_closure() -> Program:
    count = 0

    def f(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * 2

    return f, lambda: count


def counter_of_the_globals() -> Program:
    def f(x: Tensor) -> Tensor:
        global STEPS
        STEPS += 1
        return x * 2

    start = STEPS
    return f, lambda: STEPS - start


def counter_of_a_function() -> Program:
    def f(x: Tensor) -> Tensor:
        f.calls += 1  # type: ignore[attr-defined]
        return x * 2

    f.calls = 0  # type: ignore[attr-defined]
    return f, lambda: f.calls  # type: ignore[attr-defined]


def counter_in_a_slot() -> Program:
    slotted = Slotted()
    slotted.count = 0

    def f(x: Tensor) -> Tensor:
        slotted.count += 1
        return x * 2

    return f, lambda: slotted.count


def counter_of_a_context() -> Program:
    def f(x: Tensor) -> Tensor:
        CONTEXT.set(CONTEXT.get() + 1)
        return x * CONTEXT.get()

    CONTEXT.set(0)
    return f, CONTEXT.get


def counter_of_a_thread() -> Program:
    local = threading.local()
    local.count = 0

    def f(x: Tensor) -> Tensor:
        local.count += 1
        return x * 2

    return f, lambda: local.count


def counters_in_containers() -> Program:
    counts, by_name, default, counter = [0, 5], {"n": 0, "m": 1.5}, defaultdict[str, int](int), Counter[str]()

    def f(x: Tensor) -> Tensor:
        counts[1] += 1
        by_name["n"] += 1
        by_name["m"] *= 2
        default["k"] += 1
        counter[f"{len(x)}"] += 2
        return x * 2

    return f, lambda: (counts, by_name, default, counter)


def logs() -> Program:
    log, both, last, bounded = list[int](), list[Any]([0]), deque[int](), deque[int](maxlen=2)
    seen, ordered, known = set[int](), OrderedDict[int, str](), dict[str, Any]()

    def f(x: Tensor) -> Tensor:
        log.append(len(x))
        both.extend((len(x), "x"))
        last.append(x.dim())
        bounded.append(len(x))
        seen.add(len(x))
        ordered[len(x)] = f"{x.shape}"
        known["last"] = [len(x), (None, True)]
        return x * 2

    return f, lambda: (log, both, last, bounded, seen, ordered, known)


def a_log_that_is_cleared() -> Program:
    log = [1, 2, 3]

    def f(x: Tensor) -> Tensor:
        log.clear()
        log.append(len(x))
        return x * 2

    return f, lambda: log


def a_queue() -> Program:
    sent, simple = queue.Queue[int](), queue.SimpleQueue[int]()

    def f(x: Tensor) -> Tensor:
        sent.put(len(x))
        simple.put(len(x))
        return x * 2

    return f, lambda: (list(sent.queue), sent.unfinished_tasks, simple.qsize())


def a_flag() -> Program:
    state = {"first": True}

    def f(x: Tensor) -> Tensor:
        if state["first"]:
            state["first"] = False
            return x * 10
        return x

    return f, lambda: state


def an_attribute_that_goes() -> Program:
    holder = types.SimpleNamespace(warm=1)

    def f(x: Tensor) -> Tensor:
        if hasattr(holder, "warm"):
            del holder.warm  # type: ignore[attr-defined]
            return x * 10
        return x

    return f, lambda: vars(holder)


def an_object_that_is_made_anew() -> Program:
    holder = Holder(Holder(0))

    def f(x: Tensor) -> Tensor:
        holder.last = Holder(holder.last.last + 1)  # type: ignore[attr-defined]
        return x * holder.last.last  # type: ignore[attr-defined]

    return f, lambda: holder.last.last  # type: ignore[attr-defined]


def an_iterator() -> Program:
    numbers = iter(list(range(10)))

    def f(x: Tensor) -> Tensor:
        return x * next(numbers)

    return f, lambda: operator.length_hint(numbers)


def an_iterator_over_a_range() -> Program:
    numbers = iter(range(10))

    def f(x: Tensor) -> Tensor:
        return x * next(numbers)

    return f, lambda: operator.length_hint(numbers)


def a_generator() -> Program:
    def count() -> Iterator[int]:
        yield from range(10)

    numbers = count()

    def f(x: Tensor) -> Tensor:
        return x * next(numbers)

    return f, lambda: None


def a_random_generator() -> Program:
    draws, more = random.Random(3), numpy.random.default_rng(3)

    def f(x: Tensor) -> Tensor:
        return x * draws.random() + float(more.random())

    return f, lambda: (draws.getstate(), more.bit_generator.state)


def an_array() -> Program:
    counts = numpy.zeros(3)
    words = numpy.array(["a", None], dtype=object)

    def f(x: Tensor) -> Tensor:
        counts[len(x) - 1] = counts[len(x) - 1] + 1
        words[1] = f"{counts[0]}"
        return x * 2

    return f, lambda: (counts.tolist(), words.tolist())


def schedule_of_an_optimizer() -> Program:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def f(x: Tensor) -> Tensor:
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = rate / 2
        return x * rate

    return f, lambda: (optimizer.param_groups[0]["lr"], schedule.last_epoch)


PROGRAMS = [
    *(counter_of_an_object, counter_in_another_way, counter_of_a_class, counter_of_a_closure),
    *(counter_of_the_globals, counter_of_a_function, counter_in_a_slot, counter_of_a_context),
    *(counter_of_a_thread, counters_in_containers, logs, a_log_that_is_cleared, a_queue, a_flag),
    *(an_attribute_that_goes, an_object_that_is_made_anew, an_iterator, an_iterator_over_a_range),
    *(a_generator, a_random_generator),
    *(an_array, schedule_of_an_optimizer),
]


def outcomes(make: Callable[[], Program], compiles: Callable[[Any], Any], *sizes: int) -> list[Any]:
    f, shown = make()
    called = compiles(f)
    return [(called(values(size)).tolist(), copy.deepcopy(shown())) for size in sizes]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_call_changes_what_eager_changes(make: Callable[[], Program], dynamic: bool) -> None:
    compiles = functools.partial(aot.aot_function, fw_compiler=checking_nop, dynamic=dynamic)
    assert outcomes(make, compiles, 2, 3, 2, 2, 3) == outcomes(make, lambda f: f, 2, 3, 2, 2, 3)


# Nothing puts a generator back, nor, since Python 3.12, an iterator over a range.
NOT_PUT_BACK = (a_generator, an_iterator_over_a_range) if sys.version_info >= (3, 12) else (a_generator,)


@pytest.mark.parametrize(
    "make", [one for one in PROGRAMS if one not in NOT_PUT_BACK], ids=lambda make: make.__name__
)
def test_a_refusal_changes_nothing(make: Callable[[], Program]) -> None:
    """Nor does it what a later call in eager finds."""
    f, shown = make()
    expected, _ = make()

    def refused(x: Tensor) -> Tensor:
        return f(x) if x.allclose(x + 1) else x

    before = copy.deepcopy(shown())
    with pytest.raises(errors.DataDependentValue):
        aot.aot_function(refused, checking_nop)(values(3))
    assert copy.deepcopy(shown()) == before
    result = contextvars.copy_context().run(f, values(3))
    assert torch.equal(result, expected(values(3)))


@pytest.mark.parametrize("make", [counter_of_an_object, counters_in_containers, counter_of_a_closure, logs])
def test_what_the_loop_changes_between_calls_is_gone_on_from(make: Callable[[], Program]) -> None:
    """(Of numbers that are only updated, and of lists that only grow, nothing is compiled again.)"""
    f, _ = make()
    compiled = aot.aot_function(f, checking_nop)
    for _ in range(6):
        compiled(values(2))
    assert len(compiled.specializations) <= (5 if make is logs else 2)


def test_a_flag_that_is_set_to_what_it_is_is_set_again() -> None:
    holder = types.SimpleNamespace(flag=True, number=3)

    def f(x: Tensor) -> Tensor:
        holder.flag = True
        holder.number = 3
        return x * 2

    compiled = aot.aot_function(f, checking_nop)
    for flag in (True, False, None, True, False):
        holder.flag, holder.number = flag, 5
        compiled(values(2))
        assert (holder.flag, holder.number) == (True, 3)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(()))
        self.sizes = list[int]()
        self.stats = {"n": 0}
        self.calls = 0
        self.kept = [values(3)]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.sizes.append(x.shape[0])
        self.stats["n"] += 1
        self.seen = x.shape[0]
        self.steps.add_(1)
        self.kept[0] = self.kept[0] * 2
        return self.linear(x) + self.kept[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_module_counts_and_logs(dynamic: bool) -> None:
    shown = []
    for compiles in (lambda module: module, functools.partial(aot.aot_module, dynamic=dynamic)):
        torch.manual_seed(0)
        module = Counting()
        options = {} if not isinstance(compiles, functools.partial) else {"fw_compiler": checking_nop}
        compiled = compiles(module, **options)
        found = []
        for rows in (2, 2, 3):
            found.append(compiled(values(rows, 3)).tolist())
            state = (module.calls, list(module.sizes), dict(module.stats), module.seen, module.steps.item())
            found.append((state, type(module.seen), module.kept[0].tolist()))
        shown.append(found)
    assert shown[0] == shown[1]
    assert shown[1][-1][0] == (3, [2, 2, 3], {"n": 3}, 3, 3.0)


def test_a_module_that_changes_mode_and_gets_a_hook() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.inner = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            if self.calls == 0:
                self.eval()
                self.inner.register_forward_hook(lambda module, given, result: result * 3)
            self.calls += 1
            return self.inner(x)

    for compiles in (lambda module: module, lambda module: aot.aot_module(module, checking_nop)):
        module = Changing()
        compiled = compiles(module)
        assert [compiled(values(2)).tolist() for _ in range(3)] == [(values(2) * 3).tolist()] * 3
        assert (module.calls, module.training, len(module.inner._forward_hooks)) == (3, False, 1)


def test_what_a_function_changes_before_it_raises_stays_as_in_eager() -> None:
    holder = types.SimpleNamespace(calls=0)

    def f(x: Tensor) -> Tensor:
        holder.calls += 1  # type: ignore[attr-defined]
        raise LookupError("in the middle")

    compiled = aot.aot_function(f, checking_nop)
    for calls in (1, 2):
        with pytest.raises(LookupError, match="in the middle"):
            compiled(values(3))
        assert holder.calls == calls  # type: ignore[attr-defined]
        assert type(holder.calls) is int  # type: ignore[attr-defined]


def test_but_not_without_what_it_has_written_to_tensors() -> None:
    holder = types.SimpleNamespace(calls=0)

    def f(x: Tensor) -> Tensor:
        holder.calls += 1  # type: ignore[attr-defined]
        x.mul_(2)
        raise LookupError("in the middle")

    x = values(3)
    with pytest.raises(LookupError, match="in the middle"):
        aot.aot_function(f, checking_nop)(x)
    assert holder.calls == 0  # type: ignore[attr-defined]
    assert torch.equal(x, values(3))


class _Noting(torch.autograd.Function):
    log: list[int] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _Noting.log.append(len(gradient))
        return gradient * 2


def test_a_backward_notes_that_it_has_run() -> None:
    def f(x: Tensor) -> Tensor:
        return _Noting.apply(x) + 1  # type: ignore[no-any-return]

    compiled = aot.aot_function(f, checking_nop)
    for function in (f, compiled):
        _Noting.log.clear()
        seen = []
        for _ in range(2):
            x = leaf(3)
            total = function(x).sum()
            seen.append(list(_Noting.log))
            total.backward(retain_graph=True)
            seen.append(list(_Noting.log))
            torch.autograd.grad(total, x, create_graph=True)
            seen.append(list(_Noting.log))
        assert seen == [[3] * n for n in (0, 1, 2, 2, 3, 4)]


def test_it_is_said_if_every_call_is_compiled() -> None:
    f, _ = an_object_that_is_made_anew()
    compiled = aot.aot_function(f, checking_nop)
    with pytest.warns(aot.RecompileWarning, match=r"changes holder\.last in a way that no compiled call"):
        for _ in range(20):
            compiled(values(2))


def test_what_cannot_be_repeated_cannot_be_compiled_ahead() -> None:
    f, shown = an_object_that_is_made_anew()
    with pytest.raises(errors.ClosureMutation, match=r"changes holder\.last"):
        aot.aot_function(f, checking_nop).specialize((values(2),), {})
    assert shown() == 0


def test_a_namespace_of_the_users_is_one() -> None:
    space = types.SimpleNamespace(n=0)

    def f(x: Tensor) -> Tensor:
        space.n += 1
        space.last = len(x)
        return x * 2

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(3):
        compiled(values(2))
    assert vars(space) == {"n": 3, "last": 2}
    assert len(compiled.specializations) == 1
