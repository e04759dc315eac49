"""Threads that a function uses: they may do anything but compute with its tensors."""

from __future__ import annotations

import _thread
import ast
import asyncio
import contextlib
import copy
import ctypes
import io
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from aot.capture.recorder import threads
from tests.support.agreement import checking_nop, values

pytestmark = pytest.mark.clause("threads")

POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()
THREADS = ThreadPool(1)
Way = Callable[[Callable[[], Any]], Any]


def thread(work: Callable[[], Any]) -> Any:
    done: list[Any] = []
    started = threading.Thread(target=lambda: done.append(work()))
    started.start()
    started.join()
    return done[0]


class Worker(threading.Thread):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        self.done = self.work()


def subclass(work: Callable[[], Any]) -> Any:
    worker = Worker(work)
    worker.start()
    worker.join()
    return worker.done


def executor(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return next(pool.map(lambda _: work(), [0]))


def executor_of_before(work: Callable[[], Any]) -> Any:
    return POOL.submit(work).result()


def bare_thread(work: Callable[[], Any]) -> Any:
    done: list[Any] = []
    ended = threading.Lock()
    ended.acquire()

    def run() -> None:
        try:
            done.append(work())
        finally:
            ended.release()

    _thread.start_new_thread(run, ())
    ended.acquire()
    return done[0]


def pool_of_before(work: Callable[[], Any]) -> Any:
    return THREADS.apply(work)


def pool_of_before_later(work: Callable[[], Any]) -> Any:
    return THREADS.apply_async(func=work).get()


def pool_of_before_mapping(work: Callable[[], Any]) -> Any:
    return THREADS.map(lambda _: work(), [0])[0]


def pool_of_before_iterating(work: Callable[[], Any]) -> Any:
    return next(THREADS.imap_unordered(lambda _: work(), [0]))


def pool_of_before_with_stars(work: Callable[[], Any]) -> Any:
    return THREADS.starmap_async(lambda *_: work(), [(0, 0)]).get()[0]


def pool(work: Callable[[], Any]) -> Any:
    with ThreadPool(1) as pool:
        return pool.apply(work)


Task = tuple[Callable[[], Any], "queue.SimpleQueue[Any]"]
TASKS: queue.SimpleQueue[Task] = queue.SimpleQueue()
WAITING: deque[Task] = deque()
ARRIVED = threading.Condition()
LOOP = asyncio.new_event_loop()


def take_from_queue() -> None:
    while True:
        work, answer = TASKS.get()
        answer.put(work())
        del work


def take_from_deque() -> None:
    while True:
        with ARRIVED:
            ARRIVED.wait_for(lambda: WAITING)
            work, answer = WAITING.popleft()
        answer.put(work())
        del work


threading.Thread(target=take_from_queue, daemon=True).start()
threading.Thread(target=take_from_deque, daemon=True).start()
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def queue_of_before(work: Callable[[], Any]) -> Any:
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    TASKS.put((work, answer))
    return answer.get(timeout=20)


def deque_of_before(work: Callable[[], Any]) -> Any:
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with ARRIVED:
        WAITING.append((work, answer))
        ARRIVED.notify()
    return answer.get(timeout=20)


def loop_of_before(work: Callable[[], Any]) -> Any:
    async def answer() -> Any:
        return work()

    return asyncio.run_coroutine_threadsafe(answer(), LOOP).result(timeout=20)


ways = pytest.mark.parametrize(
    "way",
    [
        thread,
        subclass,
        bare_thread,
        executor,
        executor_of_before,
        pool,
        pool_of_before,
        pool_of_before_later,
        pool_of_before_mapping,
        pool_of_before_iterating,
        pool_of_before_with_stars,
        queue_of_before,
        deque_of_before,
        loop_of_before,
    ],
)


def quiet(test: Callable[..., None]) -> Callable[..., None]:
    """An error that ends a thread is no failure of the test."""
    for warning in ("PytestUnhandledThreadExceptionWarning", "PytestUnraisableExceptionWarning"):
        test = pytest.mark.filterwarnings(f"ignore::pytest.{warning}")(test)
    return test


@quiet
@ways
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "action", [lambda x: x * 2, lambda x: x[1:], lambda x: x.mul_(2), lambda x: torch.stack([x])]
)
def test_computing_with_the_functions_tensors_is_refused(way: Way, grad: bool, action: Any) -> None:
    def f(x: Tensor) -> Any:
        with torch.no_grad():
            x.add_(1)
        return way(lambda: action(x * 1 if grad else x))

    x = values(3).requires_grad_(grad)
    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(f, checking_nop)(x)
    assert torch.equal(x, values(3))
    assert x._version == 0
    assert way(lambda: values(3).mul(2)).tolist() == values(3).mul(2).tolist()


