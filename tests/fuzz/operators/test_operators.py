"""Every row of the operator table says what eager does."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz.abstract.state import AbstractTensor
from fuzz.generate.arguments import DTYPES as GENERATED_DTYPES
from fuzz.operators import AUTOCAST, INVERSES, OPERATORS, Aliasing, Kind, Mismatch, Operator
from fuzz.operators.dtypes import DTYPES, HALF, promote_dtypes
from fuzz.operators.layout import (
    contiguous_strides,
    elementwise_stride,
    overlaps_itself,
    positions,
    view_stride,
)
from fuzz.operators.row import VIEWS_INSIDE, Meta
from fuzz.program.decode import Autocast, Program, ProgramError, Root, View, final_state, initial_state
from fuzz.program.printer import Loaded, load
from fuzz.torch_versions import includes
from oracles.observation.ambient import restoring_ambient
from oracles.observation.mode_stacks import recording_leaked_modes
from tests.support.fuzz.in_eager import raise_warnings
from tests.support.fuzz.rows import COMMON, singles

# (The wide table has tests of its own, test_kernel_rows.py.)
ROWS = {name: row for name, row in OPERATORS.items() if row.kind not in (Kind.KERNEL, Kind.REFUSED)}
RUNNING = [name for name, row in ROWS.items() if not row.raises]
DIFFERENTIABLE = [name for name, row in ROWS.items() if row.differentiable]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A row may enter a mode and not leave it, or ask for deterministic algorithms."""
    with restoring_ambient(), recording_leaked_modes():
        yield


def run(program: Program) -> tuple[Loaded, list[Any], list[Any]]:
    loaded = load(program)
    args, _, _ = loaded.make()
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.enable_grad():  # which a row may leave changed
        raise_warnings()
        return loaded, list(args), list(loaded.f(*args))


def agree(known: AbstractTensor, real: torch.Tensor, text: str) -> None:
    """What is known of a tensor beforehand is what eager made."""
    meta = known.meta
    assert str(real.dtype) == f"torch.{meta.dtype}", text
    assert tuple(real.shape) == meta.size, text
    if meta.stride is not None and real.numel():
        assert real.storage_offset() == meta.offset, text
        for length, expected, stride in zip(meta.size, meta.stride, real.stride(), strict=True):
            assert length == 1 or expected == stride, text
    assert real.requires_grad == known.requires_grad, text
    if real.requires_grad:
        assert real.is_leaf != known.grad_fn, text


def test_rows_that_raise() -> None:
    """In eager, when it comes to the numbers: shapes alone are fine."""
    [row] = [row for row in ROWS.values() if row.raises]
    source = row.source.format(count=2, device="")
    with pytest.raises(torch.linalg.LinAlgError):
        eval(source)
    with torch.device("meta"):
        assert eval(source).shape == (2, 2)


ANY_SIZE = [(), (0,), (1,), (3,), (2, 3), (0, 3), (3, 3), (2, 1, 3), (2, 2, 3, 2), (2, 2, 2, 1, 2)]


@pytest.mark.parametrize("name", RUNNING)
def test_a_rule_answers_operands_of_any_size(name: str) -> None:
    """A later call has others than were drawn for the statement: what does not fit is a Mismatch."""
    row = OPERATORS[name]
    tensors = [i for i, operand in enumerate(row.operands) if not operand.number]
    answers = 0
    for program in singles(row, 4, dtypes=DTYPES):
        statement = program.statements[0]
        use = initial_state(program).use(row, statement.operands, dict(statement.attributes))
        for size, chosen in itertools.product(ANY_SIZE, [*([i] for i in tensors), tensors]):
            metas = [
                meta._replace(size=size, stride=contiguous_strides(size)) if i in chosen else meta
                for i, meta in enumerate(use.metas)
            ]
            with contextlib.suppress(Mismatch):
                assert isinstance(row.rule(metas, use.attributes), tuple)
            answers += 1
    assert answers


