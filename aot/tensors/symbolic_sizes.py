"""Which numbers of a call are symbols in its trace: its tensors' sizes, strides, offsets, sizes of storages,
and arguments that are numbers where a front end says so.

In: the tensors and numbers of a call. Out: `SymbolicSizes`, which tells the trace how each tensor lies and
what stands for each number. What the trace has assumed of the symbols meanwhile, `ShapeGuards` holds against
later calls.

Numbers are symbols of torch's ``ShapeEnv``, as in AOTAutograd: 0 and 1 are not, as operations do something
else there; numbers that are equal get the same symbol; a stride that follows from sizes is an expression of
them. Whoever compares symbols learns what holds in this call, and has it noted as an assumption.
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
    """Whether a symbol is in a value, or in what it contains."""
    if isinstance(value, (tuple, list)):
        return any(map(has_symbols, value))
    if isinstance(value, dict):
        return any(map(has_symbols, value.values()))
    return isinstance(value, SYMBOLIC)


def _is_plain(value: Any) -> bool:
    """Whether it is seen at once that a value is a number, or a tuple of such, and no symbol."""
    return type(value) is int or (type(value) is tuple and _INT.issuperset(map(type, value)))


_INT = frozenset({int})


def specialize_sizes(value: Any) -> Any:
    """A value for kernels, which take no symbols: these are what they are in this call, and are taken to be
    that in every other."""
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
    """A value with the numbers of the call that was traced in place of symbols; ones for those that a call
    does not tell, but what it computes."""
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
    """A value with what `arguments` have in place of the symbols that `examples`, which stood for them in a
    trace, have there: themselves, or as sizes, strides and offsets.

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
    """A symbolic number among the arguments of a node: fx has no place for one as it is."""

    value: Number

    def __repr__(self) -> str:
        return source_of(self.value)


def as_arguments(value: Any) -> Any:
    """The arguments of an operation as those of a node."""
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
        path: where it is: nowhere else for a node that gives a number, a dimension of the node's result, or
            the number of one of several results and a dimension of that.
        value: the symbol that stands for it; or the number that it is in every call that the graph answers.
    """

    path: tuple[int, ...]
    value: Number

    @property
    def symbol(self) -> Any:
        """The symbol, None where it is a number."""
        if not isinstance(self.value, SYMBOLIC):
            return None
        return symbolic_shapes.original_expression(self.value)


@dataclass(frozen=True, slots=True)
class StaticSizes:
    """Which numbers of a call's tensors are no symbols.

    Attributes:
        tensors: those of which no number is one, by position.
        dimensions: some dimensions of others, as pairs of position and dimension.
        unmarked: all dimensions but those that are marked (``torch._dynamo.mark_dynamic``), and what does not
            follow from these; otherwise those that are marked as static.
    """

    tensors: frozenset[int] = frozenset()
    dimensions: frozenset[tuple[int, int]] = frozenset()
    unmarked: bool = False


class SymbolicSizes:
    """The symbols of one trace.

    Args:
        tensors: those of a call.
        roots: each itself, or the base that it is to be a view of in the trace.
        numbers: those among the leaves of its arguments that are to be symbols, by position.
        constant: which numbers of tensors are no symbols.
        wrappers: the wrapper subclasses of the call, and how each is made.
        traced: which number stands for one of theirs in the trace.

    Attributes:
        env: knows what holds for them.
        mode: makes fake tensors with such sizes.
        names: what each is called in generated code, in order: those of the call, and then those that the
            forward graph computes from values.
        values: each as a number.
        computed: those that a graph computes, a backward graph's among them, each as a number.
        unbacked: what compilers get for those.
        given: tells the values of a graph's inputs, while these are at hand.
        concrete: what is known of the values of others.
        numbers: what stands for the numbers among the leaves of the arguments, by position.
        metas: how each wrapper subclass is made.
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
        self._found: dict[Any, str] = {}  # where each is found in a call
        self._equal: list[tuple[str, Number]] = []  # what else is there, and what it has to be
        self._wheres: dict[int, Geometry] = {}
        self._nbytes: dict[int, Number] = {}
        distinct = {id(tensor): (f"t{i}", tensor) for i, tensor in enumerate(tensors)}
        for i, root in enumerate(roots):
            distinct.setdefault(id(root), (f"t{i}._base", root))
        together: dict[int, dict[str, Tensor]] = {}
        for path, tensor in distinct.values():
            together.setdefault(tensor_impl.storage_key(tensor), {})[path] = tensor
        # (What shares a storage with one that is as it is, is so too.)
        for key in {tensor_impl.storage_key(tensors[i]) for i in constant.tensors}:
            self._fix_size(key, together.pop(key))
        # (Sizes first: they are what is given, the rest follows where it can.)
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
        """Symbols for nothing of a call, but for what graphs compute."""
        return cls(tensors, roots, {}, StaticSizes(frozenset(range(len(tensors)))), wrappers=wrappers)

    def geometry(self, tensor: Tensor) -> Geometry:
        """How one of the tensors, or the base of one, lies."""
        return self._wheres[id(tensor)]

    def nbytes(self, tensor: Tensor) -> Number:
        """The size of its storage in bytes."""
        return self._nbytes[tensor_impl.storage_key(tensor)]

    def let_go(self) -> None:
        """Forget which tensors these are: they may end while the trace lives on."""
        self._wheres.clear()
        self._nbytes.clear()

    def at(self, value: Any, numbers: Sequence[int]) -> Any:
        """What a number, or a tuple of numbers and other things, is in a call with `numbers`."""
        return _replace_sizes(value, dict(zip(self.values, numbers, strict=True)))

    def laid(self, layout: GradientLayout, numbers: Sequence[int]) -> GradientLayout:
        """How something lies in a call with `numbers`."""
        meta = layout.meta
        return GradientLayout(
            self.at(layout.wheres, numbers),
            None if meta is None else meta.showing(lambda shown: self.at(tuple(shown), numbers)),
        )

    def data_number(self, hint: int | float, *, is_size: bool, forward: bool) -> Number:
        """What stands for a number that a graph computes from values, a `forward` graph or a backward one; it
        is `hint` in this call. A size below 2 stands for itself."""
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
        """When this is over, the caller's tensors are let go of."""
        try:
            yield
        finally:
            self.given = self.concrete = None

    def is_computed(self, number: Any) -> bool:
        """Whether a symbolic number is one that a graph computes from values, or follows from one."""
        return bool(symbolic_shapes.free_symbols(number) & self.computed.keys())

    def data_tests(self) -> list[Any]:
        """What is assumed of numbers that graphs compute, as expressions of symbols."""
        found = (guard.expr for guard in self.env.guards)
        return [test for test in dict.fromkeys(found) if test.free_symbols & self.computed.keys()]

    def hold(self, numbers: Sequence[int]) -> bool:
        """Whether what is assumed of the symbols by now holds for the numbers of a call."""
        if len(self.env.guards) != self._checked[0]:
            tests = [
                symbolic_shapes.python_source(guard.expr)
                for guard in self.env.guards
                if guard.expr.free_symbols <= self.names.keys()
            ]
            self._checked = len(self.env.guards), _compile_shape_guards(self.names.values(), tests)
        return self._checked[1](numbers)

    def shape_guards(self) -> ShapeGuards:
        """What is to hold for the tensors of a later call, now that the trace is over."""
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
        known: dict[int, Number] = {1: 1}  # strides that follow from the sizes of dimensions further in
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
        """How a wrapper subclass is made, with symbols for what it shows."""
        parts = tuple(
            (
                name,
                self._symbolic_subclass_meta(f"{path}.{name}", part, getattr(tensor, name), is_fixed)
                if isinstance(part, SubclassCreationMeta)
                else part,
            )
            for name, part in meta.parts
        )
        if has_nested_ints(meta.size):  # which is what it is made of that says, and these names
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
        """The size of a storage: where the tensors on it end, if they reach that far, else a number of its
        own."""
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
    """The dimensions, by the identity of the tensor, of which the sizes are no symbols since names are
    multiplied by them.

    The strides of a nested tensor have a name as factor, and all sizes but the first one's. The same numbers
    are taken for these in what it is made of.
    """
    for _, meta in wrappers:
        if has_nested_ints(meta.size):
            factors = {n for n in meta.size[1:] if not is_nested_int(n)}
            for part in (tensors[position] for position in meta.positions):
                if part.dim() > 1:  # (its offsets are not multiplied by)
                    yield from ((id(part), d) for d, n in enumerate(part.shape) if n in factors)


