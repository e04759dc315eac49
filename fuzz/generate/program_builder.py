"""The generator's middle: a program under construction, statement by statement on an `AbstractState`.

What eager refuses is not appended, nor what it leaves undefined, but for reckless programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

from fuzz.abstract import eager_rules
from fuzz.abstract.state import AbstractState, AbstractTensor, InvalidProgram
from fuzz.choices import Choices
from fuzz.generate.arguments import Inputs
from fuzz.generate.profiles import ROWS_OF, Profile
from fuzz.ir.control_flow import Modes
from fuzz.ir.nodes import Block
from fuzz.operators import INVERSES, OPERATORS, Aliasing, Change, Kind, Mismatch, Operand, Operator
from fuzz.operators.builders import INDEX, fits_anywhere
from fuzz.operators.dtypes import BOOL, ITEM_SIZE
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Constant, Meta, Result
from fuzz.program.decode import Literal, Program, Scenario, Statement

MAX_RANK = 5
MAX_PIECES = 4  # results of one statement
MAX_SWARM = 6  # rows of one family in a swarm's program
SPARE = 2  # statements that only make operands of others, beyond those that a program has room for
ENOUGH = 6  # statements that any program has room for if they make operands
SEVERAL = 0.8  # the chance that what went into several results is used once more
TRIES = 12  # for one statement, before the program is left shorter


class ProgramBuilder:
    """The statements of one program under construction."""

    def __init__(self, choices: Choices, profile: Profile, state: AbstractState, inputs: Inputs) -> None:
        self.choices = choices
        self.profile = profile
        self.state = state
        self.inputs = inputs
        self.scenario = Scenario(grad=state.grad, inference=state.inference, autocast=state.autocast or None)
        self.statements: list[Statement] = []
        self.blocks: list[Block] = []
        self.block = -1  # where the next statement stands
        self.modes: Modes | None = None
        self.bound: list[str] = []  # names that may be bound anew, because they are carried or chosen
        self.hidden: set[str] = set()  # names that not every way through the program binds
        self.used: set[str] = set()
        self.count = 0
        self.budget = choices.integer(*profile.statements)  # for so many statements
        self.max_statements = max(self.budget + SPARE, ENOUGH)
        self.reckless = choices.chance(profile.reckless)
        self.over = False
        self.weighted_ops = _row_tickets(choices, profile, state)
        self.fill_ops = [
            name for name in ("fill_", "zero_") if any(name in rows for _, rows in self.weighted_ops)
        ]
        self.pool: list[tuple[str, AbstractTensor]] = []
        self.numbers: list[str] = []
        self.values: list[tuple[str, Constant]] = []
        self.take_state(state)
        self.memories = {tensor.memory for _, tensor in self.pool}
        self.written: tuple[str, int] | None = None  # what was written to last, and the memory that it shows
        self.among: Sequence[str] = ()  # what the operands of the next statement are drawn from, if anything
        self.chosen: Sequence[str] = ()  # operands of the next statement, while the rest of them are made

    @property
    def full(self) -> bool:
        """Whether there is no room for what only makes another statement's operand."""
        return len(self.statements) + 2 >= self.max_statements  # (It may take two.)

    def program(self) -> Program:
        """What there is, as a program of one call that returns nothing."""
        return Program(
            self.inputs.storages,
            self.inputs.arguments,
            (),
            tuple(self.statements),
            Literal(None),
            self.scenario,
            blocks=tuple(self.blocks),
        )

    def take_state(self, state: AbstractState) -> None:
        """Go on with another state."""
        self.state = state
        self.pool, self.numbers, self.values = [], [], []
        for name, value in state.names.items():
            if isinstance(value, AbstractTensor):
                if name not in self.hidden:
                    self.pool.append((name, value))
                continue
            self.values.append((name, value))
            if isinstance(value, (int, float, complex)) and not isinstance(value, bool):
                self.numbers.append(name)

    def enter(self, block: int) -> None:
        """The next statement stands in this block, or in none (-1)."""
        self.block = block
        self.modes = self.state.modes(self.blocks, block)

    def step(self) -> None:
        """One more statement, if one is found."""
        before = len(self.statements)
        for _ in range(TRIES):
            if self.attempt_statement():
                break
        self.budget -= max(len(self.statements) - before, 1)

    def attempt_statement(self) -> bool:
        """Try to append one statement."""
        _, rows = self.choices.pick(self.weighted_ops)
        row = OPERATORS[self.choices.pick(rows)]
        self.among = self.operand_candidates(row)
        found = self.choose_operands(row)
        if found is None or self.append(row, *found) is None:
            return False
        self.perhaps_undo()
        self.perhaps_fill()
        return True

    def operand_candidates(self, row: Operator) -> Sequence[str]:
        """What the operands of the next statement are drawn from, if not from all there is.

        Often from what the last one had, if that gave several results: then a backward comes by each of them
        from some results and not from others. And what is joined is often made by the function.
        """
        if not self.statements:
            return ()
        last = self.statements[-1]
        several = len(last.results) > 1 and len(set(last.operands)) > 1
        if self.choices.chance(SEVERAL if several else self.profile.reuse):
            return last.operands
        if row.kind is Kind.WRAPPER:
            return [name for name, tensor in self.pool if tensor.wrapped is row.unwraps]
        if row.kind is Kind.JOIN and self.choices.chance(0.8):
            return [name for name, _ in self.pool if name[0] == "v"]
        return ()

    def perhaps_undo(self) -> None:
        """Now and then take back what the last statement did to a tensor."""
        last, chance = self.statements[-1], self.profile.undo
        inverse = INVERSES.get(last.operator)
        if inverse is not None and chance and not self.over and self.choices.chance(chance):
            row = OPERATORS[inverse]
            metas = [self.state.tensor(name).meta for name in last.operands]
            if metas[0].dtype in row.operands[0].dtypes:
                self.append(row, last.operands, metas, dict(last.attributes))

    def perhaps_fill(self) -> None:
        """Now and then fill what the last statement has expanded: eager writes nothing else to that."""
        for name in self.statements[-1].results[:1]:
            meta = self.state.meta(name)
            if self.fill_ops and repeats(meta) and not self.over and self.choices.chance(self.profile.filled):
                row = OPERATORS[self.choices.pick(self.fill_ops)]
                if meta.dtype in row.operands[0].dtypes:
                    self.append(row, (name,), [meta])

    def append(
        self,
        row: Operator,
        operands: tuple[str, ...],
        metas: Sequence[Meta],
        attributes: dict[str, Constant] | None = None,
        fits: Callable[[Meta], bool] | None = None,
    ) -> str | None:
        """Append a statement if eager accepts it and its result fits; its first result's name, or ""."""
        choices, state = self.choices, self.state
        limits = self.profile.limits
        if self.profile.operators is not None and row.name not in self.profile.operators:
            return None
        if limits is not None and not all(
            limits.allow_change(row, self.whose(operands[i])) for i in row.writes or (0,)[: row.metadata]
        ):
            return None
        try:
            if attributes is None:
                attributes = {}
                for attribute in row.attributes:
                    attributes[attribute.name] = attribute.draw(choices, metas, attributes)
            use = state.use(row, operands, attributes, self.modes, metas)
            outcome = state.infer(use)
        except (Mismatch, InvalidProgram):
            return None
        if row.kind is Kind.HOOK and use.target.memory in self.memories:
            return None  # a hook on an argument, which is there when the call is over
        if len(outcome) > MAX_PIECES or (fits is not None and not fits(outcome[0].meta)):
            return None
        for result in outcome:
            if prod(result.meta.size) > self.profile.elements or len(result.meta.size) > MAX_RANK:
                return None
            if limits is not None and result.meta.dtype not in limits.dtypes:
                return None
        if eager_rules.corrupts_saved(use, state.kept):
            return None
        if not self.reckless and eager_rules.eager_error_later(use, state.kept):
            return None
        if state.kept.fragile and any(tensor.stale for tensor in use.tensors):
            # Whether eager looks at its history depends on more than is known here.
            same = any(result.aliasing is Aliasing.SELF for result in outcome)
            if same or not (self.reckless and row.differentiable):
                return None
        if eager_rules.eager_error_now(use):
            if not self.reckless:
                return None
            self.over = True
        results = []
        if not row.metadata:
            results = self.bind_results(outcome)
        state.commit(use, outcome, results)
        if row.writes:
            written = row.writes[0]
            self.written = operands[written], use.tensors[written].memory
        if row.kind is Kind.MODE:
            self.modes = state.modes(self.blocks, self.block)
        self.statements.append(
            Statement(row.name, operands, tuple(attributes.items()), tuple(results), self.block)
        )
        self.used.update(operands)
        self.used.difference_update(results)
        self.pool += [(name, state.tensor(name)) for name in results]
        if row.change is Change.RESIZE:
            self.define_added_elements(operands[0])
        return results[0] if results else ""

    def whose(self, name: str) -> str:
        """One of `fuzz.generate.limits.WHOSE`."""
        if name[0] == "a":
            return "argument"
        return "view of an argument" if self.state.tensor(name).memory in self.memories else "intermediate"

    def bind_results(self, outcome: Sequence[Result]) -> list[str]:
        """Names for results: new ones, or in a branch or a loop one that stands for such a tensor already."""
        if self.bound and len(outcome) == 1 and self.choices.chance(0.5):
            meta = outcome[0].meta
            free = (n for n in self.bound if n not in self.chosen)
            alike = [n for n in free if self.state.tensor(n).meta[:2] == meta[:2]]
            if alike:
                name = self.choices.pick(alike)
                self.pool = [entry for entry in self.pool if entry[0] != name]
                return [name]
        self.count += len(outcome)
        return [f"v{number}" for number in range(self.count - len(outcome), self.count)]

    def define_added_elements(self, name: str) -> None:
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
            self.append(OPERATORS["setitem_slice_number"], (name,), [meta], part | value)
        if tensor.memory in state.undefined:
            self.append(OPERATORS["fill_" if value else "zero_"], (name,), [meta], value)

    def choose_operands(self, row: Operator) -> tuple[tuple[str, ...], list[Meta]] | None:
        """Operands that the row takes and what is known of them, or None where there are none."""
        names: list[str] = []
        self.chosen = names
        try:
            metas = self._choose_or_make_operands(row, names)
        finally:
            self.chosen = ()
        return None if metas is None else (tuple(names), metas)

    def _choose_or_make_operands(self, row: Operator, names: list[str]) -> list[Meta] | None:
        """Choose operands, or make them; `names` is extended by theirs. Gives what is known of them."""
        choices = self.choices
        metas: list[Meta] = []
        for number, operand in enumerate(row.operands):
            if operand.number:
                if not self.numbers:
                    return None
                names.append(choices.pick(self.numbers))
                metas.append(self.state.meta(names[-1]))
                continue
            pool = self.pool if names else self.first()
            if self.among:
                pool = [entry for entry in self.pool if entry[0] in self.among]
            dtypes, fits = operand.dtypes, operand.fits
            if fits is fits_anywhere:
                fitting = [name for name, tensor in pool if tensor.meta.dtype in dtypes]
            else:
                fitting = [
                    name for name, tensor in pool if tensor.meta.dtype in dtypes and fits(tensor.meta, metas)
                ]
            if fitting and names and row.writes[:1] == (0,) and not row.overlap and choices.chance(0.8):
                # Few of what shares the target's memory share no element with it, which eager asks for.
                memory = self.state.tensor(names[0]).memory
                fitting = [name for name in fitting if self.state.tensor(name).memory != memory]
            if self.reckless and names and row.writes[:1] == (0,) and row.overlap and choices.chance(0.5):
                # Eager refuses an operand that overlaps what is written to in part.
                memory = self.state.tensor(names[0]).memory
                beside = [name for name in fitting if self.state.tensor(name).memory == memory]
                fitting = [name for name in beside if name not in names] or fitting
            if row.statistics and not self.reckless:
                fitting = [name for name in fitting if name not in names]
                if number in row.statistics:
                    fitting = self.statistic_operand_candidates(operand, fitting, names, metas)
            if fitting:
                names.append(choices.pick(fitting))
            elif names and not self.full and choices.chance(0.7):
                made = self.supply_operand(operand, names, metas)
                if made is None:
                    return None
                names.append(made)
            elif not names and not self.full and choices.chance(0.3):
                made = self.operand_of_higher_rank(operand, pool)
                if made is None:
                    return None
                names.append(made)
            else:
                return None
            metas.append(self.state.tensor(names[-1]).meta)
        return metas

    def first(self) -> list[tuple[str, AbstractTensor]]:
        """What operand 0 is drawn from."""
        pool, choices = self.pool, self.choices
        if self.written is not None and choices.chance(self.profile.aliases):
            name, memory = self.written
            others = [entry for entry in pool if entry[1].memory == memory and entry[0] != name]
            if others:
                return others
        if choices.chance(self.profile.focus):
            return [entry for entry in pool if entry[1].memory in self.memories]
        return pool

    def operand_of_higher_rank(
        self, operand: Operand, pool: Sequence[tuple[str, AbstractTensor]]
    ) -> str | None:
        """A first operand with one more dimension than what there is."""
        lower = [
            (name, tensor.meta)
            for name, tensor in pool
            if tensor.meta.dtype in operand.dtypes
            and operand.fits(tensor.meta._replace(size=(1, *tensor.meta.size)), ())
        ]
        if not lower:
            return None
        name, meta = self.choices.pick(lower)
        return self.append(OPERATORS["unsqueeze"], (name,), [meta], {"dim": 0})

    def statistic_operand_candidates(
        self, operand: Operand, fitting: Sequence[str], names: Sequence[str], metas: Sequence[Meta]
    ) -> list[str]:
        """Those of the fitting names that eager takes for one more statistic; else an alias that it takes: of
        another one, detached, or a row of something larger."""
        state = self.state
        grad = state.grad if self.modes is None else self.modes.grad
        found = [name for name in fitting if not (grad and state.tensor(name).requires_grad)]
        if found or self.full:
            return found
        taken = {state.tensor(name).memory for name in names}
        larger = [
            (name, tensor)
            for name, tensor in self.pool
            if tensor.memory not in taken
            and tensor.meta.dtype in operand.dtypes
            and len(tensor.meta.size) > 1
            and operand.fits(tensor.meta._replace(size=tensor.meta.size[1:]), metas)
        ]
        shown = [name for name, tensor in larger if tensor.memory in self.memories]
        rows = fitting or shown or [name for name, _ in larger]
        if not rows:
            return []
        name = self.choices.pick(rows)
        meta = state.tensor(name).meta
        made: str | None = name
        if grad and state.tensor(name).requires_grad:
            made = self.append(OPERATORS["detach"], (name,), [meta])
        if made is not None and not fitting:
            made = self.append(OPERATORS["select"], (made,), [meta], {"dim": 0, "index": 0})
        return [] if made is None else [made]

    def supply_operand(self, operand: Operand, names: list[str], metas: list[Meta]) -> str | None:
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
            dtype = metas[0].dtype
            last = metas[-1].size
            for made_size in (size[-1:], size[1:2], (*last[:-2], *last[-1:], *size[-1:]), (2, *size)):
                if fits(Meta(dtype, made_size, contiguous_strides(made_size))):
                    recipes.append(("full", (), {"size": made_size, "value": 2, "dtype": dtype}))
        for name, operands, attributes in recipes:
            if operands and metas[0].dtype not in OPERATORS[name].operands[0].dtypes:
                continue
            made = self.append(OPERATORS[name], operands, metas[: len(operands)], attributes, fits)
            if made is not None:
                return made
        return None


