"""Short scripts: arguments as constructors, one probe, the comparison, and nothing else."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzz.corpus import case_file
from fuzz.ir.nodes import Storage
from fuzz.ir.value_classes import FORMULAS, VALUES
from fuzz.operators.dtypes import DTYPES
from fuzz.program.argument_text import root_values_text
from fuzz.program.decode import Program
from fuzz.repro import script
from fuzz.repro.constructors import construct_arguments, literal_text
from fuzz.repro.short_script import short_script
from oracles import Finding
from tests.support.fuzz.outcomes import exit_status
from tests.support.fuzz.small_programs import (
    CUBE_TWICE,
    DOUBLE_IN_PLACE,
    LOST_IN_SCALAR,
    RETURN_VIEW,
    SINE,
    SQUARE_OF_LEAF,
    call,
    program,
)

CORPUS = Path(__file__).parents[3] / "corpus"
ELEMENTS = "arg[0] at element (0, 0) first, 6 of 6 elements differ: 1.0 in eager, 2.0 in the target"


def _code(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("values", list(VALUES))
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_literal_has_the_elements_of_the_formula(dtype: str, values: str) -> None:
    if dtype not in VALUES[values]:
        values = "plain"
    for size, seed in (((), 0), ((1,), 1), ((2, 3), 5), ((2, 1, 4), 1)):
        if values in FORMULAS and len(size) < 2:
            continue
        storage = Storage(dtype, size, seed, values=values)
        literal, formula = (eval(print_(storage, "")) for print_ in (literal_text, root_values_text))
        assert (literal.dtype, literal.shape) == (formula.dtype, formula.shape)
        assert torch.allclose(literal, formula, 0, 0, equal_nan=True)
        if not literal.is_complex():
            assert torch.equal(torch.signbit(literal), torch.signbit(formula))


def test_arguments_lose_names_that_nobody_needs() -> None:
    made = construct_arguments(SQUARE_OF_LEAF)
    assert made.lines_for({"a0"}) == ["a0 = torch.tensor([-1.375, 0.375, -1.125], requires_grad=True)"]
    assert made.lines_for(set()) == []
    nonleaf = program(storage=Storage("float32", (2,), 1, requires_grad=True, leaf=False))
    made = construct_arguments(nonleaf)
    assert made.lines_for({"a0"}) == ["a0 = torch.tensor([-1.375, 0.375], requires_grad=True) * 1"]
    assert made.lines_for({"a0", "leaf0"})[0].startswith("leaf0 = ")


def test_a_fault_of_one_statement_takes_eleven_lines() -> None:
    finding = Finding("input-data", "arg[0]", "-2.75", "-1.375", ELEMENTS)
    text = script.repro_script(LOST_IN_SCALAR, "torch-aot-eager", finding)
    assert len(_code(text)) == 11
    long = script.repro_script(LOST_IN_SCALAR, "torch-aot-eager", finding, long=True)
    assert "def named(" in long
    assert "def named(" not in text


@pytest.mark.parametrize(
    ("subject", "finding", "shown"),
    [
        (DOUBLE_IN_PLACE, Finding("input-data", "arg[0]", "1.0", "2.0", ELEMENTS), "return a0"),
        (SINE, Finding("values", "out", "uint8", "bool", "dtype of out: uint8 in eager"), "return out.dtype"),
        (SINE, Finding("values", "out", "(2,)", "(1,)", "shape of out: (2,)"), "return tuple(out.shape)"),
        (RETURN_VIEW, Finding("strides", "out", "(1, 2)", "(2, 1)", "strides of out: x"), "out.stride()"),
        (
            RETURN_VIEW,
            Finding("strides", "out", "(None, 2)", "(None, 1)", "strides of out: x"),
            "if length > 1",
        ),
        (
            RETURN_VIEW,
            Finding("aliasing", "out", "shared with arg[0]", "shared with none", "storage of out: x"),
            "out.untyped_storage().data_ptr() == a0.untyped_storage().data_ptr()",
        ),
        (
            SINE,
            Finding("identity", "out", "a tensor of its own", "the same object as arg[0]", "out: x"),
            "return out is a0",
        ),
        (
            DOUBLE_IN_PLACE,
            Finding("versions", "arg[0]", "True", "False", "movement of the version counter of arg[0]: x"),
            "return a0._version > version",
        ),
        (
            SQUARE_OF_LEAF,
            Finding("gradients", "grad of arg[0]", "1.0", "2.0", ELEMENTS),
            "torch.autograd.grad(out, a0, torch.tensor([-1.375, 0.375, -0.625]), allow_unused=True)",
        ),
        (
            SQUARE_OF_LEAF,
            Finding("errors", "backward", "no exception", "RuntimeError: x", "backward, starting at out: x"),
            "out.sum().backward(retain_graph=True)",
        ),
        (
            CUBE_TWICE,
            Finding("errors", "call", "no exception", "RuntimeError: x", "the call: x"),
            'return "no exception"',
        ),
    ],
)
def test_a_probe_shows_what_the_finding_is_about(subject: Program, finding: Finding, shown: str) -> None:
    text = script.repro_script(subject, "eager", finding)
    assert shown in text
    assert "def named(" not in text
    assert exit_status(text) == 0


@pytest.mark.parametrize(
    "finding",
    [
        Finding("values", "out[0]", "1.0", "2.0", ELEMENTS),  # it returns no tuple
        Finding("values", "__import__('os')", "1.0", "2.0", ELEMENTS),
        Finding("identity", "out", "the same object as arg[7]", "a tensor of its own", "out: x"),
        Finding("values", "", "", "", "somebody's words"),
        Finding("lifetime", "memory", "0", "1", "bytes"),
    ],
)
def test_what_no_probe_shows_gets_the_long_script(finding: Finding) -> None:
    compiler = script.compiler_for(SINE, "eager")
    assert short_script(SINE, compiler, finding) is None
    text = script.repro_script(SINE, "eager", finding)
    assert "os" not in {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert exit_status(text) == 0


def test_a_later_call_is_made_after_the_earlier_ones() -> None:
    other = replace(SINE, storages=(Storage("float64", (4,), 1),))
    later = case_file.read(CORPUS / "inductor-gelu-rounding.json").program.later
    subject = replace(SINE, later=(replace(later[0], storages=other.storages, arguments=other.arguments),))
    message = "in call 2, out at element (0,) first, 1 of 4 elements differ: 1.0 in eager, 2.0 in the target"
    text = script.repro_script(subject, "eager", Finding("repeat", "call 2: values: out", "1", "2", message))
    assert text.count("function(a0)") == 2
    assert "dtype=torch.float64" in text
    assert exit_status(text) == 0


def test_a_tolerance_lies_between_what_is_allowed_and_what_was_seen() -> None:
    sizes = "off by up to 1.83e-07 where 5.29e-14 is allowed"
    message = f"out at element (0,) first, 1 of 6 elements differ, {sizes}: 1.0 in eager, 2.0 in the target"
    text = script.repro_script(SINE, "torch-inductor", Finding("values", "out", "1", "2", message))
    assert "atol=1e-10" in text


def test_what_draws_starts_each_side_from_the_same_seed() -> None:
    drawing = program(call("bernoulli", "a0", to="v0", p=0.5))
    finding = Finding("input-data", "arg[0]", "1.0", "2.0", ELEMENTS)
    assert "torch.manual_seed(0)" in script.repro_script(drawing, "eager", finding)
    assert "manual_seed" not in script.repro_script(SINE, "eager", finding)


def test_the_scripts_of_recorded_cases_use_all_that_they_import() -> None:
    short = 0
    for file in sorted(CORPUS.glob("*.json")):
        case = case_file.read(file)
        finding = script.main_finding(case)
        compiler = script.compiler_for(case.program, case.origin.target)
        made = short_script(case.program, compiler, finding)
        short += made is not None
        # (How often the function runs is counted by the long script alone.)
        long = not case.findings or case.program.module is not None or case.clause == "once"
        assert made is not None or long, file.name
        tree = ast.parse(script.repro_script(case.program, case.origin.target, finding))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imported = {(alias.asname or alias.name.split(".")[0]) for alias in node.names}
                assert imported - {"aot"} <= names, file.name  # which registers its backend
            if isinstance(node, ast.ClassDef):
                assert node.name in names, file.name
    assert short > 90


def test_a_constant_that_ends_with_import_torch_keeps_the_imports() -> None:
    finding = Finding("lifetime", "memory", "0", "1", "it says\nimport torch")
    text = script.repro_script(SINE, "eager", finding)
    assert "\nimport gc\n" in text
    assert text.index("import gc") < text.index("\nimport torch\n")
