"""The backends `aotfuzz` and `aotfuzz_inductor` of `torch.compile`: Dynamo's graphs, compiled here.

The first runs them as they are, the second has Inductor compile them further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from aot import errors
from aot.backends.compilers import nop
from aot.capture.intercept.checkpoints import mark_module_state
from aot.capture.intercept.exception_handlers import handlers_of, with_handler_check
from aot.frontends.function import Partitioner
from aot.frontends.module import aot_module
from aot.inductor import Inductor
from aot.partition.default import default_partition
from aot.partition.min_cut import min_cut_rematerialization_partition
from aot.torch_internals import dynamo_api, higher_order_ops

__all__ = ["PARTITIONERS", "aotfuzz", "aotfuzz_inductor"]

PARTITIONERS: Mapping[str, Partitioner] = {
    "default": default_partition,
    "min-cut": min_cut_rematerialization_partition,
}


def aotfuzz(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one of Dynamo's graphs.

    A graph is compiled at its first call: when Dynamo hands it over, modes are not those of the call. Sizes
    and ints that are symbols in it stay symbols. It is compiled once more for each kind of call that Dynamo
    does not tell from another.

    Args:
        example_inputs: unused.
        mode: none but ``"default"``, which torch leaves out.
        options: ``{"partitioner": "default"}`` or ``"min-cut"``.

    Raises:
        UnsupportedOption: anything else.
        Unsupported: when called, see `aot.errors`.

    Example:
        >>> import torch
        >>> torch.compile(torch.sin, backend="aotfuzz", options={"partitioner": "min-cut"})  # doctest: +SKIP
    """
    if mode is not None:
        raise errors.UnsupportedOption(f"mode={mode!r}: the backend aotfuzz has no modes; leave it out")
    partition, unknown = _partitioner_of_options(options or {}, "default", "aotfuzz")
    if unknown:
        raise errors.UnsupportedOption(
            f"options={dict(options or {})!r}: the backend aotfuzz takes no option but 'partitioner'"
        )
    return _compile_dynamo_graph(graph, fw_compiler=nop, partition_fn=partition)


def aotfuzz_inductor(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The same with Inductor's kernels for the forward, and for the backward when it is first run.

    Random numbers are eager's.

    Args:
        example_inputs: unused, as in `aotfuzz`.
        mode: Inductor's, but for those that capture CUDA graphs.
        options: ``{"partitioner": "min-cut"}`` (the default) or ``"default"``, and Inductor's own.

    Raises:
        UnsupportedOption: an option that Inductor does not know, or that has no meaning here.
        Unsupported: when called, see `aot.errors`.

    Example:
        >>> import torch
        >>> options = {"max_fusion_size": 8}
        >>> torch.compile(torch.sin, backend="aotfuzz_inductor", options=options)  # doctest: +SKIP
    """
    partition, theirs = _partitioner_of_options(options or {}, "min-cut", "aotfuzz_inductor")
    inductor = Inductor.configured(mode, theirs)
    return _compile_dynamo_graph(
        graph,
        fw_compiler=inductor.forward,
        bw_compiler=inductor.backward,
        inference_compiler=inductor.inference,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def _partitioner_of_options(
    options: Mapping[str, Any], default: str, backend: str
) -> tuple[Partitioner, dict[str, Any]]:
    """The partitioner that the options name, and the other options."""
    name = options.get("partitioner", default)
    if name not in PARTITIONERS:
        raise errors.UnsupportedOption(
            f"options={dict(options)!r}: the partitioner of the backend {backend} is one of "
            f"{', '.join(PARTITIONERS)}"
        )
    return PARTITIONERS[name], {key: value for key, value in options.items() if key != "partitioner"}


def _compile_dynamo_graph(graph: fx.GraphModule, **options: Any) -> Callable[..., Any]:
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    state = (node for node in graph.graph.find_nodes(op="placeholder") if dynamo_api.is_module_state(node))
    mark_module_state(graph, frozenset(state))
    numbers = _inline_number_inputs(copied)
    _assign_data(copied)
    compiled = aot_module(fx.GraphModule(graph, copied), **options).compiled
    compiled.seeds = False  # Dynamo leaves that to Python
    compiled.asks_modes = False  # Dynamo has asked them
    call: Callable[..., Any] = compiled.call_positional
    if numbers:

        def call(*args: Any) -> Any:
            return compiled.call_positional(*_read(args, numbers))

    return with_handler_check(call, handlers_of(graph.graph))


def _assign_data(graph: fx.Graph) -> None:
    """Put back ``x.data = y``, for which Dynamo writes ``x.set_(y)`` and a function that takes back what this
    does to the version counter."""
    for node in graph.find_nodes(op="call_function", target=torch.Tensor.set_):
        takers = [user for user in node.users if dynamo_api.is_version_decrement(user.target)]
        if not takers:
            continue
        tensor, data = node.args
        with graph.inserting_before(node):
            graph.call_function(setattr, (tensor, "data", data))
        for taker in takers:
            taker.replace_all_uses_with(node)
            graph.erase_node(taker)
        node.replace_all_uses_with(tensor)
        graph.erase_node(node)


def _inline_number_inputs(graph: fx.Graph) -> frozenset[int]:
    """Put numbers in place of inputs that are nothing but numbers in tensors, as Dynamo hands over floats
    that it does not want to compile for; gives the positions of these inputs.

    An operator that takes functions gets such a number as a tensor, whose value a trace knows.
    """
    numbers = set()
    inputs = graph.find_nodes(op="placeholder")
    for position, node in enumerate(inputs):
        items = [user for user in node.users if (user.op, user.target) == ("call_method", "item")]
        others = node.users.keys() - items
        is_passed = any(isinstance(user.target, higher_order_ops.HigherOrderOperator) for user in others)
        if not node.users or (others and not (is_passed and dynamo_api.is_number_input(node))):
            continue
        numbers.add(position)
        if others:
            with graph.inserting_after(inputs[-1]):
                tensor = graph.call_function(torch.tensor, (node,), {"dtype": torch.float64, "device": "cpu"})
            node.replace_all_uses_with(tensor, delete_user_cb=others.__contains__)
        for user in items:
            user.replace_all_uses_with(node)
            graph.erase_node(user)
    return frozenset(numbers)


def _read(args: tuple[Any, ...], numbers: frozenset[int]) -> tuple[Any, ...]:
    """Arguments, with numbers in place of tensors that are nothing but numbers."""
    return tuple(arg.item() if i in numbers else arg for i, arg in enumerate(args))


# Dynamo asks for a backend by its entry point. Threads that ask at once each load it and register what they
# get, and Dynamo raises for all but the first. So attributes of these names are computed.
_BACKENDS = {backend.__name__: globals().pop(backend.__name__) for backend in (aotfuzz, aotfuzz_inductor)}


def __getattr__(name: str) -> Any:
    """Get a backend. Dynamo's look-up gets None, and finds the backend registered."""
    backend = _BACKENDS.get(name)
    if backend is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return None if dynamo_api.register_if_loading(backend, name) else backend
