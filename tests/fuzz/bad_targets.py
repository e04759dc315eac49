"""Compilers that are wrong in one way each: they run the function and spoil what it did."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz import Target

Function = Callable[..., Any]
not_callable = 3
calls = 0
kept: list[bytes] = []


def good(function: Function) -> Function:
    """Not wrong at all."""
    return function


def drops_mutation(function: Function) -> Function:
    """What the function writes to its arguments is undone behind autograd's back."""

    def compiled(*args: Any) -> Any:
        before = [(tensor, tensor.detach().clone()) for tensor in _tensors(args)]
        result = function(*args)
        for tensor, data in before:
            if tensor.shape == data.shape:
                tensor.data.copy_(data)
        return result

    return compiled


def copies_alias(function: Function) -> Function:
    """An output that shares storage with an argument, and is not one, is a copy."""

    def compiled(*args: Any) -> Any:
        inputs = list(_tensors(args))
        storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            if any(tensor is other for other in inputs):
                return tensor
            return tensor.clone() if tensor.untyped_storage().data_ptr() in storages else tensor

        return _mapped(function(*args), copied)

    return compiled


def doubles_duplicate(function: Function) -> Function:
    """The gradient of an argument that is passed twice counts double."""

    def compiled(*args: Any) -> Any:
        inputs = list(_tensors(args))
        for tensor in {id(tensor): tensor for tensor in inputs}.values():
            twice = sum(tensor is other for other in inputs) > 1
            if twice and tensor.requires_grad:
                tensor.register_hook(lambda gradient: gradient * 2)
        return function(*args)

    return compiled


kept: list[torch.Tensor] = []


def keeps_an_argument(function: Function) -> Function:
    """The first tensor among the arguments lives on."""

    def compiled(*args: Any) -> Any:
        kept[:] = [tensor.detach() for tensor in _tensors(args)][:1]
        return function(*args)

    return compiled


def runs_twice(function: Function) -> Function:
    """The function is run on clones first."""

    def compiled(*args: Any) -> Any:
        with torch.no_grad():
            function(*_mapped(args, torch.clone))
        return function(*args)

    return compiled


def detaches_in_company(function: Function) -> Function:
    """What a call gives has no history if another one has begun before it is done."""
    begun: list[None] = []

    def compiled(*args: Any) -> Any:
        begun.append(None)
        time.sleep(0.1)
        alone = len(begun) == 1
        result = function(*args)
        begun.pop()
        return result if alone else _mapped(result, torch.Tensor.detach)

    return compiled


def remembers_the_size(function: Function) -> Function:
    """What comes out of a later call has the size that it had in the first one."""
    sizes: list[torch.Size] = []

    def compiled(*args: Any) -> Any:
        def resized(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.shape)
            return tensor if tensor.shape == sizes[0] else tensor.new_zeros(sizes[0])

        return _mapped(function(*args), resized)

    return compiled


class TooHard(Exception):
    """What a target raises that declines."""


def _declining(compile_function: Callable[[Function], Function]) -> Target:
    return Target("declines", "", compile_function, lambda e: "hard" if isinstance(e, TooHard) else None)


def _refuses_late(function: Function) -> Function:
    def compiled(*args: Any) -> Any:
        for tensor in _tensors(args):
            tensor.data.mul_(3)
        raise TooHard

    return compiled


def _refuses_and_hooks(function: Function) -> Function:
    def compiled(*args: Any) -> Any:
        for tensor in _tensors(args):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: gradient * 3)
        raise TooHard

    return compiled


def _refuses_another_size_late(function: Function) -> Function:
    sizes: list[torch.Size] = []

    def compiled(*args: Any) -> Any:
        sizes.extend(tensor.shape for tensor in _tensors(args))
        if sizes[0] != sizes[-1]:
            _refuses_late(function)(*args)
        return function(*args)

    return compiled


refuses_late = _declining(_refuses_late)
refuses_and_hooks = _declining(_refuses_and_hooks)
refuses_another_size_late = _declining(_refuses_another_size_late)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def differentiates_once(function: Function) -> Function:
    """A second derivative raises."""

    def compiled(*args: Any) -> Any:
        def once(tensor: torch.Tensor) -> torch.Tensor:
            return _Once.apply(tensor) if tensor.requires_grad else tensor

        return function(*_mapped(args, once))

    return compiled


def doubles_gradients(function: Function) -> Function:
    """Every gradient that comes through a result counts double."""

    def compiled(*args: Any) -> Any:
        result = function(*args)
        for tensor in _tensors(result):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: gradient * 2)
        return result

    return compiled


class _Overwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        given = gradient.clone()
        gradient.detach().zero_()
        return given


