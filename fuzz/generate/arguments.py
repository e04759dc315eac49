"""The generator's first half: storages, and arguments that lie on them in every way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fuzz.abstract.state import AbstractState
from fuzz.choices import Choices
from fuzz.generate.operand_arguments import draw_fitting_arguments
from fuzz.generate.profiles import MAX_ELEMENTS, Profile
from fuzz.ir.argument_rules import LAZY, view_error
from fuzz.ir.subclass import VIAS
from fuzz.operators import OPERATORS
from fuzz.operators.dtypes import BOOL, COMPLEX, FLOATS, INEXACT, ITEM_SIZE, REAL_OF, reads_bytes
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Constant, Size
from fuzz.program.decode import Argument, Duplicate, Module, Root, Scalar, Storage, View

DTYPES = (
    *("float32",) * 12,
    *("float64",) * 3,
    *("int64",) * 3,
    *("bool", "int32", "complex64", "complex64", "complex128"),
    *("float16", "bfloat16", "int16", "uint8", "int8"),
)
SCALARS: tuple[Constant, ...] = (2, 0.5, -3, 1.5, 1, 0.0, 1 - 2j, None, True, "text")
FEW = 16  # operators of a profile, for which arguments are drawn that one of them takes
_FITTING = 0.6  # the chance of that
# Dtypes that a storage's bytes are read as. There are no bools among them: a byte of 2 is none.
_BYTES = ("int32", "int16", "uint8", "float32", "int64", "float16", "int8")

_PARTNER = {**REAL_OF, **{real: whole for whole, real in REAL_OF.items()}}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The storages and arguments of a program, and what a module holds; a State knows them as a0, a1, ..."""

    storages: tuple[Storage, ...]
    arguments: tuple[Argument, ...]
    module: Module | None = None


def draw_inputs(choices: Choices, profile: Profile, state: AbstractState) -> Inputs:
    """Storages and arguments, bound in the state."""
    few = profile.operators is not None and 0 < len(profile.operators) <= FEW
    if few and choices.chance(_FITTING):
        row = OPERATORS[choices.pick(sorted(profile.operators or ()))]
        fitting = draw_fitting_arguments(choices, row, profile.limits, profile.requires_grad)
        if fitting is not None:
            return bind_arguments(state, *fitting)
    storages, arguments, module = _draw_arguments(choices, profile)
    return bind_arguments(state, storages, arguments, module)


def bind_arguments(
    state: AbstractState,
    storages: Sequence[Storage],
    arguments: Sequence[Argument],
    module: Module | None = None,
) -> Inputs:
    """Have a state know storages and arguments."""
    for storage in storages:
        state.allocate(storage)
    for i, argument in enumerate(arguments):
        _bind_argument(state, f"a{i}", argument)
    for i, storage in enumerate(storages):
        if storage.detached:
            state.detach_root(i)
    return Inputs(tuple(storages), tuple(arguments), module)


def _draw_arguments(
    choices: Choices, profile: Profile
) -> tuple[list[Storage], list[Argument], Module | None]:
    storages: list[Storage] = []
    arguments: list[Argument] = []
    sizes = _draw_argument_sizes(choices)
    if profile.limits is not None:
        sizes = tuple(filter(profile.limits.allow_size, sizes)) or sizes
    windowed = choices.chance(profile.windows)
    # (With few other arguments: windows show most where one is written to and another is read then.)
    for i in range(choices.integer(0, 1) if windowed else choices.integer(*profile.arguments)):
        tensors = [j for j, argument in enumerate(arguments) if not isinstance(argument, Scalar)]
        argument: Argument
        if tensors and choices.chance(profile.scalar):
            argument = Scalar(choices.pick(SCALARS))
        elif tensors and choices.chance(profile.same):
            argument = Duplicate(choices.pick(tensors))
        elif storages and choices.chance(profile.share):
            number = len(storages) - 1 - choices.integer(0, len(storages) - 1)
            argument = _draw_argument_on_storage(choices, profile, number, storages)
        else:
            storages.append(_storage(choices, profile, sizes, i))
            argument = Root(len(storages) - 1)
            if choices.chance(profile.strided):
                argument = _draw_argument_view(choices, profile, len(storages) - 1, storages[-1])
        arguments.append(argument)
    if choices.chance(profile.flat):
        storage, slices = choices.pick(
            (_draw_flat_buffer_arguments, _draw_flat_buffer_arguments, _draw_half_dtype_arguments)
        )(choices, len(storages))
        storages.append(storage)
        arguments += slices
    if windowed:
        storage, windows = choices.pick(
            (_draw_window_arguments, _draw_window_arguments, draw_column_arguments)
        )(choices, len(storages))
        storages.append(storage)
        arguments += windows
    module = _draw_module(choices, storages, arguments) if choices.chance(profile.module) else None
    if choices.chance(profile.wrapped):
        _draw_wrapper_subclasses(choices, storages, arguments)
    if choices.chance(profile.apart):
        _draw_aliased_bases(choices, storages, arguments)
    _draw_lazy_arguments(choices, profile, storages, arguments)
    if choices.chance(profile.inferred):
        _infer(choices, storages, arguments)
    return storages, arguments, module