@pytest.mark.parametrize("name", RUNNING)
def test_rule_agrees_with_eager(name: str) -> None:
    row = OPERATORS[name]
    tried = 0
    changing = {*row.writes, *((0,) if row.metadata else ())}
    changed: set[int] = set()
    for program in singles(row, 60, dtypes=DTYPES - without_kernels(name)):
        if tried >= 9 and changed == changing:
            break
        tried += 1
        loaded, args, results = run(program)
        state = final_state(program)
        fresh = loaded.make()[0]
        for i, (arg, before) in enumerate(zip(args, fresh, strict=True)):
            if not isinstance(arg, torch.Tensor):
                continue
            agree(state.tensor(f"a{i}"), arg, loaded.text)
            same = arg.shape == before.shape and arg.stride() == before.stride() and torch.equal(arg, before)
            same = same and arg.requires_grad == before.requires_grad
            if not same:
                assert i in changing, loaded.text
                changed.add(i)
            if row.writes and not row.metadata:
                counted = arg._version > before._version
                assert counted == (row.bumps_version and i in row.writes), loaded.text
        for known, real in zip(program.statements[0].results, results, strict=True):
            agree(state.tensor(known), real, loaded.text)
        if results:
            check_links(program, row, args, results, loaded.text)
    assert tried >= 5
    assert changed == changing


def without_kernels(name: str) -> frozenset[str]:
    """The dtypes that eager has no kernel for: bfloat16 and a complex number are bcomplex32 in torch 2.14."""
    lacking = name in ("add_complex_number", "mul_complex_number") and includes(">=2.14", torch.__version__)
    return frozenset({"bfloat16"} if lacking else ())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", RUNNING)
def test_what_autocast_makes_of_a_row_is_known(name: str, dtype: str) -> None:
    row = OPERATORS[name]
    tried = 0
    converted = False
    kinds = (
        COMMON | {"complex64"},
        frozenset({"bfloat16", "float16", "int64", "bool"}) - without_kernels(name),
    )
    for program in itertools.chain.from_iterable(singles(row, 8, dtypes=dtypes) for dtypes in kinds):
        (statement,) = program.statements
        statement = dataclasses.replace(statement, block=0)
        inside = dataclasses.replace(program, statements=(statement,), blocks=(Autocast(dtype),))
        try:
            state = final_state(inside)
        except ProgramError:
            assert name in AUTOCAST
            continue
        tried += 1
        loaded, _, results = run(inside)
        for known, real in zip(statement.results, results, strict=True):
            agree(state.tensor(known), real, loaded.text)
            converted |= state.tensor(known).meta.dtype != final_state(program).tensor(known).meta.dtype
    policy = AUTOCAST.get(name)
    refusing = policy == "mixed" or (policy == "lower" and not row.operands[0].dtypes >= HALF)
    assert tried >= 3 or refusing
    assert converted == (name in AUTOCAST and not refusing)


@pytest.mark.parametrize("name", INVERSES)
def test_an_inverse_takes_back_what_its_row_did(name: str) -> None:
    for program in itertools.islice(singles(OPERATORS[name], 12), 12):
        (done,) = program.statements
        undone = dataclasses.replace(done, operator=INVERSES[name], results=("u",) if done.results else ())
        args = run(dataclasses.replace(program, statements=(done, undone)))[1]
        before = load(program).make()[0]
        torch.testing.assert_close(args[0], before[0], check_stride=True)


def check_links(program: Program, row: Operator, args: list[Any], results: list[Any], text: str) -> None:
    statement = program.statements[0]
    metas = initial_state(program).use(row, statement.operands, {}).metas
    outcome = row.rule(metas, dict(statement.attributes))
    for (_, link), real in zip(outcome, results, strict=True):
        assert any(real is arg for arg in args) == (link is Aliasing.SELF), text
        if link is Aliasing.FRESH and row.kind not in VIEWS_INSIDE:
            assert real._base is None, text  # these may be views of what they have made themselves
        if link is Aliasing.VIEW:
            assert real._base is not None, text
        if real.numel() and args and link is not Aliasing.MAYBE:
            one, other = plain(real), plain(args[0])
            shares = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
            assert shares == (link is not Aliasing.FRESH), text
        if link in (Aliasing.DETACHED, Aliasing.DATA, Aliasing.TIED, Aliasing.WRAPPED, Aliasing.PART):
            version = real._version
            with torch.no_grad():
                args[0].zero_()
            assert (real._version > version) == (link in (Aliasing.DETACHED, Aliasing.TIED)), text


