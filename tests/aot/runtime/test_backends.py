"""What graph compilers and partitioners are given, what they may return, and what may go wrong."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import functorch.compile
import pytest
import torch
from torch import Tensor, fx

import aot
from tests.support.agreement import assert_agrees, assert_functional, leaf, non_leaf, values


class Recording:
    """A compiler that keeps what it is given."""

    def __init__(self, boxed: bool = False) -> None:
        self.modules: list[fx.GraphModule] = []
        self.inputs: list[Sequence[Any]] = []
        self.received: list[Any] = []
        self._boxed = boxed

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.modules.append(module)
        self.inputs.append(example_inputs)
        if not self._boxed:
            return module.forward

        def run(arguments: list[Any]) -> Any:
            self.received.append(type(arguments))
            result = module(*arguments)
            arguments.clear()
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A mutation, views, random numbers and a batch norm."""
    x[0].mul_(2)
    mean, var = torch.zeros(3), torch.ones(3)
    z = torch.nn.functional.batch_norm(x @ y, mean, var, training=True)
    return (z * torch.rand_like(z)).t(), mean + var


def arguments() -> list[Tensor]:
    return [non_leaf(2, 3), leaf(3, 3, start=6)]


@pytest.mark.parametrize("boxed", [False, True])
def test_boxed_and_unboxed_compilers(boxed: bool) -> None:
    forward, backward = Recording(boxed), Recording(boxed)
    compiled = aot.aot_function(lambda x, y: (x * y).sin(), forward, backward)
    x, y = leaf(3), leaf(3, start=3)
    result = compiled(x, y)
    result.sum().backward()
    assert torch.equal(result, (x * y).sin())
    assert torch.equal(x.grad, (x * y).cos().detach() * y)
    assert forward.received + backward.received == [list, list] * boxed


def test_make_boxed_func() -> None:
    boxed = aot.make_boxed_func(lambda a, b: (a + b,))
    assert boxed([1, 2]) == (3,)
    assert boxed._boxed_call is True


def test_make_boxed_compiler() -> None:
    recording = Recording()
    compiled = aot.aot_function(torch.sin, aot.make_boxed_compiler(recording))
    x = values(3)
    assert torch.equal(compiled(x), x.sin())
    run = aot.make_boxed_compiler(aot.nop)(recording.modules[0], recording.inputs[0])
    assert torch.equal(run([x])[0], x.sin())
    assert run._boxed_call is True


def test_a_boxed_compiler_of_functorch() -> None:
    compiled = aot.aot_function(lambda x: x.exp(), functorch.compile.nop)
    x = leaf(3)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_example_inputs_have_the_metadata_of_the_inputs() -> None:
    forward, backward = Recording(), Recording()
    compiled = aot.aot_function(lambda x, y: (x * y).t(), forward, backward)
    x = non_leaf(4, 6, dtype=torch.float64)[::2, 1:4]
    y = torch.tensor(2)
    compiled(x, y).sum().backward()
    first, second = forward.inputs[0]
    assert (first.shape, first.stride(), first.dtype) == (x.shape, x.stride(), x.dtype)
    assert (first.storage_offset(), first.device) == (x.storage_offset(), x.device)
    assert (second.shape, second.dtype) == (y.shape, y.dtype)
    assert not any(one.requires_grad for one in (*forward.inputs[0], *backward.inputs[0]))
    tangent = backward.inputs[0][-1]
    assert sorted(tangent.shape) == [2, 3]
    assert tangent.dtype == torch.float64


def test_example_inputs_are_in_the_order_of_the_placeholders() -> None:
    forward, backward = Recording(), Recording()
    program_compiled = aot.aot_function(program, forward, backward)
    result, _ = program_compiled(*arguments())
    result.sum().backward()
    for module, inputs in zip(
        forward.modules + backward.modules, forward.inputs + backward.inputs, strict=True
    ):
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        assert len(placeholders) == len(inputs)
        for node, example in zip(placeholders, inputs, strict=True):
            assert node.meta["val"] is example


def test_every_node_knows_its_metadata() -> None:
    forward, backward = Recording(), Recording()
    result, _ = aot.aot_function(program, forward, backward)(*arguments())
    result.sum().backward()
    for module in forward.modules + backward.modules:
        for node in module.graph.nodes:
            if node.op != "output":
                assert "val" in node.meta, node.format_node()


