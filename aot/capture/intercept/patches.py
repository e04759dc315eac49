"""Public functions that do something else for a thread that traces.

Some things that a function does are no operations, and come to the recorder in no other way: it registers
hooks, prints tensors, asks where they lie. So these functions are replaced while any thread traces; for other
threads they do what they always do.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from aot.capture.intercept import metadata_reads
from aot.errors import UnsupportedOperation
from aot.torch_internals import (
    dispatcher,
    patch_points,
    plain_fakes,
    tensor_impl,
    wrapper_subclasses,
)

_WATCHED = ("register_hook", "register_post_accumulate_grad_hook")
_watch = threading.local()
_watching = 0
_watching_lock = threading.Lock()


def _watched(name: str, original: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
    @functools.wraps(original)
    def register(self: Tensor, hook: Any) -> Any:
        watch = getattr(_watch, "now", None)
        return original(self, hook if watch is None else watch(name, self, hook))

    return register


def _watched_node(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    def register(hooks: Any, hook: Any) -> Any:
        watch = getattr(_watch, "node", None)
        return original(hooks, hook if watch is None else watch(hooks, hook))

    return register


def _patched_module_call(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def create(self: Any, module: Any, hooks: Any, prehooks: Any) -> None:
        watch = getattr(_watch, "node", None)
        if watch is not None:
            hooks, prehooks = ([watch(None, hook) for hook in given] for given in (hooks, prehooks))
        original(self, module, hooks, prehooks)

    return create


def _patched_engine_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(outputs: Any, *options: Any, **flags: Any) -> Any:
        watch = getattr(_watch, "engine", None)
        if watch is not None:
            watch(options[3])  # what is differentiated with respect to
        return original(outputs, *options, **flags)

    return run


def _patched_tensor_repr(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def show(self: Tensor, **options: Any) -> str:
        if (
            getattr(_watch, "now", None) is None
            or self.layout is not torch.strided
            or tensor_impl.has_memory(self)
        ):
            return original(self, **options)
        return f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype})"

    return show


def unsupported_higher_order_op(name: str) -> UnsupportedOperation:
    """The refusal of an operator that takes functions."""
    return UnsupportedOperation(
        f"the function calls {name}, an operator that takes functions, which cannot be recorded; write what "
        f"it does in Python, or compute it outside"
    )


def _patched_operators_that_take_functions(original: Callable[..., Any]) -> Callable[..., Any]:
    def module(frame: Any) -> str:
        return str(frame.f_globals.get("__name__", ""))

    @functools.wraps(original)
    def compile(*args: Any, **options: Any) -> Any:
        frame: Any = sys._getframe(1)
        if plain_fakes.are_fakes_allowed() and module(frame).startswith(_COMPILES):
            while frame.f_back is not None and module(frame.f_back).startswith(_COMPILES):
                frame = frame.f_back
            if frame.f_code.co_name in _RECORDED:
                return args[0]
            raise unsupported_higher_order_op(f"{module(frame)}.{frame.f_code.co_name}")
        return original(*args, **options)

    return compile


# What `higher_order` records, without Dynamo.
_RECORDED = frozenset({"cond", "switch", "while_loop", "map", "scan", "flex_attention"})
_COMPILES = ("torch._higher_order_ops.", "torch.nn.attention.flex_attention")


_REPLACED: list[tuple[Any, str, Callable[[Any], Any]]] = [
    *((Tensor, name, functools.partial(_watched, name)) for name in _WATCHED),
    (*patch_points.NODE_REGISTER_HOOK, _watched_node),
    (torch.utils.hooks.BackwardHook, "__init__", _patched_module_call),
    (*patch_points.ENGINE_RUN_BACKWARD, _patched_engine_run),
    (Tensor, "__repr__", _patched_tensor_repr),
    *((Tensor, name, metadata_reads.metadata_method) for name in ("storage_offset", "_is_view")),
    *((Tensor, name, metadata_reads.attribute) for name in ("grad", "_base")),
    (torch, "compile", _patched_operators_that_take_functions),
]


def _patched_collective_wait(original: Callable[[], bool]) -> Callable[[], bool]:
    """A graph waits for what a collective returns: no compiler knows tensors that do so when used."""

    @functools.wraps(original)
    def tracing() -> bool:
        return getattr(_watch, "now", None) is not None or original()

    return tracing


def _detach_in_place(ordinary: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    metadata_reads.record_dependence()
    if any(tensor is view for view in getattr(_watch, "views", None) or ()):
        ordinary(tensor.view_as(tensor))  # which eager refuses, other than in inference mode
    return ordinary(tensor)


# (An operation, but one that autograd does alone.)
dispatcher.register_trace_kernels({torch.ops.aten.detach_.default: _detach_in_place})


def replace(owner: Any, name: str, by: Callable[[Any], Any]) -> None:
    """While any thread traces, let ``owner.name`` be what `by` makes of it, by `functools.wraps`."""
    _REPLACED.append((owner, name, by))


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """For as long as it lasts, in every thread, the functions are replaced. (To do so once around many times
    is cheaper: Python forgets what it knows of a class that is changed, and of those below.)"""
    global _watching
    with _watching_lock:
        _watching += 1
        if _watching == 1:
            wrapper_subclasses.cache_nowrap_functions()
            collectives = patch_points.collective_tracing_check()
            if collectives is not None and (*collectives, _patched_collective_wait) not in _REPLACED:
                replace(*collectives, _patched_collective_wait)
            for owner, name, by in _REPLACED:
                _INHERITED.update(() if name in vars(owner) else ((owner, name),))
                now = getattr(owner, name)
                before, made = _MADE.get((owner, name, by), (None, None))
                if before is not now:  # it is the first trace, or somebody has replaced it
                    made = by(now)
                    _MADE[owner, name, by] = now, made
                setattr(owner, name, made)
    try:
        yield
    finally:
        with _watching_lock:
            _watching -= 1
            if _watching == 0:
                for owner, name, _ in _REPLACED:
                    if (owner, name) in _INHERITED:
                        delattr(owner, name)
                    else:
                        setattr(owner, name, getattr(owner, name).__wrapped__)


_INHERITED: set[tuple[Any, str]] = set()
# What stood there last, and what stands for it.
_MADE: dict[tuple[Any, str, Callable[[Any], Any]], tuple[Any, Any]] = {}


@contextlib.contextmanager
def hook_patch_reporting(
    watch: Callable[[str, Tensor, Any], Any],
    node: Callable[[dict[int, Any] | None, Any], Any],
    engine: Callable[[Sequence[Any]], None] | None = None,
    views: Sequence[Tensor] = (),
) -> Iterator[None]:
    """For as long as it lasts, what this thread registers on a tensor as a hook is `watch(method's name,
    tensor, hook)`, and on a node of the autograd graph `node(the hooks that it has, hook)`; what it
    differentiates with respect to goes to `engine`; a memoryless tensor can be printed, for which torch would
    run kernels on it; `views`, which stand for views of the caller's and are none, are not to be detached in
    place; and `torch.cond` and its like are refused before they call Dynamo, which an error that passes
    through it leaves unusable.

    There is nothing else that tells: a plain tensor does not say which hooks its history has. So the
    functions are replaced while any thread traces; for other threads they do what they always do.
    """
    before = tuple(getattr(_watch, name, None) for name in ("now", "node", "engine", "views"))
    with patched():
        _watch.now, _watch.node, _watch.engine, _watch.views = watch, node, engine, views
        try:
            yield
        finally:
            _watch.now, _watch.node, _watch.engine, _watch.views = before


@contextlib.contextmanager
def hook_patch_suspended() -> Iterator[None]:
    """For as long as it lasts, hooks that this thread registers are none of the function's."""
    before = getattr(_watch, "node", None)
    _watch.node = None
    try:
        yield
    finally:
        _watch.node = before


def patched_node_hooks(node: Node) -> list[Any]:
    """The Python hooks on a node of the autograd graph. It is told them when another one is registered."""
    found: list[Any] = []

    def look(hooks: dict[int, Any] | None, hook: Any) -> Any:
        found.extend((hooks or {}).values())
        return hook

    with hook_patch_reporting(lambda name, tensor, hook: hook, look):
        for register in (node.register_hook, node.register_prehook):
            register(lambda *gradients: None).remove()
    return found
