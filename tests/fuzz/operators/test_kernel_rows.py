"""The wide table: each row says what eager does on every dtype that it takes, and each refusal is one."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from fuzz.abstract import eager_rules
from fuzz.choices import SeededChoices
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.ir.nodes import Program, Ref, Seq
from fuzz.operators import OPERATORS, Kind, Mismatch, Operator
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Meta
from fuzz.program.decode import final_state
from fuzz.program.printer import load
from tests.support.fuzz.rows import singles

KERNELS = [row for row in OPERATORS.values() if row.kind is Kind.KERNEL]
REFUSED = [row for row in OPERATORS.values() if row.kind is Kind.REFUSED]
PARTS = 8  # tests that share the rows
SIZES = ((), (0,), (3,), (2, 3), (0, 3), (3, 3), (2, 1, 3), (2, 2, 3, 2))


def drawn(row: Operator) -> Iterator[Program]:
    """A program for each dtype that the first operand takes; others have that or are integers or bools."""
    found = 0
    for dtype in sorted(row.operands[0].dtypes):
        more = {"int64", "bool"} if len(row.operands) > 1 else set()
        for program in singles(row, 1, dtypes=frozenset({dtype} | more)):
            found += 1
            yield program
    if not found:
        yield chained(row)


def chained(row: Operator) -> Program:
    """A program of a row that takes tensors of sizes which hardly come together."""
    profile = replace(PROFILES["lowerings"], operators=frozenset({row.name}), resized=0.0, pattern=0.0)
    programs = (generate(SeededChoices(1, index), profile) for index in range(200))
    program = next(program for program in programs if program.statements)
    statement = program.statements[0]
    returns = Seq("tuple", tuple(map(Ref, statement.results)))
    return replace(program, statements=(statement,), returns=returns)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_rule_says_what_eager_does(part: int) -> None:
    for row in KERNELS[part::PARTS]:
        drew = False
        for program in drawn(row):
            loaded = load(program)
            args = loaded.make()[0]
            torch.manual_seed(0)
            before = torch.get_rng_state()
            with warnings.catch_warnings(), torch.set_grad_enabled(program.scenario.grad):
                warnings.simplefilter("ignore")
                results = loaded.f(*args)
            drew |= not torch.equal(torch.get_rng_state(), before)
            known = final_state(program)
            for name, real in zip(program.statements[0].results, results, strict=True):
                meta = known.tensor(name).meta
                assert (str(real.dtype), tuple(real.shape)) == (f"torch.{meta.dtype}", meta.size), loaded.text
                if meta.stride is not None and real.numel():
                    steps = zip(meta.size, meta.stride, real.stride(), strict=True)
                    assert all(n == 1 or one == other for n, one, other in steps), loaded.text
                assert real.requires_grad == known.tensor(name).requires_grad, loaded.text
        assert drew == row.random, row.name


def test_a_rule_answers_operands_of_any_size() -> None:
    answers = 0
    for row in KERNELS:
        for program in itertools.islice(singles(row, 1), 1):
            attributes = dict(program.statements[0].attributes)
            for size in SIZES:
                stride = contiguous_strides(size)
                metas = [Meta(min(operand.dtypes), size, stride) for operand in row.operands]
                try:
                    assert isinstance(row.rule(metas, attributes), tuple)
                except Mismatch:
                    continue
                answers += 1
    assert answers > 400


def test_eager_refuses_what_a_row_says_that_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_rules, "eager_error_now", lambda use: None)
    assert len(REFUSED) > 30
    for row in REFUSED:
        for program in singles(row, 3):
            loaded = load(program)
            args = loaded.make()[0]
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                loaded.f(*args)