def overwrites_gradients(function: Function) -> Function:
    """A backward writes to the gradient that it is given."""

    def compiled(*args: Any) -> Any:
        def overwriting(tensor: torch.Tensor) -> torch.Tensor:
            return _Overwrites.apply(tensor) if tensor.requires_grad else tensor  # type: ignore[no-untyped-call]

        return _mapped(function(*args), overwriting)

    return compiled


def gives_more(function: Function) -> Function:
    """One more than there is."""
    return lambda *args: _mapped(function(*args), lambda tensor: tensor + 1)


def gives_more_at_first(function: Function) -> Function:
    """One more than there is, in the first of several results."""

    def compiled(*args: Any) -> Any:
        first, *others = function(*args)
        return (first + 1, *others)

    return compiled


def gives_more_at_first_and_anything_else(function: Function) -> Function:
    """One more in the first of several results, and something else at each call in the others."""
    calls = itertools.count(100)

    def compiled(*args: Any) -> Any:
        first, *others = function(*args)
        return (first + 1, *(other + next(calls) for other in others))

    return compiled


def gives_much_more(function: Function) -> Function:
    """Two more than there is."""
    return lambda *args: _mapped(function(*args), lambda tensor: tensor + 2)


def quadruples_gradients(function: Function) -> Function:
    """Every gradient that comes through a result counts four times."""
    return doubles_gradients(doubles_gradients(function))


def raises_after_a_write(function: Function) -> Function:
    """Raises what `cannot_compile` does, later."""

    def compiled(*args: Any) -> Any:
        for tensor in _tensors(args):
            tensor.detach().zero_()
        return cannot_compile(function)

    return compiled


def segfaults(function: Function) -> Function:
    """Every tenth call in a process is a segmentation fault."""
    return _every_tenth(function, lambda: ctypes.string_at(0))


def hangs(function: Function) -> Function:
    """Every tenth call in a process never returns."""
    return _every_tenth(function, lambda: time.sleep(1000))


def exits(function: Function) -> Function:
    """Every tenth call in a process ends it, as if all was well."""
    return _every_tenth(function, lambda: os._exit(0))


def breaks_the_device(function: Function) -> Function:
    """Every tenth call in a process reads past the end of a tensor on a GPU, where nothing works any more for
    that process then."""

    def read() -> None:
        index = torch.full((1,), 1 << 20, device="cuda")
        torch.zeros(1, device="cuda")[index]

    return _every_tenth(function, read)


class _Refuses(TorchDispatchMode):
    """Lets no operation through."""

    def __torch_dispatch__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("torch is broken here")


class _WhenCollected:
    """Garbage in a cycle that breaks torch for its process when it is collected."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        _Refuses().__enter__()


def breaks_its_process(function: Function) -> Function:
    """Fails on programs that take an exponential, and leaves torch broken some time later."""

    def compiled(*args: Any) -> Any:
        if "exp" in _code(function).co_names:
            _WhenCollected()
            raise RuntimeError("cannot do that")
        return function(*args)

    return compiled


def leaks(function: Function) -> Function:
    """Keeps a megabyte of every call."""

    def compiled(*args: Any) -> Any:
        kept.append(bytes(1 << 20).replace(b"\0", b"x"))
        return function(*args)

    return compiled


def _code(function: Function) -> CodeType:
    """What a function, or a module's forward, consists of."""
    code: CodeType = getattr(function, "forward", function).__code__
    return code


def crashes_on_exp(function: Function) -> Function:
    """Aborts whenever a program takes an exponential."""

    def compiled(*args: Any) -> Any:
        if "exp" in _code(function).co_names:
            os.abort()
        return function(*args)

    return compiled


def _waits_for_ever() -> None:
    """In native code, with the interpreter lock held, for a mutex that this thread has already."""
    mutex = ctypes.create_string_buffer(128)
    library = ctypes.PyDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def harm(function: Function) -> int | None:
    """Which of the six kinds of harm `chaos` does for a function: always the same one; most get none."""
    number = zlib.crc32(repr(_said(_code(function))).encode()) % 20
    return number if number < 6 else None


