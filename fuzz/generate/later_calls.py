"""The generator's last part: later calls of the same function.

A later call is the first one with something else about it: values, sizes, how its arguments lie and alias,
how autograd sees views, what requires grad, dtypes, Python numbers, the mode. What eager would refuse of it,
or leave undefined, is found by following the program's statements once more, and then another change is
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from fuzz.abstract import eager_rules
from fuzz.abstract.interpret import check_module
from fuzz.abstract.state import AbstractState, AbstractTensor, InvalidProgram
from fuzz.choices import Choices
from fuzz.generate.arguments import SCALARS, draw_layout, draw_lazy, redraw_layout
from fuzz.generate.profiles import Profile, most_elements
from fuzz.ir.argument_rules import ALIASES, LAZY, call_error, values_in
from fuzz.ir.control_flow import executed_statements, other_value
from fuzz.ir.json_readers import ProgramError
from fuzz.ir.nodes import (
    Argument,
    Branch,
    Call,
    Duplicate,
    Program,
    Root,
    Scalar,
    Scenario,
    Statement,
    Storage,
    TensorStep,
    View,
    tree_references,
    with_call,
)
from fuzz.ir.subclass import PARTS
from fuzz.operators import OPERATORS
from fuzz.operators.dtypes import COMPLEX, INEXACT, ITEM_SIZE
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Constant, Size
from fuzz.program.decode import WRAPPED, Sizes, initial_state, literal_sizes

TRIES = 6  # for one later call, before there is none
_COUNTS = (1, 1, 1, 1, 1, 2)  # of changes: what forgets one thing shows where nothing else has changed
_RECKLESS = 0.15  # a later call is one that eager refuses, if there is one
_DTYPES = ("float32", "float64", "float32", "float64", "float16", "complex64", "int64")
_AS_WIDE = {
    "float32": ("int32",),
    "int32": ("float32",),
    "float64": ("complex64", "int64"),
    "int64": ("float64",),
    "complex64": ("float64",),
    "float16": ("bfloat16", "int16"),
    "bfloat16": ("float16",),
    "int16": ("float16",),
    "uint8": ("int8", "bool"),
    "int8": ("uint8",),
    "bool": ("uint8",),
}  # dtypes of as many bytes
_ALIKE = {
    "view": ("no_grad", "multi"),
    "no_grad": ("view", "multi"),
    "multi": ("view", "no_grad"),
    "detach": ("data",),
    "data": ("detach",),
}  # ways to take a view
_FOLLOWED = ("view", "multi", "no_grad")  # those by which a view has a base
Change = Callable[[Choices, Profile, Call], Call]


def draw_later(choices: Choices, profile: Profile, program: Program) -> tuple[Call, ...]:
    """Later calls of a program that has none."""
    asks = [block for block in program.blocks if isinstance(block, Branch)]
    wraps = any(isinstance(a, View) and a.wrapped is not None for a in program.arguments)
    if not choices.chance(max(profile.again, 0.4 if asks else 0.2 if wraps else 0.0)):
        return ()
    sizes = literal_sizes(program)
    later: list[Call] = []
    first = Call(program.storages, program.arguments, program.scenario)
    for _ in range(choices.integer(1, 3)):
        refused = choices.chance(_RECKLESS)
        for _ in range(TRIES):
            call = choices.pick((first, *later))
            if asks and choices.chance(0.6):
                call = _answered(call, choices.pick(asks))
            if wraps and choices.chance(0.3):
                call = _change_wrapper_subclass(choices, profile, call)
            some: tuple[Call, ...] = (
                (_make_storages_roomier(call),) if not refused and choices.chance(0.1) else ()
            )
            if refused:
                call = choices.pick(_REFUSED)(choices, profile, call)
            elif some:
                call = _lengthen_views(choices, profile, *some)
            elif choices.chance(0.4):
                call = _changed(choices, profile, call, _SELDOM)
            else:
                for _ in range(choices.pick(_COUNTS)):
                    call = _changed(choices, profile, call, CALL_MUTATORS)
            some = (*some, call)
            follow = [with_call(program, call) for call in some]
            if all(map(partial(eager_rejects if refused else eager_accepts, sizes=sizes), follow)):
                later += some
                break
    return tuple(later)


def draw_changed(choices: Choices, profile: Profile, program: Program, change: Change) -> tuple[Call, ...]:
    """A later call of a program that has none, with this change, if eager takes it."""
    sizes = literal_sizes(program)
    first = Call(program.storages, program.arguments, program.scenario)
    for _ in range(TRIES):
        call = change(choices, profile, first)
        if call is not first and eager_accepts(with_call(program, call), sizes=sizes):
            return (call,)
    return ()


def defined_final_state(program: Program, sizes: Sizes, reckless: bool = False) -> AbstractState | None:
    """What is known at the end of a program of one call, if eager runs each of its statements, and a backward
    after it, to a defined end. `sizes` are those that are in the text already; others are added. If
    `reckless`, eager may refuse a statement, or the backward."""
    state = initial_state(program)
    try:
        for i, statement in executed_statements(program):
            row = OPERATORS[statement.operator]
            if row.sized and sizes.setdefault(i, size := _size(state, statement)) != size:
                return None
            modes = state.modes(program.blocks, statement.block)
            use = state.use(row, statement.operands, dict(statement.attributes), modes)
            outcome = state.infer(use)
            if not row.metadata and len(outcome) != len(statement.results):
                return None
            if any(tensor.stale for tensor in use.tensors) or eager_rules.corrupts_saved(use, state.kept):
                return None
            if not reckless and (
                eager_rules.eager_error_now(use) or eager_rules.eager_error_later(use, state.kept)
            ):
                return None
            if any(prod(result.meta.size) > most_elements(program.storages) for result in outcome):
                return None
            state.commit(use, outcome, statement.results)
    except InvalidProgram:
        return None
    return state


def _size(state: AbstractState, statement: Statement) -> Size:
    return state.tensor(statement.operands[0]).meta.size


def eager_accepts(program: Program, sizes: Sizes, reckless: bool = False) -> bool:
    """Whether eager runs a program of one call, with its backward, to a defined end, and its text has these
    sizes. If `reckless`, eager may refuse a statement, or the backward."""
    if call_error(program) is not None:
        return False
    try:
        check_module(program, "")
    except ProgramError:
        return False
    state = defined_final_state(program, dict(sizes), reckless)
    if state is None:
        return False
    if state.undefined:
        return False
    returned = [*tree_references(program.returns)]
    if any(name not in state.names or state.is_outdated(name) for name in returned):
        return False
    changed = [step.name for step in program.scenario.steps if isinstance(step, TensorStep)]
    if any(state.is_stale(name) or state.is_unwatched(name) for name in (*returned, *changed)):
        return False
    return all(isinstance(state.names.get(name), AbstractTensor) for name in changed)


def eager_rejects(program: Program, sizes: Sizes) -> bool:
    """Whether eager refuses a statement of a program of one call, or its backward, and nothing else is wrong
    with it."""
    return not eager_accepts(program, sizes) and eager_accepts(program, sizes, reckless=True)


# ---------------------------------------------------------------------------------------------------------
# changes of a call


def _answered(call: Call, arm: Branch) -> Call:
    """The call with another answer to what a branch asks."""
    place = int(arm.argument[1:])
    value = call.arguments[place]
    assert isinstance(value, Scalar)
    other = other_value(arm.value) if value.value == arm.value else arm.value
    return replace(call, arguments=_with_argument(call.arguments, place, Scalar(other)))


def _changed(choices: Choices, profile: Profile, call: Call, changes: Sequence[Change]) -> Call:
    """The call with one thing about it changed, if what is picked can be."""
    for _ in range(TRIES):
        changed = choices.pick(changes)(choices, profile, call)
        if changed is not call:
            return changed
    return call


def _values(choices: Choices, _profile: Profile, call: Call) -> Call:
    storages = tuple(replace(s, seed=(s.seed + choices.integer(1, 5)) % 13) for s in call.storages)
    return replace(call, storages=storages)


def _change_sizes(choices: Choices, _profile: Profile, call: Call) -> Call:
    """One length becomes another wherever a storage has it; views lie on what there is now."""
    lengths = sorted({n for storage in call.storages for n in storage.size})
    if not lengths:
        return call
    old, new = choices.pick(lengths), choices.pick((1, 2, 3, 4, 5, 0))

    def resized(size: Size) -> Size:
        return tuple(new if n == old else n for n in size)

    storages = tuple(replace(s, size=resized(s.size)) for s in call.storages)
    arguments: list[Argument] = []
    for argument in call.arguments:
        if isinstance(argument, View) and storages[argument.storage] != call.storages[argument.storage]:
            size, storage = resized(argument.size), storages[argument.storage]
            argument = redraw_layout(choices, argument, size, storage)
        arguments.append(argument)
    return Call(storages, tuple(arguments), call.scenario)


def _make_storages_roomier(call: Call) -> Call:
    """The call with two more rows on each storage, which no root shows that was one."""
    seen_otherwise = {a.storage for a in call.arguments if isinstance(a, View) and a.dtype is not None}
    storages = tuple(
        replace(s, size=(s.size[0] + 2, *s.size[1:])) if s.size[:1] > (0,) and i not in seen_otherwise else s
        for i, s in enumerate(call.storages)
    )
    arguments: list[Argument] = []
    for argument in call.arguments:
        arguments.append(_as_view(argument, call) if isinstance(argument, Root) else argument)
    return Call(storages, tuple(arguments), call.scenario)


def _lengthen_views(choices: Choices, _profile: Profile, call: Call) -> Call:
    """Views show more or fewer rows of what they lie on, as they lie; those of one length alike."""
    lengths = sorted({a.size[0] for a in call.arguments if isinstance(a, View) and a.size})
    if not lengths:
        return call
    old = choices.pick(lengths)
    new = choices.pick([n for n in (old - 1, old + 1, old + 2) if n > 0])
    arguments: list[Argument] = []
    for argument in call.arguments:
        if isinstance(argument, View) and argument.size[:1] == (old,):
            longer = replace(argument, size=(new, *argument.size[1:]))
            if fits_storage(longer, call.storages[argument.storage]):
                argument = longer
        arguments.append(argument)
    return replace(call, arguments=tuple(arguments))


def _shift_view(choices: Choices, _profile: Profile, call: Call) -> Call:
    """A view lies elsewhere on its root."""
    places = [i for i, a in enumerate(call.arguments) if isinstance(a, View)]
    if not places:
        return call
    place = choices.pick(places)
    view = call.arguments[place]
    assert isinstance(view, View)
    storage = call.storages[view.storage]
    room = _room(view, storage)
    offsets = [n for n in range(min(room, room - _last(view))) if n != view.offset]
    if not offsets:
        return call
    return replace(
        call, arguments=_with_argument(call.arguments, place, replace(view, offset=choices.pick(offsets)))
    )


def fits_storage(view: View, storage: Storage) -> bool:
    """Whether a root has the elements of a view."""
    return view.offset + _last(view) < _room(view, storage)


def _last(view: View) -> int:
    """How many elements after its first one a view's last one lies."""
    return sum((n - 1) * step for n, step in zip(view.size, view.stride, strict=True))


