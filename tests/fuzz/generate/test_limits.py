"""Programs are drawn within what a target takes: for any set of capabilities nearly all of them run."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from fuzz.choices import SeededChoices
from fuzz.errors import ConfigurationError
from fuzz.features.capabilities import CAPABILITIES, excluded_traits, is_capability
from fuzz.features.table import FEATURES
from fuzz.features.traits import TRAITS
from fuzz.generate import generate
from fuzz.generate.limits import BLOCKS, CHANCES, Limits
from fuzz.generate.operand_arguments import fitting_operands
from fuzz.generate.profile_names import find_profile, profile_name
from fuzz.generate.profiles import PROFILES, narrow
from fuzz.operators import OPERATORS, Kind
from fuzz.program.decode import Program, check
from fuzz.targets.target import Target, lacked_by_all

SHARE = 0.95


def drawn(name: str, count: int) -> list[Program]:
    profile = find_profile(name)
    return [generate(SeededChoices(7, index), profile) for index in range(count)]


def share_that_runs(programs: Sequence[Program], lacks: Sequence[str]) -> float:
    target = Target("limited", "", lambda function: function, lacks=tuple(lacks))
    return sum(bool(one.statements) and target.lacking(one) is None for one in programs) / len(programs)


def random_set(source: random.Random) -> list[str]:
    """Capabilities, dtypes, ranks and sizes, operators: as a probe may find them."""
    names = [*CAPABILITIES, *(f"rank: {rank}" for rank in range(3, 6)), "argument: size 1"]
    names += [f"dtype: {dtype}" for dtype in ("float64", "float16", "bool", "int64", "int8")]
    operators = [f"operator: {name}" for name in source.sample(sorted(OPERATORS), source.choice((0, 5, 200)))]
    return [*source.sample(names, source.randint(1, len(names) - 3)), *operators]


@pytest.mark.parametrize("seed", range(8))
def test_nearly_all_programs_run_for_any_set_of_capabilities(seed: int) -> None:
    lacks = random_set(random.Random(seed))
    programs = drawn(profile_name("mixed", lacks=lacks), 40)
    assert share_that_runs(programs, lacks) >= SHARE
    for program in programs[:8]:
        check(program)


def test_nearly_all_programs_of_one_operator_alone_run() -> None:
    source = random.Random(1)
    programs: list[Program] = []
    lacks = ("in-place", "metadata", "autograd", "complex", "dtype: float64")
    # (A row that eager refuses ends a program of others: alone it makes none.)
    names = sorted(name for name, row in OPERATORS.items() if row.kind is not Kind.REFUSED)
    for name in source.sample(names, 60):
        try:
            profile = profile_name("mixed", (name,), lacks=lacks)
            made = drawn(profile, 2)
        except ConfigurationError as error:
            assert "no operator is left" in str(error)  # it has no use but what is lacked
            continue
        programs += made
        assert {statement.operator for one in made for statement in one.statements} <= {name}
    assert len(programs) > 50
    assert share_that_runs(programs, lacks) >= SHARE


def test_a_backend_of_inference_gets_programs_as_large_as_others() -> None:
    lacks = ("in-place", "metadata", "autograd", "complex", "dtype: float64")
    limited, plain = drawn(profile_name("mixed", lacks=lacks), 80), drawn("mixed", 80)
    assert share_that_runs(plain, lacks) < 0.1  # which is what is not drawn any more
    length = [sum(len(one.statements) for one in programs) for programs in (limited, plain)]
    assert length[0] > 0.7 * length[1]


def test_names_of_what_is_lacked_are_part_of_a_profiles_name() -> None:
    name = profile_name("mixed", ("add", "mul"), lacks=("empty", "empty", "rank: 3"))
    assert name == "mixed[add,mul]{empty,rank: 3}"
    profile = find_profile(name)
    assert profile.limits == Limits.of(("empty", "rank: 3")).__class__(
        ("empty", "rank: 3"),
        frozenset({"argument: empty", "rank: 3"}),
        frozenset({"add", "mul"}),
        profile.limits.dtypes,
    )
    for wrong, said in (
        ("mixed{empt}", "'empt' is neither a capability"),
        ("mixed{empty", "there is no } at the end"),
        ("mixed[sin_]{in-place}", "no operator is left"),
        ("mixed{dtype: *}", "no dtype is left"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            find_profile(wrong)


def test_the_tables_name_what_there_is() -> None:
    named = {name for names in CHANCES.values() for name in names} | set(BLOCKS.values())
    assert named <= set(FEATURES)
    assert set(CHANCES) <= set(PROFILES["mixed"].__dataclass_fields__)
    for name, patterns in CAPABILITIES.items():
        assert is_capability(name)
        assert all(excluded_traits((pattern,)) <= set(TRAITS) for pattern in patterns)


def test_a_chance_is_left_where_one_way_to_it_is() -> None:
    mixed = PROFILES["mixed"]
    assert narrow(mixed, Limits.of(("argument: detach",))).hidden == mixed.hidden
    assert narrow(mixed, Limits.of(("autograd",))).requires_grad == 0.0
    assert narrow(mixed, Limits.of(("argument: leaf",))).leaf == 0.0
    assert narrow(mixed, Limits.of(("argument: non-leaf",))).leaf == 1.0


@pytest.mark.nightly  # programs for each of some 900 rows
def test_each_row_has_operands_that_eager_takes_but_those_of_hooks() -> None:
    without = {name for name in OPERATORS if not fitting_operands(name)}
    assert {OPERATORS[name].kind for name in without if not OPERATORS[name].raises} == {
        Kind.HOOK,
        Kind.RETAIN,
    }
    limits = Limits.of(("rank: 1", "empty", "dtype: float32"))
    for metas in fitting_operands("add", limits):
        assert all(len(meta.size) != 1 and 0 not in meta.size and meta.dtype != "float32" for meta in metas)


def test_a_campaign_leaves_out_what_all_of_its_targets_lack() -> None:
    one = Target("one", "", lambda f: f, lacks=("complex", "cuda", "random"))
    other = Target("other", "", lambda f: f, lacks=("random",), clauses=("results",))
    assert lacked_by_all([one]) == ("complex", "random")
    assert lacked_by_all([one, other]) == ("random",)
    assert lacked_by_all([other]) == ("random", "autograd")
