"""Sizes and numbers that depend on the values of tensors, recorded as symbols.

In: an operation whose result has such a size (`nonzero`, a mask as index), or is such a number (`item`). Out:
its node, in the result of which symbols stand for these. A symbol has the number of this call as its hint:
the graph so far is run for it on the caller's tensors. Whatever the trace then assumes of the symbol, the
graph asserts (`aot.graph.symint_inputs`); a call for which that does not hold is compiled for itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from aot import errors
from aot.capture.recorder.thread_values import ConcreteValues
from aot.graph.builder import GraphBuilder
from aot.graph.purity import is_random_node, node_has_external_effect
from aot.graph.shape_inference import typed_refusals
from aot.graph.symint_inputs import DATA_NUMBERS
from aot.graph.value_meta import Number, ResultMeta, ValueMeta, intern
from aot.tensors.symbolic_sizes import SYMBOLIC, DataNumber, SymbolicSizes, has_symbols
from aot.torch_internals import (
    autocast_state,
    autograd_state,
    dispatcher,
    mode_stacks,
    rng,
    symbolic_shapes,
    tensor_impl,
)

aten = torch.ops.aten

# Operations of which a size of the result, or the result, depends on values. (`index` is one where an index
# is a mask, the last two where no argument says the size.)
_RECORDED = {
    aten._local_scalar_dense.default,
    aten._unique.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.index.Tensor,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.unique_dim_consecutive.default,
    aten.one_hot.default,
    aten.repeat_interleave.Tensor,
}
# torch's rules for fake tensors get a negative dimension wrong.
_ALONG = {aten.unique_consecutive.default, aten.unique_dim.default, aten.unique_dim_consecutive.default}
_COUNTING = {aten.nonzero.default, aten.masked_select.default, aten.index.Tensor}


EMBEDDINGS = {aten.embedding.default, aten._embedding_bag.default}
"""Operations whose gradient may be sparse."""


class DataNumbers:
    """The numbers of one trace that depend on values.

    Args:
        builder: the graph so far.
        symbols: makes symbols; None for a trace that has none so far.
        begin_draws: puts random generators in the states that this call's draws begin from.

    Attributes:
        adopt: has the trace have symbols from now on; None where it cannot.
    """

    def __init__(
        self, builder: GraphBuilder, symbols: SymbolicSizes | None, begin_draws: Callable[[], None]
    ) -> None:
        self._builder = builder
        self._begin_draws = begin_draws
        self._symbols = symbols
        self._thread = threading.get_ident()
        self.adopt: Callable[[], SymbolicSizes] | None = None
        self._drawn: list[Tensor] | None = None  # where generators are when the values so far are known
        self._ran: set[fx.Node] = set()
        self._counts: dict[Any, Any] = {}  # by the form of a mask, how many elements it selects

    def records(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an operation gives such sizes or numbers, and they can be recorded.

        Raises:
            DataDependentValue: the function asks whether a tensor is true.
        """
        if func not in _RECORDED or threading.get_ident() != self._thread:  # another is answered by values
            return False
        if func is aten.one_hot.default and (*args[1:], *kwargs.values(), -1)[0] != -1:
            return False
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
            return False
        if func is aten._local_scalar_dense.default:
            dtype = self._builder.meta(args[0]).dtype
            if dtype is torch.bool or dtype.is_complex:
                raise errors.DataDependentValue(
                    f"the function reads a tensor's value, of {dtype} ({func}); compute with the tensor "
                    f"instead (torch.where)"
                )
        elif func is aten.index.Tensor and not self._masks(args[1]):
            return False
        if self._symbols is None and self.adopt is None:
            return False
        if self._builder.backward and not (
            torch.is_grad_enabled() or _form(self._counted_mask(func, args)) in self._counts
        ):  # (What a checkpoint runs again has the sizes that it had in the forward.)
            raise errors.DataDependentValue(
                f"a backward computes something of which the size depends on values that the forward does "
                f"not count ({func}), or reads a value; compute it in the forward, and save it"
            )
        return True

    def count_selected(self, indices: Sequence[fx.Node | None]) -> None:
        """Have the forward graph compute how many elements a mask selects, which its backward may need."""
        if self._builder.backward or (self._symbols is None and self.adopt is None):
            return
        for mask in self._masks(indices):
            if _form(mask) not in self._counts:
                self.record(aten.nonzero.default, (mask,), {})

    def count_embedded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The same of the indices that are no padding: a sparse gradient has an entry for each."""
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        padding = given.get("padding_idx", -1)
        if given.get("sparse") and padding >= 0 and not self._builder.backward:
            self.count_selected([self._builder.emit(aten.ne.Scalar, given["indices"], padding)])

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.Node, ResultMeta]:
        """Append an operation; its node, and the metadata of its result.

        Raises:
            DataDependentValue: what it gives in this call cannot be told.
        """
        symbols = self._adopted()
        if func in _ALONG:
            args, kwargs = _along_from_the_front(func, args, kwargs, len(self._builder.meta(args[0]).size))
        fakes = fx.node.map_arg((args, kwargs), self._builder.fake)
        with (
            typed_refusals(),
            self._builder.on_fakes(symbolic=True),
            autograd_state.outside_inference_mode(),
            torch.no_grad(),
            symbolic_shapes.no_fresh_symbols(symbols.env),
        ):
            shown = func(*fakes[0], **fakes[1])
        many = isinstance(shown, (tuple, list))
        numbers = _Binding(symbols, forward=not self._builder.backward)
        mask = _form(self._counted_mask(func, args))
        numbers.known = self._counts.get(mask)
        actual = None if numbers.known is not None else self._actual(func, args, kwargs)
        results = shown if many else (shown,)
        reals = actual if many and actual is not None else (actual,) * len(results)
        metas = [
            self._meta(one, real, (i,) if many else (), numbers)
            for i, (one, real) in enumerate(zip(results, reals, strict=True))
        ]
        if mask is not None and numbers.made:
            self._counts[mask] = numbers.made[0].value
        recipe = ResultMeta(many, tuple(metas))
        node = self._builder.call(func, args, kwargs, recipe)
        node.meta[DATA_NUMBERS] = tuple(numbers.made)
        if not self._builder.backward:
            node.meta["may_raise"] = True  # so that it is there, where only a number of it is read
        return node, recipe

    def _adopted(self) -> SymbolicSizes:
        if self._symbols is None:
            assert self.adopt is not None
            self._symbols = self.adopt()
            self.adopt = None
        return self._symbols

    def _masks(self, indices: Sequence[fx.Node | None]) -> list[fx.Node]:
        """The masks among indices."""
        boolean = torch.bool, torch.uint8
        return [i for i in indices if isinstance(i, fx.Node) and self._builder.meta(i).dtype in boolean]

    def _counted_mask(self, func: Any, args: tuple[Any, ...]) -> fx.Node | None:
        """The value of which an operation counts the elements that are not 0, if there is one."""
        if func not in _COUNTING:
            return None
        if func is aten.nonzero.default:
            return args[0]  # type: ignore[no-any-return]
        if func is aten.masked_select.default:
            same = self._builder.meta(args[0]).size == self._builder.meta(args[1]).size
            return args[1] if same else None
        masks = self._masks(args[1])
        return masks[0] if len(masks) == 1 and len([i for i in args[1] if i is not None]) == 1 else None

    def _meta(self, shown: Any, real: Any, path: tuple[int, ...], numbers: _Binding) -> Any:
        """The metadata of one result, which is `real` in this call."""
        if isinstance(shown, Tensor):
            for d, number in enumerate(shown.shape):
                numbers.bind(number, None if real is None else int(real.shape[d]), (*path, d))
            size, stride = numbers.replaced((tuple(shown.shape), shown.stride()))
            return intern(ValueMeta(size, stride, shown.dtype, shown.device))
        numbers.bind(shown, real, path)
        return Number(numbers.replaced(shown))

    def _actual(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operation returns in this call."""
        assert self._symbols is not None
        if self._symbols.given is None:
            raise errors.DataDependentValue(
                f"the shape of the result of {func} depends on its argument's values, which are not there "
                f"any more; compute it outside"
            )
        try:
            with (
                mode_stacks.dispatch_modes_off(),
                autograd_state.outside_inference_mode(),
                autocast_state.without_autocast(),
                dispatcher.below_autograd(),
                rng.preserving_generators(),
            ):
                return func(*fx.node.map_arg(args, self._value), **fx.node.map_arg(kwargs, self._value))
        except (errors.Unsupported, RuntimeError, ValueError, IndexError):
            raise  # as eager does
        except Exception as error:
            raise errors.DataDependentValue(
                f"the result of {func} depends on its argument's values, and computing it raises "
                f"{type(error).__name__} ({str(error)[:200]})"
            ) from error

    def _value(self, node: fx.Node) -> Any:
        """What a node gives in this call. Draws are made in the order in which the graph makes them."""
        symbols = self._symbols
        assert symbols is not None
        if symbols.concrete is None:
            assert symbols.given is not None
            values = symbols.given()
            if any(tensor_impl.has_symbolic_sizes(value) or value.is_meta for value in values.values()):
                raise errors.DataDependentValue("a size depends on values, and the arguments have none")
            symbols.concrete = ConcreteValues(self._builder, lambda _: node, values)
        concrete: ConcreteValues = symbols.concrete
        generators = rng.default_generators()
        if self._drawn is None:
            self._begin_draws()
        else:
            for generator, state in zip(generators, self._drawn, strict=True):
                generator.set_state(state)
        nodes = self._builder.graph.nodes
        for user in nodes:
            if user is node:
                break
            if user not in self._ran and is_random_node(user):
                concrete.value_of(user)
            self._ran.add(user)
        if any(node_has_external_effect(user) for user in nodes):
            raise errors.DataDependentValue(
                "a size depends on values, in a function that acts outside (it prints, or calls an effectful "
                "operator); compute it apart"
            )
        value = concrete.value_of(node)
        self._drawn = [generator.get_state() for generator in generators]
        return value


