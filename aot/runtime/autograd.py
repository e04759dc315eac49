"""From a plan to the callable: executes the generated source around the compiled graphs.

Each segment of the backward is an `autograd.Function` made here; its backward is generated code, its forward
takes what has been computed already.
"""

from __future__ import annotations

import copy
import itertools
import linecache
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from aot import errors, views
from aot import torch_internals as internals
from aot.compilers import Compiled, Compiler, boxed, compile_graph
from aot.partition.parts import without_tangents
from aot.runtime.codegen import generate
from aot.runtime.plan import Plan


def build(
    plan: Plan, forward: Compiled, backwards: Sequence[fx.GraphModule | None], bw_compiler: Compiler
) -> tuple[Callable[..., list[Any]], str]:
    """The callable for one specialization, and its source.

    Args:
        forward: the compiled forward graph.
        backwards: the backward graph of each segment, if it has one.
        bw_compiler: compiles them, each on its first backward.
    """
    source, constants = generate(plan)
    namespace: dict[str, Any] = {
        **constants,
        "torch": torch,
        "set_grad_enabled": internals.set_grad_enabled,
        "run_forward": _runner(forward, len(plan.values) + plan.saved, "forward"),
        "detached": _detached,
        "copied": _copied,
        "nothing": _nothing,
        "passing": _Passing.apply,
        "tangent": _tangent,
        "physical": views.physical,
        "seen_as": views.seen_as,
        "stretch_of_bytes": views.stretch_of_bytes,
        "counter": _counter,
        "modified": _modified,
        "once_more": _once_more,
        "spent": _spent,
        "graph_is_retained": internals.graph_is_retained,
        "double_backward_unsupported": _double_backward_unsupported,
    }
    for number, backward in enumerate(backwards):
        if backward is not None:
            part = plan.parts[number]
            donated = tuple(i for i, one in enumerate(part.saved) if one.donated)
            lazy = _Backward(backward, bw_compiler, part.segment.results, donated)
            namespace[f"run_backward{number}"] = lazy.run
            namespace[f"run_part{number}"] = lazy.run_part
    name = f"<aot wrapper {next(_COUNTER)}>"
    # Registered so that a traceback through the wrapper shows its lines.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)
    for number in range(len(plan.parts)):
        methods = {
            "forward": staticmethod(_forward),
            "backward": staticmethod(namespace[f"backward{number}"]),
        }
        function = type("CompiledFunction", (torch.autograd.Function,), methods)
        namespace[f"apply{number}"] = function.apply  # type: ignore[attr-defined]
    return namespace["call"], source


_COUNTER = itertools.count()


def _runner(compiled: Compiled, results: int, which: str) -> Callable[[list[Any]], Any]:
    """A compiled graph as a boxed callable whose number of results is checked.

    Graphs hold the casts that autocast made while tracing, so they run without it.
    """
    run = boxed(compiled)

    def checked(arguments: list[Any]) -> Any:
        if internals.autocast_enabled():
            with internals.disable_autocast():
                values = run(arguments)
        else:
            values = run(arguments)
        if len(values) != results:
            raise errors.BackendError(
                f"the compiled {which} graph returned {len(values)} results, "
                f"but the graph has {results} outputs"
            )
        return values

    return checked


def _forward(ctx: Any, box: list[Any], *edges: Tensor) -> tuple[Tensor, ...]:
    """Make a node of what has been computed: `box` holds what is saved and what is returned, and gets the
    node."""
    saved, results = box
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*saved)
    ctx.spent = False
    ctx.packed = internals.saved_tensors_hooked()  # by hooks that may have kept what they were given
    box[:] = [ctx]
    return results  # type: ignore[no-any-return]


class _Passing(torch.autograd.Function):
    """A tensor's edge, apart from the tensor: a write to that does not move it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _nothing(tensor.shape, tensor.dtype, tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _nothing(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor for what is not returned, only differentiated: it has the size, and memory for one number."""
    return torch.empty_strided(size, (0,) * len(size), dtype=dtype, device=device)