def _room(view: View, storage: Storage) -> int:
    """How many elements of a view's dtype its root has."""
    return prod(storage.size) * ITEM_SIZE[storage.dtype] // ITEM_SIZE[view.dtype or storage.dtype]


def _change_argument_layout(choices: Choices, profile: Profile, call: Call) -> Call:
    """An argument of the same size that lies otherwise, on a storage of its own."""
    places = [i for i, argument in enumerate(call.arguments) if isinstance(argument, (Root, View))]
    if not places:
        return call
    place = choices.pick(places)
    argument = call.arguments[place]
    assert isinstance(argument, (Root, View))
    storage = call.storages[argument.storage]
    if isinstance(argument, View) and argument.dtype is not None:
        return call
    size = storage.size if isinstance(argument, Root) else argument.size
    root, geometry = draw_layout(choices, size)
    if root == size and not choices.chance(0.5):
        return call
    storages = (*call.storages, replace(storage, size=root))
    number = len(call.storages)
    view, (stride, offset) = _as_view(argument, call), geometry
    base = "wrapper" if view.base == "wrapper" else "root"
    lying: Argument = replace(view, storage=number, size=size, stride=stride, offset=offset, base=base)
    if root == size and view.via == "view" and view.wrapped is None and view.lazy is None:
        lying = Root(number)
    return _drop_unused_storages(storages, _with_argument(call.arguments, place, lying), call.scenario)


