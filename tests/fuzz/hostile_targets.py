"""Compilers that do what no compiler does: each is to be a finding, and to cost no other case."""

from __future__ import annotations

import builtins
import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.targets.target import Function, Target

HALF = "\ud800"


def _instead(make: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """A compiler that returns something else than the result."""
    return lambda function: lambda *args: make(function(*args))


def _first(action: Callable[[], Any]) -> Callable[[Function], Function]:
    """A compiler that does something, and then what it ought to."""

    def compiler(function: Function) -> Function:
        def compiled(*args: Any) -> Any:
            action()
            return function(*args)

        return compiled

    return compiler


def _raises(error: Callable[[], BaseException]) -> Callable[[Function], Function]:
    def compiler(function: Function) -> Function:
        def compiled(*args: Any) -> Any:
            raise error()

        return compiled

    return compiler


# What it raises.


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("says nothing")

    __repr__ = __str__


class Fatal(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class NoText(Exception):
    def __str__(self) -> str:
        return eval("3")  # type: ignore[no-any-return]


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__subclasses__":  # which libraries ask of all exceptions when they are imported
            return type.__getattribute__(cls, name)
        raise RuntimeError(f"asked for {name}")


class Nameless(Exception, metaclass=_Nameless):
    pass


class Renamed(Exception):
    pass


Renamed.__qualname__ = HALF
Renamed.__module__ = 3  # type: ignore[assignment]


class Own(BaseException):
    pass


class Kept(Exception):
    def with_traceback(self, trace: Any) -> Any:
        raise RuntimeError("has no traceback")


raises_half = _raises(lambda: RuntimeError(HALF))
raises_controls = _raises(lambda: RuntimeError("\x1b[2J\x00\n<script>alert(1)</script>"))
raises_mute = _raises(Mute)
raises_fatal = _raises(Fatal)
raises_no_text = _raises(NoText)
raises_nameless = _raises(Nameless)
raises_renamed = _raises(Renamed)
raises_own = _raises(Own)
raises_kept = _raises(Kept)
raises_interrupt = _raises(KeyboardInterrupt)
raises_exit = _raises(lambda: SystemExit(0))
raises_close = _raises(GeneratorExit)
raises_memory = _raises(MemoryError)
raises_endlessly = _raises(lambda: RuntimeError("x" * 10_000_000))


def _group() -> BaseException:
    return BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError(HALF)])


raises_group = _raises(_group)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise Mute


class _Interrupts(_Backward):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


raises_in_backward = _instead(_Backward.apply)
interrupts_backward = _instead(_Interrupts.apply)


# What it returns.


class Closed:
    """Raises whatever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


class Raising:
    """Raises from every method, and when it is asked for its class."""

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no method")

    __class__ = property(_raise)  # type: ignore[assignment]
    __getattribute__ = __getattr__ = __repr__ = __str__ = __eq__ = __ne__ = __hash__ = __bool__ = _raise  # type: ignore[assignment]
    __len__ = __iter__ = __getitem__ = __call__ = __format__ = __reduce__ = __dir__ = __del__ = _raise


class RaisingDict(Raising, dict):  # type: ignore[type-arg]
    items = keys = values = get = Raising._raise  # type: ignore[assignment]


class RaisingText(Raising, str):
    encode = Raising._raise  # type: ignore[assignment]


class Liar:
    """Says that it is a tensor."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.Tensor


