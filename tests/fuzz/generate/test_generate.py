"""Generated programs are valid, say what eager does, and reach every feature."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter

import pytest
import torch

from fuzz.abstract import eager_rules
from fuzz.abstract.interpret import defined_names
from fuzz.abstract.state import AbstractTensor
from fuzz.choices import SeededChoices
from fuzz.features.program_features import features
from fuzz.generate import MAX_ELEMENTS, MAX_RANK, MAX_RETURNS, generate
from fuzz.generate.profiles import PROFILES
from fuzz.ir.control_flow import executed_statements
from fuzz.operators import OPERATORS, Kind
from fuzz.operators.dtypes import DTYPES, ITEM_SIZE
from fuzz.program.decode import (
    Call,
    Dict,
    Duplicate,
    Literal,
    Program,
    Ref,
    Root,
    Scalar,
    Seq,
    Tree,
    View,
    Write,
    check,
    final_state,
    initial_state,
    interpret_statement,
    split_calls,
    to_json,
    tree_references,
)
from fuzz.program.printer import load
from oracles import Backward
from tests.support.fuzz.in_eager import execute, expected_to_raise, fails_for_its_version, shows_bytes


@functools.cache
def programs(profile: str, count: int) -> list[Program]:
    return [generate(SeededChoices(1, index), profile) for index in range(count)]


def backward_raises(outputs: list[torch.Tensor]) -> bool:
    try:
        needed = [output for output in outputs if output.requires_grad and output.grad_fn is not None]
        if needed:
            torch.autograd.backward(needed, [torch.ones_like(output) for output in needed])
    except RuntimeError:
        return True
    return False


def test_what_else_shows_the_memory_that_was_written_to_comes_next() -> None:
    """Only so does a program see what a write has done to other views, or has not."""

    def others_after_writes(aliases: float) -> float:
        profile = dataclasses.replace(PROFILES["aliasing"], aliases=aliases)
        writes = others = 0
        for index in range(200):
            program = generate(SeededChoices(0, index), profile)
            state = initial_state(program)
            written = None
            for i, statement in executed_statements(program):
                first = statement.operands[0] if statement.operands else None
                if written is not None and first in state.names and first != written[0]:
                    value = state.names[first]
                    others += isinstance(value, AbstractTensor) and value.memory == written[1]
                written = None
                if first is not None and statement.operator.endswith("_"):
                    written = first, state.tensor(first).memory
                    writes += 1
                interpret_statement(state, i, statement, program.blocks)
        return others / writes

    assert others_after_writes(1.0) > 1.5 * others_after_writes(0.0)


def test_windows_of_a_matrix() -> None:
    """The arguments are windows, and often one is written to."""
    profile = dataclasses.replace(PROFILES["aliasing"], windows=1.0)
    found = [features(generate(SeededChoices(0, index), profile)) for index in range(200)]
    assert sum("alias: windows" in one for one in found) > 80
    assert sum({"alias: windows", "data: member of a group"} <= one for one in found) > 40


def test_arguments_that_share_a_storage_lie_in_every_way() -> None:
    """Columns of a matrix and the lower end of one, pieces of two dtypes, complex slices, and aliases that
    lie as their root does."""
    profile = dataclasses.replace(PROFILES["aliasing"], windows=0.5, flat=0.5)
    found: Counter[str] = Counter()
    for index in range(300):
        program = generate(SeededChoices(0, index), profile)
        for view in (a for a in program.arguments if isinstance(a, View)):
            storage = program.storages[view.storage]
            others = [a for a in program.arguments if isinstance(a, View) and a.storage == view.storage]
            if len(view.size) == 1 and len(storage.size) == 2 and view.offset >= (step := view.stride[0]) > 1:
                found["column"] += any(
                    a.stride == view.stride and a.offset == view.offset % step for a in others
                )
            if view.dtype is not None and len(storage.size) == 1:
                wide, narrow = ITEM_SIZE[storage.dtype], ITEM_SIZE[view.dtype]
                stop = (view.offset + (view.size[0] if view.size else 1)) * narrow
                found["within an element"] += stop % wide > 0
            if storage.dtype == "complex64" and view.stride == (1,) and view.dtype is None:
                found["complex slice"] += len(others) > 1
            if view.size == storage.size and view.offset == 0 and view.via in ("data", "detach"):
                found["as the root"] += Root(view.storage) in program.arguments
    assert found.keys() == {"column", "within an element", "complex slice", "as the root"}
    assert min(found.values()) > 5


def test_what_went_into_several_results_is_used_once_more() -> None:
    """Only so do two results depend on two values each, of which a backward may come by one."""
    found = 0
    for index in range(3000):
        program = generate(SeededChoices(0, index), "mixed")
        for one in program.statements:
            made = {n for n in one.operands if n[0] == "v"}
            if one.operator.startswith("foreach_") and len(made) == 2:
                found += any(other is not one and made <= {*other.operands} for other in program.statements)
    assert found > 5


def test_reckless_programs_raise_for_the_numbers_that_they_have() -> None:
    profile = dataclasses.replace(PROFILES["uniform"], reckless=1.0)
    raising = [
        program
        for program in (generate(SeededChoices(0, index), profile) for index in range(100))
        if program.statements and OPERATORS[program.statements[-1].operator].raises
    ]
    assert len(raising) > 5
    assert all(expected_to_raise(program) for program in raising)


def test_later_calls_differ_in_one_thing() -> None:
    """As what forgets one thing about a call shows only there: in where an argument lies, how much of its
    storage it shows, or the type of a number."""
    found: Counter[str] = Counter()
    for index in range(1500):
        program = generate(SeededChoices(0, index), "calls")
        first = Call(program.storages, program.arguments, program.scenario)
        for one, other in itertools.combinations((first, *program.later), 2):
            if (one.storages, one.scenario) != (other.storages, other.scenario):
                continue
            differing = [
                (a, b) for a, b in zip(one.arguments, other.arguments, strict=True) if repr(a) != repr(b)
            ]
            if len(differing) != 1:
                continue
            match differing[0]:
                case View() as a, View() as b:
                    if a == dataclasses.replace(b, offset=a.offset):
                        found["offset"] += 1
                    elif a == dataclasses.replace(b, size=a.size):
                        found["size"] += 1
                    elif a == dataclasses.replace(b, storage=a.storage):
                        found["storage"] += 1
                    elif a == dataclasses.replace(b, via=a.via):
                        found["hidden"] += 1
                case Duplicate(), Duplicate():
                    found["object"] += 1
                case Scalar(a), Scalar(b) if a == b:
                    found["equal"] += 1
    assert min(found[name] for name in ("offset", "size", "storage", "hidden", "object", "equal")) > 3, found


def test_later_calls_may_be_refused() -> None:
    """Eager refuses some, of a function that it takes in another call, and few."""
    refused = total = 0
    for index in range(800):
        program = generate(SeededChoices(0, index), "calls")
        for call in split_calls(program)[1:] if not program.blocks else ():
            total += 1
            refused += isinstance(execute(call), Exception)
    assert 5 < refused < 0.1 * total


def test_operands_that_overlap_in_part() -> None:
    """Eager refuses to write to one of them, and that is known."""
    kinds = ((Kind.IN_PLACE, 1),)
    profile = dataclasses.replace(
        PROFILES["aliasing"], kinds=kinds, reckless=1.0, share=0.9, requires_grad=0.0, statements=(1, 1)
    )
    refused = 0
    for index in range(600):
        program = generate(SeededChoices(0, index), profile)
        state = initial_state(program)
        for i, statement in executed_statements(program):
            row = OPERATORS[statement.operator]
            use = state.use(row, statement.operands, dict(statement.attributes))
            if "in part" in (eager_rules.eager_error_now(use) or ""):
                assert isinstance(execute(program), RuntimeError), load(program).text
                refused += 1
            interpret_statement(state, i, statement, program.blocks)
    assert refused > 5


def test_what_is_expanded_is_filled() -> None:
    """Eager writes nothing else to it; and what eager refuses of that, at once or later, is known."""

    def filled(chance: float) -> list[Program]:
        kinds = ((Kind.VIEW, 4), (Kind.IN_PLACE, 1))
        profile = dataclasses.replace(PROFILES["aliasing"], kinds=kinds, filled=chance, reckless=0.0)
        found = (generate(SeededChoices(0, index), profile) for index in range(600))
        return [one for one in found if "data: filled through expand" in features(one)]

    often = filled(1.0)
    assert len(often) > 20 > 2 * len(filled(0.0))
    for program in often:
        outcome = execute(program)
        assert not isinstance(outcome, Exception), load(program).text
        assert not backward_raises([*outcome[0], *outcome[1]]), load(program).text


# Those that take functions are traced by torch in eager, too. By night there are more.
EVERYDAY = {profile: 75 if profile == "operators" else 250 for profile in PROFILES}
MORE = {profile: 150 if profile == "operators" else 500 for profile in PROFILES}


@pytest.mark.parametrize(
    ("profile", "count"),
    [*EVERYDAY.items(), *(pytest.param(*one, marks=pytest.mark.nightly) for one in MORE.items())],
)
def test_programs_run_in_eager(profile: str, count: int) -> None:
    raised = backward = 0
    for program in programs(profile, count):
        check(program)
        outcome = execute(program)
        if isinstance(outcome, torch.linalg.LinAlgError) and (shows_bytes(program) or has_kernels(program)):
            raised += 1  # of numbers so large that the identity which is added is rounded away, or of NaN
            continue
        if isinstance(outcome, Exception) and fails_for_its_version(outcome):
            raised += 1
            continue
        assert isinstance(outcome, Exception) == expected_to_raise(program), load(program).text
        if isinstance(outcome, Exception):
            raised += 1
        else:
            backward += backward_raises([*outcome[0], *outcome[1]])
    assert raised + backward <= (0.1 if profile == "lowerings" else 0.05) * count


def test_hazards_are_known() -> None:
    """What eager refuses in backward was expected, but for an oddity in a thousand."""
    unexpected = 0
    for program in programs("mixed", 250) + programs("autograd", 250):
        outcome = execute(program)
        if not isinstance(outcome, Exception) and final_state(program).hazards == 0:
            unexpected += backward_raises([*outcome[0], *outcome[1]])
    assert unexpected <= 2


def test_what_is_known_of_each_tensor_is_so() -> None:
    for program in programs("mixed", 200):
        state = final_state(program)
        bound = defined_names(program)
        names = [n for n, value in state.names.items() if n in bound and isinstance(value, AbstractTensor)]
        outcome = execute(dataclasses.replace(program, returns=Seq("tuple", tuple(map(Ref, names)))))
        if isinstance(outcome, Exception):
            continue
        objects: dict[int, AbstractTensor] = {}
        memories: dict[int, int] = {}
        for name, real in zip(names, outcome[0], strict=True):
            known = state.tensor(name)
            meta = known.meta
            inner = real
            while hasattr(inner, "__tensor_flatten__"):
                inner = inner.first
            assert known.wrapped >= (inner is not real), name
            text = f"{name} in {load(program).text}"
            assert (str(real.dtype), tuple(real.shape)) == (f"torch.{meta.dtype}", meta.size), text
            assert objects.setdefault(id(real), known) is known, text
            if real.numel():
                memory = memories.setdefault(inner.untyped_storage().data_ptr(), known.memory)
                assert memory == known.memory, text
            if meta.stride is not None and real.numel():
                strides = zip(meta.size, meta.stride, real.stride(), strict=True)
                assert all(n == 1 or a == b for n, a, b in strides), text
                assert real.storage_offset() == meta.offset, text
            if not known.stale:
                assert real.requires_grad == known.requires_grad, text
        assert len(objects) == len({id(state.names[name]) for name in names})


def has_kernels(program: Program) -> bool:
    """Whether a program, or what its sizes were drawn for, is of the wide table."""
    large = any(torch.Size(storage.size).numel() > MAX_ELEMENTS for storage in program.storages)
    return large or any(OPERATORS[one.operator].kind is Kind.KERNEL for one in program.statements)


def test_programs_are_small() -> None:
    for program in programs("mixed", 300):
        state = final_state(program)
        for value in state.names.values():
            if isinstance(value, AbstractTensor):
                elements = torch.Size(value.meta.size).numel()
                most = PROFILES["lowerings"].elements if has_kernels(program) else MAX_ELEMENTS
                assert elements <= most and len(value.meta.size) <= MAX_RANK
        assert len(list(tree_references(program.returns))) <= MAX_RETURNS
        assert len(program.statements) <= 22  # twelve, and the longest motif
        assert len(program.arguments) <= 24


def test_equal_seeds_give_equal_programs() -> None:
    for profile in PROFILES:
        for index in range(20):
            assert generate(SeededChoices(3, index), profile) == generate(SeededChoices(3, index), profile)
    assert generate(SeededChoices(3, 1)) != generate(SeededChoices(3, 2))
    assert generate(SeededChoices(3, 1)) != generate(SeededChoices(4, 1))


def test_the_choices_of_a_seed_are_the_same_on_every_python() -> None:
    choices = SeededChoices(5, 6)
    drawn = [choices.integer(0, 999) for _ in range(4)] + [choices.pick("abcdef"), choices.chance(0.5)]
    digest = hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:12]
    assert (drawn, digest) == EXPECTED_CHOICES


EXPECTED_CHOICES = ([803, 551, 166, 370, "b", False], "7ac9992181cd")


def test_the_programs_of_a_seed_are_the_same_on_every_python_torch_and_machine() -> None:
    """Who changes what is generated writes the new digest here, having compared it on another Python."""
    digest = hashlib.sha256()
    for profile in PROFILES:
        for index in range(50):
            digest.update(
                json.dumps(to_json(generate(SeededChoices(7, index), profile)), sort_keys=True).encode()
            )
    assert digest.hexdigest()[:16] == EXPECTED_PROGRAMS


EXPECTED_PROGRAMS = "93d2c165ad84e8d0"


def test_every_operator_is_reached() -> None:
    # (Those of the wide table: tests/fuzz/generate/test_chains.py.)
    apart = (Kind.KERNEL, Kind.REFUSED)
    missing, index = {name for name, row in OPERATORS.items() if row.kind not in apart}, 0
    while missing and index < 10000:
        for profile in ("uniform", "operators", "python"):
            missing -= {
                statement.operator for statement in generate(SeededChoices(1, index), profile).statements
            }
        index += 1
    assert missing == set()


def test_single_programs_have_one_statement() -> None:
    """One, and at times some before it that make what it needs: an index, a mask, statistics."""
    lengths = Counter(len(program.statements) for program in programs("single", 300))
    assert set(lengths) <= {0, 1, 2, 3, 4, 5}
    assert lengths[1] > 220
    assert lengths[0] < 10


def test_unused_results_are_returned() -> None:
    """A difference in a value that nobody looks at would not be seen."""
    for program in programs("mixed", 300):
        used = {name for statement in program.statements for name in statement.operands}
        unused = [n for s in program.statements for n in s.results if n not in used]
        returned = set(tree_references(program.returns))
        if len(returned) < MAX_RETURNS and not expected_to_raise(program):
            state = final_state(program)
            kept = (state.is_stale, state.is_unwatched, state.is_hooked)
            bound = defined_names(program)
            allowed = [n for n in unused if n in bound and not any(is_kept(n) for is_kept in kept)]
            assert set(allowed) <= returned, load(program).text


def test_memory_that_is_kept_under_another_counter_is_not_returned() -> None:
    """Writing to it later on would leave gradients undefined, and no oracle could tell."""
    kept = 0
    for program in programs("autograd", 1500):
        state = final_state(program)
        kept += any(state.is_unwatched(n) for n in state.names)
        assert not any(state.is_unwatched(name) for name in tree_references(program.returns))
    assert kept > 5


def shapes_and_trees(program: Program) -> set[str]:
    """What `fuzz.features.program_features` does not name: ranks, dtypes and containers."""
    found = set()
    state = initial_state(program)
    for i in range(len(program.arguments)):
        value = state.names[f"a{i}"]
        if isinstance(value, AbstractTensor):
            found |= {f"rank {len(value.meta.size)}", f"dtype {value.meta.dtype}"}
    return found | containers(program.returns)


def containers(tree: Tree) -> set[str]:
    match tree:
        case Literal(value):
            return {f"returns {type(value).__name__}"}
        case Ref():
            return {"returns a bare tensor"}
        case Seq(kind, items):
            return {f"returns a {kind}"}.union(*map(containers, items))
        case Dict(entries):
            return {"returns a dict"}.union(*(containers(item) for _, item in entries))


EXPECTED = {
    *(f"rank {rank}" for rank in range(5)),
    *(f"dtype {dtype}" for dtype in DTYPES),
    *("returns a bare tensor", "returns a tuple", "returns a list", "returns a dict", "returns NoneType"),
}


def test_every_rank_dtype_and_container_is_reached() -> None:
    reached = Counter(name for program in programs("mixed", 2000) for name in shapes_and_trees(program))
    assert {name for name in EXPECTED if reached[name] < 2} == set()


def test_unknown_profile() -> None:
    with pytest.raises(KeyError):
        generate(SeededChoices(0, 0), "no such profile")


def test_generating_runs_nothing() -> None:
    before = torch.get_rng_state()
    for index in range(50):
        to_json(generate(SeededChoices(9, index)))
    assert torch.equal(before, torch.get_rng_state())


def test_what_follows_a_branch_fits_whichever_arm_was_taken() -> None:
    """In one program of more than 50,000 it did not, and that was the first such."""
    check(generate(SeededChoices(12, 9479), "mixed"))


@pytest.mark.parametrize(("profile", "index"), [("mixed", 1014), ("metadata", 1773)])
def test_what_is_made_for_a_statement_takes_no_name_from_its_operands(profile: str, index: int) -> None:
    """In a loop a copy may be bound to a name that is known already, but not to that of an operand which is
    chosen: these programs were not followed as they were written."""
    check(generate(SeededChoices(6, index), profile))


def test_a_write_that_a_backward_notices_comes_often() -> None:
    """And then nothing else is done but to differentiate each result alone."""
    noticed = 0
    for index in range(300):
        program = generate(SeededChoices(4, index), "scenarios")
        first, *others = program.scenario.steps or (None,)
        if isinstance(first, Write) and others:
            noticed += all(isinstance(step, Backward) and step.retain for step in others)
    assert noticed > 30


def test_eager_keeps_the_gradient_of_what_is_to_keep_it() -> None:
    profile = dataclasses.replace(PROFILES["autograd"], mode=0.7, again=0.0)
    kept = 0
    for index in range(300):
        program = generate(SeededChoices(5, index), profile)
        names = {s.operands[0] for s in program.statements if s.operator == "retain_grad"}
        if names and not expected_to_raise(program):
            outcome = execute(program)
            assert not isinstance(outcome, Exception), load(program).text
            kept += any(tensor.retains_grad for tensor in [*outcome[0], *outcome[1]])
    assert kept > 5