def test_what_the_metadata_says_is_what_runs() -> None:
    class Checking(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            result = super().run_node(node)
            if isinstance(result, Tensor):
                val = node.meta["val"]
                assert (result.shape, result.stride(), result.dtype) == (
                    val.shape,
                    val.stride(),
                    val.dtype,
                ), node
            return result

    def compiler(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return Checking(module).run

    result, _ = aot.aot_function(program, compiler)(*arguments())
    result.sum().backward()


def test_graphs_are_functional() -> None:
    forward, backward = Recording(), Recording()
    result, _ = aot.aot_function(program, forward, backward)(*arguments())
    result.sum().backward()
    assert len(forward.modules) == 1
    assert len(backward.modules) == 2  # the result's, and the written argument's that it goes through
    for module in forward.modules + backward.modules:
        assert_functional(module)


def test_running_a_graph_leaves_its_inputs_alone() -> None:
    forward, backward = Recording(), Recording()
    result, _ = aot.aot_function(program, forward, backward)(*arguments())
    result.sum().backward()
    for module, inputs in (
        (forward.modules[0], forward.inputs[0]),
        (backward.modules[0], backward.inputs[0]),
    ):
        real = [values(*one.shape, dtype=one.dtype) for one in inputs]
        copies = [one.clone() for one in real]
        with torch.no_grad():
            module(*[one.as_strided(e.shape, e.stride()) for one, e in zip(real, inputs, strict=True)])
        assert all(torch.equal(a, b) for a, b in zip(real, copies, strict=True))
        assert all(one._version == 0 for one in real)


def test_no_work_is_left_for_a_function_that_does_nothing() -> None:
    forward = Recording()
    x = leaf(3)
    assert aot.aot_function(lambda x: x, forward)(x) is x
    assert [n.op for n in forward.modules[0].graph.nodes] == ["output"]


def test_dead_code_is_not_compiled() -> None:
    forward = Recording()

    def f(x: Tensor) -> Tensor:
        x.sin().mul_(2)
        return x + 1

    aot.aot_function(f, forward)(values(3))
    targets = [str(n.target) for n in forward.modules[0].graph.nodes if n.op == "call_function"]
    assert targets == ["aten.add.Tensor"]


def test_the_backward_is_compiled_when_it_is_first_run() -> None:
    forward, backward = Recording(), Recording()
    compiled = aot.aot_function(torch.sin, forward, backward)
    x = leaf(3)
    y = compiled(x)
    assert (len(forward.modules), len(backward.modules)) == (1, 0)
    torch.autograd.grad(y.sum(), x)
    torch.autograd.grad(compiled(x).sum(), x)
    assert (len(forward.modules), len(backward.modules)) == (1, 1)


def test_what_a_compiler_imports_is_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "of_a_compiler"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    def compiler(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        __import__(name)
        return module

    compiled = aot.aot_function(torch.sin, compiler)
    compiled(torch.ones(2))
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    compiled(torch.ones(2))
    assert len(compiled.specializations) == 1


def test_the_inference_compiler_is_used_where_there_is_no_backward() -> None:
    forward, backward, inference = Recording(), Recording(), Recording()
    compiled = aot.aot_function(torch.sin, forward, backward, inference_compiler=inference)
    compiled(values(3))
    assert (len(forward.modules), len(inference.modules)) == (0, 1)
    with torch.no_grad():
        compiled(leaf(3))
    assert (len(forward.modules), len(inference.modules)) == (0, 2)
    compiled(leaf(3))
    assert (len(forward.modules), len(inference.modules), len(backward.modules)) == (1, 2, 0)


def test_the_forward_compiler_compiles_everything_that_has_no_compiler_of_its_own() -> None:
    forward = Recording()
    compiled = aot.aot_function(torch.sin, forward)
    compiled(values(3))
    compiled(leaf(3)).sum().backward()
    assert len(forward.modules) == 3


PARTITIONERS: dict[str, Callable[..., tuple[fx.GraphModule, fx.GraphModule]]] = {
    "ours": aot.default_partition,
    "default_partition": functorch.compile.default_partition,
    "min_cut": functorch.compile.min_cut_rematerialization_partition,
}

DIFFERENTIATED: dict[str, Callable[..., Any]] = {
    "one operation": lambda x, y: x @ y,
    "a chain": lambda x, y: ((x @ y).relu().sin() * x).sum(),
    "several outputs": lambda x, y: (x * y, y.exp(), x.t()),
    "an output that is saved": lambda x, y: (x.exp(), x.exp() * y),
    "an input that is returned": lambda x, y: (x, x * y),
    "a constant": lambda x, y: x * torch.tensor([1.0, 2.0, 3.0]) * y,
    "several results": lambda x, y: torch.nn.functional.layer_norm(x, (3,)).max(0).values * y,
    "a mutation": lambda x, y: (y.mul_(x), y.cos()),
    "an unneeded gradient": lambda x, y: x.detach() * y,
    "dropout": lambda x, y: torch.nn.functional.dropout(x * y, 0.5),
}


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("differentiated", DIFFERENTIATED)
def test_partitioners(partitioner: str, differentiated: str) -> None:
    def make() -> list[Tensor]:
        return [leaf(3, 3), non_leaf(3, 3, start=9)]

    f = DIFFERENTIATED[differentiated]
    results = []
    for function in (f, aot.aot_function(f, aot.nop, partition_fn=PARTITIONERS[partitioner])):
        args = make()
        torch.manual_seed(0)
        outputs = function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = torch.autograd.grad(
            [o.sum() for o in outputs if o.requires_grad], args[:1], allow_unused=True
        )
        results.append([*outputs, *gradients])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6)


def test_a_partitioner_that_draws_again_is_refused() -> None:
    def partition(module: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int) -> Any:
        forward, backward = aot.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)
        (output,) = (n for n in backward.graph.nodes if n.op == "output")
        with backward.graph.inserting_before(output):
            again = backward.graph.call_function(torch.ops.aten.rand.default, ([3],))
            (gradient,) = output.args[0]
            output.args = ((backward.graph.call_function(torch.ops.aten.mul.Tensor, (gradient, again)),),)
        return forward, backward

    with pytest.raises(aot.BackendError, match="random draw"):
        aot.aot_function(torch.sin, aot.nop, partition_fn=partition)(leaf(3))


def test_a_partitioner_is_given_the_joint_graph() -> None:
    given: list[Any] = []

    def partition(module: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int) -> Any:
        assert_functional(module)
        placeholders = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        given.append((placeholders, len(inputs), num_fwd_outputs))
        return aot.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)

    compiled = aot.aot_function(lambda x, y: (x * y, y.sin()), aot.nop, partition_fn=partition)
    compiled(leaf(3), values(3))
    assert given == [(["primals_1", "primals_2", "tangents_1"], 3, 2)]
    compiled(values(3), values(3))
    assert len(given) == 1, "a graph without a backward is not cut"


