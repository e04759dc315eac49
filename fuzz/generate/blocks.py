"""The generator's blocks: regions, branches and loops around statements, within one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuzz.abstract.state import AbstractTensor
from fuzz.generate.arguments import SCALARS
from fuzz.generate.later_calls import defined_final_state
from fuzz.generate.limits import BLOCKS
from fuzz.generate.motifs import motif
from fuzz.generate.program_builder import ProgramBuilder
from fuzz.ir.control_flow import MAX_BLOCKS, MAX_DEPTH, assume_arm, branches, enclosing_blocks, untaken_arms
from fuzz.ir.nodes import Autocast, Block, Branch, Loop, Region
from fuzz.operators import OPERATORS, Kind
from fuzz.operators.row import Constant, Size

MAX_TURNS = 3  # of a loop
FAILS = 0.2  # the chance that a reckless program raises in the end, for the numbers that it has
NESTED = 0.2  # the chance that a block stands where a statement of a block could
_KINDS = (
    *("no_grad", "enable_grad") * 3,
    *("inference_mode", "checkpoint") * 2,
    *("autocast", "for") * 2,
    *("hook", "hook", "retain", "retain", "set"),
)

Bound = Mapping[str, tuple[str, Size]]  # dtypes and sizes of what the statements of a block have bound


def build(builder: ProgramBuilder) -> None:
    """Append statements and blocks while there is room."""
    while builder.budget > 0 and not builder.over:
        if builder.choices.chance(builder.profile.mode) and len(builder.blocks) < MAX_BLOCKS - MAX_DEPTH:
            draw_block(builder)
            continue
        before = len(builder.statements)
        if builder.choices.chance(builder.profile.motif) and motif(builder):
            builder.budget -= len(builder.statements) - before
        else:
            builder.step()
    if builder.reckless and not builder.over and builder.choices.chance(FAILS):
        builder.append(OPERATORS["inverse_of_zeros"], (), [])


def draw_block(builder: ProgramBuilder) -> None:
    """Append a block, with up to three statements or blocks in it, a hook, or another grad mode.

    Or nothing, if no statement is found.
    """
    choices, questions = builder.choices, _open_questions(builder)
    kind = choices.pick(_KINDS)
    if questions and choices.chance(0.4):
        kind = "if"
    if builder.profile.swapped and choices.chance(builder.profile.swapped):
        kind = "swapped"
    limits = builder.profile.limits
    if limits is not None and BLOCKS[kind] in limits.traits:
        return
    if kind == "checkpoint" and _is_swapped(builder):
        return  # its backward would repeat it without the mode
    kinds = dict(builder.profile.kinds)
    if kind in ("hook", "retain", "set") and kinds and Kind.FUNCTION not in kinds:
        return  # a profile without what deals with autograd itself
    match kind:
        case "if":
            _draw_branch(builder, *choices.pick(questions))
        case "for":
            _draw_loop(builder)
        case "autocast":
            dtype = choices.pick(("bfloat16", "bfloat16", "float16"))
            _fill_block(builder, Autocast(dtype, not choices.chance(0.25), builder.block))
        case "hook":
            _hook(builder, "register_hook", [entry for entry in builder.pool if entry[0][0] == "v"])
        case "retain":
            _hook(builder, "retain_grad", builder.pool)
        case "set":
            builder.append(OPERATORS["set_grad_enabled"], (), [])
        case mode:
            _fill_block(builder, Region(mode, builder.block))


def _is_swapped(builder: ProgramBuilder) -> bool:
    """Whether a statement here is under a function mode of the program's."""
    outer = enclosing_blocks(builder.blocks, builder.block)
    inside = any(isinstance(b := builder.blocks[n], Region) and b.mode == "swapped" for n in outer)
    return inside or builder.profile.swapped > 0


def _hook(builder: ProgramBuilder, operator: str, tensors: Sequence[tuple[str, AbstractTensor]]) -> None:
    """Something that is called, or done, when a tensor gets its gradient, if one of these has one."""
    taken = OPERATORS[operator].operands[0].dtypes
    names = [(n, tensor) for n, tensor in tensors if tensor.requires_grad and tensor.meta.dtype in taken]
    if names:
        name, tensor = builder.choices.pick(names)
        builder.append(OPERATORS[operator], (name,), [tensor.meta])


def _fill_block(builder: ProgramBuilder, block: Block, wanted: Bound | None = None) -> int | None:
    """Append a block and what is in it, and copies that bind the rest of what is `wanted`.

    Gives the block's number, or None where nothing is in it.
    """
    choices, outer = builder.choices, builder.block
    number = len(builder.blocks)
    builder.blocks.append(block)
    before = len(builder.statements)
    flat = block == Region("checkpoint", outer) or len(enclosing_blocks(builder.blocks, number)) >= MAX_DEPTH
    for _ in range(choices.integer(1, 3)):
        builder.enter(number)
        if builder.over or builder.budget <= 0:
            break
        if not flat and choices.chance(NESTED):
            draw_block(builder)
        else:
            builder.step()
    builder.enter(number)
    if wanted and len(builder.statements) > before:
        _bind_names_of_other_arm(builder, wanted)
    builder.enter(outer)
    if len(builder.statements) == before:
        del builder.blocks[number:]
        return None
    return number