def _draw_module(choices: Choices, storages: list[Storage], arguments: list[Argument]) -> Module:
    """A module that holds some of the arguments, and perhaps one more, which is its mode."""
    held: list[str] = []
    attributes: list[str] = []
    for i, argument in enumerate(arguments):
        if choices.chance(0.4):
            continue
        held.append(f"a{i}")
        if isinstance(argument, Scalar):
            continue
        if not choices.chance(0.7):
            if choices.chance(0.5):
                attributes.append(f"a{i}")
            continue
        if isinstance(argument, Root):
            size = storages[argument.storage].size
            argument = View(argument.storage, size, contiguous_strides(size), 0)
        if isinstance(argument, View):
            leaf = (argument.dtype or storages[argument.storage].dtype) in INEXACT and choices.chance(0.8)
            arguments[i] = replace(argument, via="parameter", leaf=leaf)
    training = None
    if choices.chance(0.5):
        training = f"a{len(arguments)}"
        arguments.append(Scalar(choices.chance(0.5)))
    return Module(tuple(held), training, tuple(attributes))


_PARTS = ("one", "one", "two", "two", "twice", "nested")


def _draw_wrapper_subclasses(choices: Choices, storages: list[Storage], arguments: list[Argument]) -> None:
    """Make some of the arguments wrapper subclasses, or views of such."""
    wholes: dict[int, str] = {}
    for i, argument in enumerate(arguments):
        if isinstance(argument, (Scalar, Duplicate)) or choices.chance(0.4):
            continue
        storage = storages[argument.storage]
        if isinstance(argument, Root):
            argument = View(argument.storage, storage.size, contiguous_strides(storage.size), 0)
        if (argument.dtype or storage.dtype) in COMPLEX:
            continue
        own = argument.dtype in (None, storage.dtype) and argument.via != "parameter"
        if own and choices.chance(0.7 if argument.storage in wholes else 0.3):
            wrapped = wholes.setdefault(argument.storage, choices.pick(_PARTS))
            via = choices.pick(("view", "view", "view", "no_grad", "multi" if argument.size else "view"))
            arguments[i] = replace(argument, via=via, leaf=False, wrapped=wrapped, base="wrapper")
            continue
        if argument.via not in VIAS or (argument.via == "view" and choices.chance(0.5)):
            leaf = (argument.dtype or storage.dtype) in INEXACT and choices.chance(0.6)
            argument = replace(argument, via="detach", leaf=leaf)
        arguments[i] = replace(argument, wrapped=choices.pick(_PARTS))


def _draw_aliased_bases(choices: Choices, storages: list[Storage], arguments: list[Argument]) -> None:
    """Have views of one storage be no views of one base: of an alias of the root, or of what it has been."""
    shown = [a.storage for a in arguments if isinstance(a, View) and a.wrapped is None]
    if not shown:
        return
    number = choices.pick([n for n in shown if shown.count(n) > 1] or shown)
    storage = storages[number]
    if storage.requires_grad and not storage.leaf and choices.chance(0.3):
        storages[number] = replace(storage, detached=True)
        return
    base = choices.pick(("detach", "detach", "data"))
    if len(arguments) < 4 and choices.chance(0.5):  # which of three views have one base shows most
        view = next(a for a in arguments if isinstance(a, View) and a.storage == number)
        arguments.append(replace(view, via="view", leaf=False, wrapped=None, base="root"))
    for i, argument in enumerate(arguments):
        plain = isinstance(argument, View) and argument.storage == number and argument.wrapped is None
        if isinstance(argument, View) and plain and choices.chance(0.6):
            arguments[i] = replace(argument, base=base)


