"""Inductor as a compiler of graphs, imported at its first use: it is most of what torch.compile loads."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aot.torch_internals import autocast_state, dispatcher, torch_fakes

__all__ = [
    "compile_graph",
    "copy_ops",
    "decompose",
    "decomposition_table",
    "option_names",
    "resolve_settings",
    "restride",
]


def resolve_settings(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `torch.compile` sets Inductor's configuration to; RuntimeError for what it does not know."""
    from torch._inductor import list_mode_options

    of_mode: Any = list_mode_options(mode) if mode else {}
    settings = {**of_mode, **{name.replace("-", "_"): value for name, value in (options or {}).items()}}
    unknown = settings.keys() - option_names()
    if unknown:
        raise RuntimeError(f"Inductor has no option called {', '.join(sorted(unknown))}")
    return settings


def option_names() -> set[str]:
    """The names in Inductor's configuration."""
    from torch._inductor import config

    return set(config.get_config_copy())


def _load() -> None:
    """Import what torch.compile does before it compiles: Inductor's modules name each other as attributes of
    their package, as `decomposition` does `lowering` for `max_pool2d`, and do not import what they name."""
    importlib.import_module("torch._inductor.compile_fx")


def decomposition_table(settings: Mapping[str, Any]) -> dict[Any, Callable[..., Any]]:
    """Operations that Inductor does not compile, and functions that compute them by others."""
    _load()
    from torch._inductor import config, decomposition

    with config.patch(dict(settings)):
        return dict(decomposition.select_decomp_table())


def decompose(
    function: Callable[..., Any], inputs: Sequence[Any], decompositions: Mapping[Any, Callable[..., Any]]
) -> GraphModule:
    """The graph of what `function` computes from fake tensors, operations decomposed."""
    from torch.fx.experimental.proxy_tensor import make_fx

    # (Some kernels take symbols in Python alone.)
    mode = torch_fakes.fake_mode_of(inputs)
    kernels = contextlib.nullcontext() if mode.shape_env is None else dispatcher.python_dispatcher_on()
    with mode, kernels, torch.no_grad(), autocast_state.without_autocast():
        graph = make_fx(function, dict(decompositions))(*inputs)
    # (What reads a number from a fake tensor fails, and stays in the graph if the failure is caught.)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default):
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def copy_ops() -> set[Any]:
    """Operations that are no views, and that Inductor takes away where they only copy an argument."""
    _load()
    from torch._inductor.fx_passes import post_grad

    return {op for op in post_grad.noop_registry if not op.is_view}


def restride(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """A copy with dimensions in the order that these strides have, in a graph for Inductor."""
    from torch._inductor import inductor_prims

    restrided: Tensor = inductor_prims.force_stride_order(tensor, list(stride))
    return restrided


def compile_graph(
    graph: GraphModule,
    inputs: Sequence[Any],
    which: str,
    settings: Mapping[str, Any],
    donated: Sequence[int],
    static: Sequence[int],
    names: list[str],
    opaque: Iterable[Any] = (),
) -> tuple[Callable[..., Any], list[tuple[int, ...] | None]]:
    """Inductor's code for a graph without mutations, but for those of its inputs at its end.

    Args:
        which: "forward", "backward" or "inference".
        donated: the inputs that may be overwritten.
        static: those that lie in one place from call to call.
        names: what it is called in the code.
        opaque: operations that Inductor is to call, whatever the setting `implicit_fallbacks` says of those
            that it does not know.

    Returns:
        A boxed callable, and the strides of its results, as far as it tells them.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile_fx, config

    # (A graph without inputs has fake tensors, too.)
    context = TracingContext(
        torch_fakes.fake_mode_of([*inputs, *(node.meta.get("val") for node in graph.graph.nodes)])
    )
    context.output_strides = []
    context.aot_graph_name = names
    # All that is read of it.
    context.fw_metadata = types.SimpleNamespace(
        bw_donated_idxs=list(donated), static_input_indices=list(static)
    )
    _call_as_they_are(opaque)
    with config.patch(dict(settings)), tracing(context), autocast_state.without_autocast():
        compiled = compile_fx.compile_fx_inner(
            graph,
            inputs,
            static_input_idxs=list(static),
            is_backward=which == "backward",
            is_inference=which == "inference",
        )
    return compiled, list(context.output_strides)


def _call_as_they_are(ops: Iterable[Any]) -> None:
    """Have Inductor call operations that it does not know, given tensors as their tags say."""
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    make: Any = lowering.make_fallback
    for op in ops:
        if op not in lowering.lowerings:
            make(op, lowering.tag_to_layout_constraint(get_layout_constraint_tag(op)), warn=False)