def test_decompositions_are_recorded_instead_of_the_operation() -> None:
    aten = torch.ops.aten
    forward, backward = Recording(), Recording()
    table = {aten.addmm.default: lambda b, x, y, **_: b + x @ y, aten.t.default: lambda x: x.transpose(0, 1)}
    compiled = aot.aot_function(torch.addmm, forward, backward, decompositions=table)
    b, x, y = leaf(3), leaf(2, 2), leaf(2, 3)
    result = compiled(b, x, y)
    result.sum().backward()
    torch.testing.assert_close(result, torch.addmm(b, x, y))
    targets = [n.target for m in forward.modules + backward.modules for n in m.graph.nodes]
    assert aten.addmm.default not in targets
    assert aten.t.default not in targets
    assert aten.mm.default in targets


def test_decompositions_of_torch() -> None:
    aten = torch.ops.aten
    table = torch._decomp.get_decompositions(
        [
            aten.silu,
            aten.silu_backward,
            aten.native_layer_norm,
            aten.native_layer_norm_backward,
            aten.addcmul_,
        ]
    )
    forward, backward = Recording(), Recording()

    def f(x: Tensor, y: Tensor) -> Tensor:
        y.addcmul_(x.detach(), x.detach())
        return torch.nn.functional.layer_norm(torch.nn.functional.silu(x), (3,)) * y

    results = []
    for function in (f, aot.aot_function(f, forward, backward, decompositions=table)):
        x, y = leaf(2, 3), values(2, 3, start=6)
        out = function(x, y)
        out.backward(values(2, 3))
        results.append([out, x.grad, y])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)
    names = [str(n.target) for m in forward.modules + backward.modules for n in m.graph.nodes]
    assert not any("silu" in name or "layer_norm" in name or "addcmul" in name for name in names)


def test_a_decomposition_may_decline() -> None:
    compiled = aot.aot_function(
        torch.sin, aot.nop, decompositions={torch.ops.aten.sin.default: lambda x: NotImplemented}
    )
    assert torch.equal(compiled(values(3)), values(3).sin())


def test_a_compiler_that_returns_something_that_cannot_be_called() -> None:
    x = values(3)
    with pytest.raises(aot.BackendError, match=r"inference compiler returned int.*cannot be called"):
        aot.aot_function(lambda x: x.mul_(2), lambda m, i: 5)(x)
    assert torch.equal(x, values(3))
    assert x._version == 0


def test_a_compiled_graph_that_returns_too_few_results() -> None:
    x = values(3)
    compiled = aot.aot_function(lambda x: x.mul_(2) + 1, lambda m, i: lambda *a: m(*a)[:1])
    with pytest.raises(aot.BackendError, match="returned 1 results, but the graph has 2 outputs"):
        compiled(x)
    assert torch.equal(x, values(3))


def test_a_compiled_backward_that_returns_too_many_results() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop, lambda m, i: lambda *a: (*m(*a), None))
    x = leaf(3)
    y = compiled(x)
    with pytest.raises(aot.BackendError, match="backward graph returned 2 results"):
        y.sum().backward()
    assert x.grad is None