def _form(mask: fx.Node | None) -> Any:
    """Equal for two masks that are computed alike, of the same values."""
    if mask is None or mask.op != "call_function" or mask.kwargs or not _is_plain_call(mask):
        return mask
    return mask.target, mask.args


def _is_plain_call(node: fx.Node) -> bool:
    return all(isinstance(one, (fx.Node, int, float)) for one in node.args) and not is_random_node(node)


def _along_from_the_front(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rank: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operation, with the dimension `dim` as a number that is not negative."""
    place = [argument.name for argument in func._schema.arguments].index("dim")
    given = args[place] if place < len(args) else kwargs.get("dim")
    if given is None or given >= 0:
        return args, kwargs
    dim = given + max(rank, 1)
    if place < len(args):
        return (*args[:place], dim, *args[place + 1 :]), kwargs
    return args, kwargs | {"dim": dim}


class _Binding:
    """The symbols that fake tensors have made for one result, and what stands for them."""

    def __init__(self, symbols: SymbolicSizes, forward: bool) -> None:
        self._symbols = symbols
        self._forward = forward
        self.made: list[DataNumber] = []
        self.known: Any = None
        self._found: dict[Any, Any] = {}

    def bind(self, shown: Any, real: Any, path: tuple[int, ...]) -> None:
        """Have a number stand for what fake tensors show, if that is a new symbol."""
        if not isinstance(shown, SYMBOLIC):
            return
        symbol = symbolic_shapes.original_expression(shown)
        fresh = symbolic_shapes.is_unbacked(symbol) and symbol not in self._found
        if not fresh:
            return
        if isinstance(real, float) and not math.isfinite(real):
            raise errors.DataDependentValue(
                f"the function reads a tensor's value, which is {real}; compute with the tensor instead"
            )
        if self.known is not None:
            value = self.known
        else:
            value = self._symbols.data_number(real, is_size=bool(path), forward=self._forward)
            self.made.append(DataNumber(path, value))
        as_symbol = isinstance(value, SYMBOLIC)
        self._found[symbol] = symbolic_shapes.original_expression(value) if as_symbol else value

    def replaced(self, value: Any) -> Any:
        """A number, or tuples of numbers, with what stands for the symbols."""
        if not has_symbols(value):
            return value
        if isinstance(value, tuple):
            return tuple(map(self.replaced, value))
        return symbolic_shapes.replaced(self._symbols.env, value, self._found)