def _alias_argument(choices: Choices, _profile: Profile, call: Call) -> Call:
    """An argument becomes the same object as another, or lies on another's storage."""
    if len(call.arguments) < 2:
        return call
    place = choices.integer(1, len(call.arguments) - 1)
    other = choices.integer(0, place - 1)
    argument, partner = call.arguments[place], call.arguments[other]
    if isinstance(partner, (Scalar, Duplicate)) or isinstance(argument, Scalar):
        return call
    if isinstance(argument, Duplicate):
        return _drop_unused_storages(
            call.storages,
            _with_argument(call.arguments, place, call.arguments[argument.argument]),
            call.scenario,
        )
    if choices.chance(0.4):
        return _drop_unused_storages(
            call.storages, _with_argument(call.arguments, place, Duplicate(other)), call.scenario
        )
    storage = call.storages[partner.storage]
    moved: Argument = Root(partner.storage)
    if isinstance(argument, View):
        moved = redraw_layout(choices, argument, argument.size, call.storages[partner.storage])
        moved = replace(moved, storage=partner.storage)
    elif call.storages[argument.storage].size == storage.size and choices.chance(0.6):
        via = choices.pick(("detach", "data"))
        moved = View(partner.storage, storage.size, contiguous_strides(storage.size), 0, via)
    return _drop_unused_storages(call.storages, _with_argument(call.arguments, place, moved), call.scenario)