def plain(tensor: Any) -> torch.Tensor:
    """The first plain tensor that a wrapper subclass is made of, or itself."""
    while hasattr(tensor, "__tensor_flatten__"):
        tensor = tensor.first
    assert isinstance(tensor, torch.Tensor)
    return tensor


@pytest.mark.parametrize("name", ROWS)
def test_random_rows_and_no_others_draw(name: str) -> None:
    row = OPERATORS[name]
    drew = False
    for program in singles(row, 4):
        loaded = load(program)
        args = loaded.make()[0]
        before = torch.get_rng_state()
        with torch.enable_grad():
            loaded.f(*args)
        drew = drew or not torch.equal(before, torch.get_rng_state())
    assert drew == row.random


def touch(tensor: torch.Tensor) -> None:
    """Move the version counter of a tensor and its views; the data stays."""
    whole = tensor if tensor._base is None else tensor._base
    with torch.no_grad():
        if whole.dtype == torch.bool:
            whole.logical_or_(whole.clone())
        else:
            whole.add_(0)


def backward_raises(program: Program, which: int | str | None) -> bool | None:
    """Whether backward raises after a touch; None where that cannot be asked."""
    row = OPERATORS[program.statements[0].operator]
    _, args, results = run(program)
    changes = 0 in row.writes or row.metadata
    outputs = [args[0], *results] if changes else results
    if which is not None:
        index = {"result": 0, "second": 1}.get(which) if isinstance(which, str) else None
        made = [args[0]] if changes else results
        tensor = args[which] if isinstance(which, int) else made[index or 0]
        if tensor.numel() == 0:
            return None
        touch(tensor)
    if (row.kind is Kind.MULTI_VIEW or row.defines) and which is not None:
        return None  # such views cannot be used any more after a touch
    needed = [output for output in outputs if output.requires_grad]
    if not needed:
        return None
    total = torch.stack([output.to(torch.complex128).sum().abs() for output in needed]).sum()
    try:
        total.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return True
    return False


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_saves_are_what_backward_keeps(name: str) -> None:
    if name == "attention" and includes(">=2.15", torch.__version__):
        pytest.skip("from torch 2.15 on it keeps other operands than the row says (issue 47)")
    row = OPERATORS[name]
    tensors = [i for i, operand in enumerate(row.operands) if not operand.number]
    common = frozenset({"float32", "complex64", "int64", "bool"})
    for grads in itertools.product((False, True), repeat=len(row.operands)):
        if not any(grads):
            continue
        for program in singles(row, 2, dtypes=common, grad=grads):
            needs = [
                isinstance(a, (Root, View)) and program.storages[a.storage].requires_grad
                for a in program.arguments
            ]
            if final_state(program).hazards or backward_raises(program, None) is not False:
                continue
            targets: list[int | str] = [*(tensors[1:] if 0 in row.writes else tensors), "result"]
            if len(program.statements[0].results) > 1:
                targets.append("second")
            for which in targets:
                kept = any(what == which and any(needs[i] for i in when) for what, when in row.saves)
                raised = backward_raises(program, which)
                assert raised is None or raised == kept, (which, needs, load(program).text)


def test_a_row_must_be_complete() -> None:
    row = OPERATORS["sin"]
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    Operator(**fields)
    for name in ("name", "kind", "operands", "rule", "source"):
        with pytest.raises(TypeError, match=name):
            Operator(**{key: value for key, value in fields.items() if key != name})


def test_what_a_row_does_not_say_is_as_for_new_tensors() -> None:
    row = Operator(name="f", kind=Kind.KERNEL, operands=(), rule=OPERATORS["sin"].rule, source="f()")
    assert not (row.writes or row.fills or row.change or row.saves or row.random or row.has_side_effect)
    assert row.differentiable and row.bumps_version


def test_every_family_has_rows() -> None:
    assert len(OPERATORS) >= 250
    assert {row.kind for row in OPERATORS.values()} == set(Kind)


def test_rows_that_change_operand_0_are_written_as_statements() -> None:
    for name, row in OPERATORS.items():
        assert row.given or not (row.writes and row.metadata)
        assert row.writes in ((), (0,), row.statistics), name
        named = row.given or name.endswith("_") or name.startswith("setitem")
        assert (0 in row.writes or row.metadata) == named, name