def _said(code: CodeType) -> tuple[Any, ...]:
    """What a code object says, without where it lies in memory."""
    constants = (_said(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.co_code, code.co_names, tuple(constants)


def chaos(function: Function) -> Function:
    """Of 20 programs six do harm, each in another way, and always the same ones."""

    def compiled(*args: Any) -> Any:
        match harm(function):
            case 0:
                ctypes.string_at(0)
            case 1:
                os.abort()
            case 2:
                _waits_for_ever()
            case 3:
                while True:
                    args = (args, torch.empty(1 << 28))  # a gibibyte that nobody touches
            case 4:
                raise Unpicklable(1, 2)
            case 5:
                os._exit(0)
        return function(*args)

    return compiled


def killed_once(function: Function) -> Function:
    """A worker that has run other cases is killed from outside, as the kernel does when memory is short."""
    return _every_tenth(function, lambda: os.kill(os.getpid(), signal.SIGKILL))


def takes_views_late(function: Function) -> Function:
    """Takes the result that is a view when everything is done."""

    def late(args: tuple[Any, ...], result: Any) -> Any:
        return result._base.as_strided(result.size(), result.stride(), result.storage_offset())

    return _afterwards(late)(function)


def leaves(function: Function) -> Function:
    """Raises SystemExit."""

    def compiled(*args: Any) -> Any:
        raise SystemExit(0)

    return compiled


def cannot_compile(function: Function) -> Function:
    """Raises an exception that cannot be unpickled, before there is anything to call."""
    raise Unpicklable(1, 2)


def _afterwards(change: Callable[[tuple[Any, ...], Any], Any]) -> Callable[[Function], Function]:
    """A compiler that runs the function and then lets `change` have the arguments and the result."""
    return lambda function: lambda *args: change(args, function(*args))


def _mutates(action: Callable[[tuple[Any, ...]], Any]) -> Callable[[tuple[Any, ...], Any], Any]:
    def change(args: tuple[Any, ...], result: Any) -> Any:
        action(args)
        return result

    return change


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no gradient today")


class _Saves(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        result = value.clone()
        context.save_for_backward(result)
        return result

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (_,) = context.saved_tensors
        return gradient


def hides_the_version(function: Function) -> Function:
    """Writes to its first argument past autograd's version counter."""

    def compiled(first: torch.Tensor, *rest: Any) -> Any:
        copy = first.detach().clone()
        result = function(copy, *rest)
        first.data.copy_(copy)
        return result

    return compiled


loses_requires_grad = _afterwards(lambda args, result: result.detach())


def _also_noted(result: torch.Tensor) -> torch.Tensor:
    result.register_hook(torch.ops.aotfuzz.tapped)
    return result


loses_strides = _afterwards(
    lambda args, result: args[0].as_strided(result.shape, args[0].stride(), args[0].storage_offset())
)
draws = _afterwards(_mutates(lambda args: torch.rand(3)))
leaks_grad_mode = _afterwards(_mutates(lambda args: torch.set_grad_enabled(False)))
returns_a_list = _afterwards(lambda args, result: [result])
notes_once_more = _afterwards(_mutates(lambda args: torch.ops.aotfuzz.note(args[0])))
notes_in_another_order = _afterwards(
    _mutates(lambda args: torch.ops.aotfuzz.notes[:2].copy_(torch.ops.aotfuzz.notes[:2].flip(0)))
)
notes_once_more_in_the_backward = _afterwards(lambda args, result: _also_noted(result))
wrong_by_one = _afterwards(lambda args, result: result + 1)
unsqueezes_the_argument = _afterwards(_mutates(lambda args: args[0].unsqueeze_(0)))
fails_in_backward = _afterwards(lambda args, result: _Fails.apply(result))
fails_after_a_write = _afterwards(lambda args, result: _Saves.apply(result))


class Unpicklable(Exception):
    """Its constructor needs two arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("cannot be made again")


def _every_tenth(function: Function, fault: Callable[[], Any]) -> Function:
    def compiled(*args: Any) -> Any:
        global calls
        calls += 1
        if calls % 10 == 0:
            fault()
        return function(*args)

    return compiled


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _tensors(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from _tensors(item)


def _mapped(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _mapped(item, change) for key, item in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(item, change) for item in tree)
    return tree


_ready: list[None] = []


def _wrong_when_ready(function: Function) -> Function:
    if not _ready:
        raise RuntimeError("it was not made ready")
    return wrong_by_one(function)


def _fails_when_ready(function: Function) -> Function:
    if not _ready:
        raise RuntimeError("it was not made ready")
    raise RuntimeError("cannot do that")


wrong_when_ready = Target("", "", _wrong_when_ready, prepare=lambda: _ready.append(None))
fails_when_ready = Target("", "", _fails_when_ready, prepare=lambda: _ready.append(None))
cannot_be_ready = Target("", "", _fails_when_ready, prepare=lambda: cannot_compile(len) and None)


crashes_as_its_control = Target(
    "", "", crashes_on_exp, controls=("tests.fuzz.bad_targets:good", "tests.fuzz.bad_targets:crashes_on_exp")
)
crashes_by_itself = Target("", "", crashes_on_exp, controls=("tests.fuzz.bad_targets:good",))
