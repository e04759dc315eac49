"""From a plan to the callable: executes the generated source around the compiled graphs.

Each segment of the backward is an `autograd.Function` made here; its backward is generated code, its forward
takes what has been computed already.
"""

from __future__ import annotations

import itertools
import linecache
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot import logs
from aot.backends.compilers import Compiled, Compiler
from aot.capture.autograd.engine import RetracePoint
from aot.capture.recorder import functional_rng
from aot.guards.tracker import GuardTracker
from aot.runtime.codegen.wrapper import generate
from aot.runtime.compiled_graphs import LazyBackward, arity_error, as_own_tensor, compiled_graph_runner
from aot.runtime.double_backward import DoubleBackward
from aot.runtime.plan import Plan
from aot.runtime.saved_values import SelfSaved
from aot.runtime.tangents import TangentMismatch, require_tangent_strides, same_memory, with_traced_strides
from aot.tensors import views
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import is_nested, is_wrapper
from aot.tensors.symbolic_sizes import SymbolicSizes
from aot.tensors.version_counters import as_if_at_version, detached_in_place_error, without_version_bump
from aot.torch_internals import (
    ambient_state,
    autocast_state,
    autograd_graph,
    autograd_state,
    dispatcher,
    dynamo_api,
    plain_fakes,
    tensor_impl,
    wrapper_subclasses,
)


@dataclass(frozen=True, slots=True)
class CompiledWrapper:
    """A wrapper.

    Attributes:
        call: takes the tensors of a call, wrapper subclasses last, and returns the flat outputs.
        source: what it was made of.
        define: makes another one of the same source, with other names defined.
        makers: the names of what makes wrapper subclasses.
    """

    call: Callable[..., list[Any]]
    source: str
    define: Callable[[dict[str, Any]], Callable[..., list[Any]]]
    makers: tuple[str, ...]


def build(
    plan: Plan,
    forward: Compiled,
    taken: tuple[int, ...],
    backwards: Sequence[fx.GraphModule | None],
    levels: Sequence[Callable[[], RetracePoint] | None],
    bw_compiler: Compiler,
    look: Callable[[], GuardTracker],
    symbols: SymbolicSizes | None,
    following: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda run: run,
) -> CompiledWrapper:
    """The callable for one specialization.

    Args:
        forward: the compiled forward graph.
        taken: the numbers of a call that it takes.
        backwards: the backward graph of each segment, if it has one.
        levels: each gives what one of these can be recorded again from, if it can.
        bw_compiler: compiles them, each on its first backward.
        look: notes what the Python that eager runs in the backward reads now.
        symbols: what sizes in the graphs are, if they are symbols.
        following: makes what a backward runs also change what the recorded one has changed of the program.
    """
    source, constants = generate(plan)
    logs.log(logs.WRAPPER, "wrapper", lambda: source)
    namespace: dict[str, Any] = {
        **constants,
        "math": math,
        "torch": torch,
        "set_grad_enabled": autograd_state.set_grad_enabled,
        # (Autocast is part of the key: it is at a call what it is now.)
        "run_forward": compiled_graph_runner(
            forward, taken, bare=not (autocast_state.is_autocast_enabled() or plan.numbers.names)
        ),
        "miscounted": arity_error,
        "rng_lock": functional_rng.LOCK,
        "get_rng_state": functional_rng.get_rng_state,
        "set_rng_state": functional_rng.set_state,
        "detached": as_own_tensor,
        "copied": _clone_with_strides,
        "nothing": _nothing,
        "nowhere": _nowhere,
        "passing": _passing,
        "written": _written,
        "uncounted": without_version_bump,
        "edge_of": _edge_of,
        "edge_of_written": _edge_of_written_argument,
        "edge_as_left": _edge_as_left,
        "Geometry": Geometry,
        "fails": require_tangent_strides,
        "tangent": with_traced_strides,
        "same_memory": same_memory,
        "OtherTangent": TangentMismatch,
        "physical": views.physical,
        "seen_as": views.as_strided_view,
        "untold": dispatcher.run_unrecorded,
        "memoryless_storage": plain_fakes.make_storage,
        "set_creation_meta": autograd_state.set_creation_meta,
        "inference_tensor": autograd_state.inference_alias,
        "reinterpreted": views.bitcast_view,
        "counter": _version_counter_alias,
        "modified": _modified,
        "runs": _runs,
        "weakly": weakref.ref,
        "is_detached": _is_detached,
        "detached_in_place": detached_in_place_error,
        "once_more": _unpack_kept_for_backward,
        "spent": _spent,
        "freed": _freed_graph_error,
        "having_written": _having_written,
        "graph_is_retained": autograd_graph.is_graph_retained,
        "packed": _packed,
        "is_grad_enabled": torch.is_grad_enabled,
        "is_autocast": autocast_state.is_autocast_enabled,
        "is_deterministic": ambient_state.are_kernels_deterministic,
        "was_deterministic": ambient_state.are_kernels_deterministic(),
        "saved_tensor_hooks": autograd_state.saved_tensor_hooks,
        "copy_each": tensor_impl.foreach_copy,
        "Tensor": Tensor,
    }
    if plan.num_user_outputs != len(plan.outputs):
        namespace["visible"] = plan.num_user_outputs
    if plan.runs_python:
        namespace["scripts_hold"] = look().guards.hold
    for number, (backward, level) in enumerate(zip(backwards, levels, strict=True)):
        if backward is not None and level is not None:
            whole = plan.parts[number].segment.runs_custom_function
            namespace[f"again{number}"] = DoubleBackward(level, bw_compiler, look, symbols, whole)
        if backward is not None:
            part = plan.parts[number]
            donated = tuple(i for i, one in enumerate(part.saved) if one.donated)
            # (Where there are tangents, it is looked before whether there is autocast.)
            bare = bool(part.segment.tangents) and not plan.numbers.every
            lazy = LazyBackward(backward, bw_compiler, donated, symbols, bare)
            namespace[f"run_backward{number}"] = following(lazy.run)
            namespace[f"run_part{number}"] = following(lazy.run_part)
    name = f"<aot wrapper {next(_COUNTER)}>"
    # Registered so that a traceback through the wrapper shows its lines.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    code = compile(source, name, "exec")
    exec(code, namespace)
    # A function that Dynamo has compiled in pieces calls it from between them, and its backward as well.
    dynamo_api.skip(namespace["call"])
    for number in range(len(plan.parts)):
        dynamo_api.skip(namespace[f"backward{number}"])
        if plan.parts[number].own:
            namespace[f"with_own{number}"] = _saving_own_results(plan.parts[number].own)
        names = ("forward", "backward")
        methods = {name: staticmethod(namespace[f"{name}{number}"]) for name in names}
        function = type("CompiledFunction", (torch.autograd.Function,), methods)
        namespace[f"apply{number}"] = autograd_graph.fast_apply(function)
    call = namespace.pop("call")  # which would keep itself alive
    weakref.finalize(call, linecache.cache.pop, name, None)

    def define(names: dict[str, Any]) -> Callable[..., list[Any]]:
        other = namespace | names
        exec(code, other)
        wrapper: Callable[..., list[Any]] = other.pop("call")
        return wrapper

    makers = tuple(name for name in constants if name.startswith("unflatten"))
    return CompiledWrapper(call, source, define, makers)


