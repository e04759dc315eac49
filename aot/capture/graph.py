"""The graph under construction: its nodes, and the metadata of every value in it.

A node's metadata is interned to a small integer, and what an operation makes of its arguments' metadata
is remembered across traces: everything recorded is pure, so a result's metadata depends on nothing else.
`meta["val"]` is filled in when the trace is over (`annotate`), never while it runs.
"""

from __future__ import annotations

import contextlib
import itertools
import keyword
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from aot import config, errors
from aot import torch_internals as internals
from aot.capture.origins import Origins
from aot.capture.random import drawing_apart
from aot.capture.zeros import (
    PIVOTED,
    as_pivots,
    may_be_run,
    says_by_raising,
    says_by_raising_anywhere,
)
from aot.geometry import Geometry
from aot.symbols import as_arguments, fixed, has_symbols, hinted


class ValueMeta(NamedTuple):
    """What is known of a value in the graph; its storage offset is 0 unless it is a placeholder."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Number:
    """A result that is no tensor: what custom operators return beside them, or a size, as attention does."""

    value: Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an operation returns for arguments of given metadata: one result or several (None where an
    optional one is absent, a tuple for a list among them), and whether one of them lies in an argument's
    storage although the operation's schema does not say so."""

    many: bool
    metas: tuple[Any, ...]
    aliases: bool = False

    @property
    def device(self) -> torch.device:
        """Where it computes: that of the first result, and the CPU if there is none."""
        first = next((meta for meta in self.metas if meta is not None), None)
        while isinstance(first, tuple):
            first = next(iter(first), None)
        return torch.device("cpu") if first is None else lookup(first).device


_CPU = torch.device("cpu")
_IDS: dict[ValueMeta, int] = {}
_METAS: list[ValueMeta] = []
_numbers = itertools.count(-1, -1)
_RECIPES: dict[tuple[Any, ...], Recipe] = {}
_RECIPES_LIMIT = 20_000  # a bound for processes that compile for ever; far above any one program's needs


class _Symbolic(int):
    """What stands for metadata with symbols in it, which belong to one trace: unlike any other."""

    meta: ValueMeta


class _Rows(_Symbolic):
    """What stands for the metadata of a contiguous value of which it is known when it has been computed how
    many rows it has. It counts as one row, and graph compilers are told that there are `count`."""

    count: torch.SymInt


def intern(meta: ValueMeta) -> int:
    """The small integer that stands for `meta` in keys."""
    try:
        known = _IDS.get(meta)
    except TypeError:
        own = _Symbolic(next(_numbers))
        own.meta = meta
        return own
    if known is None:
        known = _IDS[meta] = len(_METAS)
        _METAS.append(meta)
    return known


def rows_of(meta: ValueMeta, count: torch.SymInt) -> int:
    """What stands for the metadata of so many rows, each of which is contiguous and has the size, dtype and
    device of `meta`."""
    own = _Rows(next(_numbers))
    own.meta = meta._replace(
        size=(1, *meta.size), stride=torch.empty((1, *meta.size), device="meta").stride()
    )
    own.count = count
    return own


def meta_of(tensor: Tensor) -> int:
    """The interned metadata of a tensor's memory; refuses what a graph value cannot describe."""
    if tensor.layout is not torch.strided:
        raise errors.UnsupportedOperation(
            f"an operation made a tensor with layout {tensor.layout}; only strided tensors can be recorded"
        )
    return intern(ValueMeta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device))


def lookup(meta: int) -> ValueMeta:
    """The metadata that `meta` stands for."""
    return _METAS[meta] if meta >= 0 else meta.meta  # type: ignore[attr-defined]


