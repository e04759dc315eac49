"""Whether the backward of a custom `autograd.Function`, as it was recorded, is linear in its gradient.

A derivative of a derivative reaches nodes of the autograd graph that the first has run already. Eager runs
each once, with the sum of both; here each derivative runs them on its own, and the results are added up. That
is the same for what is linear, as every formula of torch's own is. A custom function may do anything (clip,
take the sign, add a constant), so what it has recorded is looked at, operation by operation.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot.capture.recorder.recorder import Recorder
from aot.errors import DoubleBackwardUnsupported
from aot.graph.value_meta import lookup
from aot.tensors.subclasses import inner_tensors
from aot.torch_internals import autograd_graph, mode_stacks, op_queries


class LinearKind(enum.Enum):
    """What a value is, as a function of the gradients."""

    CONSTANT = enum.auto()
    ZERO = enum.auto()
    LINEAR = enum.auto()
    UNKNOWN = enum.auto()


_BLANKS = frozenset({"zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor"})
_FILLED = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0, "fill": 1}  # the value's position
# Of the first argument nothing but its metadata is read.
_LIKE = _BLANKS | {
    *("full_like", "new_full", "fill", "copy"),
    *("ones_like", "new_ones", "empty_like", "new_empty", "new_empty_strided"),
}
# For each operation, the sets of arguments in which it is linear, all of one set at once.
_FIRST = ((0,),)
_EITHER = ((0,), (1,))
_BOTH = ((0, 1),)
_LINEAR: dict[str, tuple[tuple[int, ...], ...]] = {
    **dict.fromkeys(("neg", "clone", "_to_copy", "_unsafe_view", "_conj_physical", "resolve_conj"), _FIRST),
    **dict.fromkeys(("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"), _FIRST),
    **dict.fromkeys(("sum", "mean", "cumsum", "trace", "div"), _FIRST),
    **dict.fromkeys(
        ("flip", "roll", "rot90", "repeat", "tril", "triu", "diag_embed", "_reshape_copy"), _FIRST
    ),
    **dict.fromkeys(("gather", "index", "_unsafe_index", "index_select", "take", "embedding"), _FIRST),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c", "im2col", "col2im", "pixel_shuffle"), _FIRST),
    **dict.fromkeys(("pixel_unshuffle", "avg_pool1d", "avg_pool2d", "avg_pool3d"), _FIRST),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "cholesky_solve"), _FIRST),
    **dict.fromkeys((f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)), _FIRST),
    **dict.fromkeys(("mul", "mm", "bmm", "mv", "dot", "vdot", "linalg_cross"), _EITHER),
    **dict.fromkeys((f"upsample_nearest{n}d" for n in (1, 2, 3)), _FIRST),
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), _FIRST),
    **dict.fromkeys(("add", "sub", "rsub", "lerp", "complex", "addcdiv"), _BOTH),
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"), _BOTH),
    **dict.fromkeys(("cat", "stack"), _FIRST),
    **dict.fromkeys(("addmm", "addmv", "addbmm", "baddbmm", "addcmul", "addr"), ((0, 1), (0, 2))),
    **dict.fromkeys(("convolution", "linear", "_convolution"), ((0, 2), (1, 2))),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "masked_fill", "masked_scatter"), ((0, 2),)),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy", "index_fill"), ((0, 3),)),
    "constant_pad_nd": ((0, 2),),
    "where": ((1, 2),),
    "copy": ((1,),),
    "fill": ((1,),),
    "_trilinear": ((0,), (1,), (2,)),
    "linalg_solve_triangular": ((1,),),
    "linalg_lu_solve": ((2,),),
    "_linalg_solve_ex": ((1,),),
}


class Linearity:
    """The values of one recording, as functions of the gradients that come in.

    Args:
        tangents: the nodes of these gradients.
    """

    def __init__(self, recorder: Recorder, tangents: Collection[fx.Node]) -> None:
        self._recorder = recorder
        self._kinds: dict[fx.Node, LinearKind] = dict.fromkeys(tangents, LinearKind.LINEAR)
        self._culprits: dict[fx.Node, str] = {}
        self._last = recorder.builder.graph._root

    @contextlib.contextmanager
    def linearity_required(self, nodes: Iterable[Node]) -> Iterator[None]:
        """While a backward runs: refuse it where it runs one of `nodes` that is a custom function's and not
        known to be linear.

        Raises:
            DoubleBackwardUnsupported: there is one.
        """
        with contextlib.ExitStack() as stack:
            for node in nodes:
                if autograd_graph.is_function_node(node):
                    stack.callback(node.register_prehook(self._before).remove)
                    stack.callback(node.register_hook(self._linearity_check_after(node.name())).remove)
            yield

    def _before(self, gradients: Any) -> None:
        # All formulas of torch's own are linear.
        for node in self._advance_linearity():
            if self._kinds[node] is LinearKind.UNKNOWN:
                self._kinds[node] = LinearKind.LINEAR

    def _linearity_check_after(self, name: str) -> Callable[..., None]:
        def check(results: tuple[Tensor | None, ...], gradients: Any) -> None:
            with mode_stacks.dispatch_modes_off(), torch.no_grad():
                parts = (part for r in results if r is not None for part in inner_tensors(r))
                nodes = [self._recorder.read(part) for part in parts]
            for _ in self._advance_linearity():
                pass
            for node in nodes:
                kind = self._kinds.get(node, LinearKind.CONSTANT)
                if kind is LinearKind.UNKNOWN or kind is LinearKind.CONSTANT:
                    why = f"({self._culprits.get(node, 'it adds something of its own')}) "
                    raise DoubleBackwardUnsupported(
                        f"create_graph=True through {name}, a custom autograd.Function whose backward is not "
                        f"known to be linear in its gradient {why}and would have to see the sum of the first "
                        f"and of higher derivatives; call the original function"
                    )

        return check

    def _advance_linearity(self) -> Iterator[fx.Node]:
        """Look at what was recorded since the last time."""
        root = self._recorder.builder.graph._root
        while self._last.next is not root:
            node = self._last = self._last.next
            if node not in self._kinds:
                self._kinds[node] = self._operation_linearity(node)
            yield node

    def _operation_linearity(self, node: fx.Node) -> LinearKind:
        if node.op == "get_attr":
            value = getattr(self._recorder.builder.root, str(node.target))
            with mode_stacks.dispatch_modes_off():
                return LinearKind.CONSTANT if bool(value.any()) else LinearKind.ZERO
        if node.op != "call_function":
            return LinearKind.CONSTANT
        if node.target is operator.getitem:
            self._blame(node, self._culprits.get(node.all_input_nodes[0]))
            return self._argument_linearity(node.args[0])
        op = node.target
        name = op._schema.name.split("::")[1] if isinstance(op, op_queries.OpOverload) else ""
        if name in _BLANKS:
            return LinearKind.ZERO
        place = _FILLED.get(name)
        if place is not None and not isinstance(node.args[place], fx.Node):
            return LinearKind.CONSTANT if node.args[place] else LinearKind.ZERO
        kinds = [
            LinearKind.CONSTANT if i == 0 and name in _LIKE else self._argument_linearity(a)
            for i, a in enumerate(node.args)
        ]
        kinds += [self._argument_linearity(value) for value in node.kwargs.values()]
        for group in _linear_argument_groups(op) if isinstance(op, op_queries.OpOverload) else ():
            kind = _combined_linearity(kinds, group)
            if kind is not None and (kind is LinearKind.ZERO or self._is_continuous(node)):
                return kind
        if not {LinearKind.LINEAR, LinearKind.UNKNOWN} & set(kinds):
            return LinearKind.CONSTANT
        before = [self._culprits[n] for n in node.all_input_nodes if n in self._culprits]
        self._blame(node, before[0] if before else f"{op}")
        return LinearKind.UNKNOWN

    def _is_continuous(self, node: fx.Node) -> bool:
        """Whether the results have fractions, which a cast to integers would cut off."""
        metas = self._recorder.builder.metas[node]
        known = [lookup(m).dtype for m in (metas if isinstance(metas, tuple) else (metas,)) if m is not None]
        return all(dtype.is_floating_point or dtype.is_complex for dtype in known)

    def _blame(self, node: fx.Node, culprit: str | None) -> None:
        if culprit is not None:
            self._culprits[node] = culprit

    def _argument_linearity(self, argument: Any) -> LinearKind:
        """What an argument is; a list is what its elements are together."""
        if isinstance(argument, fx.Node):
            return self._kinds.get(argument, LinearKind.CONSTANT)
        if isinstance(argument, (list, tuple)) and any(isinstance(a, fx.Node) for a in argument):
            kinds = [LinearKind.ZERO if a is None else self._argument_linearity(a) for a in argument]
            mixed = (
                LinearKind.UNKNOWN
                if LinearKind.LINEAR in kinds or LinearKind.UNKNOWN in kinds
                else LinearKind.CONSTANT
            )
            return _combined_linearity(kinds, range(len(kinds))) or mixed
        zero = argument is None or (isinstance(argument, (bool, int, float, complex)) and not argument)
        return LinearKind.ZERO if zero else LinearKind.CONSTANT


def _combined_linearity(kinds: list[LinearKind], group: Iterable[int]) -> LinearKind | None:
    """What an operation gives that is linear in the arguments of a group; None where these, or the others,
    are not such that this says anything."""
    places = [i for i in group if i < len(kinds)]
    others = (kind for i, kind in enumerate(kinds) if i not in places)
    if any(kind in (LinearKind.LINEAR, LinearKind.UNKNOWN) for kind in others):
        return None
    within = {kinds[i] for i in places}
    if within <= {LinearKind.ZERO}:
        return LinearKind.ZERO
    return LinearKind.LINEAR if within <= {LinearKind.ZERO, LinearKind.LINEAR} else None


def _linear_argument_groups(op: op_queries.OpOverload) -> tuple[tuple[int, ...], ...]:
    """The sets of arguments in which an operation is linear."""
    name = op._schema.name.split("::")[1]
    if op.namespace != "aten" or op._overloadname.endswith("_mode"):  # div, rounded
        return ()
    if name.endswith(("_backward", "_backward_data")):
        arguments = enumerate(op._schema.arguments)
        return (tuple(i for i, a in arguments if a.name.startswith("grad") and "Tensor" in str(a.type)),)
    return _FIRST if op.is_view else _LINEAR.get(name, ())