class ClosedList(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise RuntimeError("has no length")

    def __iter__(self) -> Any:
        raise SystemExit(0)


class ClosedKey(str):
    def __repr__(self) -> str:
        raise RuntimeError("says nothing")


class ClosedTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no function of torch's")


class ExitingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise SystemExit(1)


class Elementless(torch.Tensor):
    """Has no elements of its own, and so nothing for NumPy."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Elementless:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"no {func}")


class Mixed(Elementless):
    """Says that it is made of something, and is not."""

    def __tensor_flatten__(self) -> Any:
        return ["absent"], HALF


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def _twice(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found, found]
    return found


def _holding_itself(result: Any) -> list[Any]:
    held: list[Any] = [result]
    held.append(held)
    return held


def _dict_holding_itself(result: Any) -> dict[str, Any]:
    held: dict[str, Any] = {"result": result}
    held["self"] = held
    return held


def _batched(result: torch.Tensor) -> Any:
    kept: list[torch.Tensor] = []
    torch.vmap(lambda part: (kept.append(part), part)[1])(torch.ones(2, 3))
    return kept[0]


def _freed(result: torch.Tensor) -> torch.Tensor:
    result = result.clone()
    result.untyped_storage().resize_(0)
    return result


def _fake(result: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.ones(2, 3)


returns_itself = _instead(_holding_itself)
returns_dict_holding_itself = _instead(_dict_holding_itself)
returns_raising = _instead(lambda result: Raising())
returns_raising_in_tuple = _instead(lambda result: (result, Raising()))
returns_raising_dict = _instead(lambda result: RaisingDict(result=result))
returns_raising_text = _instead(lambda result: RaisingText("text"))
returns_batched = _instead(_batched)
returns_closed = _instead(lambda result: Closed())
returns_liar = _instead(lambda result: Liar())
returns_closed_list = _instead(lambda result: ClosedList([result]))
returns_closed_key = _instead(lambda result: {ClosedKey("a"): result})
returns_closed_tensor = _instead(lambda result: result.as_subclass(ClosedTensor))
returns_exiting_tensor = _instead(lambda result: result.as_subclass(ExitingTensor))
returns_elementless = _instead(Elementless)
returns_mixed = _instead(Mixed)
returns_deep = _instead(lambda result: _nested(5000))
returns_endless = _instead(lambda result: _twice(100))
returns_half = _instead(lambda result: HALF)
returns_half_key = _instead(lambda result: {HALF: result})
returns_long_text = _instead(lambda result: "x" * 10_000_000)
returns_huge_number = _instead(lambda result: 10**10_000)
returns_generator = _instead(lambda result: (one for one in (result,)))
returns_array = _instead(lambda result: numpy.ones(3))
returns_meta = _instead(lambda result: result.to("meta"))
returns_fake = _instead(_fake)
returns_double = _instead(lambda result: result.double())
returns_freed = _instead(_freed)
returns_sparse = _instead(lambda result: result.to_sparse())
returns_quantized = _instead(lambda result: torch.quantize_per_tensor(result, 0.1, 0, torch.qint8))
returns_huge = _instead(lambda result: torch.ones(1).expand(1 << 40))
returns_nothing = _instead(lambda result: None)
returns_type = _instead(lambda result: Nameless)


# What it leaves behind.


class _Cosine(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.cos if func in (torch.sin, torch.Tensor.sin) else func)(*args, **(kwargs or {}))


class _Passes(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _lower_the_limit() -> None:
    depth = next(n for n in itertools.count(1) if not _has_frame(n))
    sys.setrecursionlimit(depth + 8)


def _has_frame(depth: int) -> bool:
    try:
        sys._getframe(depth)
    except ValueError:
        return False
    return True


def _start_thread() -> None:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


_entered: list[Any] = []


def _leave_inference_mode() -> None:
    _entered.append(torch.inference_mode())
    _entered[-1].__enter__()


def _fork() -> None:
    os.fork()


def _replace_sine() -> None:
    torch.Tensor.sin = torch.Tensor.cos  # type: ignore[method-assign]
    torch.sin = torch.cos


def _fails(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("replaced")


def _replace_when_going_back(result: Any) -> Any:
    result.register_hook(lambda gradient: setattr(builtins, "isinstance", _fails))
    return result


def _replace_grad() -> None:
    torch.autograd.grad = lambda *args, **kwargs: ()  # type: ignore[assignment]


lowers_the_limit = _first(_lower_the_limit)
sets_the_limit = _first(lambda: sys.setrecursionlimit(30))
changes_the_folder = _first(lambda: os.chdir("/"))
closes_the_files = _first(lambda: (os.close(1), os.close(2)))
closes_all_files = _first(lambda: os.closerange(0, 1000))
closes_the_streams = _first(lambda: (sys.stdout.close(), sys.stderr.close()))
takes_the_streams = _first(lambda: (setattr(sys, "stdout", None), setattr(sys, "stderr", None)))
replaces_sine = _first(_replace_sine)
replaces_grad = _first(_replace_grad)
replaces_addition = _first(lambda: setattr(torch.Tensor, "__add__", torch.Tensor.__sub__))
replaces_len = _first(lambda: setattr(builtins, "len", lambda value: 3))
replaces_isinstance = _first(lambda: setattr(builtins, "isinstance", lambda value, kind: False))
replaces_isinstance_in_backward = _instead(_replace_when_going_back)
deletes_getattr = _first(lambda: delattr(builtins, "getattr"))
replaces_dumps = _first(lambda: setattr(json, "dumps", _fails))
replaces_collect = _first(lambda: setattr(gc, "collect", _fails))
replaces_catch_warnings = _first(lambda: setattr(warnings, "catch_warnings", _fails))
makes_warnings_errors = _first(lambda: warnings.simplefilter("error"))
handles_interrupts = _first(lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
ignores_alarms = _first(lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN))
blocks_signals = _first(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]))
empties_the_path = _first(sys.path.clear)
detects_anomalies = _first(lambda: torch.autograd.set_detect_anomaly(True))
leaves_a_transform = _first(torch._C._functorch._grad_increment_nesting)
leaves_hooks = _first(lambda: torch._C._autograd._push_saved_tensors_default_hooks(_fails, _fails))
sets_the_dtype = _first(lambda: torch.set_default_dtype(torch.float64))
sets_the_device = _first(lambda: torch.set_default_device("meta"))
leaves_a_function_mode = _first(lambda: _Cosine().__enter__())
leaves_a_mode = _first(lambda: _Passes().__enter__())
leaves_inference_mode = _first(_leave_inference_mode)
starts_threads = _first(_start_thread)
kills_its_parent_process_group = _first(lambda: os.setsid() if os.getpgrp() != os.getpid() else os._exit(3))
reset_raises = Target("", "", lambda function: function, reset=lambda: (_ for _ in ()).throw(Mute()))
refusal_raises = Target("", "", raises_half, refusal=lambda error: (_ for _ in ()).throw(RuntimeError(HALF)))
refusal_is_no_text = Target("", "", raises_half, refusal=lambda error: Raising())  # type: ignore[arg-type,return-value]
exits_when_made_ready = Target("", "", lambda function: function, prepare=lambda: sys.exit(0))

# What is a compiler's right, or nobody sees.
_started: list[None] = []


def _start_thread_once() -> None:
    if not _started:
        _started.append(None)
        _start_thread()


starts_a_thread_once = _first(_start_thread_once)
forks = _first(_fork)
raises_the_limit = _first(lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1))
adds_a_filter = _first(lambda: warnings.filterwarnings("ignore", "deprecated"))
refuses_with_half = Target("", "", raises_half, refusal=str)
refuses_with_raising_text = Target("", "", raises_half, refusal=lambda error: RaisingText("hard"))