class GraphBuilder:
    """Appends pure calls to a graph, and knows the metadata of every value in it.

    Attributes:
        graph: the graph; its placeholders are added by `placeholder`, constants live on `root`.
        symbolic: whether sizes may be symbols.
        default_dtype: the default dtype of the call, under which the graph runs.
        backward: whether what is appended now belongs to the backward.
        metas: node -> interned metadata, a tuple of them for an operation with several results, as in
            `Recipe`.
    """

    def __init__(self, mode: internals.FakeTensorMode) -> None:
        self.mode = mode
        self.symbolic = mode.shape_env is not None
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.metas: dict[fx.Node, int | tuple[Any, ...]] = {}
        self.offsets: dict[fx.Node, int] = {}
        self.backward = False
        self.default_dtype = torch.get_default_dtype()
        self._constants = 0
        self._origins = Origins() if config.settings().stack_traces else None

    def placeholder(self, name: str, meta: int, offset: int = 0) -> fx.Node:
        """A graph input; `offset` is its storage offset in elements."""
        node = self.graph.placeholder(name)
        self.metas[node] = meta
        self.offsets[node] = offset
        return node

    def constant(self, value: Tensor) -> fx.Node:
        """A tensor literal of the function; a fresh copy of it at every call."""
        name = f"_tensor_constant{self._constants}"
        self._constants += 1
        with internals.modes_off():
            setattr(self.root, name, value.detach().clone())
        node = self.graph.get_attr(name)
        self.metas[node] = meta_of(value)
        return node

    def module(self, name: str, module: fx.GraphModule) -> fx.Node:
        """A function that an operator takes, as a graph of its own."""
        name = f"{name}_{self._constants}"
        self._constants += 1
        self.root.add_module(name, module)
        return self.graph.get_attr(name)

    def call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], metas: Recipe) -> fx.Node:
        """Append ``op(*args, **kwargs)``, whose result has the given metadata."""
        if isinstance(op, internals.OpOverload) and keyword.iskeyword(op._overloadname):
            op, args = call_by_name, (f"{op._opname}.{op._overloadname}", *args)
        if self.symbolic:
            args, kwargs = as_arguments(args), as_arguments(kwargs)
        node = internals.append_node(self.graph, "call_function", op, args, kwargs)
        self.metas[node] = metas.metas if metas.many else metas.metas[0]
        self._tag(node)
        return node

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """The `index`-th result of an operation that returns several."""
        metas = self.metas[node]
        assert isinstance(metas, tuple)
        result = internals.append_node(self.graph, "call_function", operator.getitem, (node, index), {})
        self.metas[result] = metas[index]
        self._tag(result)
        return result

    def _tag(self, node: fx.Node) -> None:
        """Tell partitioners what belongs to the backward, in AOTAutograd's words."""
        if self.backward:
            # Formulas run without grad mode; in it the user's own code runs again (checkpoint).
            again = torch.is_grad_enabled()
            node.meta["partitioner_tag"] = "must_be_in_backward" if again else "is_backward"
        if self._origins is not None:
            self._origins.note(node, self.backward)

    def meta(self, node: fx.Node) -> ValueMeta:
        """The metadata of a single-tensor value."""
        meta = self.metas[node]
        assert isinstance(meta, int)
        return lookup(meta)

    def infer(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe:
        """The metadata of what ``op`` returns for these arguments, given as nodes and constants.

        Raises whatever the operation raises for such arguments.
        """
        key: list[Any] | None = [op, torch.get_default_dtype()]
        key = self._key(args, key)
        if kwargs:
            key = self._key(tuple(kwargs.items()), key)
        frozen = None if key is None else tuple(key)
        if frozen is not None:
            known = _RECIPES.get(frozen)
            if known is not None:
                return known
        symbolic = frozen is None and self.symbolic
        recipe = None if symbolic else self.of_kernel(op, args, kwargs)
        if recipe is None:
            recipe = self._of_fakes(op, args, kwargs, symbolic)
            if not symbolic and self._is_doubtful(recipe, op, args, kwargs):
                recipe = self._of_kernel(op, args, kwargs) or recipe
        if frozen is not None:
            if len(_RECIPES) >= _RECIPES_LIMIT:
                _RECIPES.clear()
            _RECIPES[frozen] = recipe
        return recipe

    def of_kernel(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any] | None = None,
    ) -> Recipe | None:
        """What the kernel of an operation returns on zeros, if it may be asked (`capture/zeros`) and answers;
        it is called by ``call(args, kwargs)``, if there is that."""
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        return self._of_kernel(op, args, kwargs, call) if may_be_run(op, metas, args, kwargs) else None

    def _is_doubtful(self, recipe: Recipe, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the kernel of a CPU says otherwise than fake tensors, and that of the device may be asked.

        Meta kernels that all devices share let pass what kernels refuse, and lay results out otherwise. It
        takes far longer to ask a device than to ask the CPU, and what a kernel there makes of zeros that it
        does not take can be the end of the process's CUDA.
        """
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        if not any(meta.device.type == "cuda" for meta in metas):
            return False
        there = [meta._replace(device=_CPU) for meta in metas]
        if not may_be_run(op, there, args, kwargs) or internals.may_draw(op):
            return False
        try:
            told = self._of_kernel(op, args, kwargs, at=_CPU)
        except Exception:
            return says_by_raising_anywhere(op, metas)
        return told is not None and not _alike(told.metas, recipe.metas)

    def _of_kernel(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any] | None = None,
        at: torch.device | None = None,
    ) -> Recipe | None:
        """The same of any operation; with its arguments on another device, if it is to be run `at` that."""
        metas = [self.meta(node) for node in _nodes((args, kwargs))]
        given: list[Tensor] = []

        def blank(node: fx.Node) -> Tensor:
            given.append(self._blank(node, at=at))
            return given[-1]

        def one(node: fx.Node) -> Tensor:
            return self._blank(node, at=at).fill_(1)

        def run(make: Callable[[fx.Node], Tensor]) -> Any:
            real = fx.node.map_arg((args, kwargs), make)
            return op(*real[0], **real[1]) if call is None else call(*real)

        apart = drawing_apart() if internals.may_draw(op) else contextlib.nullcontext()
        with internals.modes_off(), internals.outside_inference_mode(), torch.no_grad(), apart:
            try:
                result = run(blank)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                return None  # It does not take such a matrix.
            except Exception:
                if op in _COUNT_FROM_THE_STORAGE or not says_by_raising(op, metas):
                    return None  # Its argument lies elsewhere, and in a larger one, than what stands for it.
                # (A meta kernel may let pass what the kernel refuses: factors of two dtypes, another shape
                # of what is added to a product.)
                with contextlib.suppress(Exception):
                    run(one)
                    return None  # It does not take zeros alone, to divide by for one.
                raise
        return recipe_of(result, {internals.storage_key(tensor) for tensor in given})

    def _of_fakes(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], symbolic: bool) -> Recipe:
        fakes = fx.node.map_arg((args, kwargs), self.fake)
        try:
            if op in _WITHOUT_META:
                raise NotImplementedError
            with (
                typed_refusals(),
                self.on_fakes(symbolic),
                internals.outside_inference_mode(),
                torch.no_grad(),
            ):
                result = op(*fakes[0], **fakes[1])
                if op in _COPIES:
                    result = result.clone()
        except errors.Unsupported:
            raise
        except Exception as error:
            if is_custom(op):  # of which the kernel is run where the caller calls it, and nowhere else
                raise errors.UnsupportedOperation(
                    f"{op} does not say what it returns: {type(error).__name__}: {error}; give it a kernel "
                    f"for fake tensors (register_fake) that takes these arguments"
                ) from error
            # Some meta kernels raise where the kernel does not (they divide by a number of elements), or
            # raise something else: the kernel itself decides.
            result = self.run(op, args, kwargs)
        storages = {internals.storage_key(f) for f in _tensors(fakes)}
        recipe = recipe_of(result, storages, numbers=is_custom(op) or internals.returns_sizes(op))
        metas = [self.meta(node) for node in _nodes((args, kwargs))] if symbolic else []
        odd = any(map(_lies_oddly, metas)) and not is_custom(op) and not internals.is_seeded(op)
        if op not in _ROW_MAJOR and op not in _COPIES and (odd or internals.has_python_meta(op)):
            recipe = self.as_computed(recipe, op, args, kwargs, odd)
        return recipe

    @contextlib.contextmanager
    def on_fakes(self, symbolic: bool) -> Iterator[None]:
        """While this lasts, operations take fake tensors, of which sizes are symbols if `symbolic`."""
        with self.mode, internals.python_dispatcher() if symbolic else contextlib.nullcontext():
            yield

    def run(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: Callable[[Any], Any] = fixed,
    ) -> Any:
        """What the operation's kernel returns or raises for tensors of zeros with the arguments' metadata;
        `numbers` gives those that symbols stand for."""
        with internals.modes_off(), internals.outside_inference_mode(), torch.no_grad():
            real = fx.node.map_arg(numbers((args, kwargs)), lambda node: self._blank(node, numbers))
            if op in PIVOTED:
                real = fx.node.map_aggregate(real, as_pivots)
            return op(*real[0], **real[1])

    def as_computed(
        self, recipe: Recipe, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], odd: bool = False
    ) -> Recipe:
        """The same with the dtypes and strides that the kernel gives its results: meta kernels that are
        written in Python are not always right for arguments of several dtypes (a norm of half precision with
        parameters of another one), nor for those that do not lie in row-major order; of symbols, not for
        dimensions of one element (`odd`) either."""
        given = [hinted(self.meta(node)) for node in _nodes((args, kwargs))]
        if any(None in meta.size for meta in given):
            return recipe  # sizes that depend on values
        mixed = len({meta.dtype for meta in given if meta.dtype.is_floating_point}) > 1
        plain = not odd and all(map(is_contiguous, given))
        if not mixed and (plain or any(0 in meta.size for meta in given)):
            return recipe
        try:
            result = self.run(op, args, kwargs, hinted)
        except Exception:
            return recipe  # the kernel does not take zeros
        results = result if isinstance(result, (tuple, list)) else (result,)
        metas = list(recipe.metas)
        for i, (known, value) in enumerate(zip(recipe.metas, results, strict=True)):
            if isinstance(known, int) and isinstance(value, Tensor):
                meta = lookup(known)
                if hinted(meta.size) == tuple(value.shape):
                    stride = meta.stride
                    if value.numel() and hinted(stride) != value.stride():
                        stride = strides_in_order(meta.size, value.stride())
                    metas[i] = intern(meta._replace(stride=stride, dtype=value.dtype))
        return replace(recipe, metas=tuple(metas))

    def emit(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Append a call whose metadata is inferred."""
        return self.call(op, args, kwargs, self.infer(op, args, kwargs))

    def fake(self, node: fx.Node) -> internals.FakeTensor:
        """A fake tensor with the metadata of `node`, on a storage of its own."""
        meta = self.metas[node]
        assert isinstance(meta, int)
        return self._fake(meta, self.offsets.get(node, 0))

    def _blank(
        self, node: fx.Node, numbers: Callable[[Any], Any] = fixed, at: torch.device | None = None
    ) -> Tensor:
        meta = self.meta(node)
        size, stride = numbers(meta.size), numbers(meta.stride)
        return torch.empty_strided(size, stride, dtype=meta.dtype, device=at or meta.device).zero_()

    def annotate(self, nodes: Iterable[fx.Node]) -> None:
        """Give nodes the `meta["val"]` that graph compilers read: fake tensors outside autograd."""
        for node in nodes:
            meta = self.metas.get(node)
            if isinstance(meta, int):
                node.meta["val"] = self.fake(node)
            elif meta is not None:
                node.meta["val"] = self._value(meta)

    def _value(self, meta: Any) -> Any:
        if isinstance(meta, tuple):
            return tuple(map(self._value, meta))
        if isinstance(meta, Number):
            return meta.value
        return None if meta is None else self._fake(meta, 0)

    def _fake(self, meta: int, offset: int) -> internals.FakeTensor:
        size: tuple[Any, ...]
        size, stride, dtype, device = lookup(meta)
        nbytes: Any = Geometry(size, stride, offset, dtype).stop * dtype.itemsize
        if isinstance(meta, _Rows):
            size, nbytes = (meta.count, *size[1:]), meta.count * nbytes
        return internals.fake_tensor(self.mode, nbytes, size, stride, offset, dtype, device)

    def _key(self, values: Iterable[Any], key: list[Any] | None) -> list[Any] | None:
        """Extend a recipe key by `values`; None when one of them cannot be part of a key."""
        if key is None:
            return None
        for value in values:
            kind = type(value)
            if kind is fx.Node:
                meta, offset = self.metas[value], self.offsets.get(value, 0)
                if isinstance(meta, _Symbolic) or type(offset) is not int:
                    return None
                key += (meta, offset)
            elif kind is tuple or kind is list:
                key.append(len(value))
                if self._key(value, key) is None:
                    return None
            elif kind is float:
                key.append(value.hex())
            elif kind in _CONSTANTS:
                key.append(value)
            else:
                return None
            key.append(kind)
        return key


@contextlib.contextmanager
def typed_refusals() -> Iterator[None]:
    """Where an operation is run on fake tensors: this project's errors for what they cannot do."""
    try:
        with internals.unlogged():
            yield
    except internals.DataDependentOutputException as error:
        raise errors.DataDependentValue(
            f"the function reads a tensor's value ({error.func}); compute with the tensor instead"
        ) from error
    except internals.DynamicOutputShapeException as error:
        raise errors.DataDependentValue(
            f"the shape of the result of {error.func} depends on its argument's values"
        ) from error
    except internals.UnsupportedOperatorException as error:
        raise errors.UnsupportedOperation(
            f"{error.func} has no meta kernel, so it cannot be traced"
        ) from error


def call_with_grad(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a kernel that looks at the grad mode, as it is called in eager while that is on."""
    with internals.below_autograd(), torch.enable_grad():
        return op(*args, **kwargs)


# Operations of which the kernel itself has to say what its results are: fake tensors take the shape for one
# that depends on data (it follows from the lengths, which are numbers), or do not know it, or give the result
# other strides.
_WITHOUT_META = {
    torch.ops.aten._ctc_loss.default,
    torch.ops.aten.fractional_max_pool2d.default,
    torch.ops.aten.fractional_max_pool3d.default,
    torch.ops.aten.log_sigmoid_forward.default,
    torch.ops.aten.max_pool1d.default,
    call_with_grad,
}


# Operations of which the result lies in row-major order however the arguments lie.
_ROW_MAJOR = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}

# Operations that are told where to look as seen from the start of a storage.
_COUNT_FROM_THE_STORAGE = {
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
}

# Operations that return a copy of an argument, where fake tensors return the argument.
_COPIES = {torch.ops.aten._functional_assert_async.msg}


def call_by_name(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an ATen operation whose overload has no Python name: ``call_by_name("random.from", x, 0, 9)``."""
    return by_name(name)(*args, **kwargs)


def by_name(name: str) -> Any:
    """The ATen operation ``packet.overload``."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


_CONSTANTS: frozenset[type] = frozenset(
    {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, complex}
)


def is_custom(op: Any) -> bool:
    """Whether it is an operation that is not torch's own."""
    return isinstance(op, internals.OpOverload) and op.namespace not in ("aten", "prims")


def recipe_of(result: Any, storages: Collection[int] = (), numbers: bool = False) -> Recipe:
    """The metadata of an operation's result, for arguments on `storages`; refuses results that are not
    tensors, but for lists of such and, if so allowed, `numbers` among them, which may be symbols."""
    if result is None:
        return Recipe(True, ())
    many = isinstance(result, (tuple, list))
    found: list[Tensor] = []

    def of(value: Any, nested: bool) -> Any:
        if isinstance(value, Tensor):
            found.append(value)
            return meta_of(value)
        if nested and value is None:
            return None
        if nested and isinstance(value, (tuple, list)):
            return tuple([of(one, True) for one in value])
        if internals.is_script_object(value):
            raise errors.UnsupportedOperation(
                f"an operation returned a ScriptObject of class {value._type().name()}, which no graph "
                f"holds; call it outside of the function"
            )
        if numbers and isinstance(value, torch.SymInt) and value.node.has_hint():
            return Number(value)  # Of the arguments' sizes: what an operation counts has a symbol of its own.
        value = fixed(value)
        if numbers and isinstance(value, (int, float, complex, str)):
            return Number(value)
        raise errors.DataDependentValue(
            f"an operation returned {type(value).__name__} where a tensor was expected: it asks "
            f"tensors for a value, or for their memory; compute with the tensor instead"
        )

    metas = tuple([of(one, many) for one in (result if many else (result,))])
    aliases = bool(storages) and any(internals.storage_key(tensor) in storages for tensor in found)
    return Recipe(many, metas, aliases)


def _alike(one: Any, other: Any) -> bool:
    """Whether two results' metadata are the same but for the device."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if not (isinstance(one, int) and isinstance(other, int)):
        return bool(one == other)
    mine, its = lookup(one), lookup(other)
    return (mine.size, mine.dtype) == (its.size, its.dtype) and (0 in mine.size or mine.stride == its.stride)


def dtypes_of(meta: Any) -> Any:
    """The dtypes of results, of which a recipe has such metadata."""
    if isinstance(meta, tuple):
        return tuple(map(dtypes_of, meta))
    return lookup(meta).dtype if isinstance(meta, int) else None


def _nodes(values: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.node.map_arg(values, nodes.append)
    return nodes


def strides_in_order(size: tuple[Any, ...], stride: tuple[int, ...]) -> tuple[Any, ...]:
    """The strides of a tensor whose size may have symbols, and which lies as one with strides that are known
    for what these stand for. A dimension of one element keeps its stride where no symbol says it.

    Raises:
        UnsupportedOperation: its elements do not lie side by side, so that nothing says what the strides are
            for other sizes.

    Example:
        >>> strides_in_order((2, 3), (1, 2))
        (1, 2)
    """
    if not has_symbols(size):
        return stride
    made: list[Any] = list(stride)
    expected: Any = 1
    for d in sorted(range(len(size)), key=lambda d: (stride[d], hinted(size[d]))):
        if hinted(size[d]) != 1 or hinted(expected) == stride[d]:
            made[d] = expected
        expected = expected * size[d]
    if hinted(tuple(made)) != stride:
        raise errors.UnsupportedOperation(
            f"a result whose sizes are symbols has the strides {stride} in this call, and nothing says which "
            f"it has in others"
        )
    return tuple(made)


def is_contiguous(meta: ValueMeta) -> bool:
    """Whether a value lies in row-major order."""
    expected = 1
    for n, s in zip(reversed(meta.size), reversed(meta.stride), strict=True):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def _lies_oddly(meta: ValueMeta) -> bool:
    """Whether a dimension of one element has another stride than in row-major order."""
    size, stride = hinted(meta.size), hinted(meta.stride)
    if None in size:  # it depends on values
        return False
    expected = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n == 1 and s != expected:
            return True
        expected *= n
    return False


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
