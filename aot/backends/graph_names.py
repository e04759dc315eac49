"""Graph names: the name of the graph that a thread compiles, for logs and for compilers that name their code.

The first three functions have the names that they have in torch's AOTAutograd.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

from torch import fx

from aot.torch_internals import compile_logs

_NUMBER = "aot_id"  # key in a graph's meta: the number of its compile
_COMPILE = "aot compile of Dynamo's"  # key in a graph's meta: the compile of Dynamo's
_numbers = itertools.count()
_here = threading.local()
_model = "model"
_compiled = 0


def set_model_name(name: str) -> None:
    """Name the model whose graphs are compiled from now on, in every thread.

    Example:
        >>> aot.set_model_name("resnet")
        >>> aot.get_aot_graph_name()
        'resnet___0'
    """
    global _model
    _model = name


def get_aot_compilation_context() -> tuple[list[str], str, int]:
    """The state of compilation in this thread.

    Returns:
        The graph that is being compiled, such as ``["0_forward"]``, or an empty list; the model's name; and
        the number of graphs that were compiled before.

    Example:
        >>> aot.get_aot_compilation_context()
        ([], 'model', 0)
    """
    return list(getattr(_here, "graphs", ())), _model, _compiled


def get_aot_graph_name() -> str:
    """The unique name of the graph that is being compiled in this thread.

    Example:
        >>> def compiler(graph, example_inputs):
        ...     print(aot.get_aot_graph_name())
        ...     return graph
        >>> aot.aot_function(torch.sin, compiler)(torch.ones(2))  # doctest: +SKIP
        model__0_inference_0
    """
    graphs, model, number = get_aot_compilation_context()
    return f"{model}__{'_'.join(graphs)}_{number}"


def assign_compile_id(*modules: fx.GraphModule | None) -> None:
    """Assign these graphs to one new compile."""
    one = next(_numbers)
    for module in modules:
        if module is not None:
            module.meta[_NUMBER] = one
            module.meta[_COMPILE] = compile_logs.current_compile()


def copy_compile_id(module: fx.GraphModule, other: fx.GraphModule) -> None:
    """Assign `module` to the compile of `other`."""
    module.meta[_NUMBER] = other.meta.get(_NUMBER)
    module.meta[_COMPILE] = other.meta.get(_COMPILE)


@contextlib.contextmanager
def compiling(module: fx.GraphModule, which: str) -> Iterator[None]:
    """While it lasts, `module` is the graph that this thread compiles."""
    global _compiled
    if module.meta.get(_NUMBER) is None:
        assign_compile_id(module)
    before = getattr(_here, "graphs", ())
    _here.graphs = (f"{module.meta[_NUMBER]}_{which}",)
    try:
        with compile_logs.within_compile(module.meta.get(_COMPILE)):
            yield
    finally:
        _here.graphs = before
        _compiled += 1
