"""The generator: choices to a program that is valid by construction.

It builds a program statement by statement on a `State`, which knows every tensor's metadata, memory and
standing with autograd, and keeps only statements that eager accepts; torch never runs. Now and then
(`Profile.reckless`) a program may do what eager refuses, because a compiler must refuse it, too.

>>> from fuzz.choices import Random
>>> generate(Random(seed=0, index=1)) == generate(Random(seed=0, index=1))
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from fuzz import refusals
from fuzz.again import draw_later, draw_steps
from fuzz.arguments import MAX_ELEMENTS, Inputs, draw_inputs
from fuzz.choices import Choices
from fuzz.operators import INVERSES, OPERATORS, Change, Kind, Link, Mismatch, Operand, Operator
from fuzz.operators.dtypes import BOOL, ITEM_SIZE
from fuzz.operators.parts import INDEX, anything
from fuzz.operators.row import Constant, Meta
from fuzz.profiles import PROFILES, ROWS_OF, Profile
from fuzz.program import Dict, Lit, Program, Ref, Scenario, Seq, Statement, Tree
from fuzz.state import Breach, State, Tensor

MAX_RANK = 5
MAX_PIECES = 4  # results of one statement
MAX_RETURNS = 16
MAX_SWARM = 6  # rows of one family in a swarm's program
_MODES = ("no_grad", "enable_grad", "no_grad", "enable_grad", "inference_mode", "checkpoint")
TRIES = 12  # for one statement, before the program is left shorter


def generate(choices: Choices, profile: str | Profile = "mixed") -> Program:
    """One program of a profile (or of the profile of that name).

    A program has at most `MAX_RETURNS` results and tensors of at most `MAX_ELEMENTS` elements; eager runs it
    in a fraction of a millisecond. Raises KeyError for a profile that does not exist.
    """
    if isinstance(profile, str):
        profile = PROFILES[profile]
    if profile.mixture:
        profile = PROFILES[choices.pick(profile.mixture)]
    grad = not choices.chance(profile.grad_off)
    inference = choices.chance(profile.inference)
    state = State(grad, inference)
    inputs = draw_inputs(choices, profile, state)
    builder = _Builder(choices, profile, state, len(inputs.arguments))
    builder.build()
    parameters = _parameters(choices, profile, len(inputs.arguments))
    returns = _returns(choices, profile, inputs, builder)
    differentiate = _differentiate(choices, profile)
    steps = draw_steps(choices, profile, state, returns)
    program = Program(
        inputs.storages,
        inputs.arguments,
        parameters,
        tuple(builder.statements),
        returns,
        Scenario("cpu", grad, differentiate, inference, steps),
    )
    later = draw_later(choices, profile, program)
    return replace(program, later=later) if later else program


class _Builder:
    """The statements of one program under construction."""

    def __init__(self, choices: Choices, profile: Profile, state: State, arguments: int) -> None:
        self.choices = choices
        self.profile = profile
        self.state = state
        self.statements: list[Statement] = []
        self.used: set[str] = set()
        self.count = 0
        self.reckless = choices.chance(profile.reckless)
        self.over = False
        self.tickets = _tickets(choices, profile)
        self.pool: list[tuple[str, Tensor]] = []
        self.numbers: list[str] = []
        for i in range(arguments):
            value = state.names[f"a{i}"]
            if isinstance(value, Tensor):
                self.pool.append((f"a{i}", value))
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                self.numbers.append(f"a{i}")
        self.memories = {tensor.memory for _, tensor in self.pool}

    def build(self) -> None:
        choices, profile = self.choices, self.profile
        mode, left = "inherit", 0
        wanted = choices.integer(*profile.statements)
        for _ in range(wanted):
            if left == 0:
                mode = "inherit"
                if choices.chance(profile.mode):
                    mode, left = choices.pick(_MODES), choices.integer(1, 3)
            left = max(left - 1, 0)
            for _ in range(TRIES):
                if self.attempt(mode):
                    break
            if self.over or len(self.statements) >= wanted:
                break

    def attempt(self, mode: str) -> bool:
        """Try to append one statement."""
        _, rows = self.choices.pick(self.tickets)
        row = OPERATORS[self.choices.pick(rows)]
        found = self.operands(row, mode)
        if found is None or self.append(row, *found, mode) is None:
            return False
        self.perhaps_undo(mode)
        return True

    def perhaps_undo(self, mode: str) -> None:
        """Now and then take back what the last statement did to a tensor."""
        last, chance = self.statements[-1], self.profile.undo
        inverse = INVERSES.get(last.operator)
        if inverse is not None and chance and not self.over and self.choices.chance(chance):
            row = OPERATORS[inverse]
            metas = [self.state.tensor(name).meta for name in last.operands]
            if metas[0].dtype in row.operands[0].dtypes:
                self.append(row, last.operands, metas, mode, dict(last.attributes))

    def append(
        self,
        row: Operator,
        operands: tuple[str, ...],
        metas: Sequence[Meta],
        mode: str,
        attributes: dict[str, Constant] | None = None,
        fits: Callable[[Meta], bool] | None = None,
    ) -> str | None:
        """Append a statement if eager accepts it and its result fits; its first result's name, or ""."""
        choices, state = self.choices, self.state
        try:
            if attributes is None:
                attributes = {}
                for attribute in row.attributes:
                    attributes[attribute.name] = attribute.draw(choices, metas, attributes)
            use = state.use(row, operands, attributes, mode, metas)
            outcome = state.infer(use)
        except (Mismatch, Breach):
            return None
        if len(outcome) > MAX_PIECES or (fits is not None and not fits(outcome[0].meta)):
            return None
        for result in outcome:
            if prod(result.meta.size) > MAX_ELEMENTS or len(result.meta.size) > MAX_RANK:
                return None
        if refusals.corrupts(use, state.kept):
            return None
        if not self.reckless and refusals.hazard(use, state.kept):
            return None
        if state.kept.fragile and any(tensor.stale for tensor in use.tensors):
            # Whether eager looks at its history depends on more than is known here.
            same = any(result.link is Link.SELF for result in outcome)
            if same or not (self.reckless and row.differentiable):
                return None
        if refusals.illegal(use):
            if not self.reckless:
                return None
            self.over = True
        results = []
        if not row.metadata:
            for _ in outcome:
                results.append(f"v{self.count}")
                self.count += 1
        state.commit(use, outcome, results)
        self.statements.append(Statement(row.name, operands, tuple(attributes.items()), tuple(results), mode))
        self.used.update(operands)
        self.pool += [(name, state.tensor(name)) for name in results]
        if row.change is Change.RESIZE:
            self.define(operands[0], mode)
        return results[0] if results else ""

    def define(self, name: str, mode: str) -> None:
        """Write to what `resize_` has added to a tensor's storage: to the new part or to all."""
        state, choices = self.state, self.choices
        tensor = state.tensor(name)
        new = state.undefined.get(tensor.memory)
        if not new:
            return
        meta = tensor.meta
        value: dict[str, Constant] = {} if meta.dtype in BOOL else {"value": choices.pick((3, 2))}
        if meta.size and value and choices.chance(0.6):
            assert meta.stride is not None
            row_size = meta.stride[0] * ITEM_SIZE[meta.dtype]
            start = min(new) // row_size - meta.offset // meta.stride[0]
            part: dict[str, Constant] = {"dim": 0, "start": max(start, 0), "end": meta.size[0], "step": 1}
            self.append(OPERATORS["setitem_slice_number"], (name,), [meta], mode, part | value)
        if tensor.memory in state.undefined:
            self.append(OPERATORS["fill_" if value else "zero_"], (name,), [meta], mode, value)

    def operands(self, row: Operator, mode: str) -> tuple[tuple[str, ...], list[Meta]] | None:
        """Operands that the row takes and what is known of them, or None where there are none."""
        choices = self.choices
        names: list[str] = []
        metas: list[Meta] = []
        for operand in row.operands:
            if operand.number:
                if not self.numbers:
                    return None
                names.append(choices.pick(self.numbers))
                metas.append(self.state.meta(names[-1]))
                continue
            pool = self.pool
            if not names and choices.chance(self.profile.focus):
                pool = [entry for entry in pool if entry[1].memory in self.memories]
            dtypes, fits = operand.dtypes, operand.fits
            if fits is anything:
                fitting = [name for name, tensor in pool if tensor.meta.dtype in dtypes]
            else:
                fitting = [
                    name for name, tensor in pool if tensor.meta.dtype in dtypes and fits(tensor.meta, metas)
                ]
            if fitting:
                names.append(choices.pick(fitting))
            elif names and choices.chance(0.7):
                made = self.supply(operand, names, metas, mode)
                if made is None:
                    return None
                names.append(made)
            else:
                return None
            metas.append(self.state.tensor(names[-1]).meta)
        return tuple(names), metas

    def supply(self, operand: Operand, names: list[str], metas: list[Meta], mode: str) -> str | None:
        """Make an operand that goes with those chosen already: an index, a mask, a factor, a twin."""

        def fits(meta: Meta) -> bool:
            return meta.dtype in operand.dtypes and operand.fits(meta, metas)

        first = (names[0],)
        size = metas[0].size
        recipes: list[tuple[str, tuple[str, ...], dict[str, Constant]]]
        if operand.dtypes == BOOL:
            recipes = [("gt_number", first, {"value": 0.5}), ("logical_not", first, {})]
        elif operand.dtypes == INDEX.dtypes:
            recipes = [("arange", (), {"count": n, "dtype": "int64"}) for n in size]
            recipes.append(("randint", (), {"size": size}))
        else:
            recipes = [("transpose", first, {"dim0": -2, "dim1": -1}), ("clone", first, {})]
            recipes.append(("full", (), {"size": size[-1:], "value": 2, "dtype": metas[0].dtype}))
        for name, operands, attributes in recipes:
            if operands and metas[0].dtype not in OPERATORS[name].operands[0].dtypes:
                continue
            made = self.append(OPERATORS[name], operands, metas[: len(operands)], mode, attributes, fits)
            if made is not None:
                return made
        return None


