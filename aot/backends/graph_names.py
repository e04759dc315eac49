"""Names of what is being compiled, for compilers that name what they make, and for logs."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

from torch import fx

from aot.torch_internals import compile_logs

_NUMBER = "aot_id"  # in a graph's meta: which compile it belongs to
_COMPILE = "aot compile of Dynamo's"  # the same: which of Dynamo's that belongs to
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
    """What is being compiled in this thread: the graph, such as ``["0_forward"]`` (empty while none is), the
    model's name, and how many graphs have been compiled before.

    Example:
        >>> aot.get_aot_compilation_context()
        ([], 'model', 0)
    """
    return list(getattr(_here, "graphs", ())), _model, _compiled


def get_aot_graph_name() -> str:
    """The name of the graph that is being compiled in this thread, unlike that of any other.

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
    """Say that these graphs belong to one compile, a new one."""
    one = next(_numbers)
    for module in modules:
        if module is not None:
            module.meta[_NUMBER] = one
            module.meta[_COMPILE] = compile_logs.current_compile()


def copy_compile_id(module: fx.GraphModule, other: fx.GraphModule) -> None:
    """Say that `module` belongs to the compile of `other`."""
    module.meta[_NUMBER] = other.meta.get(_NUMBER)
    module.meta[_COMPILE] = other.meta.get(_COMPILE)


@contextlib.contextmanager
def compiling(module: fx.GraphModule, which: str) -> Iterator[None]:
    """While this lasts, a graph is being compiled in this thread."""
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
