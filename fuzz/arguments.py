"""The generator's first half: storages, and arguments that lie on them in every way."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.choices import Choices
from fuzz.operators.dtypes import FLOATS
from fuzz.operators.layout import contiguous
from fuzz.operators.row import Constant, Size
from fuzz.profiles import Profile
from fuzz.program import Argument, Root, Same, Scalar, Storage, View
from fuzz.state import State

DTYPES = ("float32",) * 8 + ("float64",) * 2 + ("int64",) * 2 + ("bool", "int32")
SCALARS: tuple[Constant, ...] = (2, 0.5, -3, 1.5, None, True, "text")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The storages and arguments of a program; a State knows them as a0, a1, ..."""

    storages: tuple[Storage, ...]
    arguments: tuple[Argument, ...]


def draw_inputs(choices: Choices, profile: Profile, state: State) -> Inputs:
    """Storages and arguments, bound in the state."""
    storages: list[Storage] = []
    arguments: list[Argument] = []
    sizes = _sizes(choices)
    for i in range(choices.integer(*profile.arguments)):
        name = f"a{i}"
        tensors = [j for j, argument in enumerate(arguments) if not isinstance(argument, Scalar)]
        argument: Argument
        if tensors and choices.chance(profile.scalar):
            argument = Scalar(choices.pick(SCALARS))
            state.bind_scalar(name, argument.value)
        elif tensors and choices.chance(profile.same):
            argument = Same(choices.pick(tensors))
            state.bind_same(name, f"a{argument.argument}")
        elif storages and choices.chance(profile.share):
            argument = _on(
                choices, profile, len(storages) - 1 - choices.integer(0, len(storages) - 1), storages
            )
            _bind(state, name, argument)
        else:
            storages.append(_storage(choices, profile, sizes, i))
            storage = storages[-1]
            state.allocate(storage.dtype, storage.size, storage.requires_grad, storage.leaf)
            argument = Root(len(storages) - 1)
            if choices.chance(profile.strided):
                argument = _view(choices, profile, len(storages) - 1, storage)
            _bind(state, name, argument)
        arguments.append(argument)
    return Inputs(tuple(storages), tuple(arguments))


def _bind(state: State, name: str, argument: Argument) -> None:
    match argument:
        case Root(storage):
            state.bind_root(name, storage)
        case View(storage, size, stride, offset, via):
            state.bind_view(name, storage, size, stride, offset, via)


def _sizes(choices: Choices) -> tuple[Size, ...]:
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
        (1, n),
        (m, 1),
        (),
        (1,),
        (0, n),
        (0,),
        (2, 2, 2, 2),
        (m * n,),
    )


def _storage(choices: Choices, profile: Profile, sizes: tuple[Size, ...], number: int) -> Storage:
    dtype = "float32" if number == 0 and choices.chance(0.8) else choices.pick(DTYPES)
    needs = dtype in FLOATS and choices.chance(profile.requires_grad)
    leaf = not (needs or (dtype in FLOATS and choices.chance(0.1))) or choices.chance(profile.leaf)
    return Storage(dtype, choices.pick(sizes), choices.integer(0, 12), needs, leaf)


def _on(choices: Choices, profile: Profile, number: int, storages: list[Storage]) -> Argument:
    """Another argument on a storage: its root, or a view."""
    if choices.chance(0.25):
        return Root(number)
    return _view(choices, profile, number, storages[number])


def _view(choices: Choices, profile: Profile, number: int, storage: Storage) -> View:
    via = "view"
    if choices.chance(profile.hidden):
        via = choices.pick(("detach", "data", "no_grad"))
    size, stride, offset = choices.pick(_layouts(choices, storage.size))
    return View(number, size, stride, offset, via)


Layout = tuple[Size, Size, int]


def _layouts(choices: Choices, size: Size) -> list[Layout]:
    """Ways to lie on a root of this size: whole, part, shifted, transposed, with gaps, overlapping."""
    stride = contiguous(size)
    elements = 1
    for n in size:
        elements *= n
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
        layouts += [((2, elements - 1), (1, 1), 0)]
        half = elements // 2
        layouts += [((half,), (1,), 0), ((half,), (1,), half)]
    if 1 <= len(size) <= 2:
        layouts += [((2, *size), (0, *stride), 0)]
    if elements >= 1:
        layouts += [((), (), choices.integer(0, elements - 1))]
    return layouts
