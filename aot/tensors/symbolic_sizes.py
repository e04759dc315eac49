"""Symbolic sizes: the numbers of a call that are symbols in its trace.

In: the tensors and numbers of a call. Out: `SymbolicSizes` for the trace, and `ShapeGuards` for later calls.
Symbols may be sizes, strides, offsets and storage sizes of tensors, and arguments that are numbers if a front
end says so.

Symbols are those of torch's ``ShapeEnv``, as in AOTAutograd. 0 and 1 are no symbols, because operations do
something else for them. Equal numbers get the same symbol. A stride that follows from sizes is an expression
of them. A comparison of symbols gives what holds in this call, and adds a guard. `ShapeGuards` tests the
guards for later calls.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aot.tensors.geometry import Geometry, geometry
from aot.tensors.subclasses import GradientLayout, SubclassCreationMeta, has_nested_ints, is_nested_int
from aot.torch_internals import dynamo_api, symbolic_shapes, tensor_impl, torch_fakes

Number = Any  # an int, or torch.SymInt

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def has_symbols(value: Any) -> bool:
    """Whether a value is a symbol, or contains one in tuples, lists or dicts."""
    if isinstance(value, (tuple, list)):
        return any(map(has_symbols, value))
    if isinstance(value, dict):
        return any(map(has_symbols, value.values()))
    return isinstance(value, SYMBOLIC)


def _is_plain(value: Any) -> bool:
    """Whether a value is an int or a tuple of ints: a fast test for the most frequent case."""
    return type(value) is int or (type(value) is tuple and _INT.issuperset(map(type, value)))


_INT = frozenset({int})


def specialize_sizes(value: Any) -> Any:
    """A value with numbers of this call in place of symbols, for kernels. Adds a guard for each symbol."""
    if _is_plain(value):
        return value
    if isinstance(value, (tuple, list)):
        made = map(specialize_sizes, value)
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {name: specialize_sizes(one) for name, one in value.items()}
    for symbolic, kind in zip(SYMBOLIC, (int, float, bool), strict=True):
        if isinstance(value, symbolic):
            return kind(value)
    return value


def with_hints(value: Any) -> Any:
    """A value with the numbers of the traced call in place of symbols. Adds no guard.

    A symbol without a hint, which depends on values, becomes 1.
    """
    if _is_plain(value):
        return value
    if isinstance(value, (tuple, list)):
        made = map(with_hints, value)
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {name: with_hints(one) for name, one in value.items()}
    if isinstance(value, SYMBOLIC) and not is_nested_int(value):
        return value.node.hint if value.node.has_hint() else 1
    return value


def substitute(value: Any, examples: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """A value with numbers of `arguments` in place of symbols.

    `examples` stood for the arguments in a trace. A symbol in a size, stride or offset of an example gets the
    number at the same place of its argument.

    Example:
        >>> substitute({"stride": (n, 1)}, [n], [5])  # doctest: +SKIP
        {'stride': (5, 1)}
    """
    found: dict[Any, int] = {}
    for example, argument in zip(examples, arguments, strict=True):
        for one, number in zip(numbers_of(example), numbers_of(argument), strict=True):
            if isinstance(one, torch.SymInt):
                found[symbolic_shapes.original_expression(one)] = number
    return _replace_sizes(value, found)


def numbers_of(value: Any) -> tuple[Number, ...]:
    """A tensor's sizes, strides and offset; a number itself."""
    if isinstance(value, Tensor):
        return (*value.shape, *value.stride(), value.storage_offset())
    return (value,)


