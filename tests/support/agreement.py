"""Comparing a compiled function with the function itself, by the oracles, on fresh arguments each time."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

import aot
from oracles import Arguments, Observation, Outcome, Step, judge, observe

Make = Callable[[], Arguments | Sequence[Any]]


def values(*size: int, dtype: torch.dtype = torch.float32, start: int = 0) -> Tensor:
    """A tensor of that size without two equal elements; none of them zero."""
    count = math.prod(size)
    numbers = (torch.arange(start, start + count) * 7 % 41 - 20.25) / 8
    return numbers.to(dtype).reshape(size).clone()


def leaf(*size: int, dtype: torch.dtype = torch.float32, start: int = 0) -> Tensor:
    """The same as a leaf that requires grad."""
    return values(*size, dtype=dtype, start=start).requires_grad_()


def non_leaf(*size: int, dtype: torch.dtype = torch.float32, start: int = 0) -> Tensor:
    """The same as a tensor that was computed from a leaf."""
    return leaf(*size, dtype=dtype, start=start) * 1


KINDS: dict[str, Callable[..., Tensor]] = {"plain": values, "leaf": leaf, "non_leaf": non_leaf}

PARTITIONERS: dict[str, Callable[..., Any]] = {
    "default": aot.default_partition,
    "min-cut": aot.min_cut_rematerialization_partition,
    "recompute": functools.partial(aot.min_cut_rematerialization_partition, memory_budget=0),
}


def fresh(make: Make) -> Arguments:
    """What `make` makes, with the bases of the arguments watched as well."""
    made = make()
    if isinstance(made, Arguments):
        return made
    tensors = [t for t in pytree.tree_leaves(list(made)) if isinstance(t, Tensor)]
    bases = {f"base of tensor {i}": t._base for i, t in enumerate(tensors) if t._base is not None}
    return Arguments(tuple(made), tensors=bases)


def assert_functional(module: fx.GraphModule) -> None:
    """No operation of the graph writes to what it is given; what runs on copies says so by its name. The last
    ones may copy values into graph inputs, each into one."""
    module.graph.lint()
    nodes = list(module.graph.nodes)
    copied = []
    while len(nodes) > 1 and nodes[-2].target is torch.ops.aten.copy_.default:
        copied.append(nodes.pop(-2).args[0])
    assert all(target.op == "placeholder" for target in copied)
    assert len(set(copied)) == len(copied)
    for node in nodes:
        target = node.target
        if getattr(target, "__name__", "") == "call_by_name":  # its overload's name is a Python keyword
            packet, overload = node.args[0].split(".")
            target = getattr(getattr(torch.ops.aten, packet), overload)
        if isinstance(target, torch._ops.OpOverload):
            assert not target._schema.is_mutable, f"{node.format_node()} writes to its arguments"
        elif node.op == "call_function":
            computed = isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymFloat, torch.SymBool))
            known = ("getitem", "call_on_clones", "call_with_grad")
            taking_functions = getattr(target, "__name__", "") in TAKING_FUNCTIONS
            assert computed or taking_functions or target.__name__ in known, node.format_node()
        elif node.op == "get_attr" and isinstance(inner := getattr(module, node.target), fx.GraphModule):
            assert_functional(inner)


TAKING_FUNCTIONS = ("cond", "while_loop", "while_loop_stack_output")


def checking_nop(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """`aot.nop` for graphs that are what the documentation says; fails for others. It makes use of what it
    may: donated inputs are overwritten when a graph has run."""
    assert_functional(module)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    assert len(placeholders) == len(example_inputs)
    donated = module.meta.get("donated", ())
    return _overwriting(module, donated) if donated else module.forward


def _overwriting(module: fx.GraphModule, donated: Sequence[int]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        results = module(*arguments)
        returned = {r.untyped_storage().data_ptr() for r in results if isinstance(r, Tensor)}
        for i in donated:
            if arguments[i].untyped_storage().data_ptr() not in returned:
                arguments[i].fill_(math.nan if arguments[i].is_floating_point() else 1)
        return results

    return run


class Counted:
    """A function that counts how often its Python runs. (It prints to a text: a compiled call repeats what
    is done to an attribute.)"""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._printed = io.StringIO()

    @property
    def calls(self) -> int:
        return len(self._printed.getvalue())

    def __call__(self, *args: Any) -> Any:
        self._printed.write(".")
        return self.function(*args)


def compile_counted(
    function: Callable[..., Any], partition: Callable[..., Any] | None = None, **options: Any
) -> tuple[aot.CompiledFunction, Counted]:
    """The compiled function, and the count of runs of the original's Python."""
    counted = Counted(function)
    return aot.aot_function(counted, checking_nop, partition_fn=partition, **options), counted


def compile_with_inductor(function: Callable[..., Any]) -> aot.CompiledFunction:
    """The function with Inductor's kernels below, which may write to the inputs of a graph."""
    from aot.inductor import Inductor  # which not every test wants to wait for

    inductor = Inductor.configured()
    return aot.aot_function(
        function,
        inductor.forward,
        inductor.backward,
        aot.min_cut_rematerialization_partition,
        inference_compiler=inductor.inference,
        keep_inference_input_mutations=True,
    )


