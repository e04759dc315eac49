"""Call overhead: what a compiled function costs besides its graphs, ours beside stock's.

Graphs are replaced by a stub, which answers with results that are made beforehand. Each side is both an
`aot_function` and an `aot_module_simplified`, which front ends call with graphs that they have made, and
with flat arguments. Stock's test for nothing. Ours find the specialization of each call. CPU time, in bursts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import aot_function as stock_aot_function
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_module_simplified

import aot
from bench.report import Table
from bench.timing import Spread, against, cells, columns, first_line, interleaved

WIDTH = 4  # elements of each tensor

Function = Callable[..., Any]


class Stubs:
    """A compiler whose graphs run once, and then answer with copies of what that gave."""

    def __init__(self) -> None:
        self._made: list[_Stub] = []

    def __call__(self, module: fx.GraphModule, _example_inputs: Sequence[Any]) -> Callable[..., Any]:
        stub = _Stub(module)
        self._made.append(stub)
        return stub

    def prepare(self, calls: int) -> None:
        """Make the results of that many calls."""
        for stub in self._made:
            stub.prepare(calls)


class _Stub:
    """One graph. It is boxed: it takes one list, as stock's wrappers pass it."""

    _boxed_call = True

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._results: Sequence[Any] = ()
        self._ready: list[Any] = []

    def __call__(self, arguments: list[Any]) -> Any:
        if self._ready:
            return self._ready.pop()
        self._results = self._module(*arguments)
        return self._results

    def prepare(self, calls: int) -> None:
        # On the same memory: nothing reads the values. What is returned twice is one tensor.
        self._ready = []
        for _ in range(calls):
            made: dict[int, Any] = {}
            self._ready.append(tuple(made.setdefault(id(r), _alias(r)) for r in self._results))


def _alias(result: Any) -> Any:
    return result.detach() if isinstance(result, Tensor) else result


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of call.

    Attributes:
        function: takes tensors, returns a tuple of them.
        inputs: how many.
        train: the inputs require grad.
        backward: time the backward, and not the call.
        simplified: the target, the ratio to stock's `aot_module_simplified`.
        stock: the same for the ratio of `aot_function` to stock's.
    """

    function: Function
    inputs: int
    simplified: float
    stock: float
    train: bool = False
    backward: bool = False


def _one(*xs: Tensor) -> Any:
    return (xs[0] * 2,)


def _sum(*xs: Tensor) -> Any:
    return (torch.stack(xs).sum(0),)


def _writes(*xs: Tensor) -> Any:
    for x in xs:
        x.mul_(2)
    return (xs[0] + 1,)


def _aliases(*xs: Tensor) -> Any:
    return tuple(x.view(-1, 2) for x in xs)


def _aliases_of_intermediates(*xs: Tensor) -> Any:
    return tuple((x * 2).view(-1, 2) for x in xs)


CASES: dict[str, Case] = {
    "inference, 1 input": Case(_one, 1, 0.8, 1.0),
    "inference, 10 inputs": Case(_sum, 10, 0.8, 1.0),
    "inference, 100 inputs": Case(_sum, 100, 0.8, 1.0),
    "inference, 1 mutated input": Case(_writes, 1, 0.6, 1.0),
    "inference, 10 mutated inputs": Case(_writes, 10, 0.6, 1.0),
    "inference, 1 alias of an input": Case(_aliases, 1, 0.6, 1.0),
    "inference, 10 aliases of inputs": Case(_aliases, 10, 0.6, 1.0),
    "training, 1 alias of an intermediate": Case(_aliases_of_intermediates, 1, 0.6, 1.0, True),
    "training, 10 aliases of intermediates": Case(_aliases_of_intermediates, 10, 0.6, 1.0, True),
    "training forward, 1 input": Case(_one, 1, 0.5, 0.5, True),
    "training forward, 10 inputs": Case(_sum, 10, 0.5, 0.5, True),
    "training forward, 100 inputs": Case(_sum, 100, 0.5, 0.5, True),
    "whole backward, 1 input": Case(_one, 1, 0.55, 0.55, True, True),
    "whole backward, 10 inputs": Case(_sum, 10, 0.55, 0.55, True, True),
}


def _graph(case: Case) -> fx.GraphModule:
    """A function as front ends hand it to `aot_module_simplified`."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    given = [fx.Proxy(graph.placeholder(f"x{i}"), tracer) for i in range(case.inputs)]
    graph.output(tuple(one.node for one in case.function(*given)))
    return fx.GraphModule(nn.Module(), graph)


