"""Compiled graphs at run time: with the number of results checked; backward graphs, compiled when needed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

from aot import errors
from aot.backends import graph_names
from aot.backends.compilers import Compiled, Compiler, as_boxed, materialize_metadata
from aot.graph.symint_inputs import has_data_numbers, lift_symbols_to_inputs
from aot.partition.segment_split import specialize_to_tangents
from aot.runtime.data_checks import with_backward_data_check
from aot.runtime.graph_assertions import compile_graph
from aot.tensors.symbolic_sizes import SymbolicSizes
from aot.torch_internals import autocast_state


def compiled_graph_runner(
    compiled: Compiled, taken: Sequence[int] = (), *, bare: bool = False
) -> Callable[..., Any]:
    """A compiled graph as a boxed callable.

    Graphs hold the casts that autocast made while tracing, so they run without it. Of the numbers of the
    call, they take those that are `taken` before their other inputs. Where there is neither, it is the graph
    itself (`bare`).
    """
    run = as_boxed(compiled)
    if bare:
        return run

    def prepared(arguments: list[Any], numbers: Sequence[int] = ()) -> Any:
        if taken:
            arguments[:0] = [numbers[i] for i in taken]
        if autocast_state.is_autocast_enabled():
            with autocast_state.without_autocast():
                return run(arguments)
        return run(arguments)

    return prepared


def with_arity_check(run: Callable[..., Any], results: int, which: str) -> Callable[..., Any]:
    """The same with the number of results checked.

    Raises:
        BackendError: when called, if there are others.
    """

    def checked(*arguments: Any, **options: Any) -> Any:
        values = run(*arguments, **options)
        if len(values) != results:
            raise arity_error(values, results, which)
        return values

    return checked


def arity_error(values: Sequence[Any], results: int, which: str) -> errors.BackendError:
    """For a compiled graph that has not returned as many values as its graph has results."""
    return errors.BackendError(
        f"the compiled {which} graph returned {len(values)} results, but the graph has {results} outputs"
    )


def check_backward_numbers(symbols: SymbolicSizes | None, numbers: Sequence[int]) -> None:
    """Refuse numbers for which a backward has not been compiled: what is assumed of them when it is compiled
    later than the forward, the forward has not assumed.

    Raises:
        DoubleBackwardUnsupported: they are not as assumed.
    """
    if symbols is not None and not symbols.hold(numbers):
        raise errors.DoubleBackwardUnsupported(
            "a backward that was compiled for other sizes than this one's, on which it turned out to depend; "
            "compile with dynamic=False"
        )


class LazyBackward:
    """The backward graph, compiled when it is first run, and its parts for fewer tangents.

    A tangent that is not given is not a tangent of zeros: zero times infinity would be seen, and what only
    that tangent needs would be computed. So each set of given tangents has a graph of its own. So has a
    backward after which the saved values are not needed any more, if there are such that it may overwrite.

    Args:
        donated: the inputs that the last backward may overwrite.
        symbols: what sizes in the graph are, if they are symbols.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        compiler: Compiler,
        donated: tuple[int, ...] = (),
        symbols: SymbolicSizes | None = None,
        bare: bool = False,
    ) -> None:
        self._module = module
        self._compiler = compiler
        self._donated = donated
        self._symbols = symbols
        self._bare = bare
        self._lock = threading.Lock()
        self._runners: dict[tuple[int | None, bool], Callable[..., Any]] = {}

    def run(self, arguments: list[Any], spend: bool = False, numbers: Sequence[int] = ()) -> Any:
        """All gradients, from saved values and all tangents; `spend` allows to overwrite the donated ones.
        How many come back is not checked."""
        run = self._runners.get((None, spend)) or self._lazy_backward_runner(None, spend, arguments)
        return run(arguments, numbers) if numbers else run(arguments)

    def run_part(
        self, given: int, arguments: list[Any], spend: bool = False, numbers: Sequence[int] = ()
    ) -> Any:
        """The gradients, None where there is none, from saved values and tangents of which some are None;
        bit j of `given` tells whether tangent j is not. How many come back is not checked."""
        present = [a for a in arguments if a is not None]
        run = self._lazy_backward_runner(given, spend, arguments)
        return run(present, numbers) if numbers else run(present)

    def _lazy_backward_runner(
        self, given: int | None, spend: bool, arguments: list[Any]
    ) -> Callable[..., Any]:
        run = self._runners.get((given, spend))
        if run is None:
            with self._lock:
                run = self._runners.get((given, spend))
                if run is None:
                    module = self._module
                    if given is not None:
                        module = specialize_to_tangents(
                            materialize_metadata(module), [a is None for a in arguments]
                        )
                    elif self._runners:
                        module = copy.deepcopy(
                            materialize_metadata(module)
                        )  # the other compile may keep, and has marked, this one
                    graph_names.copy_compile_id(module, self._module)
                    graph = lift_symbols_to_inputs(module, self._symbols)
                    first = len(graph.taken)
                    graph.module.meta["donated"] = tuple(first + i for i in self._donated if spend)
                    compiled = compile_graph(self._compiler, graph.module, "backward")
                    run = compiled_graph_runner(compiled, graph.taken, bare=self._bare)
                    if has_data_numbers(module.graph):
                        run = with_backward_data_check(run)
                    self._runners[given, spend] = run
        return run


def as_own_tensor(value: Tensor | None) -> Tensor | None:
    """A graph's result as a tensor of its own: graphs may end in a view, or return one tensor twice, which
    then has a history already. Optional results may be absent."""
    return value.detach() if value is not None and (value._is_view() or value.requires_grad) else value