def move_argument(choices: Choices, _profile: Profile, call: Call) -> Call:
    """An argument that is another one, or lies on its storage, is a third one or lies, likewise, on its."""
    places = [i for i, a in enumerate(call.arguments) if isinstance(a, (Duplicate, View)) and i]
    if not places:
        return call
    place = choices.pick(places)
    argument = call.arguments[place]
    others: list[Argument] = []
    for i, other in enumerate(call.arguments[:place]):
        if isinstance(other, (Root, View)):
            if isinstance(argument, Duplicate) and i != argument.argument:
                others.append(Duplicate(i))
            if isinstance(argument, View) and other.storage != argument.storage:
                new, old = call.storages[other.storage], call.storages[argument.storage]
                if new.dtype == old.dtype and fits_storage(argument, new):
                    others.append(replace(argument, storage=other.storage))
    if not others:
        return call
    return _drop_unused_storages(
        call.storages, _with_argument(call.arguments, place, choices.pick(others)), call.scenario
    )


def _hide_view_from_autograd(choices: Choices, _profile: Profile, call: Call) -> Call:
    """A view is hidden from autograd, is not, or is in another way."""
    places = [
        i for i, a in enumerate(call.arguments) if isinstance(a, View) and not a.leaf and a.via != "parameter"
    ]
    if not places:
        return call
    place = choices.pick(places)
    view = call.arguments[place]
    assert isinstance(view, View)
    ways: tuple[str, ...] = ("view", "detach", "data", "no_grad", "multi")
    if view.wrapped is not None:
        ways = PARTS if view.base == "wrapper" else ("view", "detach")
    via = choices.pick([way for way in ways if way != view.via])
    if view.wrapped is None and choices.chance(0.5):
        via = choices.pick(_ALIKE[view.via])
    return replace(call, arguments=_with_argument(call.arguments, place, replace(view, via=via)))


def _change_lazy_bits(choices: Choices, _profile: Profile, call: Call) -> Call:
    """An argument is read otherwise: as its conjugate, as its opposite, or as it lies."""
    views: list[tuple[int, View, str]] = []
    for i, argument in enumerate(call.arguments):
        if isinstance(argument, (Root, View)):
            view = _as_view(argument, call)
            dtype = view.dtype or call.storages[view.storage].dtype
            if dtype in INEXACT and view.wrapped is None:
                views.append((i, view, dtype))
    rather = [one for one in views if one[1].lazy is not None or one[2] in COMPLEX]
    if not views or not (rather or choices.chance(0.2)):
        return call
    place, view, dtype = choices.pick(rather or views)
    lazy = None if view.lazy is not None else draw_lazy(choices, dtype)
    return replace(call, arguments=_with_argument(call.arguments, place, replace(view, lazy=lazy)))


def _as_view(argument: Root | View, call: Call) -> View:
    if isinstance(argument, View):
        return argument
    size = call.storages[argument.storage].size
    return View(argument.storage, size, contiguous_strides(size), 0)