@quiet
@ways
def test_it_is_refused_where_the_function_does_not_mind(way: Way) -> None:
    def f(x: Tensor) -> Tensor:
        with contextlib.suppress(Exception):
            way(lambda: x * 2)
        return x * 3

    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(f, checking_nop)(values(3))


@ways
def test_anything_else_is_not(way: Way) -> None:
    def f(x: Tensor) -> Any:
        return x * way(lambda: int(torch.ones(3).sum()) + len(x.shape))

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(3)), values(3) * 4)
    assert len(compiled.specializations) == 1


WEIGHTS = torch.eye(3)


def pickled(x: Tensor) -> Any:
    return pickle.loads(pickle.dumps(x))


def sent(x: Tensor) -> Any:
    return pickle.loads(ForkingPickler.dumps(x))


def saved(x: Tensor) -> Any:
    torch.save(x, file := io.BytesIO())
    return torch.load(io.BytesIO(file.getvalue()))


def pointer(x: Tensor) -> Any:
    return (ctypes.c_float * 3).from_address(x.data_ptr())[1]


def condition(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))


def own_generator(x: Tensor) -> Any:
    return x * torch.rand(3, generator=torch.Generator().manual_seed(1))


READS: list[Callable[[Tensor], Any]] = [
    *(
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.detach().numpy(),
        numpy.asarray,
        repr,
        saved,
    ),
    *(lambda x: bool(x[1] > 1), Tensor.nonzero, lambda x: WEIGHTS @ x, lambda x: x.clone().add_(WEIGHTS[0])),
    *(copy.deepcopy, pickled, sent, pointer, torch.from_dlpack, condition, own_generator, Tensor.to_sparse),
    *(lambda x: x.untyped_storage().tolist(), lambda x: x._typed_storage()[1], lambda x: x.max(0).indices),
]


class Answers:
    """Lines of a file, which no refusal takes back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, answer: object) -> None:
        with self._path.open("a") as file:
            print(str(answer).encode(), file=file)

    def read(self) -> list[str]:
        return [ast.literal_eval(line).decode() for line in self._path.read_text().splitlines()]


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    return Answers(tmp_path / "answers")


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", [executor, queue_of_before])
def test_what_a_trace_cannot_record_is_answered_in_other_threads(
    way: Way, read: Callable[[Tensor], Any], answers: Answers
) -> None:
    """Not only raised there: who waits for an answer would wait for ever."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        answers.write(way(lambda: str(read(y))))
        return x + 1

    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(f, checking_nop)(values(3))
    assert answers.read() == [str(read(values(3) * 2))]
    assert torch.equal(WEIGHTS, torch.eye(3))


@pytest.mark.parametrize("storage", ["overlapping", "conjugated", "bytes"])
def test_answers_are_of_this_calls_arguments(storage: str, answers: Answers) -> None:
    def arguments() -> tuple[Tensor, Tensor]:
        base = values(4)
        if storage == "overlapping":
            return base[:3], base[1:]
        if storage == "conjugated":
            base = torch.complex(base, base + 1)
            return base.conj(), base.conj()[1:]
        return base, base.view(torch.int32)[1:]

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        answers.write(queue_of_before(lambda: (x.tolist(), y.tolist())))
        return x + 1

    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(f, checking_nop)(*arguments())
    f(*arguments())
    in_trace, in_eager = answers.read()
    assert in_trace == in_eager


