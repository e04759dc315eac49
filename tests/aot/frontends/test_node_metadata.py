"""Metadata of nodes: tools read off our graphs what they read off AOTAutograd's, and compiles are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from functorch.compile import ts_compile
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import aot
from aot import errors
from aot.frontends import dynamo
from aot.graph.node_origins import COMPLETED
from aot.pipeline import descriptors
from aot.torch_internals import compile_logs

Graphs = dict[str, fx.GraphModule]
Keys = Mapping[tuple[str, str], tuple[set[str], set[str]]]

# What tools read; a release of torch has some of it, and notes of its own besides. A checkpoint's inputs are
# marked for stock's partitioner alone.
NAMED = COMPLETED | {"val", "partitioner_tag"}


class Layers(nn.Module):
    """Modules, a buffer that is written to, and a draw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.dropout(self.norm(torch.relu(self.linear(x)))).sum()
        return total + functional.softmax(x, -1).mean()


class Checkpointed(nn.Module):
    """A block that is run once more in the backward, and a view that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return (y * y).sum(), y.view(-1)


def splits(x: Tensor) -> tuple[Tensor, Tensor]:
    with fx.traceback.annotate({"stage": 1}):
        y = x.sin()
    return torch.sort(y * 2)[0], y.split(2, 1)[0].sum() + y.t().sum()


def writes(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.add_(1)
    return x.cos() * 2


PROGRAMS = {"layers": Layers, "checkpoint": Checkpointed, "splits": lambda: splits, "writes": lambda: writes}


def keeping(graphs: Graphs, name: str) -> Callable[..., Any]:
    def compiler(graph: fx.GraphModule, inputs: Any) -> Any:
        graphs[name] = graph
        return aot.make_boxed_func(graph.forward)

    return compiler


def graphs_of(program: Callable[..., Any], requires_grad: bool, stock: bool, dynamic: bool = False) -> Graphs:
    """The graphs that compilers get below `torch.compile`."""
    graphs: Graphs = {}
    compilers = {
        "fw_compiler": keeping(graphs, "forward"),
        "bw_compiler": keeping(graphs, "backward"),
        "inference_compiler": keeping(graphs, "inference"),
    }
    torch._dynamo.reset()
    backend = (
        aot_autograd(**compilers)
        if stock
        else lambda graph, inputs: dynamo._compile_dynamo_graph(graph, **compilers)
    )
    results = torch.compile(program, backend=backend, dynamic=dynamic)(
        torch.rand(8, 4, requires_grad=requires_grad)
    )
    if requires_grad:
        results = results if isinstance(results, tuple) else (results,)
        torch.stack([result.sum() for result in results]).sum().backward()
    return graphs


def kinds_of_nodes(graphs: Graphs) -> Iterator[tuple[tuple[str, str], set[str]]]:
    """Yield the keys of each node's metadata, with the kind of graph and of node."""
    for name, graph in graphs.items():
        for node in graph.graph.nodes:
            kind = node.op
            if kind == "placeholder":
                kind = "input" if "desc" in node.meta else "saved"
            elif "ac_graph_id" in node.meta:
                kind = "checkpointed call"
            elif node.op == "call_function" and not isinstance(node.meta["val"], Tensor):
                kind = "call of several results"
            yield (name, kind), set(node.meta)


def keys_of(graphs: Graphs) -> Keys:
    """For each kind of nodes: the keys that some have, and those that all have."""
    found: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for kind, keys in kinds_of_nodes(graphs):
        some, every = found.get(kind, (set(), keys))
        found[kind] = some | keys, every & keys
    return found


