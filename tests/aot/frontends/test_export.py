"""`aot_export_module` and `aot_export_joint_simple`: graphs beside eager, and signatures beside torch's."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module as stock_export
from torch.utils._pytree import tree_flatten, tree_unflatten

import aot
from aot import errors


class Net(nn.Module):
    """Counts its calls, keeps a running mean, writes to an input, and returns a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, seen: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        assert isinstance(self.calls, Tensor)
        self.calls.add_(1)
        seen.add_(x.detach().sum())
        result = self.inner(x) * scale
        return result.square().mean(), result.detach().t()


def arguments() -> list[Any]:
    return [torch.arange(15.0).reshape(5, 3).sin().requires_grad_(), torch.zeros(()), 2]


def run(
    graph: torch.fx.GraphModule, signature: aot.GraphSignature, module: nn.Module, args: list[Any]
) -> tuple[list[Any], dict[str, Tensor]]:
    """What the graph returns, and its gradients by name; what it says of inputs is written to them."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = [*signature.parameters, *signature.buffers]
    user = dict(zip(signature.user_inputs, tree_flatten((args, {}))[0], strict=True))
    with torch.no_grad():
        values = graph(*(state[name] for name in names), *user.values())
    (output,) = graph.graph.find_nodes(op="output")
    by_name = {node.name: value for node, value in zip(output.args[0], values, strict=True)}
    for name, target in {**signature.buffers_to_mutate, **signature.parameters_to_mutate}.items():
        state[target].data.copy_(by_name[name])
    for name, target in signature.user_inputs_to_mutate.items():
        user[target].copy_(by_name[name])
    backward = signature.backward_signature
    gradients = {}
    if backward is not None:
        sources = {**backward.gradients_to_parameters, **backward.gradients_to_user_inputs}
        gradients = {target: by_name[name] for name, target in sources.items()}
    return [by_name[str(name)] for name in signature.user_outputs], gradients


@pytest.mark.parametrize("joint", [False, True])
def test_graphs_compute_what_eager_computes(joint: bool) -> None:
    torch.manual_seed(1)
    eager = Net()
    module, state = copy.deepcopy(eager), copy.deepcopy(eager.state_dict())
    index = 0 if joint else None
    graph, signature = aot.aot_export_module(module, arguments(), trace_joint=joint, output_loss_index=index)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    called = {node.target for node in graph.graph.nodes if node.op == "call_function"} - {operator.getitem}
    assert all(isinstance(target, torch._ops.OpOverload) for target in called)
    expected, given = arguments(), arguments()
    loss, result = eager(*expected)
    results, gradients = run(graph, signature, module, given)
    assert torch.equal(results[0], loss) and torch.equal(results[1], result)
    assert torch.equal(given[1], expected[1])
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in eager.state_dict().items())
    if joint:
        wanted = dict(eager.named_parameters())
        expected_gradients = torch.autograd.grad(loss, [*wanted.values(), expected[0]])
        names = [*wanted, signature.user_inputs[0]]
        assert list(gradients) == names
        for name, value in zip(names, expected_gradients, strict=True):
            torch.testing.assert_close(gradients[name], value)


@pytest.mark.parametrize("joint", [False, True])
def test_signatures_are_torchs(joint: bool) -> None:
    index = 0 if joint else None
    args = [*arguments()[:2], torch.tensor(2.0)]  # torch's does not take a number for a joint graph
    ours, theirs = (
        export(Net(), args, trace_joint=joint, output_loss_index=index)[1]
        for export in (aot.aot_export_module, stock_export)
    )
    assert list(ours.parameters) == theirs.parameters and list(ours.buffers) == theirs.buffers
    for name in ("inputs_to_parameters", "inputs_to_buffers", "buffers_to_mutate", "parameters_to_mutate"):
        assert list(getattr(ours, name).values()) == list(getattr(theirs, name).values()), name
    for name in ("user_inputs", "user_outputs", "user_inputs_to_mutate", "input_tokens", "output_tokens"):
        assert len(getattr(ours, name)) == len(getattr(theirs, name)), name
    assert ours.out_spec == theirs.out_spec
    if joint:
        mine, other = ours.backward_signature, theirs.backward_signature
        assert list(mine.gradients_to_parameters.values()) == list(other.gradients_to_parameters.values())
        assert len(mine.gradients_to_user_inputs) == len(other.gradients_to_user_inputs)
        assert mine.loss_output == ours.user_outputs[0]


def test_trees_go_by_their_specs() -> None:
    class Nested(nn.Module):
        def forward(self, given: dict[str, Tensor], *, more: tuple[Tensor, int]) -> dict[str, Any]:
            return {"sum": given["x"] + more[0], "number": more[1]}

    args, kwargs = ({"x": torch.ones(2)},), {"more": (torch.ones(2), 3)}
    graph, signature = aot.aot_export_module(Nested(), args, kwargs=kwargs, trace_joint=False)
    leaves, spec = tree_flatten((args, kwargs))
    assert spec == signature.in_spec
    assert tree_unflatten(graph(*leaves), signature.out_spec)["number"] == 3


def test_tied_parameters_are_inputs_by_each_name() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    graph, signature = aot.aot_export_module(module, [torch.ones(1, 2)], trace_joint=False)
    assert signature.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    (result,), _ = run(graph, signature, _every_name(module), [torch.ones(1, 2)])
    assert torch.equal(result, module(torch.ones(1, 2)))


def _every_name(module: nn.Module) -> Any:
    class Names:
        def named_parameters(self) -> Any:
            return module.named_parameters(remove_duplicate=False)

        def named_buffers(self) -> Any:
            return ()

    return Names()


class Refused(nn.Module):
    def __init__(self, run: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.other = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.run = run

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.run(self, x, y)


def replaces(module: Any, x: Tensor, y: Tensor) -> Tensor:
    module.mean = x
    return (module.weight * module.other).sum()


REFUSED: dict[str, tuple[Callable[..., Any], type[errors.Unsupported], str]] = {
    "metadata": (
        lambda m, x, y: (x.unsqueeze_(0), (m.weight * m.other).sum())[1],
        errors.StorageMutation,
        "sizes",
    ),
    "overlap": (
        lambda m, x, y: (x.add_(1), (m.weight * m.other).sum())[1],
        errors.UnsupportedArgument,
        "shares",
    ),
    "replaces": (replaces, errors.ClosureMutation, "in place"),
    "no gradient": (lambda m, x, y: m.weight.sum(), errors.UnsupportedOutput, "depend on all"),
    "no loss": (lambda m, x, y: x * 1, errors.UnsupportedOutput, "one element"),
    "two results": (
        lambda m, x, y: ((m.weight * m.other).sum(), m.weight * 2),
        errors.UnsupportedOutput,
        "result 1 requires grad",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_cannot_say_is_refused(name: str) -> None:
    function, kind, reason = REFUSED[name]
    x = torch.ones(4)
    module = Refused(function)
    with pytest.raises(kind, match=reason):
        aot.aot_export_module(module, [x[:3], x[1:]], trace_joint=True, output_loss_index=0)
    assert x.shape == (4,) and torch.equal(x, torch.ones(4)) and torch.equal(module.mean, torch.zeros(3))


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(errors.UnsupportedOption, match="output_loss_index"):
        aot.aot_export_module(nn.Linear(1, 1), [torch.ones(1)], trace_joint=True)
    with pytest.raises(errors.UnsupportedOption, match="pre_dispatch"):
        aot.aot_export_module(nn.Linear(1, 1), [torch.ones(1)], trace_joint=False, pre_dispatch=True)


def product(x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    return [x.sin() * y, y.t() * n, (x * 2).sum()]


def test_a_joint_graph_takes_tangents_and_can_be_partitioned() -> None:
    x, y = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3, requires_grad=True)
    joint = aot.aot_export_joint_simple(product, [x, y, 3], trace_joint=True)
    results = product(x, y, 3)
    tangents = [torch.rand_like(r) for r in results]
    expected = torch.autograd.grad(results, [x, y], tangents)
    with torch.no_grad():
        returned = joint(x, y, 3, *tangents)
    for value, other in zip(returned, [*results, *expected], strict=True):
        torch.testing.assert_close(value, other)
    inputs = [node.meta["val"] for node in joint.graph.find_nodes(op="placeholder")]
    forward, backward = aot.default_partition(joint, inputs, num_fwd_outputs=3)
    with torch.no_grad():
        (*values,) = forward(x, y, 3)
        gradients = backward(*values[3:], *tangents)
    for value, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(value, other)


def test_an_inference_graph_is_the_function() -> None:
    x = torch.rand(2, requires_grad=True)
    graph = aot.aot_export_joint_simple(lambda x, y: (x * y, None), [x, x], trace_joint=False)
    assert torch.equal(graph(x, x)[0], x * x) and graph(x, x)[1] is None


@pytest.mark.parametrize(
    "function, kind",
    [
        (lambda x: (x.add_(1) * 2,), errors.UnsupportedArgument),
        (lambda x: (x[0],), errors.UnsupportedOutput),
        (lambda x: x * 2, errors.UnsupportedOutput),
        (lambda x: ([x * 2],), errors.UnsupportedOutput),
    ],
)
def test_what_is_not_simple_is_refused(function: Any, kind: type[errors.Unsupported]) -> None:
    with pytest.raises(kind):
        aot.aot_export_joint_simple(function, [torch.ones(2)], trace_joint=False)