def _draw_lazy_arguments(
    choices: Choices, profile: Profile, storages: list[Storage], arguments: list[Argument]
) -> None:
    """Make some of the arguments lazily conjugated, or lazily negated."""
    for i, argument in enumerate(arguments):
        if isinstance(argument, (Scalar, Duplicate)):
            continue
        storage = storages[argument.storage]
        dtype = storage.dtype if isinstance(argument, Root) else argument.dtype or storage.dtype
        often = profile.conjugated if dtype in COMPLEX else profile.negated
        if dtype not in INEXACT or not choices.chance(often):
            continue
        if isinstance(argument, Root):
            argument = View(argument.storage, storage.size, contiguous_strides(storage.size), 0)
        if argument.wrapped is None:
            arguments[i] = replace(argument, lazy=draw_lazy(choices, dtype))


def _infer(choices: Choices, storages: list[Storage], arguments: list[Argument]) -> None:
    """Have some of the roots be made in inference mode."""
    for number, storage in enumerate(storages):
        made = replace(storage, inference=True, requires_grad=False, leaf=True, detached=False)
        views = [a for a in arguments if isinstance(a, View) and a.storage == number]
        if all(view_error(view, made) is None for view in views) and choices.chance(0.7):
            storages[number] = made


def draw_lazy(choices: Choices, dtype: str) -> str:
    """What is done only when a tensor of this dtype, floating or complex, is read."""
    return "conj" if dtype in COMPLEX and choices.chance(0.75) else "neg"


def _bind_argument(state: AbstractState, name: str, argument: Argument) -> None:
    match argument:
        case Root(storage):
            state.bind_root(name, storage)
        case View():
            state.bind_view(name, argument)
        case Duplicate(earlier):
            state.bind_same(name, f"a{earlier}")
        case Scalar(value):
            state.bind_scalar(name, value)


def _draw_argument_sizes(choices: Choices) -> tuple[Size, ...]:
    """Sizes that go together: one program's tensors should often fit one operator."""
    m, n = choices.integer(2, 4), choices.integer(2, 4)
    return (
        *((m, n),) * 4,
        (n, m),
        (n,),
        (n,),
        (m, m),
        (m, m),
        (m,),
        (2, m, n),
        (2, n, m),
        (2, 2, 2),
        (1, n, 1),
        (1, n),
        (m, 1),
        (),
        (1,),
        (0, n),
        (0,),
        (2, 2, 2, 2),
        (m * n,),
        *((m + 4, n + 4),) * 2,  # kernels go other ways from 16 elements on: `normal_` draws in another order
    )


def _storage(choices: Choices, profile: Profile, sizes: tuple[Size, ...], number: int) -> Storage:
    dtype = "float32" if number == 0 and choices.chance(0.8) else choices.pick(DTYPES)
    if profile.limits is not None and dtype not in profile.limits.dtypes:
        dtype = choices.pick([name for name in DTYPES if name in profile.limits.dtypes])
    needs = dtype in INEXACT and choices.chance(profile.requires_grad)
    leaf = not (needs or (dtype in INEXACT and choices.chance(0.1))) or choices.chance(profile.leaf)
    values = "special" if dtype in FLOATS and choices.chance(profile.special) else "plain"
    return Storage(dtype, choices.pick(sizes), choices.integer(0, 12), needs, leaf, values)


def _draw_argument_on_storage(
    choices: Choices, profile: Profile, number: int, storages: list[Storage]
) -> Argument:
    """Another argument on a storage: its root, or a view."""
    if choices.chance(0.25):
        return Root(number)
    if choices.chance(0.08):  # an alias that lies as the root does
        size = storages[number].size
        return View(number, size, contiguous_strides(size), 0, choices.pick(("data", "detach")))
    return _draw_argument_view(choices, profile, number, storages[number])