@pytest.mark.parametrize("requires_grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nodes_carry_what_stock_s_carry(fresh_dynamo: None, name: str, requires_grad: bool) -> None:
    torch.manual_seed(0)
    program = PROGRAMS[name]()
    stock = keys_of(graphs_of(program, requires_grad, stock=True))
    ours = keys_of(graphs_of(program, requires_grad, stock=False))
    # (What is saved is chosen otherwise, and how a view is differentiated.)
    assert stock.keys() - ours.keys() <= {("backward", "call of several results"), ("backward", "saved")}
    for kind in stock.keys() & ours.keys():
        (some, every), (our_some, our_every) = stock[kind], ours[kind]
        marked = {"recompute"} if kind[1] == "input" else set()
        assert some & NAMED <= our_some | marked, kind
        assert our_some <= NAMED | {"static"}, kind
        copied = {"autograd_backward"} if kind[1] == "checkpointed call" else set()  # the forward's views
        assert every & NAMED <= our_every | copied | marked, kind


def test_values_of_a_program(fresh_dynamo: None) -> None:
    stock, ours = (graphs_of(splits, True, stock=one) for one in (True, False))

    def said(graphs: Graphs, name: str, op: Any, *keys: str) -> list[Any]:
        (node,) = graphs[name].graph.find_nodes(op="call_function", target=op)
        return [str(node.meta.get(key)) for key in keys]  # (Stock copies operators.)

    sin, cos = torch.ops.aten.sin.default, torch.ops.aten.cos.default
    alike = ("stack_trace", "custom", "original_aten", "source_fn_stack", "partitioner_tag")
    assert said(ours, "forward", sin, *alike) == said(stock, "forward", sin, *alike)
    late = ("stack_trace", "custom", "fwd_source_fn_stack", "autograd_backward", "partitioner_tag")
    pairs = zip(said(ours, "backward", cos, *late), said(stock, "backward", cos, *late), strict=True)
    assert all(mine == its or its == "None" for mine, its in pairs)  # (torch 2.11 has no autograd_backward)
    (forward,), (backward,) = said(ours, "forward", sin, "seq_nr"), said(ours, "backward", cos, "seq_nr")
    assert forward == backward
    (mine,), (its,) = (said(one, "backward", cos, "tensor_meta") for one in (ours, stock))
    assert mine == its


def test_a_checkpoint_is_marked(fresh_dynamo: None) -> None:
    graphs = graphs_of(Checkpointed(), True, stock=False)
    inside, outside = torch.ops.aten.tanh.default, torch.ops.aten.mul.Tensor
    for graph in graphs.values():
        for node in graph.graph.find_nodes(op="call_function", target=inside):
            assert node.meta["recompute"] is torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
            assert node.meta["stack_trace"].strip().startswith("File")
    assert graphs["backward"].graph.find_nodes(op="call_function", target=inside)
    for node in graphs["forward"].graph.find_nodes(op="call_function", target=outside):
        assert "ac_graph_id" not in node.meta


def test_inputs_and_outputs_are_described() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return (x * w).sin()

    compiled = aot.aot_function(f, aot.nop)
    compiled(torch.ones(2), torch.ones(2, requires_grad=True)).sum().backward()
    (one,) = compiled.specializations

    def said(graph: fx.GraphModule, op: str) -> list[Any]:
        return [node.meta["desc"] for node in graph.graph.find_nodes(op=op) if "desc" in node.meta]

    x, w = descriptors.PlainAOTInput(0), descriptors.PlainAOTInput(1)
    result = descriptors.PlainAOTOutput(0)
    assert said(one.forward, "placeholder") == [x, w]
    (outputs,) = said(one.forward, "output")
    assert outputs[:2] == [descriptors.InputMutationAOTOutput(x), result]
    assert {type(one) for one in outputs[2:]} == {descriptors.SavedForBackwardsAOTOutput}
    (backward,) = one.backwards
    assert said(backward, "placeholder")[-1] == descriptors.TangentAOTInput(result)
    assert said(backward, "output") == [[descriptors.GradAOTOutput(w)]]


def test_what_an_operation_was_decomposed_from_is_told() -> None:
    table = torch._decomp.get_decompositions([torch.ops.aten.addmm])
    graphs: Graphs = {}
    compiler = keeping(graphs, "inference")
    aot.aot_function(torch.addmm, compiler, decompositions=table)(*[torch.ones(2, 2)] * 3)
    calls = graphs["inference"].graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    assert [node.meta["original_aten"] for node in calls] == [torch.ops.aten.addmm.default]


def test_symbols_are_described(fresh_dynamo: None) -> None:
    graphs = graphs_of(writes, True, stock=False, dynamic=True)
    inputs = graphs["forward"].graph.find_nodes(op="placeholder")
    assert [type(node.meta["desc"]).__name__ for node in inputs] == ["SymbolAOTInput"] * 2 + ["PlainAOTInput"]
    metadata = inputs[-1].meta["tensor_meta"]
    assert metadata.memory_format is torch.contiguous_format


def test_graphs_can_be_scripted() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        return torch.addmm(x, x, w).sin(), torch.sort(x * w)[0], x.view(-1), (x * w).unsqueeze(0)[:, 1:]

    found = []
    for call in (f, aot.aot_function(f, ts_compile)):
        x, w = torch.eye(3), torch.full((3, 3), 0.5, requires_grad=True)
        results = call(x, w)
        torch.stack([result.sum() for result in results]).sum().backward()
        found.append([*results, x, w.grad])
    assert all(map(torch.equal, *found))


def test_a_user_s_partitioner_gets_metadata() -> None:
    seen = []

    def partition(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        seen.extend(set(node.meta) for node in joint.graph.nodes if node.op == "call_function")
        return aot.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    aot.aot_function(torch.sin, aot.nop, partition_fn=partition)(torch.ones(2, requires_grad=True))
    assert len(seen) == 3
    assert all({"tensor_meta", "seq_nr", "original_aten", "partitioner_tag"} <= keys for keys in seen)


def test_parameters_that_are_fake_are_refused_by_name() -> None:
    with FakeTensorMode():
        module = nn.Linear(2, 2)
    with pytest.raises(errors.UnsupportedArgument, match="FakeTensorMode: weight, bias"):
        aot.aot_module_simplified(module, [torch.ones(1, 2)], aot.nop)


def test_graphs_are_logged_as_stock_logs_them(fresh_dynamo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[tuple[str, Any]] = []
    logged: list[str] = []

    def trace(name: str, *, payload_fn: Callable[[], str], **options: Any) -> None:
        traced.append((name, compile_logs.current_compile()))
        assert "def forward" in payload_fn()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage().splitlines()[1].split()[1])

    monkeypatch.setattr(compile_logs, "trace_structured", trace)
    monkeypatch.setattr(compile_logs.trace_log, "handlers", [logging.NullHandler()])
    handler = Handler()
    for logger in compile_logs._LOGGERS.values():
        monkeypatch.setattr(logger, "level", logging.INFO)
        monkeypatch.setattr(logger, "handlers", [handler])
        monkeypatch.setattr(logger, "propagate", False)
        logger.manager._clear_cache()
    compiled = torch.compile(lambda x: x.sin() * 2, backend="aotfuzz")
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    compiled(torch.ones(2))
    for logger in compile_logs._LOGGERS.values():
        logger.manager._clear_cache()
    kinds = ["joint", "forward", "backward", "inference"]
    assert [name for name, _ in traced] == [f"aot_{kind}_graph" for kind in kinds]
    assert logged == [kind.capitalize() for kind in kinds]
    first, second = (str(context.compile_id) for _, context in traced[1:4:2])
    assert (first, second) == ("0/0", "0/1")
