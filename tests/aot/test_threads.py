"""Threads that a function starts: they may do anything but compute with its tensors."""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
from agree import checking_nop, values
from torch import Tensor

import aot
from aot import errors

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
    with ThreadPool(1) as threads:
        return threads.apply(work)


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


def test_threads_are_as_ever_after_a_trace() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    others = _thread.start_new_thread, ThreadPool.map, ThreadPool.apply_async
    aot.aot_function(torch.sin, checking_nop)(values(3))
    assert threading.Thread.start is start
    assert ThreadPoolExecutor.submit is submit
    assert others == (_thread.start_new_thread, ThreadPool.map, ThreadPool.apply_async)