def _replace_sizes(value: Any, found: Mapping[Any, int]) -> Any:
    if isinstance(value, tuple):
        made = [_replace_sizes(one, found) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if isinstance(value, dict):
        return {name: _replace_sizes(one, found) for name, one in value.items()}
    symbolic = isinstance(value, SYMBOLIC) and not is_nested_int(value)
    return int(value.node.expr.xreplace(found)) if symbolic else value


@dataclass(frozen=True, slots=True, repr=False)
class Computed:
    """A symbolic number as an argument of a node. fx takes no SymInt there."""

    value: Number

    def __repr__(self) -> str:
        return source_of(self.value)


def as_arguments(value: Any) -> Any:
    """The arguments of an operation as arguments of a node, with `Computed` around symbols."""
    if isinstance(value, SYMBOLIC):
        return Computed(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(as_arguments, value))
    if isinstance(value, dict):
        return {name: as_arguments(one) for name, one in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class DataNumber:
    """A number that a node of a graph computes from the values of tensors.

    Attributes:
        path: () if the node's result is the number; (dimension,) if it is a size of the result; (index,
            dimension) if it is a size of one of several results.
        value: the symbol for it, or the number that it is in every call that the graph answers.
    """

    path: tuple[int, ...]
    value: Number

    @property
    def symbol(self) -> Any:
        """The symbol, or None if the value is a plain number."""
        if not isinstance(self.value, SYMBOLIC):
            return None
        return symbolic_shapes.original_expression(self.value)


@dataclass(frozen=True, slots=True)
class StaticSizes:
    """The numbers of a call's tensors that are no symbols.

    Attributes:
        tensors: positions of tensors without any symbol.
        dimensions: (position, dimension) of single sizes that are no symbols.
        unmarked: only sizes that are marked (``torch._dynamo.mark_dynamic``) are symbols, and what follows
            from them. If false, sizes are symbols unless they are marked as static.
    """

    tensors: frozenset[int] = frozenset()
    dimensions: frozenset[tuple[int, int]] = frozenset()
    unmarked: bool = False


class SymbolicSizes:
    """The symbols of one trace.

    Args:
        tensors: the tensors of the call.
        roots: for each tensor itself, or the base that it is a view of in the trace.
        numbers: numbers among the leaves of the arguments that become symbols, by position.
        constant: the numbers of tensors that are no symbols.
        wrappers: the wrapper subclasses of the call, and how each is made.
        traced: gives the hint of a symbol for a number of the call.

    Attributes:
        env: the ``ShapeEnv``, which has the guards.
        mode: the mode that makes fake tensors with symbolic sizes.
        names: the name of each symbol in generated code: first those of the call, then those that the forward
            graph computes from values.
        values: each symbol as a SymInt.
        computed: the symbols that a graph computes from values, also a backward graph, each as a number.
        unbacked: the unbacked symbols that compilers get for computed ones.
        given: gives the values of a graph's inputs, while they are available.
        concrete: the known values of other nodes.
        numbers: the symbols or numbers among the leaves of the arguments, by position.
        metas: how each wrapper subclass is made, with symbols.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        roots: Sequence[Tensor],
        numbers: Mapping[int, int],
        constant: StaticSizes,
        traced: Callable[[int], int] | None = None,
        wrappers: Sequence[tuple[Tensor, SubclassCreationMeta]] = (),
    ) -> None:
        self._unmarked = constant.unmarked
        self._traced = traced or (lambda number: number)
        self.env = symbolic_shapes.make_shape_env()
        self.mode = torch_fakes.FakeTensorMode(shape_env=self.env)
        self.names: dict[Any, str] = {}
        self.values: dict[Any, Number] = {}
        self.computed: dict[Any, Number] = {}
        self.unbacked: dict[Any, Number] = {}
        self.given: Callable[[], Mapping[Any, Tensor]] | None = None
        self.concrete: Any = None
        self._dims = tuple(tensor.dim() for tensor in (*tensors, *(wrapper for wrapper, _ in wrappers)))
        self._checked: tuple[int, Callable[[Sequence[int]], bool]] = 0, lambda _: True
        self._found: dict[Any, str] = {}  # the place in a call where each symbol is read
        self._equal: list[tuple[str, Number]] = []  # other places, and the number that has to be there
        self._wheres: dict[int, Geometry] = {}
        self._nbytes: dict[int, Number] = {}
        distinct = {id(tensor): (f"t{i}", tensor) for i, tensor in enumerate(tensors)}
        for i, root in enumerate(roots):
            distinct.setdefault(id(root), (f"t{i}._base", root))
        together: dict[int, dict[str, Tensor]] = {}
        for path, tensor in distinct.values():
            together.setdefault(tensor_impl.storage_key(tensor), {})[path] = tensor
        # All tensors on the storage of a tensor without symbols have none.
        for key in {tensor_impl.storage_key(tensors[i]) for i in constant.tensors}:
            self._fix_size(key, together.pop(key))
        # Sizes come first, because strides and storage sizes may follow from them.
        free = {path: tensor for members in together.values() for path, tensor in members.items()}
        still = {(id(tensors[i]), d) for i, d in constant.dimensions}
        still.update(_static_dimensions(tensors, wrappers))
        sizes = {
            path: tuple(
                self._symbolic_number(
                    f"{path}.shape[{d}]", n, (id(tensor), d) in still or self._is_fixed(tensor, d)
                )
                for d, n in enumerate(tensor.shape)
            )
            for path, tensor in free.items()
        }
        self.numbers = {
            leaf: self._symbolic_number(f"i{k}", n, n < 0) for k, (leaf, n) in enumerate(numbers.items())
        }
        for path, tensor in free.items():
            self._wheres[id(tensor)] = self._lying(path, tensor, sizes[path])
        for key, members in together.items():
            self._nbytes[key] = self._symbolic_storage_size(members)
        self.metas = tuple(
            self._symbolic_subclass_meta(f"t{i}", meta, wrapper, constant.tensors.issuperset(meta.positions))
            for i, (wrapper, meta) in enumerate(wrappers, len(tensors))
        )

    @classmethod
    def of_fixed_sizes(
        cls,
        tensors: Sequence[Tensor],
        roots: Sequence[Tensor],
        wrappers: Sequence[tuple[Tensor, SubclassCreationMeta]],
    ) -> SymbolicSizes:
        """Without symbols for the numbers of a call; only graphs may compute some."""
        return cls(tensors, roots, {}, StaticSizes(frozenset(range(len(tensors)))), wrappers=wrappers)

    def geometry(self, tensor: Tensor) -> Geometry:
        """The geometry of a tensor of the call, or of its base, with symbols."""
        return self._wheres[id(tensor)]

    def nbytes(self, tensor: Tensor) -> Number:
        """The size of a tensor's storage in bytes, as a symbol or number."""
        return self._nbytes[tensor_impl.storage_key(tensor)]

    def let_go(self) -> None:
        """Drop what is known by the ids of tensors: they may be freed while the trace lives on."""
        self._wheres.clear()
        self._nbytes.clear()

    def at(self, value: Any, numbers: Sequence[int]) -> Any:
        """A number, or a tuple with numbers, for a call whose symbols have the values `numbers`."""
        return _replace_sizes(value, dict(zip(self.values, numbers, strict=True)))

    def laid(self, layout: GradientLayout, numbers: Sequence[int]) -> GradientLayout:
        """A layout for a call whose symbols have the values `numbers`."""
        meta = layout.meta
        return GradientLayout(
            self.at(layout.wheres, numbers),
            None if meta is None else meta.showing(lambda shown: self.at(tuple(shown), numbers)),
        )

    def data_number(self, hint: int | float, *, is_size: bool, forward: bool) -> Number:
        """A symbol for a number that a graph computes from values; a size below 2 stays a number.

        `hint` is its value in this call. `forward` says which graph computes it.
        """
        if is_size and hint < 2:
            return hint
        name = f"data[{len(self.computed)}]"
        symbol, value = symbolic_shapes.data_symbol(self.env, name, hint, is_size=is_size)
        self.computed[symbol] = value
        if forward:
            self.names[symbol] = symbolic_shapes.python_source(symbol)
            self.values[symbol] = value
        return value

    @contextlib.contextmanager
    def values_at_hand(self) -> Iterator[None]:
        """While it lasts, `given` and `concrete` may hold the caller's tensors. At its end they are reset."""
        try:
            yield
        finally:
            self.given = self.concrete = None

    def is_computed(self, number: Any) -> bool:
        """Whether a symbolic number is one that a graph computes from values, or follows from one."""
        return bool(symbolic_shapes.free_symbols(number) & self.computed.keys())

    def data_tests(self) -> list[Any]:
        """The guards on numbers that graphs compute, as expressions of symbols."""
        found = (guard.expr for guard in self.env.guards)
        return [test for test in dict.fromkeys(found) if test.free_symbols & self.computed.keys()]

    def hold(self, numbers: Sequence[int]) -> bool:
        """Whether the guards so far hold for the numbers of a call."""
        if len(self.env.guards) != self._checked[0]:
            tests = [
                symbolic_shapes.python_source(guard.expr)
                for guard in self.env.guards
                if guard.expr.free_symbols <= self.names.keys()
            ]
            self._checked = len(self.env.guards), _compile_shape_guards(self.names.values(), tests)
        return self._checked[1](numbers)

    def shape_guards(self) -> ShapeGuards:
        """The guards for later calls, when the trace is over."""
        lines = [f"{self.names[symbol]} = {path}" for symbol, path in self._found.items()]
        tests = [f"{path} == {source_of(value)}" for path, value in self._equal]
        names = [name for symbol, name in self.names.items() if symbol not in self.computed]
        tests += [f"{name} > 1" for name in names]
        tests += [
            symbolic_shapes.python_source(guard.expr)
            for guard in self.env.guards
            if not guard.expr.free_symbols & self.computed.keys()
        ]
        tests = list(dict.fromkeys(tests))
        count = len(self._dims)
        parameters = ", ".join(
            [*(f"t{i}" for i in range(count)), *(f"i{k}" for k in range(len(self.numbers)))]
        )
        test = " and ".join(f"({test})" for test in tests) or "True"
        scope: dict[str, Any] = {"math": math, "torch": torch}
        exec("\n    ".join([f"def hold({parameters}):", *lines, _RETURN.format(test=test)]), scope)
        return ShapeGuards(
            tuple(names),
            tuple(lines),
            tuple(tests),
            scope.pop("hold"),
            self._dims,
            len(self.numbers),
            tuple(name for symbol, name in self.names.items() if symbol in self.computed),
        )

    def _fix_size(self, key: int, members: Mapping[str, Tensor]) -> None:
        for path, tensor in members.items():
            self._wheres[id(tensor)] = where = geometry(tensor)
            self._nbytes[key] = tensor.untyped_storage().nbytes()
            self._equal.append((f"tuple({path}.shape)", where.size))
            self._equal.append((f"{path}.stride()", where.stride))
            self._equal.append((f"{path}.storage_offset()", where.offset))
            self._equal.append((f"{path}.untyped_storage().nbytes()", self._nbytes[key]))

    def _is_fixed(self, tensor: Tensor, dimension: int) -> bool:
        mark = dynamo_api.dynamic_mark(tensor, dimension)
        return mark is not True if self._unmarked else mark is False

    def _lying(self, path: str, tensor: Tensor, size: tuple[Number, ...]) -> Geometry:
        where = geometry(tensor)
        stride = self._symbolic_strides(path, where.size, where.stride, size)
        offset = self._symbolic_number(f"{path}.storage_offset()", where.offset, self._unmarked)
        return where._replace(size=size, stride=stride, offset=offset)

    def _symbolic_strides(
        self, path: str, sizes: Sequence[int], strides: Sequence[int], size: tuple[Number, ...]
    ) -> tuple[Number, ...]:
        found: list[Number] = list(strides)
        known: dict[int, Number] = {1: 1}  # strides that follow from the sizes of inner dimensions
        for d in sorted(range(len(size)), key=lambda d: (strides[d], -d)):
            follows = known.get(strides[d])
            if follows is None:
                found[d] = self._symbolic_number(f"{path}.stride({d})", strides[d], self._unmarked)
            else:
                found[d] = follows
                self._equal.append((f"{path}.stride({d})", follows))
            known[strides[d] * sizes[d]] = found[d] * size[d]
        return tuple(found)

    def _symbolic_subclass_meta(
        self, path: str, meta: SubclassCreationMeta, tensor: Tensor, is_fixed: bool
    ) -> SubclassCreationMeta:
        """How a wrapper subclass is made, with symbols for its own size and strides."""
        parts = tuple(
            (
                name,
                self._symbolic_subclass_meta(f"{path}.{name}", part, getattr(tensor, name), is_fixed)
                if isinstance(part, SubclassCreationMeta)
                else part,
            )
            for name, part in meta.parts
        )
        if has_nested_ints(meta.size):  # the inner tensors and the nested ints give the size
            return replace(meta, parts=parts)
        size = tuple(
            self._symbolic_number(f"{path}.shape[{d}]", n, is_fixed or self._is_fixed(tensor, d))
            for d, n in enumerate(meta.size)
        )
        if is_fixed:
            self._equal.append((f"{path}.stride()", tuple(meta.stride)))
            return replace(meta, parts=parts, size=size)
        return replace(
            meta, parts=parts, size=size, stride=self._symbolic_strides(path, meta.size, meta.stride, size)
        )

    def _symbolic_storage_size(self, members: Mapping[str, Tensor]) -> Number:
        """The size of a storage: the end of a tensor that reaches to the storage's end, or else a symbol."""
        path, tensor = next(iter(members.items()))
        path += ".untyped_storage().nbytes()"
        nbytes = tensor.untyped_storage().nbytes()
        ends = [self._wheres[id(t)].bytes[1] for t in members.values() if geometry(t).bytes[1] == nbytes]
        if not ends:
            return self._symbolic_number(path, nbytes, self._unmarked)
        end = max(ends, key=with_hints)
        self._equal.append((path, end))
        return end

    def _symbolic_number(self, path: str, number: int, is_fixed: bool) -> Number:
        if is_fixed:
            self._equal.append((path, number))
            return number
        hint = number if number < 2 else self._traced(number)
        symbol, value = symbolic_shapes.new_symbol(self.env, path, hint)
        if symbol.is_number or symbol in self._found:
            self._equal.append((path, value))
        else:
            self._found[symbol] = path
            self.names[symbol] = symbolic_shapes.python_source(symbol)
            self.values[symbol] = value
        return value


def _static_dimensions(
    tensors: Sequence[Tensor], wrappers: Sequence[tuple[Tensor, SubclassCreationMeta]]
) -> Iterator[tuple[int, int]]:
    """Dimensions whose sizes are no symbols because nested ints are multiplied by them, with the tensor's id.

    The strides of a nested tensor are products of a nested int and of all its sizes except the first. Inner
    tensors have the same sizes, so these are no symbols there either.
    """
    for _, meta in wrappers:
        if has_nested_ints(meta.size):
            factors = {n for n in meta.size[1:] if not is_nested_int(n)}
            for part in (tensors[position] for position in meta.positions):
                if part.dim() > 1:  # the tensor of offsets has one dimension
                    yield from ((id(part), d) for d, n in enumerate(part.shape) if n in factors)


@dataclass(frozen=True, slots=True)
class HintedGeometries:
    """The geometries of a trace's tensors, with hints in place of symbols."""

    symbols: SymbolicSizes

    def geometry(self, tensor: Tensor) -> Geometry:
        where: Geometry = with_hints(self.symbols.geometry(tensor))
        return where

    def nbytes(self, tensor: Tensor) -> int:
        return int(with_hints(self.symbols.nbytes(tensor)))


@dataclass(frozen=True, slots=True)
class ShapeGuards:
    """What a specialization assumes of the geometry of tensors, and of numbers among the arguments.

    Attributes:
        names: the names of the symbols.
        lines: Python source that reads them from the tensors ``t0``, ``t1``, ... and the numbers ``i0``, ...
        tests: Python expressions of the names that have to hold.
        hold: tests them, for the tensors and then the numbers of a call.
        dims: the number of dimensions of each tensor.
        given: the number of numbers among the arguments.
        computed: the names of symbols that the forward graph computes from values.
    """

    names: tuple[str, ...]
    lines: tuple[str, ...]
    tests: tuple[str, ...]
    hold: Callable[..., bool]
    dims: tuple[int, ...] = ()
    given: int = 0
    computed: tuple[str, ...] = ()

    @property
    def every(self) -> tuple[str, ...]:
        """The names of all symbols that have values when the forward graph has run."""
        return (*self.names, *self.computed)

    def failing_shape_guards(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[str]:
        """The tests that fail for a call; none if its tensors cannot be compared with the traced ones."""
        if self.dims != tuple(tensor.dim() for tensor in tensors):
            return []
        scope: dict[str, Any] = {"math": math, "torch": torch}
        scope |= {f"t{i}": tensor for i, tensor in enumerate(tensors)}
        scope |= {f"i{k}": number for k, number in enumerate(numbers)}
        try:
            exec("\n".join(self.lines), scope)
            return [test for test in self.tests if not _holds(test, scope)]
        except (AttributeError, IndexError):  # a tensor is no view, or is another wrapper subclass
            return []


def _holds(test: str, scope: dict[str, Any]) -> bool:
    try:
        return bool(eval(test, scope))
    except ZeroDivisionError:
        return False


# One test may divide by a number, and another one test that it is not 0.
_RETURN = """try:
        return {test}
    except ZeroDivisionError:
        return False"""

NO_SIZES = ShapeGuards((), (), (), lambda *_: True)


def _compile_shape_guards(names: Iterable[str], tests: Iterable[str]) -> Callable[[Sequence[int]], bool]:
    """A function that tests if all tests hold for numbers with these names."""
    scope: dict[str, Any] = {"math": math, "torch": torch}
    test = " and ".join(f"({test})" for test in dict.fromkeys(tests))
    taken = "".join(name + ", " for name in names)
    exec(f"def hold(numbers):\n    {taken} = numbers\n    {_RETURN.format(test=test)}", scope)
    hold: Callable[[Sequence[int]], bool] = scope.pop("hold")
    return hold


def source_of(value: Any) -> str:
    """A number or symbol as Python source."""
    return symbolic_shapes.python_source(value.node.expr) if isinstance(value, SYMBOLIC) else repr(value)
