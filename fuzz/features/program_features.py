"""Program features: what a program has that a compiler may get wrong, by name.

In: a program. Out: names of `FEATURES`, which explains them. Each is a group and a text, such as "alias:
disjoint". Campaigns count features, so that a run without findings shows what it has covered. Tests check
that every profile reaches every feature.
Invariant: `features` is a pure function of a program. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fuzz.abstract import eager_rules
from fuzz.abstract.state import AbstractState, AbstractTensor
from fuzz.features.argument_features import argument_features
from fuzz.features.calls import scenario_features
from fuzz.features.row_features import row_features, view_kind
from fuzz.features.table import FEATURES
from fuzz.ir.control_flow import enclosing_blocks, executed_statements
from fuzz.ir.nodes import (
    Autocast,
    Block,
    Branch,
    Dict,
    Literal,
    Loop,
    Program,
    Ref,
    Region,
    Seq,
    Statement,
    Tree,
    split_calls,
    tree_references,
)
from fuzz.operators import INVERSES, OPERATORS, Change, Expanded, Kind
from fuzz.operators.layout import is_channels_last, overlaps_itself
from fuzz.operators.row import Constant, Meta, Operator
from fuzz.program.decode import initial_state, interpret_statement

__all__ = ["FEATURES", "features"]


def features(program: Program) -> frozenset[str]:
    """The features of a valid program: keys of `FEATURES`.

    >>> from fuzz.ir.nodes import Storage
    >>> double = Statement("mul_number_", ("a0",), (("value", 2.0),), ())
    >>> program = Program((Storage("float32", (2,), 1),), (Root(0),), (Ref("a0"),), (double,), Ref("a0"))
    >>> sorted(features(program))
    ['argument: root', 'data: argument', 'output: argument', 'output: written argument']

    Raises:
        ProgramError: the program is not valid.
    """
    found = set(scenario_features(program))
    for call in split_calls(program):
        walk = _Walk(call)
        walk.add(*argument_features(call, walk.state, walk.inputs, walk.groups))
        for i, statement in executed_statements(call):
            walk.note_statement_features(i, statement)
        walk.note_outputs_features()
        walk.note_scenario_features()
        found |= walk.found
    return frozenset(found)


class _Walk:
    """The state of a program during the walk, and the features found so far."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.state = initial_state(program)
        self.found: set[str] = set()
        self.names = [f"a{i}" for i in range(len(program.arguments))]
        tensors = _tensors(self.state, self.names)
        self.inputs = list({id(tensor): tensor for tensor in tensors}.values())
        self.own = {id(tensor) for tensor in tensors}
        self.duplicates = {id(tensor) for i, tensor in enumerate(tensors) if tensor in tensors[:i]}
        self.memories = {tensor.memory for tensor in tensors}
        self.in_parts = {tensor.memory for tensor in tensors if tensor.wrapped}
        self.groups = [
            group
            for memory in self.memories
            if len(group := [tensor for tensor in self.inputs if tensor.memory == memory]) > 1
        ]
        self.written: dict[int, int] = {}  # memory -> the number of statements that wrote to it
        self.writes: set[int] = set()  # arguments whose data was written
        self.reshaped: set[int] = set()  # arguments whose metadata was changed
        self.viewed: set[int] = set()  # memories with views
        self.depth: dict[int, int] = {}  # tensor -> the number of views between it and its base
        self.kinds: dict[int, frozenset[str]] = {}  # view -> how it was made, if in a special way
        self.given = {id(tensor): tensor.meta for tensor in self.inputs}
        self.laid_otherwise: set[int] = set()  # arguments whose metadata was different for some time
        self.turned: set[int] = set()  # statements that have run
        held = program.module.held if program.module else ()
        self.held = set(map(id, _tensors(self.state, held)))  # arguments that a module holds
        self.unsettled: set[int] = set()  # views of arguments whose metadata had been changed

    def add(self, *names: str) -> None:
        self.found.update(names)

    # ----------------------------------------------------------------------------------------------------

    def note_statement_features(self, index: int, statement: Statement) -> None:
        state = self.state
        row = OPERATORS[statement.operator]
        operands = _tensors(state, statement.operands)
        for number in enclosing_blocks(self.program.blocks, statement.block):
            self.note_block_features(self.program.blocks[number])
        if index not in self.turned and statement.block >= 0 and self.is_loop_carried(index, statement):
            self.add("flow: carried")
        self.turned.add(index)
        modes = state.modes(self.program.blocks, statement.block)
        if len({tensor.meta.dtype for tensor in operands}) > 1:
            self.add("dtype: promotion")
        use = state.use(row, statement.operands, dict(statement.attributes), modes)
        if use.wraps and not all(tensor.wrapped for tensor in operands):
            self.add("subclass: and plain")
        if eager_rules.eager_error_now(use):
            self.add("error: refused")
        self.add(*row_features(row))
        if row.stateful and self.program.module is not None:
            self.add("python: of a module")
        if row.kind is Kind.WRAPPER:
            self.add(f"subclass: {'taken apart' if use.wraps else 'made'}")
        for number in row.writes:
            self.note_write_features(row, operands[number])
            if use.inference and operands[number].memory in self.memories:
                self.add("data: under inference mode")
            if row.statistics and operands[number].memory in self.memories:
                self.add("data: beside a result")
        if row.writes:
            before = self.program.statements[index - 1] if index else None
            if before is not None and INVERSES.get(before.operator) == row.name:
                same = (before.operands, before.attributes) == (statement.operands, statement.attributes)
                if same and operands[0].memory in self.memories:
                    self.add("data: undone")
        if row.metadata:
            self.note_reshape_features(row, operands, use.grad)
        size = operands[0].meta.size if operands else ()
        interpret_statement(state, index, statement, self.program.blocks)
        self.laid_otherwise |= {id(one) for one in self.inputs if one.meta != self.given[id(one)]}
        if (
            row.change is Change.RESIZE
            and id(operands[0]) in self.own
            and operands[0].memory in state.undefined
        ):
            self.add("metadata: grown")
            if 0 in size:
                self.add("metadata: grown from nothing")
        if row.kind in (Kind.VIEW, Kind.MULTI_VIEW):
            self.note_view_features(row, operands[0], use.grad, _tensors(state, statement.results))

    def note_block_features(self, block: Block) -> None:
        match block:
            case Region(mode):
                self.add(f"mode: {mode}")
            case Autocast(_, enabled):
                self.add("mode: autocast" if enabled else "mode: autocast off")
            case Branch(argument, _, holds):
                self.add("flow: branch" if holds else "flow: other branch")
                if self.program.module is not None and argument == self.program.module.training:
                    self.add("flow: training")
            case Loop():
                self.add("flow: loop")
        if block.within >= 0:
            self.add("flow: nested")

    def is_loop_carried(self, index: int, statement: Statement) -> bool:
        """Whether a statement of a loop rebinds a name that this iteration has read and the next one
        reads.
        """
        program = self.program
        loops = [
            n
            for n in enclosing_blocks(program.blocks, statement.block)
            if isinstance(program.blocks[n], Loop)
        ]
        return any(
            name in earlier.operands
            for name in statement.results
            if name in self.state.names
            for earlier in program.statements[: index + 1]
            if not set(loops).isdisjoint(enclosing_blocks(program.blocks, earlier.block))
        )

    def note_write_features(self, row: Operator, target: AbstractTensor) -> None:
        meta, grad = target.meta, target.requires_grad
        self.add(f"data: {self.whose(target)}")
        if target.wrapped and target.memory in self.memories:
            self.add("subclass: written")
        elif not target.wrapped and target.memory in self.in_parts:
            self.add("subclass: written in a part")
        if id(target) in self.held:
            self.add("data: of a module")
        if not meta.size:
            self.add("data: 0-d")
        elif "{slice}" in row.source:
            self.add("data: slice")
        if meta.stride is not None and overlaps_itself(meta):
            allowed = row.expanded is Expanded.ALLOWED
            self.add("data: filled through expand" if allowed else "data: expanded")
        if is_channels_last(meta):
            self.add("data: channels-last")
        if any(one.memory == target.memory and one.meta.dtype != meta.dtype for one in self.inputs):
            self.add("data: other dtype")
        if grad and target.base is not None:
            self.add("data: differentiable view")
        elif grad and not target.grad_fn:
            self.add("data: leaf")
        elif id(target) in self.own:
            self.add("data: non-leaf" if grad else "data: without gradient")
        if not grad and any(one.requires_grad and one.memory == target.memory for one in self.inputs):
            self.add("data: hidden")
        if id(target) in self.own:
            self.writes.add(id(target))
            if len(self.writes) > 1:
                self.add("data: several arguments")
            if any(target in group for group in self.groups):
                self.add("data: member of a group")
            if id(target) in self.duplicates:
                self.add("data: duplicate")
            if id(target) in self.reshaped:
                self.add("metadata: before data")
        if target.memory in self.viewed:
            self.add("view: then a write")
        self.written[target.memory] = self.written.get(target.memory, 0) + 1
        if self.written[target.memory] > 1:
            self.add("data: twice")

    def note_reshape_features(self, row: Operator, operands: Sequence[AbstractTensor], grad: bool) -> None:
        target = operands[0]
        self.add(f"metadata: {self.whose(target)}")
        if target.wrapped:
            self.add("subclass: metadata")
        if target.memory in self.memories:
            self.add(f"metadata: {row.name}")
        if target.requires_grad:
            self.add("metadata: requires grad")
            if not grad and row.change is Change.GEOMETRY:
                self.add("metadata: past a history")
        if id(target) in self.own:
            self.reshaped.add(id(target))
            if any(target in group and self.reshaped.issuperset(map(id, group)) for group in self.groups):
                self.add("metadata: both of a group")
            if row.change in (Change.STORAGE, Change.UNTYPED, Change.DATA) and len(operands) > 1:
                known = operands[1].memory in self.memories
                if operands[1].memory != target.memory:
                    self.add(f"metadata: onto {'another argument' if known else 'a new storage'}")
            if id(target) in self.duplicates:
                self.add("metadata: duplicate")
            if id(target) in self.writes:
                self.add("metadata: after data")

    def whose(self, target: AbstractTensor) -> str:
        if id(target) in self.own:
            return "argument"
        return "view of an argument" if target.memory in self.memories else "intermediate"

    def note_view_features(
        self, row: Operator, parent: AbstractTensor, grad: bool, made: Sequence[AbstractTensor]
    ) -> None:
        for view in made:
            if view is parent or view.memory != parent.memory:
                continue
            self.viewed.add(view.memory)
            self.add("view: taken")
            if view.wrapped:
                self.add("subclass: view")
            if self.written.get(view.memory) and view.memory in self.memories:
                self.add("view: after a write")
            if id(parent) in self.reshaped | self.unsettled:
                self.unsettled.add(id(view))
            self.depth[id(view)] = self.depth.get(id(parent), 0) + 1
            if self.depth[id(view)] > 2:
                self.add("view: chain")
            kinds = set(_view_kind_features(row, view.meta))
            if not grad and parent.requires_grad:
                kinds.add("under no_grad")
            self.kinds[id(view)] = self.kinds.get(id(parent), frozenset()) & _KEPT | kinds
            self.add(*(f"view: {kind}" for kind in kinds))
            if 0 in view.meta.size:
                self.add("view: empty")
            elif not view.meta.size:
                self.add("view: 0-d")

    # ----------------------------------------------------------------------------------------------------

    def note_outputs_features(self) -> None:
        names = list(tree_references(self.program.returns))
        if len(set(names)) < len(names):
            self.add("output: twice")
        self.add(*_tree_features(self.program.returns))
        if any(id(one) in self.laid_otherwise and one.meta == self.given[id(one)] for one in self.inputs):
            self.add("metadata: undone")
        results = list({id(tensor): tensor for tensor in _tensors(self.state, dict.fromkeys(names))}.values())
        for i, one in enumerate(results):
            self.note_output_features(one)
            for other in results[:i]:
                if one.memory != other.memory:
                    continue
                if one.base is other or other.base is one:
                    self.add("output: base and view")
                if one.memory not in self.memories:
                    self.add("output: aliases of an intermediate")
                if (one.base or one) is not (other.base or other):
                    self.add("output: detached alias")

    def note_output_features(self, tensor: AbstractTensor) -> None:
        if id(tensor) in self.own:
            self.add("output: argument")
            if id(tensor) in self.writes:
                self.add("output: written argument")
            return
        if tensor.wrapped:
            self.add(f"subclass: output{' view' if tensor.memory in self.memories else ''}")
        if tensor.memory not in self.memories:
            if tensor.base is None:
                self.add("output: fresh")
        else:
            self.add("output: alias of an argument")
            if self.written.get(tensor.memory):
                self.add("output: alias of a written argument")
            if any(
                one.memory == tensor.memory and one.requires_grad != tensor.requires_grad
                for one in self.inputs
            ):
                self.add("output: requires_grad differs")
        if id(tensor) in self.unsettled:
            self.add("output: view of a reshaped argument")
        if id(tensor) in self.depth:
            if self.depth[id(tensor)] > 2:
                self.add("output: chain")
            if 0 in tensor.meta.size:
                self.add("output: empty")
            elif not tensor.meta.size:
                self.add("output: 0-d")
        self.add(*(f"output: {kind}" for kind in self.kinds.get(id(tensor), ())))
        if tensor.inference:
            self.add("output: inference")

    def note_scenario_features(self) -> None:
        if self.program.scenario.inference:
            self.add("mode: inference")
        if self.program.scenario.autocast is not None:
            self.add("mode: autocast around")
        if self.program.scenario.swapped:
            self.add("mode: swapped around")
        if self.program.scenario.marked:
            self.add("python: marked")
        if self.program.scenario.threads:
            self.add("mode: two threads")
        if not self.program.scenario.grad:
            self.add("mode: grad off")
        if self.program.scenario.differentiate is not None:
            self.add("gradient: partial")
        if self.state.hazards:
            self.add("gradient: hazard")


def _tensors(state: AbstractState, names: Sequence[str] | Mapping[str, object]) -> list[AbstractTensor]:
    values: list[AbstractTensor | Constant] = [state.names[name] for name in names]
    return [value for value in values if isinstance(value, AbstractTensor)]


_KEPT = frozenset({"conjugated", "negated", "under no_grad"})  # a view of such a view has it too


def _view_kind_features(row: Operator, meta: Meta) -> Iterator[str]:
    """The special ways in which a view is made."""
    kind = view_kind(row)
    if kind is not None:
        yield kind
    if meta.conj:
        yield "conjugated"
    if meta.neg:
        yield "negated"


def _tree_features(tree: Tree) -> Iterator[str]:
    match tree:
        case Literal(None):
            yield "output: nothing"
        case Seq(_, items):
            yield from _inner(items)
        case Dict(entries):
            yield from _inner(tuple(item for _, item in entries))
        case _:
            pass


def _inner(items: Sequence[Tree]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Literal):
            yield "output: constant"
        elif not isinstance(item, Ref):
            yield "output: nested"
            yield from _tree_features(item)