@pytest.mark.parametrize("first", sorted(DTYPES))
def test_promotion_is_torchs(first: str) -> None:
    for second, left, right in itertools.product(sorted(DTYPES), ((), (2,)), ((), (2,))):
        a = torch.zeros(left, dtype=getattr(torch, first))
        b = torch.zeros(right, dtype=getattr(torch, second))
        expected = str(torch.result_type(a, b)).removeprefix("torch.")
        if expected == "bcomplex32":  # from torch 2.14 on, and no kernel computes it
            continue
        assert promote_dtypes([Meta(first, left, None), Meta(second, right, None)]) == expected
    for number, dtype in ((1, "int64"), (1.0, "float32")):
        a = torch.zeros(2, dtype=getattr(torch, first))
        expected = str(torch.result_type(a, number)).removeprefix("torch.")
        assert promote_dtypes([Meta(first, (2,), None), Meta(dtype, (), None, 0, True)]) == expected


GEOMETRIES = [
    ((2, 3), (3, 1)),
    ((2, 3), (1, 2)),
    ((3, 2), (4, 2)),
    ((2, 1, 3), (3, 9, 1)),
    ((2, 2, 2), (1, 4, 2)),
    ((1, 4), (1, 1)),
    ((3, 1), (0, 5)),
    ((0, 3), (3, 1)),
    ((2, 3), (0, 1)),
]


@pytest.mark.parametrize(("size", "stride"), GEOMETRIES)
def test_layouts_are_torchs(size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    tensor = torch.zeros(32).as_strided(size, stride)
    meta = Meta("float32", size, stride, 0)
    targets = [
        (6,),
        (3, 2),
        (2, 3),
        (1, 6),
        (4,),
        (2, 2),
        (2, 4),
        (8,),
        (3,),
        (0,),
        (2, 0),
        (3, 1),
        (1, 3, 2),
    ]
    for target in (t for t in targets if torch.Size(t).numel() == tensor.numel()):
        try:
            expected = tensor.view(target).stride()
        except RuntimeError:
            expected = None
        assert view_stride(size, stride, target) == expected, target
    for other_stride in (contiguous_strides(size), stride):
        other = torch.zeros(32).as_strided(size, other_stride)
        found = elementwise_stride(size, [meta, Meta("float32", size, other_stride, 0)])
        real = torch.atan2(tensor, other).stride()
        assert found is not None
        assert all(n <= 1 or a == b for n, a, b in zip(size, found, real, strict=True)) or 0 in size
    marked = torch.zeros(32)
    if 0 not in stride:
        marked.as_strided(size, stride).fill_(1)
        assert set(marked.nonzero().flatten().tolist()) == positions(size, stride, 0)
    assert overlaps_itself(meta) == (0 in stride and size[stride.index(0)] > 1)


# ---------------------------------------------------------------------------------------------------------
# docs/reference/not-generated.md


def listed(heading: str) -> list[str]:
    text = (Path(__file__).parents[3] / "docs/reference/not-generated.md").read_text()
    section = text.split("## Never generated", 1)[1].split("\n## ", 1)[0]
    part = section.split(f"### {heading}", 1)[1].split("\n### ", 1)[0]
    assert not re.search(r":\n\n(?!- )", part), "a list of nothing"
    return re.findall(r"^- `([\w.]+)`$", part, re.MULTILINE)


def test_what_is_listed_as_never_generated_exists_and_is_not_in_the_table() -> None:
    used = set()
    for row in OPERATORS.values():
        used.update(re.findall(r"torch(?:\.\w+)+(?=\()", row.source))
        used.update(f"torch.Tensor.{name}" for name in re.findall(r"\}\.(\w+)", row.source))
    names = listed("Operators")
    assert len(names) > 10
    for name in names:
        found: Any = torch
        for part in name.split(".")[1:]:
            found = getattr(found, part)  # raises for a name that is no operator's
        method = f"torch.Tensor.{name.rsplit('.', 1)[1]}"
        assert name not in used and method not in used, name


def test_dtypes_listed_as_never_generated_are_not() -> None:
    names = listed("Dtypes")
    assert set(names) >= DTYPES - set(GENERATED_DTYPES)
    for name in names:
        assert isinstance(getattr(torch, name), torch.dtype)
        assert name not in GENERATED_DTYPES