def _change_base_of_views(choices: Choices, _profile: Profile, call: Call) -> Call:
    """Views are taken of another alias of their root, or of that itself."""
    places = [i for i, a in enumerate(call.arguments) if isinstance(a, View) and a.wrapped is None]
    if not places:
        return call
    place = choices.pick(places)
    view = call.arguments[place]
    assert isinstance(view, View)
    base = choices.pick([base for base in ALIASES if base != view.base])
    return replace(call, arguments=_with_argument(call.arguments, place, replace(view, base=base)))


def regroup_views(choices: Choices, _profile: Profile, call: Call) -> Call:
    """Of three views of two aliases of a root one goes over to the other alias."""
    groups: dict[int, list[tuple[int, View]]] = {}
    for i, argument in enumerate(call.arguments):
        if isinstance(argument, View) and argument.wrapped is None and argument.via in _FOLLOWED:
            groups.setdefault(argument.storage, []).append((i, argument))
    places: list[tuple[int, View, str]] = []
    for views in groups.values():
        bases = [view.base for _, view in views]
        for i, view in views if len(set(bases)) == 2 else ():
            if bases.count(view.base) > 1:
                places.append((i, view, next(base for base in bases if base != view.base)))
    if not places:
        return call
    place, view, base = choices.pick(places)
    return replace(call, arguments=_with_argument(call.arguments, place, replace(view, base=base)))


def _change_wrapper_subclass(choices: Choices, _profile: Profile, call: Call) -> Call:
    """A wrapper subclass is made otherwise, or becomes a view of another one, or what it wraps is passed
    itself."""
    places = [i for i, a in enumerate(call.arguments) if isinstance(a, View) and a.wrapped is not None]
    if not places:
        return call
    place = choices.pick(places)
    view = call.arguments[place]
    assert isinstance(view, View)
    if choices.chance(0.3):
        via, base = ("view", "root") if view.base == "wrapper" else (choices.pick(PARTS), "wrapper")
        return replace(
            call, arguments=_with_argument(call.arguments, place, replace(view, via=via, base=base))
        )
    wrapped = choices.pick([way for way in (None, *WRAPPED) if way != view.wrapped])
    if wrapped is None:
        view = replace(view, base="root")
    return replace(call, arguments=_with_argument(call.arguments, place, replace(view, wrapped=wrapped)))


def _change_requires_grad(choices: Choices, _profile: Profile, call: Call) -> Call:
    """A storage begins or ceases to require grad, or to be a leaf."""
    places = [i for i, storage in enumerate(call.storages) if storage.dtype in INEXACT]
    if not places:
        return call
    place = choices.pick(places)
    storage = call.storages[place]
    if not storage.requires_grad and storage.leaf and choices.chance(0.2):
        storage = replace(storage, inference=not storage.inference)
    elif storage.requires_grad and storage.leaf and choices.chance(0.3):
        storage = replace(storage, leaf=False, detached=True)  # and it is a leaf after all
    elif choices.chance(0.6):
        storage = replace(storage, requires_grad=not storage.requires_grad)
    elif storage.requires_grad and not storage.leaf and choices.chance(0.3):
        storage = replace(storage, detached=not storage.detached)
    else:
        storage = replace(storage, leaf=not storage.leaf)
    history = storage.requires_grad and not storage.leaf
    plain = storage.leaf and not storage.requires_grad
    storage = replace(storage, detached=storage.detached and history, inference=storage.inference and plain)
    return replace(call, storages=_with_storage(call.storages, place, storage))


def _change_leaf(choices: Choices, _profile: Profile, call: Call) -> Call:
    """A view that autograd does not follow begins or ceases to be a leaf that requires grad."""
    views = [
        (i, a) for i, a in enumerate(call.arguments) if isinstance(a, View) and a.via not in ("view", "multi")
    ]
    if not views:
        return call
    place, view = choices.pick(views)
    return replace(call, arguments=_with_argument(call.arguments, place, replace(view, leaf=not view.leaf)))