def _bind_names_of_other_arm(builder: ProgramBuilder, wanted: Bound) -> None:
    """Bind the names that another arm has bound to copies of such tensors, while there are any."""
    bound, builder.bound = builder.bound, []
    while not builder.over and (kind := wanted.get(f"v{builder.count}")) is not None:
        alike = [(name, tensor) for name, tensor in builder.pool if tensor.meta[:2] == kind]
        if not alike:
            break
        name, tensor = builder.choices.pick(alike)
        if builder.append(OPERATORS["clone"], (name,), [tensor.meta]) is None:
            break
    builder.bound = bound


def _bindable(builder: ProgramBuilder) -> list[str]:
    """Names that a block may bind anew."""
    return [name for name, _ in builder.pool if name[0] == "v"]


def _draw_loop(builder: ProgramBuilder) -> None:
    """A loop of several turns; of one where another is not right, or eager refuses it."""
    bound, builder.bound = builder.bound, _bindable(builder)
    number = _fill_block(builder, Loop(1, builder.block))
    builder.bound = bound
    if number is None or builder.reckless:
        return
    turns = builder.choices.integer(2, MAX_TURNS)
    if not _set_loop_turns(builder, number, turns):
        once = _set_loop_turns(builder, number, 1)
        assert once
    builder.enter(builder.block)


def _set_loop_turns(builder: ProgramBuilder, number: int, count: int) -> bool:
    """Have a loop turn so many times, if eager runs that, whichever arms of the branches in it are taken."""
    builder.blocks[number] = Loop(count, builder.block)
    program = builder.program()
    others = (other for arm, other in untaken_arms(program) if arm > number)
    state = defined_final_state(program, {})
    if state is None or (count > 1 and any(defined_final_state(other, {}) is None for other in others)):
        return False
    builder.take_state(state)
    return True


def _open_questions(builder: ProgramBuilder) -> list[tuple[str, Constant]]:
    """The Python values that no block here has asked for."""
    asked = {arm.argument for arm in branches(builder.blocks, builder.block)}
    return [(name, value) for name, value in builder.values if name not in asked]


def _draw_branch(builder: ProgramBuilder, argument: str, value: Constant) -> None:
    """One or both arms of an `if`. Below it, names are known that either binds alike."""
    choices = builder.choices
    asked = value if choices.chance(0.6) else choices.pick(SCALARS)
    bindable = _bindable(builder)
    first = builder.count
    last = first
    arms: list[Bound] = []
    for holds in (True, False) if choices.chance(0.8) else (True,):
        builder.count = first
        branch = Branch(argument, asked, holds, builder.block)
        wanted = arms[0] if arms else {}
        if (value == asked) == holds:
            arms.append(_draw_arm(builder, branch, bindable, wanted))
        else:
            arms.append(_draw_untaken_arm(builder, branch, bindable, wanted))
        last = max(last, builder.count)
    builder.count = last
    names = {name for arm in arms for name in arm} - set(bindable)
    builder.hidden |= {name for name in names if len(arms) < 2 or arms[0].get(name) != arms[1].get(name)}
    builder.take_state(builder.state)


def _draw_arm(builder: ProgramBuilder, branch: Branch, bindable: list[str], wanted: Bound) -> Bound:
    before = len(builder.statements)
    bound, builder.bound = builder.bound, bindable
    _fill_block(builder, branch, wanted)
    builder.bound = bound
    made = {name for statement in builder.statements[before:] for name in statement.results}
    tensors = {name: builder.state.names.get(name) for name in made - builder.hidden}
    return {name: value.meta[:2] for name, value in tensors.items() if isinstance(value, AbstractTensor)}


def _draw_untaken_arm(builder: ProgramBuilder, branch: Branch, bindable: list[str], wanted: Bound) -> Bound:
    """An arm that the first call does not take: built on what would be known if it did."""
    so_far = builder.program()
    program = assume_arm(replace(so_far, blocks=(*so_far.blocks, branch)), len(so_far.blocks))
    state = defined_final_state(program, {})
    if state is None:
        return {}
    inputs, known, over = builder.inputs, builder.state, builder.over
    builder.inputs = replace(inputs, arguments=program.arguments)
    builder.take_state(state)
    bound = _draw_arm(builder, branch, bindable, wanted)
    builder.inputs, builder.over = inputs, over
    builder.take_state(known)
    builder.enter(builder.block)
    return bound