class _Backward:
    """The backward graph, compiled when it is first run, and its parts for fewer tangents.

    A tangent that is not given is not a tangent of zeros: zero times infinity would be seen, and what only
    that tangent needs would be computed. So each set of given tangents has a graph of its own. So has a
    backward after which the saved values are not needed any more, if there are such that it may overwrite.
    """

    def __init__(
        self, module: fx.GraphModule, compiler: Compiler, results: int, donated: tuple[int, ...]
    ) -> None:
        self._module = module
        self._compiler = compiler
        self._results = results
        self._donated = donated
        self._lock = threading.Lock()
        self._runners: dict[tuple[int | None, bool], Callable[[list[Any]], Any]] = {}

    def run(self, arguments: list[Any], spend: bool = False) -> Any:
        """All gradients, from saved values and all tangents; `spend` allows to overwrite the donated ones."""
        return self._runner(None, spend, arguments)(arguments)

    def run_part(self, given: int, arguments: list[Any], spend: bool = False) -> Any:
        """The gradients, None where there is none, from saved values and tangents of which some are None;
        bit j of `given` tells whether tangent j is not."""
        present = [a for a in arguments if a is not None]
        return self._runner(given, spend, arguments)(present)

    def _runner(self, given: int | None, spend: bool, arguments: list[Any]) -> Callable[[list[Any]], Any]:
        runner = self._runners.get((given, spend))
        if runner is None:
            with self._lock:
                runner = self._runners.get((given, spend))
                if runner is None:
                    missing = [a is None for a in arguments]
                    module = self._module
                    if given is not None:
                        module = without_tangents(module, missing)
                    elif self._runners:
                        module = copy.deepcopy(module)  # the other compile may keep, and has marked, this one
                    module.meta["donated"] = self._donated if spend else ()
                    compiled = compile_graph(self._compiler, module, "backward")
                    runner = self._runners[given, spend] = _runner(compiled, self._results, "backward")
        return runner


def _detached(value: Tensor | None) -> Tensor | None:
    """A graph's result as a tensor of its own: graphs may end in a view. Optional results may be absent."""
    return value.detach() if value is not None and value._is_view() else value


def _copied(value: Tensor, offset: int) -> Tensor:
    """A copy with the same strides, elements that are shown several times included, at a storage offset."""
    size, stride = value.size(), value.stride()
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if value.numel() else 0
    memory = torch.empty(offset + span, dtype=value.dtype, device=value.device)
    memory[offset:].copy_(value.as_strided((span,), (1,)))
    whole = torch.empty(0, dtype=value.dtype, device=value.device)
    return whole.set_(memory.untyped_storage(), offset, size, stride)


def _tangent(given: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """A tangent laid out as the backward graph was traced for."""
    if given.stride() == stride:
        return given
    return torch.empty_strided(size, stride, dtype=given.dtype, device=given.device).copy_(given)


def _counter(tensor: Tensor) -> Tensor:
    """A tensor that shares the version counter of `tensor`, and nothing of its memory."""
    alias = tensor.detach()
    # Assigning `.data` leaves the version counter as it is.
    alias.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias


def _once_more(kept: list[Tensor]) -> tuple[Tensor, ...]:
    """What is kept for backward, given up when the engine gives up the rest of the graph."""
    if not kept:
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved tensors after "
            "they have already been freed). Specify retain_graph=True to backward a second time."
        )
    values = tuple(kept)
    if not internals.graph_is_retained():
        kept.clear()
    return values


def _spent() -> RuntimeError:
    """For a second backward after one that was to be the last and failed."""
    return RuntimeError(
        "Trying to backward through the graph a second time, after a backward that raised: it was allowed to "
        "overwrite what was saved. Specify retain_graph=True to backward a second time."
    )


def _modified(counter: Tensor, version: int, size: torch.Size) -> RuntimeError:
    """Eager's complaint, in eager's words."""
    return RuntimeError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{counter.type()} {list(size)}] is at version {counter._version}; expected version {version} "
        f"instead."
    )


def _double_backward_unsupported() -> errors.DoubleBackwardUnsupported:
    return errors.DoubleBackwardUnsupported(
        "create_graph=True through a compiled function: its backward is not differentiable; call the "
        "original function where second derivatives are needed"
    )