def _change_dtype(choices: Choices, _profile: Profile, call: Call) -> Call:
    place = choices.integer(0, len(call.storages) - 1)
    storage = call.storages[place]
    if any(isinstance(a, View) and a.storage == place and a.dtype is not None for a in call.arguments):
        return call
    dtype = choices.pick(_AS_WIDE.get(storage.dtype, _DTYPES) if choices.chance(0.5) else _DTYPES)
    storage = replace(storage, values=values_in(storage, dtype))
    if dtype not in INEXACT:
        if any(isinstance(a, View) and a.storage == place and a.leaf for a in call.arguments):
            return call
        storage = Storage(dtype, storage.size, storage.seed)
    arguments = tuple(
        replace(a, lazy=None)
        if isinstance(a, View) and a.storage == place and a.lazy is not None and dtype not in LAZY[a.lazy]
        else a
        for a in call.arguments
    )
    storages = _with_storage(call.storages, place, replace(storage, dtype=dtype))
    return Call(storages, arguments, call.scenario)


def _change_number(choices: Choices, _profile: Profile, call: Call) -> Call:
    places = [i for i, argument in enumerate(call.arguments) if isinstance(argument, Scalar)]
    if not places:
        return call
    place = choices.pick(places)
    scalar = call.arguments[place]
    assert isinstance(scalar, Scalar)
    alike = equal_python_numbers(scalar.value)
    number = choices.pick(alike if alike and choices.chance(0.6) else SCALARS)
    return replace(call, arguments=_with_argument(call.arguments, place, Scalar(number)))


def equal_python_numbers(value: Constant) -> tuple[Constant, ...]:
    """Python numbers that are equal to one, and are another."""
    if not isinstance(value, (int, float)) or value != int(value):
        return ()
    if value == 0:
        alike: tuple[Constant, ...] = (False, 0, 0.0, -0.0)
    else:
        alike = (True, 1, 1.0) if value == 1 else (int(value), float(value))
    return tuple(one for one in alike if repr(one) != repr(value))


def _change_call_mode(choices: Choices, _profile: Profile, call: Call) -> Call:
    scenario = call.scenario
    if choices.chance(0.6):
        scenario = replace(scenario, grad=not scenario.grad)
    elif choices.chance(0.4):
        scenario = replace(scenario, inference=not scenario.inference)
    elif choices.chance(0.7):
        kinds = [kind for kind in (None, None, "bfloat16", "float16") if kind != scenario.autocast]
        scenario = replace(scenario, autocast=choices.pick(kinds))
    else:
        scenario = replace(scenario, steps=())
    return replace(call, scenario=scenario)


CALL_MUTATORS = (
    _values,
    _change_sizes,
    _change_sizes,
    _lengthen_views,
    _shift_view,
    _change_argument_layout,
    _alias_argument,
    _alias_argument,
    move_argument,
    move_argument,
    _hide_view_from_autograd,
    _hide_view_from_autograd,
    _change_lazy_bits,
    _change_base_of_views,
    regroup_views,
    _change_requires_grad,
    _change_requires_grad,
    _change_leaf,
    _change_dtype,
    _change_dtype,
    _change_number,
    _change_number,
    _change_call_mode,
)
_SELDOM = (  # which few calls have a place for, or show
    *(move_argument, move_argument, _change_number, _shift_view, _change_dtype, _hide_view_from_autograd),
    *(_change_lazy_bits, _change_base_of_views, regroup_views, regroup_views, _change_leaf),
)
_REFUSED = (
    _hide_view_from_autograd,
    _hide_view_from_autograd,
    _change_requires_grad,
    _alias_argument,
    _shift_view,
)  # after which eager may refuse what it has taken before


def _with_argument(arguments: tuple[Argument, ...], place: int, argument: Argument) -> tuple[Argument, ...]:
    return (*arguments[:place], argument, *arguments[place + 1 :])


def _with_storage(storages: tuple[Storage, ...], place: int, storage: Storage) -> tuple[Storage, ...]:
    return (*storages[:place], storage, *storages[place + 1 :])


def _drop_unused_storages(
    storages: Sequence[Storage], arguments: Sequence[Argument], scenario: Scenario
) -> Call:
    """A call without the storages that no argument lies on."""
    used = sorted({a.storage for a in arguments if isinstance(a, (Root, View))})
    return Call(
        tuple(storages[i] for i in used),
        tuple(
            replace(a, storage=used.index(a.storage)) if isinstance(a, (Root, View)) else a for a in arguments
        ),
        scenario,
    )