def test_answers_leave_what_they_read_and_the_generators_as_they_are() -> None:
    weights = torch.ones(3)

    def f(x: Tensor) -> Tensor:
        y = torch.rand(3) * x
        queue_of_before(lambda: (y.tolist(), weights.add_(y), x.numpy().fill(7)))
        return y

    x = values(3)
    state = torch.get_rng_state()
    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(f, checking_nop)(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, values(3)) and torch.equal(weights, torch.ones(3))


def test_errors_of_other_threads_are_those_of_eager(answers: Answers) -> None:
    def f(x: Tensor) -> Tensor:
        try:
            executor(lambda: x @ torch.ones(4))
        except RuntimeError as error:
            answers.write(error)
        return x

    f(values(3))
    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(f, checking_nop)(values(3))
    in_eager, in_trace = answers.read()
    assert in_trace == in_eager


def test_in_a_backward_there_is_an_answer_too() -> None:
    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return gradient * queue_of_before(lambda: len(gradient.numpy()))

    x = values(3).requires_grad_()
    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(Elsewhere.apply, checking_nop)(x)


def test_methods_that_read_are_as_ever_afterwards() -> None:
    before = {name: getattr(Tensor, name) for name in dir(Tensor)}
    own = set(vars(Tensor))
    aot.aot_function(lambda x: x * 2, checking_nop)(values(3))
    assert {name: getattr(Tensor, name) for name in dir(Tensor)} == before
    assert set(vars(Tensor)) == own


@ways
def test_in_a_backward_it_is_refused_too(way: Way) -> None:
    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return way(lambda: gradient * 2)

    def f(x: Tensor) -> Any:
        return Elsewhere.apply(x.mul_(1))

    x = values(3).requires_grad_() * 1
    with pytest.raises(errors.UnsupportedOperation, match="in the thread that calls the function"):
        aot.aot_function(f, checking_nop)(x)
    assert x._version == 0


@pytest.mark.parametrize("grad", [False, True])
def test_a_thread_that_looks_later_gets_an_error(grad: bool) -> None:
    """It holds the tensor in its own frame, where nothing can find it."""
    later: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    taken, compiled = threading.Event(), threading.Event()

    def look() -> Tensor:
        x = later.get(timeout=60)
        taken.set()
        assert compiled.wait(60)
        return torch.ones(3) + x

    def f(x: Tensor) -> Tensor:
        later.put(x * 2)
        assert taken.wait(60)
        return x * 3

    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(look)
        aot.aot_function(f, checking_nop)(values(3).requires_grad_(grad))
        compiled.set()
        with pytest.raises(errors.EscapedTensor, match="has no values"):
            looks.result()


def test_threads_that_compile_at_once_wait_for_each_other() -> None:
    """There is one default generator, whose states stand for draws while a function is traced."""

    def f(x: Tensor) -> Tensor:
        time.sleep(0.01)
        return x * 2

    with ThreadPoolExecutor(4) as pool:
        compiled = [aot.aot_function(f, checking_nop) for _ in range(4)]
        results = [pool.submit(function, values(3)) for function in compiled for _ in range(2)]
        assert all(torch.equal(result.result(), values(3) * 2) for result in results)
    assert all(len(function.specializations) == 1 for function in compiled)


def test_a_function_that_waits_for_a_thread_that_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_PATIENCE", (0.05, 4))
    inner = aot.aot_function(lambda x: x * 2, checking_nop)

    def f(x: Tensor) -> Tensor:
        return x + executor_of_before(lambda: inner(values(2)).shape[0])

    outer = aot.aot_function(f, checking_nop)
    with pytest.raises(errors.UnsupportedOperation, match="make this call once before"):
        outer(values(3))
    inner(values(2))
    assert torch.equal(outer(values(3)), values(3) + 2)


def test_a_backend_that_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_PATIENCE", (0.02, 2))
    compiling = threading.Event()

    def slow(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiling.set()
        time.sleep(0.5)
        return aot.nop(graph, inputs)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(aot.aot_function(lambda x: x * 2, slow), values(3))
        compiling.wait()
        assert torch.equal(aot.aot_function(lambda x: x * 3, checking_nop)(values(3)), values(3) * 3)
        assert torch.equal(first.result(), values(3) * 2)