Tickets = Sequence[tuple[Kind, Sequence[str]]]


def repeats(meta: Meta) -> bool:
    return meta.stride is not None and any(
        length > 1 and step == 0 for length, step in zip(meta.size, meta.stride, strict=True)
    )


def _row_tickets(choices: Choices, profile: Profile, state: AbstractState) -> Tickets:
    """Families, each as often as its weight, with the rows that the program may use."""
    wraps = any(isinstance(value, AbstractTensor) and value.wrapped for value in state.names.values())
    wraps = wraps or (profile.wrapped > 0 and choices.chance(profile.wrapped / 4))
    every = _all_tickets(profile, wraps)
    if not profile.swarm:
        return every
    tickets = []
    for kind, rows in dict(every).items():
        if choices.chance(0.5):
            some = [choices.pick(rows) for _ in range(choices.integer(1, MAX_SWARM))]
            tickets.append((kind, some))
    return tickets or every


@lru_cache(maxsize=64)
def _all_tickets(profile: Profile, wraps: bool) -> Tickets:
    apart = {Kind.HIGHER_ORDER, Kind.PYTHON, Kind.KERNEL, Kind.REFUSED} if not profile.kinds else set()
    if not wraps:
        apart.add(Kind.WRAPPER)
    chosen = OPERATORS if profile.operators is None else profile.operators
    single = [(row.kind, (name,)) for name, row in OPERATORS.items() if name in chosen]
    if not profile.kinds:
        return [ticket for ticket in single if ticket[0] not in apart] or single
    rows = {kind: tuple(name for name in names if name in chosen) for kind, names in ROWS_OF.items()}
    families = [(kind, rows[kind]) for kind, weight in profile.kinds if rows[kind] for _ in range(weight)]
    return [family for family in families if family[0] not in apart] or families or single