def _draw_argument_view(choices: Choices, profile: Profile, number: int, storage: Storage) -> View:
    via, leaf, dtype = "view", False, None
    if choices.chance(profile.hidden):
        via = choices.pick(("detach", "data", "no_grad", "multi"))
    size = storage.size
    if storage.dtype not in BOOL and choices.chance(profile.reinterpreted):
        dtype = _draw_other_dtype(choices, storage)
        size = _split(choices, prod(size) * ITEM_SIZE[storage.dtype] // ITEM_SIZE[dtype])
    if via not in ("view", "multi") and (dtype or storage.dtype) in INEXACT:
        leaf = choices.chance(0.25)
    size, stride, offset = choices.pick(_layouts_on_root(choices, size))
    if via == "multi" and not size:
        via = "view"
    return View(number, size, stride, offset, via, dtype, leaf)


def _draw_other_dtype(choices: Choices, storage: Storage) -> str:
    """A dtype that the storage can be seen as: complex for real numbers and the reverse, or other bytes."""
    if storage.dtype in _PARTNER and choices.chance(0.5):
        return _PARTNER[storage.dtype]
    in_all = prod(storage.size) * ITEM_SIZE[storage.dtype]
    fitting = []
    for dtype in _BYTES:
        count, rest = divmod(in_all, ITEM_SIZE[dtype])
        if reads_bytes(storage.dtype, dtype) and not rest and count <= MAX_ELEMENTS:
            fitting.append(dtype)
    return choices.pick(fitting or [storage.dtype])


def _split(choices: Choices, count: int) -> Size:
    """A size of one or two dimensions with at most this many elements, and not many fewer."""
    rows = choices.integer(1, 4)
    return (rows, count // rows) if count >= rows > 1 else (count,)


def redraw_layout(choices: Choices, view: View, size: Size, storage: Storage) -> View:
    """A view that lies on another root, with this size if there is room for one."""
    whole, dtype = storage.size, view.dtype
    if dtype is not None:
        count, rest = divmod(prod(whole) * ITEM_SIZE[storage.dtype], ITEM_SIZE[dtype])
        if rest or count > MAX_ELEMENTS or storage.dtype in BOOL:
            dtype = None
        else:
            whole = _split(choices, count)
    layouts = _layouts_on_root(choices, whole)
    fitting = [layout for layout in layouts if layout[0] == size]
    size, stride, offset = choices.pick(fitting or layouts)
    shown = dtype or storage.dtype
    leaf = view.leaf and shown in INEXACT
    lazy = view.lazy if view.lazy is not None and shown in LAZY[view.lazy] else None
    view = replace(view, size=size, stride=stride, offset=offset, dtype=dtype, leaf=leaf, lazy=lazy)
    return replace(view, via="view") if view.via == "multi" and not size else view


def draw_layout(choices: Choices, size: Size) -> tuple[Size, tuple[Size, int]]:
    """A root's size, and the strides and offset with which a tensor of some other size lies on it."""
    stride = contiguous_strides(size)
    ways: list[tuple[Size, tuple[Size, int]]] = [(size, (stride, 0)), ((prod(size) + 2,), (stride, 2))]
    if len(size) > 1:
        ways.append((size[::-1], (contiguous_strides(size[::-1])[::-1], 0)))
    if size:
        wide = (*size[:-1], 2 * size[-1])
        ways.append((wide, ((*contiguous_strides(wide)[:-1], 2), 0)))
        ways.append((size[1:], ((0, *contiguous_strides(size[1:])), 0)))
    return choices.pick(ways)


def _draw_flat_buffer_arguments(choices: Choices, number: int) -> tuple[Storage, list[Argument]]:
    """A flat storage and its disjoint slices, as a fused list of parameters has them, in some order.

    Now and then there are many, which share storage and no element.
    """
    many = choices.chance(0.2)
    count = choices.integer(8, 16) if many else choices.integer(2, 4)
    length = choices.integer(1, 3) if many else choices.integer(1, 6)
    dtype = "complex64" if choices.chance(0.25) else "float32"
    needs = dtype == "float32" and choices.chance(0.3)
    storage = Storage(dtype, (count * length,), choices.integer(0, 12), needs, not needs)
    via = choices.pick(("detach", "data", "view", "detach")) if dtype == "float32" else "view"
    slices: list[Argument] = [
        View(number, (length,), (1,), i * length, via, None, via != "view" and choices.chance(0.5))
        for i in range(count)
    ]
    if choices.chance(0.4):
        slices.reverse()
    if choices.chance(0.3):
        slices.insert(choices.integer(0, len(slices)), Root(number))
    return storage, slices


def _draw_window_arguments(choices: Choices, number: int) -> tuple[Storage, list[Argument]]:
    """A matrix and windows of it, each from some row and column on; the matrix itself may be one of them."""
    rows, columns = choices.integer(3, 6), choices.integer(3, 6)
    needs = choices.chance(0.3)
    storage = Storage("float32", (rows, columns), choices.integer(0, 12), needs, not needs)
    via = choices.pick(("view", "view", "detach", "data"))
    windows: list[Argument] = [Root(number)] if choices.chance(0.5) else []
    for _ in range(2 if choices.chance(0.8) else 3):
        row, column = choices.integer(0, rows - 2), choices.integer(0, columns - 2)
        size = choices.integer(2, rows - row), choices.integer(2, columns - column)
        windows.append(View(number, size, (columns, 1), row * columns + column, via))
    return storage, windows


def draw_column_arguments(choices: Choices, number: int) -> tuple[Storage, list[Argument]]:
    """A matrix and columns of it, of which one is the lower end of another, or reaches beyond it."""
    rows, width = choices.integer(3, 5), choices.integer(3, 5)
    needs = choices.chance(0.3)
    storage = Storage("float32", (rows, width), choices.integer(0, 12), needs, not needs)
    via = choices.pick(("view", "view", "detach"))
    column, start = choices.integer(0, width - 2), choices.integer(1, rows - 2)
    found: list[Argument] = [
        View(number, (rows - choices.integer(0, 1),), (width,), column, via),
        View(number, (rows - start,), (width,), start * width + column, via),
        View(number, (rows,), (width,), column + 1, via),
    ]
    return storage, found


def _draw_half_dtype_arguments(choices: Choices, number: int) -> tuple[Storage, list[Argument]]:
    """A piece of a buffer, and one of half as wide a dtype that ends within an element."""
    wide, narrow = choices.pick(
        (("int32", "int16"), ("float32", "float16"), ("float32", "int16"), ("int64", "int32"))
    )
    storage = Storage(wide, (choices.integer(3, 5),), choices.integer(0, 12))
    length = choices.integer(1, 2)
    start, stop = choices.integer(0, 2 * length - 1), 2 * length + 1
    halves: list[Argument] = [
        View(number, (length,), (1,), 0),
        View(number, (stop - start,), (1,), start, "view", narrow),
    ]
    return storage, halves


Layout = tuple[Size, Size, int]


def _layouts_on_root(choices: Choices, size: Size) -> list[Layout]:
    """Ways to lie on a root of this size: whole, part, shifted, transposed, with gaps, overlapping."""
    stride = contiguous_strides(size)
    elements = prod(size)
    layouts: list[Layout] = [(size, stride, 0), (size, stride, 0)]
    if elements == 0:
        return layouts
    if len(size) > 1:
        reverse = (tuple(reversed(size)), tuple(reversed(stride)), 0)
        layouts += [reverse, reverse, ((elements,), (1,), 0)]
        row = choices.integer(0, size[0] - 1)
        layouts += [(size[1:], stride[1:], row * stride[0])]
        column = choices.integer(0, size[-1] - 1)
        layouts += [(size[:-1], stride[:-1], column)]
        layouts += [((size[0], 1, *size[1:]), (stride[0], stride[0], *stride[1:]), 0)]
    if len(size) == 4:
        channels_last = (1, *contiguous_strides((*size[2:], size[1]))[:2])
        layouts += [(size, (prod(size[1:]), *channels_last), 0)] * 4
    if size and size[0] > 1:
        start = choices.integer(0, size[0] - 1)
        layouts += [((size[0] - start, *size[1:]), stride, start * stride[0])]
        layouts += [((size[0] - 1, *size[1:]), stride, 0)]
    if len(size) > 1 and size[-1] > 1:
        layouts += [((*size[:-1], size[-1] - 1), stride, choices.integer(0, 1))]
        layouts += [((*size[:-1], (size[-1] + 1) // 2), (*stride[:-1], 2), 0)]
    if elements > 2:
        length = choices.integer(1, elements - 1)
        offset = choices.integer(0, elements - length)
        layouts += [((length,), (1,), offset), (((elements + 1) // 2,), (2,), 0)]
        if 2 * (elements - 1) <= MAX_ELEMENTS:
            layouts += [((2, elements - 1), (1, 1), 0)]
        half = elements // 2
        layouts += [((half,), (1,), 0), ((half,), (1,), half)]
    if 1 <= len(size) <= 2 and 2 * elements <= MAX_ELEMENTS:
        layouts += [((2, *size), (0, *stride), 0)] * 2
    if elements >= 1:
        layouts += [((), (), choices.integer(0, elements - 1))]
    return layouts