Tickets = Sequence[tuple[Kind, Sequence[str]]]


def _tickets(choices: Choices, profile: Profile) -> Tickets:
    """Families, each as often as its weight, with the rows that the program may use."""
    if not profile.swarm:
        return _all_tickets(profile)
    tickets = []
    for kind, rows in dict(_all_tickets(profile)).items():
        if choices.chance(0.5):
            some = [choices.pick(rows) for _ in range(choices.integer(1, MAX_SWARM))]
            tickets.append((kind, some))
    return tickets or _all_tickets(profile)


@lru_cache(maxsize=64)
def _all_tickets(profile: Profile) -> Tickets:
    if not profile.kinds:
        return [(row.kind, (name,)) for name, row in OPERATORS.items()]
    return [(kind, ROWS_OF[kind]) for kind, weight in profile.kinds for _ in range(weight)]


# ---------------------------------------------------------------------------------------------------------
# trees and scenario


def _parameters(choices: Choices, profile: Profile, count: int) -> tuple[Tree, ...]:
    leaves: list[Tree] = [Ref(f"a{i}") for i in range(count)]
    if not choices.chance(profile.nested):
        return tuple(leaves)
    first = choices.integer(0, count - 1)
    last = choices.integer(first + 1, count)
    return (*leaves[:first], _tree(choices, leaves[first:last]), *leaves[last:])