def test_a_backward_compiler_that_returns_something_that_cannot_be_called() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop, lambda m, i: None)
    y = compiled(leaf(3))
    with pytest.raises(aot.BackendError, match="backward compiler returned NoneType"):
        y.sum().backward()


def test_results_may_be_a_list() -> None:
    compiled = aot.aot_function(torch.sin, lambda m, i: lambda *a: list(m(*a)))
    x = leaf(3)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_an_exception_of_a_compiler_is_raised_as_it_is() -> None:
    class Broken(Exception):
        pass

    def compiler(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        raise Broken("no")

    x = values(3)
    with pytest.raises(Broken, match=r"^no$"):
        aot.aot_function(lambda x: x.mul_(2), compiler)(x)
    assert torch.equal(x, values(3))
    assert torch.is_grad_enabled()


def test_an_exception_of_a_compiled_graph_leaves_the_arguments_alone() -> None:
    def run(*arguments: Tensor) -> Any:
        raise ZeroDivisionError

    x = non_leaf(3)
    before = x.grad_fn
    with pytest.raises(ZeroDivisionError):
        aot.aot_function(lambda x: x.mul_(2), lambda m, i: run)(x)
    assert x.grad_fn is before
    assert x._version == 0
    assert torch.is_grad_enabled()


def test_an_exception_of_the_function_is_raised_as_it_is() -> None:
    class Mine(Exception):
        pass

    error = Mine("text", 3)

    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        x.t_()
        torch.rand(3)
        raise error

    x = values(2, 3)
    state = torch.get_rng_state()
    with pytest.raises(Mine) as caught:
        aot.aot_function(f, aot.nop)(x)
    assert caught.value is error
    assert x.shape == (2, 3)
    assert torch.equal(x, values(2, 3))
    assert x._version == 0
    assert torch.equal(torch.get_rng_state(), state)


IMPOSSIBLE: dict[str, tuple[Callable[[Tensor], Any], torch.dtype]] = {
    "matmul": (lambda x: x @ x, torch.float32),
    "view": (lambda x: x.view(5), torch.float32),
    "select": (lambda x: x[7], torch.float32),
    "expand": (lambda x: x.expand(3, 3), torch.float32),
    "cat": (lambda x: torch.cat([x, x[0]]), torch.float32),
    "an in-place operation that grows": (lambda x: x.mul_(torch.ones(4, 2, 3)), torch.float32),
    "an integer multiplied by a fraction": (lambda x: x.mul_(1.5), torch.int64),
    "an integer added a fraction": (lambda x: x.add_(1.5), torch.int64),
    "an integer divided": (lambda x: x.div_(2), torch.int64),
    "a real number multiplied by a complex one": (lambda x: x.mul_(1j), torch.float32),
    "a real number added a complex one": (lambda x: x.add_(1j), torch.float32),
    "a real number multiplied by a complex tensor": (
        lambda x: x.mul_(torch.ones(3, dtype=torch.complex64)),
        torch.float32,
    ),
    "a write to what is read": (lambda x: x.view(-1)[1:].add_(x.view(-1)[:-1]), torch.float32),
    "a copy to what is read": (lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]), torch.float32),
    "an index that is out of bounds": (lambda x: x[torch.tensor([5])], torch.float32),
    "a mean of integers": (lambda x: x.mean(), torch.int64),
    "a draw of integers": (lambda x: x.uniform_(), torch.int64),
    "a negative size": (lambda x: torch.zeros(-1), torch.float32),
    "the largest of nothing": (lambda x: x[:0].argmax(), torch.float32),
    "views beyond the storage": (lambda x: x.as_strided((9,), (1,)), torch.float32),
}


@pytest.mark.parametrize("impossible", IMPOSSIBLE)
def test_errors_are_those_of_eager(impossible: str) -> None:
    f, dtype = IMPOSSIBLE[impossible]
    raised = []
    for function in (f, aot.aot_function(f, aot.nop)):
        x = values(2, 3, dtype=dtype)
        with pytest.raises(Exception) as caught:
            function(x)
        raised.append(caught.type)
        assert torch.equal(x, values(2, 3, dtype=dtype))
    assert raised[0] is raised[1]


def test_a_graph_that_returns_views_of_its_inputs() -> None:
    """A compiler may turn a copy into a view; outputs must not alias arguments for that."""

    def compiler(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return lambda x: (x.view_as(x),)

    x = values(3)
    y = aot.aot_function(lambda x: x.clone(), compiler)(x)
    assert y._base is None
    assert torch.equal(y, x)


def test_all_of_it_agrees_with_eager() -> None:
    assert_agrees(program, arguments)
