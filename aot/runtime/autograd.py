"""From a plan to the callable: executes the generated source around the compiled graphs.

The one `autograd.Function` of a specialization is made here; its two methods are generated code.
"""

from __future__ import annotations

import itertools
import linecache
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aot import errors
from aot import torch_internals as internals
from aot.compilers import Compiled, boxed
from aot.runtime.codegen import generate
from aot.runtime.plan import Plan


def build(
    plan: Plan,
    forward: Compiled,
    compile_backward: Callable[[], Compiled] | None,
    backward_results: int,
) -> tuple[Callable[..., list[Any]], str]:
    """The callable for one specialization, and its source.

    Args:
        forward: the compiled forward graph.
        compile_backward: compiles the backward graph; called on the first backward.
        backward_results: how many gradients the backward graph returns.
    """
    source, constants = generate(plan)
    namespace: dict[str, Any] = {
        **constants,
        "torch": torch,
        "set_grad_enabled": internals.set_grad_enabled,
        "run_forward": _runner(forward, len(plan.values) + len(plan.saved), "forward"),
        "detached": _detached,
        "copied": _copied,
        "tangent": _tangent,
        "modified": _modified,
        "double_backward_unsupported": _double_backward_unsupported,
    }
    if compile_backward is not None:
        namespace["run_backward"] = _lazy(compile_backward, backward_results)
    name = f"<aot wrapper {next(_COUNTER)}>"
    # Registered so that a traceback through the wrapper shows its lines.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)
    if plan.tracked:
        function = type(
            "CompiledFunction",
            (torch.autograd.Function,),
            {
                "forward": staticmethod(namespace["forward"]),
                "backward": staticmethod(namespace["backward"]),
            },
        )
        namespace["apply"] = function.apply  # type: ignore[attr-defined]
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


def _lazy(compile_backward: Callable[[], Compiled], results: int) -> Callable[[list[Any]], Any]:
    """The backward graph, compiled by one thread when it is first run."""
    lock = threading.Lock()
    compiled: list[Callable[[list[Any]], Any]] = []

    def run(arguments: list[Any]) -> Any:
        if not compiled:
            with lock:
                if not compiled:
                    compiled.append(_runner(compile_backward(), results, "backward"))
        return compiled[0](arguments)

    return run


def _detached(value: Tensor) -> Tensor:
    """A graph's result as a tensor of its own: graphs may end in a view."""
    return value.detach() if value._is_view() else value


def _copied(value: Tensor) -> Tensor:
    """A copy with the same layout."""
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device).copy_(
        value
    )


def _tangent(
    given: Tensor | None,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """A tangent laid out as the backward graph was traced for; zeros where eager has none."""
    if given is None:
        zeros: Tensor = torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()
        return zeros
    if given.stride() == stride:
        return given
    return torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(given)


def _modified(alias: Tensor, version: int) -> RuntimeError:
    """Eager's complaint, in eager's words."""
    return RuntimeError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{alias.type()} {list(alias.shape)}] is at version {alias._version}; expected version {version} "
        f"instead."
    )


def _double_backward_unsupported() -> errors.DoubleBackwardUnsupported:
    return errors.DoubleBackwardUnsupported(
        "create_graph=True through a compiled function: its backward is not differentiable; call the "
        "original function where second derivatives are needed"
    )