def _returns(choices: Choices, profile: Profile, inputs: Inputs, builder: _Builder) -> Tree:
    """What is not used by another statement, so that nothing goes unseen, and some more."""
    made = [name for statement in builder.statements for name in statement.results]
    unused = [name for name in made if name not in builder.used]
    extra = [name for name in made if name in builder.used and choices.chance(0.25)]
    extra += [f"a{i}" for i in range(len(inputs.arguments)) if choices.chance(profile.passed)]
    if extra and choices.chance(profile.same):
        extra.append(choices.pick([*unused, *extra]))
    state = builder.state
    names = [n for n in (*unused, *extra) if not state.is_stale(n) and not state.is_unwatched(n)][
        :MAX_RETURNS
    ]
    leaves: list[Tree] = [Ref(name) for name in names]
    if choices.chance(0.12):
        leaves.insert(choices.integer(0, len(leaves)), Lit(choices.pick((None, 3, 0.5, "text", True))))
    if not leaves:
        return Lit(None)
    if len(leaves) == 1 and choices.chance(0.5):
        return leaves[0]
    if choices.chance(profile.nested):
        return _tree(choices, leaves)
    return Seq("tuple", tuple(leaves))


def _tree(choices: Choices, leaves: list[Tree]) -> Tree:
    """A container of these leaves; some of them may lie deeper."""
    items = list(leaves)
    if len(items) > 1 and choices.chance(0.5):
        split = choices.integer(1, len(items) - 1)
        items = [*items[:split], _tree(choices, items[split:])]
    kind = choices.pick(("tuple", "list", "dict"))
    if kind == "dict":
        return Dict(tuple((f"k{i}", item) for i, item in enumerate(items)))
    return Seq(kind, tuple(items))


def _differentiate(choices: Choices, profile: Profile) -> tuple[int, ...] | None:
    if not choices.chance(profile.partial):
        return None
    return tuple(sorted({choices.integer(0, 7) for _ in range(choices.integer(0, 2))}))
