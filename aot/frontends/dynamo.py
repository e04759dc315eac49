"""The backends `aotfuzz` and `aotfuzz_inductor` of `torch.compile`: Dynamo's graphs, compiled here.

The first runs them as they are, the second has Inductor compile them further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from aot import config, errors
from aot.backends.compilers import nop
from aot.capture.intercept.checkpoints import mark_module_state
from aot.capture.intercept.exception_handlers import handlers_of, with_handler_check
from aot.frontends.function import Partitioner
from aot.frontends.module import aot_module
from aot.frontends.regions import note_region, region_name
from aot.inductor import Inductor
from aot.partition.default import default_partition
from aot.partition.min_cut import min_cut_rematerialization_partition
from aot.tensors.geometry import known_equal
from aot.tensors.subclasses import is_nested_int
from aot.torch_internals import compile_logs, dynamo_api, higher_order_ops

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
        mode: one of `torch.compile`'s. They say how Inductor is to choose kernels, and mean nothing here.
        options: ``"partitioner"``: ``"default"`` (the default) or ``"min-cut"``; ``"on_unsupported"``:
            what becomes of a graph that is refused: it runs as Dynamo captured it (``"eager"``, the default
            unless `aot.config` says otherwise), with one `FallbackWarning`, or ``"raise"``.

    Raises:
        UnsupportedOption: anything else.
        Unsupported: when called, see `aot.errors`, with ``"on_unsupported": "raise"``; and where a graph
            raises for some values what the function catches, which the graph as captured does not either.

    Example:
        >>> import torch
        >>> torch.compile(torch.sin, backend="aotfuzz", options={"partitioner": "min-cut"})  # doctest: +SKIP
    """
    if mode is not None and mode not in _MODES:
        raise errors.UnsupportedOption(f"mode={mode!r}: torch.compile has the modes {', '.join(_MODES)}")
    ours, unknown = _split_options(options or {}, "default", "aotfuzz")
    if unknown:
        raise errors.UnsupportedOption(
            f"options={dict(options or {})!r}: the backend aotfuzz takes no options but 'partitioner' and "
            f"'on_unsupported'"
        )
    return _compile_dynamo_graph(graph, fw_compiler=nop, **ours)


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
        example_inputs: unused but for their devices.
        mode: Inductor's. Where a tensor of the graph is on a CUDA device, none that captures CUDA graphs.
        options: ``"partitioner"``: ``"min-cut"`` (the default) or ``"default"``; ``"on_unsupported"``, as
            in `aotfuzz`; and Inductor's own.

    Raises:
        UnsupportedOption: an option that Inductor does not know, or that has no meaning here.
        Unsupported: when called, as in `aotfuzz`.

    Example:
        >>> import torch
        >>> options = {"max_fusion_size": 8}
        >>> torch.compile(torch.sin, backend="aotfuzz_inductor", options=options)  # doctest: +SKIP
    """
    ours, theirs = _split_options(options or {}, "min-cut", "aotfuzz_inductor")
    tensors = (one for one in example_inputs if isinstance(one, torch.Tensor))
    inductor = Inductor.configured(mode, theirs, cuda=_uses_cuda(graph, tensors))
    return _compile_dynamo_graph(
        graph,
        fw_compiler=inductor.forward,
        bw_compiler=inductor.backward,
        inference_compiler=inductor.inference,
        keep_inference_input_mutations=True,
        **ours,
    )


_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _uses_cuda(graph: fx.GraphModule, inputs: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor of a graph may be on a CUDA device, as far as its inputs and devices in it tell."""
    if not torch.cuda.is_available():
        return False
    given = (value for node in graph.graph.nodes for value in (*node.args, *node.kwargs.values()))
    named = (str(value) for value in given if isinstance(value, (str, torch.device)))
    return any(tensor.is_cuda for tensor in (*inputs, *graph.parameters(), *graph.buffers())) or any(
        name.startswith("cuda") for name in named
    )


def _split_options(
    options: Mapping[str, Any], partitioner: str, backend: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the options say to `aot_module`, with this partitioner by default, and the other options."""
    name = options.get("partitioner", partitioner)
    if name not in PARTITIONERS:
        raise errors.UnsupportedOption(
            f"options={dict(options)!r}: the partitioner of the backend {backend} is one of "
            f"{', '.join(PARTITIONERS)}"
        )
    on_unsupported = config.check_on_unsupported(options.get("on_unsupported"))
    others = {key: value for key, value in options.items() if key not in _OPTIONS}
    return {"partition_fn": PARTITIONERS[name], "on_unsupported": on_unsupported}, others


_OPTIONS = ("partitioner", "on_unsupported")


def _compile_dynamo_graph(graph: fx.GraphModule, **options: Any) -> Callable[..., Any]:
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    state = (node for node in graph.graph.find_nodes(op="placeholder") if dynamo_api.is_module_state(node))
    mark_module_state(graph, frozenset(state))
    numbers = _inline_number_inputs(copied)
    left_out = _drop_nested_int_inputs(copied)
    _assign_data(copied)
    compiled = aot_module(fx.GraphModule(graph, copied), **options).compiled
    compiled.seeds = False  # Dynamo leaves that to Python
    compiled.asks_modes = False  # Dynamo has asked them
    compiled.outer_compile = compile_logs.current_compile()
    compiled.fallback.default = "eager"
    compiled.__name__ = region_name(graph.graph) or compiled.__name__
    note_region(compiled)
    call = compiled.released_call()
    if numbers or left_out:
        unread = call

        def call(*args: Any) -> Any:
            return unread(*_read(args, numbers, left_out))

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


def _drop_nested_int_inputs(graph: fx.Graph) -> frozenset[int]:
    """Take away inputs that are names of sizes of nested tensors: what stands for such a tensor in a trace
    has a name of its own, which its size gives. The positions of these inputs."""
    inputs = graph.find_nodes(op="placeholder")
    examples = [node.meta.get("example_value") for node in inputs]
    dropped = set()
    for position, (node, name) in enumerate(zip(inputs, examples, strict=True)):
        if not (isinstance(name, torch.SymInt) and is_nested_int(name)):
            continue
        places = (
            (tensor, d)
            for tensor, example in zip(inputs, examples, strict=True)
            if isinstance(example, Tensor)
            for d, size in enumerate(example.shape)
            if is_nested_int(size) and known_equal((size,), (name,))  # type: ignore[arg-type]
        )
        found = next(places, None)
        if found is None:
            continue
        if node.users:
            last = inputs[-1]
            with graph.inserting_after(last):
                node.replace_all_uses_with(graph.call_method("size", found))
        graph.erase_node(node)
        dropped.add(position)
    return frozenset(dropped)


def _read(args: tuple[Any, ...], numbers: frozenset[int], left_out: frozenset[int]) -> tuple[Any, ...]:
    """Arguments, with numbers in place of tensors that are nothing but numbers, and without some."""
    return tuple(arg.item() if i in numbers else arg for i, arg in enumerate(args) if i not in left_out)


# Dynamo asks for a backend by its entry point. Threads that ask at once each load it and register what they
# get, and Dynamo raises for all but the first. So attributes of these names are computed.
_BACKENDS = {backend.__name__: globals().pop(backend.__name__) for backend in (aotfuzz, aotfuzz_inductor)}


def __getattr__(name: str) -> Any:
    """Get a backend. Dynamo's look-up gets None, and finds the backend registered."""
    backend = _BACKENDS.get(name)
    if backend is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return None if dynamo_api.register_if_loading(backend, name) else backend
