"""Random draws as pure operations: a generator's state comes in, and the next state goes out.

With ``functionalize_rng_ops`` nothing that is recorded moves a generator. ``aten.rand([2])`` becomes
``aot_rng.rand(state, [2])``, which returns what the former returns and then the state after it, and may be
reordered, duplicated and recomputed as any other operation may. The first state of each device is an input of
the graph, the last one an output; the wrapper takes the one from the generator and gives it the other.

A state is what the device's generator calls so: on the CPU 5056 bytes of its Mersenne twister, on a CUDA
device two 64-bit integers, Philox's seed and offset. Either is a tensor on the CPU.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from aot.graph.builder import GraphBuilder
from aot.graph.value_meta import ResultMeta, meta_of
from aot.ops.call_targets import by_name
from aot.ops.classify import call_on_clones, classify, is_present, is_written
from aot.torch_internals import mode_stacks, op_queries, rng

NAMESPACE = "aot_rng"

# Held while a default generator stands at a state that is not the program's. Whoever runs a graph holds it
# from taking the first state to giving back the last, so that two threads do not draw the same.
LOCK = threading.RLock()

_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_ALIAS = re.compile(r"\(\w+!?\)")  # as in Tensor(a!)
_FORMS: dict[op_queries.OpOverload, op_queries.OpOverload] = {}


def get_rng_state(device: torch.device) -> Tensor:
    """The state of a device's default generator: uint8 of shape (5056,) on the CPU, int64 of shape (2,), seed
    and offset, on CUDA; on the CPU in either case."""
    generator = rng.default_generator(device)
    assert generator is not None, device
    with mode_stacks.dispatch_modes_off():
        state = generator.get_state()
        return state.view(torch.int64) if device.type == "cuda" else state


def set_state(device: torch.device, state: Tensor) -> None:
    """Give a device's default generator a state that `get_rng_state` returned, or a draw."""
    generator = rng.default_generator(device)
    assert generator is not None, device
    with mode_stacks.dispatch_modes_off():
        generator.set_state(state.view(torch.uint8))


class RngStates:
    """The generators' states in one trace, as values of its graph.

    Attributes:
        first: for each device from whose generator something was drawn, the graph input.
        last: the state after the latest draw.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self.first: dict[torch.device, fx.Node] = {}
        self.last: dict[torch.device, fx.Node] = {}
        self._around: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}  # of each draw, the states before and after
        self._repeated: dict[tuple[fx.Graph, fx.Node], fx.Node] = {}

    def draw(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        recipe: ResultMeta,
        earlier: fx.Node | None = None,
    ) -> fx.Node:
        """Append a draw, and return the node that has the results, as that of the drawing operation would.

        Args:
            op: that operation, or `call_on_clones` for one that writes to its arguments.
            recipe: the metadata of what that returns.
            earlier: the draw that it repeats, if it is not a new one.
        """
        builder = self._builder
        device = recipe.device
        if rng.default_generator(device) is None:  # nothing is drawn on the device meta
            return earlier or builder.call(op, args, kwargs, recipe)
        if op is call_on_clones:
            op, _, args, kwargs = args
        op = functional_op(by_name(op) if isinstance(op, str) else op)
        if earlier is None:
            before = self._last(device)
        else:
            # The state after the draw before, if that is repeated here as well: one state is saved for both.
            original, after = self._around[earlier]
            before = self._repeated.get((builder.graph, original), original)
        metas = (*recipe.metas, builder.metas[self.first[device]])
        node = builder.call(op, (before, *args), kwargs, ResultMeta(True, metas))
        state = builder.item(node, len(recipe.metas))
        result = node if recipe.many else builder.item(node, 0)
        if earlier is None:
            self.last[device] = state
            self._around[result] = before, state
        else:
            self._repeated[builder.graph, after] = state
        return result

    def _last(self, device: torch.device) -> fx.Node:
        if device not in self.last:
            index = "" if device.index is None else f"_{device.index}"
            state = self._builder.placeholder(
                f"rng_state_{device.type}{index}", meta_of(get_rng_state(device))
            )
            self.first[device] = self.last[device] = state
        return self.last[device]


def functional_op(op: op_queries.OpOverload) -> op_queries.OpOverload:
    """The operation that draws as `op` does from a state that it is given.

    It takes the state and then the arguments of `op`, and returns what `op` returns; then, if `op` writes to
    arguments, what it would leave in each, instead of writing; and last the next state.

    Example:
        >>> noise, state = functional_op(torch.ops.aten.rand.default)(torch.get_rng_state(), [2, 3])
    """
    with LOCK:
        known = _FORMS.get(op)
        if known is None:
            known = _FORMS[op] = _define_functional_draw(op)
        return known


def is_functional_op(op: op_queries.OpOverload) -> bool:
    """Whether an operation is one that `functional_op` returns."""
    return op.namespace == NAMESPACE


def _define_functional_draw(op: op_queries.OpOverload) -> op_queries.OpOverload:
    overload = "" if op._overloadname == "default" else f"_{op._overloadname}"
    origin = "" if op.namespace == "aten" else f"{op.namespace}_"
    name = f"{origin}{op._opname}{overload}"
    takes, returns = _ALIAS.sub("", str(op._schema)).split("(", 1)[1].rsplit(") -> ", 1)
    results = [
        text
        for text, result in zip(returns.strip("()").split(", "), op._schema.returns, strict=False)
        if not is_written(result)
    ]
    results += ["Tensor"] * (len(classify(op).written) + 1)
    state = "Tensor rng_state, " if takes else "Tensor rng_state"
    _LIBRARY.define(f"{name}({state}{takes}) -> ({', '.join(r.split()[0] for r in results)})")
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, _drawing(op), key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", _faking(op), lib=_LIBRARY)
    form = getattr(getattr(torch.ops, NAMESPACE), name).default
    assert isinstance(form, op_queries.OpOverload)
    return form


def _drawing(op: op_queries.OpOverload) -> Callable[..., tuple[Any, ...]]:
    def draw(rng_state: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return _draw_from_state(op, rng_state, args, kwargs)

    return draw


def _draw_from_state(
    op: op_queries.OpOverload, rng_state: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """What an operation draws from a state, and the next state; the generator stays where it is."""
    device = _device(args, kwargs)
    with LOCK:
        before = get_rng_state(device)
        try:
            set_state(device, rng_state)
            results = _results(op, args, kwargs)
            return (*results, get_rng_state(device))
        finally:
            set_state(device, before)


def _faking(op: op_queries.OpOverload) -> Callable[..., tuple[Any, ...]]:
    def fake(rng_state: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return (*_results(op, args, kwargs), torch.empty_like(rng_state))

    return fake


def _results(op: op_queries.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    written = tuple(where for where in classify(op).written if is_present(where, args, kwargs))
    if written:
        return call_on_clones(op, written, args, kwargs)
    result = op(*args, **kwargs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Where a call's results lie."""
    device = kwargs.get("device")
    if device is None:
        device = next((a.device for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), "cpu")
    return torch.device(device)