def assert_agrees(
    function: Callable[..., Any],
    make: Make,
    *,
    grad: bool | None = None,
    differentiate: tuple[int, ...] | None = None,
    steps: Sequence[Step] = (),
    raises: type[Exception] | None = None,
    backward_raises: bool = False,
    double: Make | None = None,
    refusable: bool = False,
    partition: Callable[..., Any] | None = None,
    functionalize_rng_ops: bool = False,
) -> aot.CompiledFunction:
    """Call the function and the compiled function and fail with what they differ in; the latter, if they do
    not.

    Args:
        grad: grad mode of the call; None compares under both, and gives the one without.
        differentiate, steps: see `oracles.observe`.
        raises: what eager's call raises (with grad mode on). Without it eager must not raise, so that
            there is something to compare.
        backward_raises: whether one of the backwards raises in eager.
        double: the arguments in double precision, where rounding may differ.
        refusable: whether the compiled call may be refused instead.
        partition: the partitioner, if it is not the default one.
        functionalize_rng_ops: see `aot.aot_function`.

    The compiled function is called twice (with grad mode on, or the one that is asked for), so that what a
    known specialization does is seen as well, and must have run the function's Python once. Where a graph
    without a backward could write to its inputs itself, the function is compiled to do that, too.
    """
    for mode in (True, False) if grad is None else (grad,):
        compiled, counted = compile_counted(function, partition, functionalize_rng_ops=functionalize_rng_ops)
        scenario = {"grad": mode, "differentiate": differentiate, "steps": steps}
        eager = _look(function, make, **scenario)
        if mode or grad is not None:
            _assert_telling(eager, raises, backward_raises)
        for _ in range(2 if mode or grad is not None else 1):
            refused = _assert_same(
                function, compiled, make, eager, double=double, refusable=refusable, **scenario
            )
        if eager.raised is None and not refused:
            assert counted.calls == 1, f"the function's Python ran {counted.calls} times"
        if any("copy_(" in one.wrapper and not one.backwards for one in compiled.specializations):
            keeping, _ = compile_counted(
                function,
                partition,
                keep_inference_input_mutations=True,
                functionalize_rng_ops=functionalize_rng_ops,
            )
            _assert_same(function, keeping, make, eager, double=double, refusable=refusable, **scenario)
    return compiled


def _look(function: Callable[..., Any], make: Make, **scenario: Any) -> Observation:
    return observe(function, lambda: fresh(make), **scenario)


def _assert_same(
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    make: Make,
    eager: Observation,
    double: Make | None = None,
    refusable: bool = False,
    **scenario: Any,
) -> bool:
    """Whether the target refused; fails where it differs."""
    refusal = (lambda e: type(e).__name__ if isinstance(e, aot.Unsupported) else None) if refusable else None
    target = observe(compiled, lambda: fresh(make), refusal=refusal, **scenario)
    reference = None if double is None else lambda: _look(function, double, **scenario)
    verdict = judge(eager, target, reference, lambda: _look(function, make, **scenario))
    findings = "\n".join(f"  {finding}" for finding in verdict.findings)
    refused = target.refused is not None and verdict.outcome is Outcome.POISONED
    assert refused or verdict.outcome is Outcome.AGREE, f"{scenario}: {verdict.reason}\n{findings}"
    return refused


def _assert_telling(eager: Observation, raises: type[Exception] | None, backward_raises: bool) -> None:
    raised = None if eager.raised is None else eager.raised.type
    assert raised == (raises.__qualname__ if raises else None), f"eager raised {eager.raised}"
    failed = [run.raised for run in eager.gradients if run.raised is not None]
    assert bool(failed) == backward_raises, f"eager's backwards raised {failed}"


def assert_each_agrees(
    function: Callable[..., Any],
    makes: Sequence[Make | tuple[Make, bool]],
    *,
    specializations: int,
    **options: Any,
) -> aot.CompiledFunction:
    """Call one compiled function with one set of arguments after the other, all of it twice; a pair gives
    the grad mode as well. The function's Python must run once for each of the `specializations`. `options`
    are `aot.aot_function`'s."""
    compiled, counted = compile_counted(function, **options)
    for one in [*makes, *makes]:
        make, grad = one if isinstance(one, tuple) else (one, True)
        _assert_same(function, compiled, make, _look(function, make, grad=grad), grad=grad)
    assert len(compiled.specializations) == specializations
    assert counted.calls == specializations
    return compiled


def assert_same_call(
    function: Callable[..., Any], compiled: Callable[..., Any], make: Make, *, grad: bool = True
) -> bool:
    """Call both on such arguments, and fail with what they differ in, exceptions included; whether the
    compiled call was refused."""
    eager = _look(function, make, grad=grad)
    return _assert_same(function, compiled, make, eager, refusable=True, grad=grad)


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Eager and compiled."""
    return [function, aot.aot_function(function, fw_compiler=checking_nop)]


def listed(gradients: tuple[Tensor | None, ...]) -> list[Any]:
    """Gradients as lists; None where there is none."""
    return [None if g is None else g.tolist() for g in gradients]


def told(value: Any) -> Any:
    """Tensors in a tree as plain values that compare by `==`: dtype, and elements as they are."""
    return pytree.tree_map(lambda v: (v.dtype, v.tolist()) if isinstance(v, Tensor) else v, value)


def assert_same_story(function: Callable[..., Any], story: Callable[[Callable[..., Any]], Any]) -> None:
    """Let `story` use the function and the compiled function, and fail where what it returns differs, the
    type of an exception included. The compiled function is used twice. Numbers are those of the same kernels,
    so they differ at most by the order of sums."""
    compiled = aot.aot_function(function, fw_compiler=checking_nop)
    expected = _story(story, function)
    for _ in range(2):
        got = _story(story, compiled)
        mine, its = pytree.tree_flatten(expected), pytree.tree_flatten(got)
        assert mine[1] == its[1], f"{expected}\n{got}"
        for one, other in zip(mine[0], its[0], strict=True):
            if isinstance(one, float) and isinstance(other, float):
                assert math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6), f"{expected}\n{got}"
            else:
                assert one == other, f"{expected}\n{got}"


def _story(story: Callable[[Callable[..., Any]], Any], function: Callable[..., Any]) -> Any:
    try:
        return told(story(function))
    except Exception as error:
        return type(error)