_COUNTER = itertools.count()


def _saving_own_results(own: Sequence[SelfSaved]) -> Callable[..., tuple[Tensor | None, ...]]:
    """What a node saves that keeps some of its results. (Autograd keeps a result without its node, which
    would keep the result.)"""

    def saved_with_own(saved: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        kept: list[Tensor | None] = list(saved)
        packed = autograd_state.saved_tensor_hooks() is not None
        for one in own:
            if one.position < len(kept):
                kept[one.position] = results[one.cotangent_input]
            else:  # hooks are not for what eager does not keep
                kept.append(None if packed else results[one.cotangent_input])
        return tuple(kept)

    return saved_with_own


def _edge_of(result: Tensor | None) -> Tensor | None:
    """A tensor that has the edge of a result that was kept, and not its memory."""
    return None if result is None else _passing(result)


def _edge_of_written_argument(ctx: Any, entrance: int) -> Tensor | None:
    """The same for what was written to an argument; None when nobody has its edge any more."""
    of, counter, version = ctx.written[entrance]
    node = of()
    if node is None:
        return None
    try:
        with as_if_at_version(counter, version):  # the call itself may have counted what it did since
            saved = node.saved_tensors
    except RuntimeError:  # freed: so is what would be added up there
        return None
    return _edge_of(*saved) if saved else None


def _edge_as_left(of: Callable[[], Tensor | None], version: int) -> Tensor | None:
    """The same for what had a native history when the call ended; None if it is gone, or changed since."""
    tensor = of()
    if tensor is None or tensor._version != version or tensor.grad_fn is None:
        return None
    return _edge_of(tensor)


class _EdgeAlias(torch.autograd.Function):
    """A tensor's edge, apart from the tensor: a write to that does not move it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        if is_wrapper(tensor) and is_nested(tensor):  # the shape of which no other tensor has
            return tensor.detach()
        return _nothing(tensor.shape, tensor.dtype, tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        return gradient


_passing = autograd_graph.fast_apply(_EdgeAlias)


class _RebaseHistory(torch.autograd.Function):
    """A tensor that is written to gets the history of what is written; its old edge gets no gradient from
    here, as the one that is due to it is part of that history.

    What is written is the value that has that history, unless it was written before (`copies`). The node of
    that history may be one that keeps the tensor (`keeper`, and which of its entrances it is).
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, history: Tensor, copies: bool, keeper: Any = None, entrance: int = 0
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(tensor)  # which moves its version counter
        if copies:
            tensor.data.copy_(history)
        if keeper is not None:
            keeper.written[entrance] = weakref.ref(ctx), _version_counter_alias(tensor), tensor._version + 1
            if autograd_state.saved_tensor_hooks() is None:
                ctx.save_for_backward(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, gradient, None, None, None


_give_history = autograd_graph.fast_apply(_RebaseHistory)


def _written(
    tensor: Tensor, history: Tensor, copies: bool, keeper: Any = None, entrance: int = 0
) -> Tensor | None:
    """`_RebaseHistory`, of any tensor."""
    if tensor.grad_fn is None and not is_wrapper(tensor):
        _forget_accumulator(tensor)
    return _give_history(tensor, history, copies, keeper, entrance)  # type: ignore[no-any-return]


def _forget_accumulator(tensor: Tensor) -> None:
    """Have a leaf not know the node any more that adds up its gradients, where it has one.

    It required grad before, and graphs may lead to that node. `mark_dirty` takes the leaf away from the node
    that it knows, and the next backward which comes by takes down the process. A leaf forgets it when it is
    given data of another dtype.
    """
    data = tensor.data
    other = torch.int8 if tensor.dtype == torch.uint8 else torch.uint8
    if tensor.is_complex():
        other = torch.complex64 if tensor.dtype == torch.complex128 else torch.complex128
    tensor.data = _no_data(tensor, other)
    tensor.data = data


def _no_data(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What may be the `.data` of a tensor, as lazily conjugated or negated as that, and has no elements."""
    data = torch.empty(0, dtype=dtype, device=tensor.device)
    tensor_impl.set_lazy_bits(data, tensor.is_conj(), tensor.is_neg())
    return data


def _nowhere() -> Tensor:
    """A leaf that nobody else has."""
    return torch.empty(0, requires_grad=True)


def _nothing(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor for what is not returned, only differentiated: it has the size, and memory for one number."""
    return torch.empty_strided(size, (0,) * len(size), dtype=dtype, device=device)


def _clone_with_strides(value: Tensor, offset: int) -> Tensor:
    """A copy with the same strides, elements that are shown several times included, at a storage offset."""
    size, stride = value.size(), value.stride()
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if value.numel() else 0
    memory = torch.empty(offset + span, dtype=value.dtype, device=value.device)
    memory[offset:].copy_(value.as_strided((span,), (1,)))
    whole = torch.empty(0, dtype=value.dtype, device=value.device)
    return whole.set_(memory.untyped_storage(), offset, size, stride)


def _version_counter_alias(tensor: Tensor) -> Tensor:
    """A tensor that shares the version counter of `tensor`, and nothing of its memory."""
    if is_wrapper(tensor):
        return wrapper_subclasses.shell(tensor)
    alias = tensor.detach()
    # Assigning `.data` leaves the version counter as it is.
    alias.data = _no_data(tensor, tensor.dtype)
    return alias


def _packed(kept: list[Tensor]) -> list[tuple[Callable[[Any], Any], Any]]:
    """What is kept besides what autograd saves, each with the way to get it back: through the caller's
    saved-tensor hooks, as autograd does."""
    pack, unpack = autograd_state.saved_tensor_hooks() or (_itself, _itself)
    return [(unpack, pack(value)) for value in kept]


def _itself(value: Any) -> Any:
    return value


def _unpack_kept_for_backward(
    kept: list[tuple[Callable[[Any], Any], Any]], stays: bool
) -> tuple[Tensor, ...]:
    """What is kept for backward, given up when the engine gives up the rest of the graph, unless it stays."""
    if not kept:
        raise _freed_graph_error()
    values = tuple(unpack(value) for unpack, value in kept)
    if not (stays or autograd_graph.is_graph_retained()):
        kept.clear()
    return values


def _having_written(results: tuple[Any, ...], *written: Tensor) -> tuple[Any, ...]:
    """The results of a backward that has written to some memory, past the version counters."""
    for tensor in written:
        torch.autograd.graph.increment_version(tensor)
    return results


def _freed_graph_error() -> RuntimeError:
    """For a backward after one that did not retain the graph, in eager's words."""
    return RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they "
        "have already been freed). Saved intermediate values of the graph are freed when you call "
        ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
        "graph a second time or if you need to access saved tensors after calling backward."
    )


def _spent() -> RuntimeError:
    """For a second backward after one that was to be the last and failed."""
    return RuntimeError(
        "Trying to backward through the graph a second time, after a backward that raised: it was allowed to "
        "overwrite what was saved. Specify retain_graph=True to backward a second time."
    )


def _is_detached(tensor: Tensor | None) -> bool:
    """Whether a tensor that had a history is there, and has none any more."""
    return tensor is not None and tensor.grad_fn is None


def _runs(node: Any, edges: tuple[int, ...]) -> bool:
    """Whether the backward that runs now goes on at one of these edges of a node."""
    return any(autograd_graph.will_execute(node.next_functions[k][0]) for k in edges)


def _modified(counter: Tensor, version: int, size: torch.Size) -> RuntimeError:
    """Eager's complaint, in eager's words."""
    return RuntimeError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{counter.type()} {list(size)}] is at version {counter._version}; expected version {version} "
        f"instead."
    )