def _simplified(case: Case, stubs: Stubs, device: str) -> Function:
    compiled: Function = aot_module_simplified(_graph(case), _inputs(case, device), stubs)
    return compiled


def _ours_simplified(case: Case, stubs: Stubs, device: str) -> Function:
    return aot.aot_module_simplified(_graph(case), _inputs(case, device), stubs)


COMPILERS: dict[str, Callable[[Case, Stubs, str], Function]] = {
    "aot": lambda case, stubs, _: aot.aot_function(case.function, stubs),
    "aot simplified": _ours_simplified,
    "simplified": _simplified,
    "stock": lambda case, stubs, _: stock_aot_function(case.function, stubs),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--rounds", type=int, default=21, help="bursts of each (default: 21)")
    parser.add_argument("--calls", type=int, default=200, help="calls in a burst (default: 200)")
    parser.add_argument("--device", default="cpu", help="where tensors are (default: cpu)")
    parser.add_argument("--case", choices=list(CASES), nargs="+", help="these alone (default: all)")


def measure(options: argparse.Namespace) -> list[Table]:
    """Call what each side has compiled, in turn."""
    rows, notes = [], []
    for name in options.case or CASES:
        case = CASES[name]
        spreads: dict[str, Spread | None] = dict.fromkeys(COMPILERS)
        sides = {}
        for side, compiler in COMPILERS.items():
            try:
                sides[side] = burst(case, compiler, options.calls, options.device)
            except Exception as error:
                notes.append(f"{name}: {side} raises {first_line(error)}")
        spreads.update(interleaved(sides, options.rounds))
        times = [cell for spread in spreads.values() for cell in cells(spread, 1e-6)]
        pairs = (("aot simplified", "simplified"), ("aot", "simplified"), ("aot", "stock"))
        ratios = [_ratio(spreads[mine], spreads[theirs]) for mine, theirs in pairs]
        targets = (case.simplified, case.simplified, case.stock)
        met = [cell for pair in zip(ratios, targets, strict=True) for cell in against(*pair)]
        rows.append((name, *times, *met))
    heads = [f"{mine} to {theirs}" for mine, theirs in pairs]
    heads = [head for one in heads for head in (one, f"{one}: target", f"{one}: met")]
    title = "a call, its graphs replaced by a stub, us of CPU time"
    return [Table(title, ("call", *columns(*COMPILERS), *heads), tuple(rows), tuple(notes))]


def _ratio(mine: Spread | None, theirs: Spread | None) -> float | None:
    return mine.ratio(theirs) if mine and theirs else None


def _inputs(case: Case, device: str) -> tuple[Tensor, ...]:
    made = (torch.ones(WIDTH, requires_grad=case.train, device=device) for _ in range(case.inputs))
    return tuple(made)


def burst(
    case: Case, compiler: Callable[[Case, Stubs, str], Function], calls: int, device: str = "cpu"
) -> Callable[[], float]:
    """Measures that many calls: seconds for each."""
    stubs = Stubs()
    compiled = compiler(case, stubs, device)
    inputs = _inputs(case, device)
    for _ in range(2):  # the second one is answered by stubs
        result = compiled(*inputs)
        tangents = [torch.ones_like(r) for r in result]
        if case.backward:
            torch.autograd.grad(result, inputs, tangents)
        stubs.prepare(1)

    def settle() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()  # what is still to be computed would be waited for where a queue is full

    def forward() -> float:
        stubs.prepare(calls)
        settle()
        start = time.process_time()
        for _ in range(calls):
            compiled(*inputs)
        return (time.process_time() - start) / calls

    def backward() -> float:
        stubs.prepare(calls)
        results = [compiled(*inputs) for _ in range(calls)]
        settle()
        start = time.process_time()
        for result in results:
            torch.autograd.grad(result, inputs, tangents)
        return (time.process_time() - start) / calls

    return backward if case.backward else forward
