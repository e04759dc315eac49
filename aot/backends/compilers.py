"""Graph compilers: the compiler `nop`, the boxed calling convention, and the call of a compiler.

In: an `fx.GraphModule` and example inputs. Out: a callable. A *boxed* callable takes one list, which it may
clear so that inputs are freed early. Any other callable takes the inputs as positional arguments. Both return
a tuple or list.

A backward graph's ``meta["donated"]`` has the positions of inputs that nobody reads afterwards. The compiled
graph may overwrite their memory, as with AOTAutograd's donated buffers. A backward with ``retain_graph=True``
is compiled separately, without donated inputs.

`static_inputs` gives the inputs whose memory stays the same from call to call: parameters and buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from aot import logs
from aot.backends import graph_names
from aot.backends.straight_line import compile_straight_line
from aot.errors import BackendError, UnsupportedOption
from aot.torch_internals import compile_logs, fx_graphs

Compiled = Callable[..., Sequence[Any]]
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Compiled]


def nop(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """Run the graph as it is.

    Example:
        >>> compiled = aot.aot_function(torch.sin, fw_compiler=aot.nop)
    """
    if fx_graphs.has_lazy_code(module):
        function = compile_straight_line(module)
        if function is not None:
            return function
        fx_graphs.LazyGraphModule.force_recompile(module)
    return module.forward


def require_compiler(option: str, compiler: Any) -> Compiler:
    """Return the compiler that was given for an option.

    Raises:
        UnsupportedOption: it cannot be called, because it is the name of a backend, for example.

    Example:
        >>> require_compiler("fw_compiler", nop) is nop
        True
    """
    if callable(compiler):
        return compiler  # type: ignore[no-any-return]
    kind = type(compiler).__qualname__
    raise UnsupportedOption(
        f"{option} is {compiler!r:.100}, of type {kind}; it must be a function of (fx.GraphModule, "
        "example_inputs) that returns a callable, such as aot.nop. For Inductor's kernels, "
        "torch.compile(f, backend='aotfuzz_inductor'); of another backend that has a name, "
        "torch._dynamo.lookup_backend(name) is the function"
    )


def make_boxed_func(function: Callable[..., Any]) -> Compiled:
    """Make a boxed callable from one that takes positional arguments."""

    def boxed(arguments: list[Any]) -> Any:
        return function(*arguments)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """Make a compiler with boxed results from one whose results take positional arguments."""

    def boxed(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return make_boxed_func(compiler(module, example_inputs))

    return boxed


def as_boxed(compiled: Compiled) -> Compiled:
    """`compiled` as a boxed callable: itself, if it is one."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    return make_boxed_func(compiled)


def defer_fake_values(module: fx.GraphModule, values: Callable[[], Mapping[fx.Node, Any]]) -> None:
    """Set the ``meta["val"]`` of nodes only when `materialize_metadata` is called."""

    def complete(module: fx.GraphModule) -> None:
        for node, value in values().items():
            node.meta["val"] = value

    defer_metadata(module, complete)


def defer_metadata(module: fx.GraphModule, complete: Callable[[fx.GraphModule], None]) -> None:
    """Call `complete` with the graph, or a copy of it, only when `materialize_metadata` is called."""
    module.meta[_PUT_OFF] = (*module.meta.get(_PUT_OFF, ()), complete)


def materialize_metadata(module: fx.GraphModule) -> fx.GraphModule:
    """Run the deferred functions of a graph, and return it."""
    if _PUT_OFF in module.meta:
        with _completing:
            for complete in module.meta.get(_PUT_OFF, ()):
                complete(module)
            module.meta.pop(_PUT_OFF, None)
    return module


_PUT_OFF = "aot metadata put off"
_completing = threading.RLock()


def example_inputs(module: fx.GraphModule) -> Sequence[Any]:
    """A graph's inputs as fake tensors, in order."""
    return [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]


def mark_static(module: fx.GraphModule, static: Iterable[bool]) -> None:
    """Mark those of a graph's first inputs whose memory stays the same from call to call."""
    inputs = module.graph.find_nodes(op="placeholder")
    for node, one in zip(inputs, static, strict=False):
        node.meta["static"] = one


def static_inputs(module: fx.GraphModule) -> list[int]:
    """The positions of a graph's inputs whose memory stays the same from call to call.

    The caller says which these are: parameters and buffers of modules, inputs that Dynamo has marked, and the
    first `num_params_buffers` inputs. In a backward they are the ones that were saved unchanged.

    A compiler for CUDA graphs need not copy them into memory of its own. But an optimizer, or ``.data =``,
    may replace them.

    Example:
        >>> def compiler(module, example_inputs):
        ...     print(aot.static_inputs(module))
        ...     return module.forward
        >>> compiled = aot.aot_module(torch.nn.Linear(2, 1), compiler)
        >>> compiled(torch.ones(3, 2)).shape
        [0, 1]
        torch.Size([3, 1])
    """
    inputs = module.graph.find_nodes(op="placeholder")
    return [position for position, node in enumerate(inputs) if node.meta.get("static")]


def readable_graph(module: fx.GraphModule) -> str:
    """A graph as Python text, with sizes, strides, devices, and the source lines of nodes."""
    completed = materialize_metadata(module)
    text: str = completed.print_readable(print_output=False, include_stride=True, include_device=True)
    return text


def compile_graph(compiler: Compiler, module: fx.GraphModule, which: str) -> Compiled:
    """Hand a graph to a compiler. `which` names the graph in logs and errors, such as ``forward``.

    Raises:
        BackendError: the compiler returns an object that cannot be called.
    """
    with graph_names.compiling(module, which):
        title = graph_names.get_aot_graph_name()
        logs.log(logs.GRAPHS, title, lambda: module.print_readable(print_output=False))
        compile_logs.log_graph(which, title, lambda: readable_graph(module))
        inputs: Sequence[Any] = ()
        if compiler is not nop:
            inputs = example_inputs(materialize_metadata(module))
            fx_graphs.recompile_eagerly(module)
        compiled = compiler(module, inputs)
    if not callable(compiled):
        raise BackendError(f"the {which} compiler returned {type(compiled).__name__}, which cannot be called")
    return compiled