@dataclass(frozen=True, slots=True)
class HintedGeometries:
    """How the tensors of a trace lie, in numbers."""

    symbols: SymbolicSizes

    def geometry(self, tensor: Tensor) -> Geometry:
        where: Geometry = with_hints(self.symbols.geometry(tensor))
        return where

    def nbytes(self, tensor: Tensor) -> int:
        return int(with_hints(self.symbols.nbytes(tensor)))


@dataclass(frozen=True, slots=True)
class ShapeGuards:
    """What a specialization assumes of how tensors lie, and of numbers among the arguments.

    Attributes:
        names: its numbers.
        lines: Python source that finds them in the tensors ``t0``, ``t1``, ... and the numbers ``i0``, ...
        tests: expressions of these that have to hold.
        hold: whether they do, for the tensors and then the numbers of a call.
        dims: how many dimensions the tensors have.
        given: how many numbers there are among the arguments.
        computed: the numbers that the forward graph computes from values.
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
        """The numbers that are known when the forward graph has run."""
        return (*self.names, *self.computed)

    def failing_shape_guards(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[str]:
        """Which tests do not hold for a call; none where its tensors are of another kind."""
        if self.dims != tuple(tensor.dim() for tensor in tensors):
            return []
        scope: dict[str, Any] = {"math": math, "torch": torch}
        scope |= {f"t{i}": tensor for i, tensor in enumerate(tensors)}
        scope |= {f"i{k}": number for k, number in enumerate(numbers)}
        try:
            exec("\n".join(self.lines), scope)
            return [test for test in self.tests if not _holds(test, scope)]
        except (AttributeError, IndexError):  # one is no view, or one of something else
            return []


def _holds(test: str, scope: dict[str, Any]) -> bool:
    try:
        return bool(eval(test, scope))
    except ZeroDivisionError:
        return False


# (That a number is not 0 may be one test, and what is divided by it another.)
_RETURN = """try:
        return {test}
    except ZeroDivisionError:
        return False"""

NO_SIZES = ShapeGuards((), (), (), lambda *_: True)


def _compile_shape_guards(names: Iterable[str], tests: Iterable[str]) -> Callable[[Sequence[int]], bool]:
    """Whether all of the tests hold for numbers of these names."""
    scope: dict[str, Any] = {"math": math, "torch": torch}
    test = " and ".join(f"({test})" for test in dict.fromkeys(tests))
    taken = "".join(name + ", " for name in names)
    exec(f"def hold(numbers):\n    {taken} = numbers\n    {_RETURN.format(test=test)}", scope)
    hold: Callable[[Sequence[int]], bool] = scope.pop("hold")
    return hold


def source_of(value: Any) -> str:
    """A number as Python source."""
    return symbolic_shapes.python_source(value.node.expr) if isinstance(value, SYMBOLIC) else repr(value)
