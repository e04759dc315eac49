"""Every hard feature is reached within a stated number of cases of the profiles that campaigns use."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.choices import SeededChoices
from fuzz.features.program_features import FEATURES, features
from fuzz.generate import generate
from fuzz.program.decode import Program, ProgramError, Ref, Root, Statement, Storage, check
from fuzz.reduce import reduce
from fuzz.reduce.passes.deletion import without_statements

CASES = 3000  # of each profile, of one seed; a feature is to come up at least twice
PROFILES = ("mixed", "aliasing", "metadata", "scenarios")
ALL = (*PROFILES, "operators", "python")  # the last two are for features of their own

HIGHER_ORDER = {"operator: higher order"}
PYTHON = {
    *(name for name in FEATURES if name.startswith("python: ")),
    *("mode: swapped", "mode: swapped around", "mode: entered", "mode: deterministic", "random: Python"),
    *("repeat: other attribute", "repeat: other function mode"),
}
# What a profile leaves to the one that is for it: a share of `mixed` is of the profile `python`.
APART = {
    "mixed": HIGHER_ORDER,
    **dict.fromkeys(("aliasing", "metadata", "scenarios"), HIGHER_ORDER | PYTHON),
}

# Rare on purpose: eager refuses it, little can go wrong, or another profile is for it.
RARE = {
    "mixed": {
        "data: expanded",
        "data: undone",
        "data: filled through expand",
        "metadata: grown from nothing",
        "metadata: onto another argument",
        "metadata: onto a new storage",
        "metadata: mul_resized_out",
        "repeat: other number",
        "data: channels-last",
        *("subclass: parameter", "metadata: both of a group"),
    },
    "aliasing": {
        *("data: expanded", "output: nothing", "repeat: other number"),
        *("metadata: grown from nothing", "metadata: both of a group", "metadata: mul_resized_out"),
    },
    "metadata": {
        *("data: beside a result", "data: undone", "metadata: mul_resized_out"),
        *("data: expanded", "data: filled through expand", "alias: many slices"),
        *("repeat: other number", "repeat: other inference"),
        "data: channels-last",
    },
    "scenarios": {
        *("metadata: grown from nothing", "metadata: onto another argument", "metadata: both of a group"),
        *("data: expanded", "metadata: onto a new storage", "data: undone", "metadata: undone"),
        *(
            "data: filled through expand",
            "metadata: grown",
            "metadata: mul_resized_out",
            "metadata: set_empty_",
            "subclass: metadata",
        ),
    },
}

# What the compiler is to get right, kind by kind, and the features that show that a campaign has been there.
KINDS = {
    "data of leaves, non-leaves, tensors without gradient": (
        *("data: argument", "data: leaf", "data: non-leaf", "data: without gradient", "data: hidden"),
        *("data: differentiable view", "data: undone", "metadata: undone", "metadata: past a history"),
    ),
    "several writes, and what was written returned": (
        *("data: several arguments", "data: twice", "output: written argument", "data: view of an argument"),
        "data: beside a result",
    ),
    "in-place on slices, 0-d, channels-last, expanded tensors": (
        *("data: slice", "data: 0-d", "data: channels-last", "data: filled through expand", "data: expanded"),
    ),
    "checkpoint": ("mode: checkpoint",),
    "autocast, and grad modes that are left behind": (
        *("mode: autocast", "mode: autocast off", "mode: left changed", "mode: autocast around"),
    ),
    "branches and loops": (
        *("flow: branch", "flow: other branch", "flow: loop", "flow: carried", "flow: nested"),
        "repeat: other branch",
    ),
    "hooks, custom functions, custom operators, out=": (
        *("gradient: hook", "gradient: retained", "gradient: custom function", "data: given as out"),
        *("operator: custom", "data: custom operator", "operator: acts outside"),
    ),
    "modules": (
        *("module: its function", "module: parameter", "module: buffer", "module: tied"),
        *("module: attribute", "module: tensor attribute", "data: of a module"),
        *("module: training", "module: evaluation"),
        *("flow: training", "argument: parameter"),
    ),
    "wrapper subclasses": (
        *("subclass: argument", "subclass: two parts", "subclass: one part twice", "subclass: leaf"),
        *("subclass: non-leaf", "subclass: parameter", "subclass: part is an alias", "subclass: and plain"),
        *("subclass: written", "subclass: written in a part", "subclass: metadata", "subclass: view"),
        *("subclass: output", "subclass: output view", "repeat: other class"),
        *("subclass: nested", "subclass: made", "subclass: taken apart"),
    ),
    "inference mode": (
        *("data: under inference mode", "mode: inference", "mode: inference_mode", "output: inference"),
        "argument: inference",
    ),
    "every metadata mutation": tuple(
        f"metadata: {name}"
        for name in (
            *("t_", "transpose_", "swapdims_", "squeeze_", "squeeze_dim_", "unsqueeze_", "as_strided_"),
            *("resize_", "resize_as_", "set_", "set_storage_", "set_empty_", "set_data_", "detach_"),
            "requires_grad_",
        )
    ),
    "metadata and data in either order, of duplicates, grown, moved": (
        *("metadata: after data", "metadata: before data", "metadata: duplicate", "metadata: grown"),
        *("metadata: grown from nothing", "metadata: onto another argument", "metadata: onto a new storage"),
        "metadata: both of a group",
    ),
    "arguments that share storage": (
        *("alias: overlapping", "alias: disjoint", "alias: transposed", "alias: same elements"),
        *("alias: same metadata", "alias: other dtype", "alias: complex and real", "alias: out of order"),
        *("alias: base and view", "alias: views alone", "alias: several groups", "alias: mixed gradient"),
        *("argument: data", "argument: detach", "argument: no_grad", "argument: own leaf"),
        *(
            "argument: multi",
            "argument: leaf taken without grad",
            "argument: view of an alias",
            "alias: views of two bases",
        ),
        "argument: its base detached since",
        *("alias: flat buffer", "alias: two leaves", "alias: many slices", "alias: windows"),
        *("data: other dtype", "argument: other dtype", "argument: complex or real view"),
    ),
    "duplicated arguments": ("argument: duplicate", "data: duplicate", "argument: nested"),
    "values": ("argument: special values", "argument: lazily conjugated", "argument: lazily negated"),
    "outputs": (
        *("output: fresh", "output: argument", "output: alias of an argument", "output: twice"),
        *("output: alias of a written argument", "output: aliases of an intermediate", "output: chain"),
        *("output: base and view", "output: under no_grad", "output: custom function", "output: unsafe"),
        *("output: several results", "output: requires_grad differs", "output: other dtype"),
        *("output: empty", "output: 0-d", "output: conjugated", "output: negated", "output: complex parts"),
        *("output: detached alias", "output: detached", "output: view of a reshaped argument"),
        *("view: then a write", "view: after a write", "view: chain"),
    ),
    "what is done after a call": (
        *("gradient: partial", "gradient: double", "gradient: accumulated", "gradient: freed"),
        *("gradient: again", "gradient: after a write to an argument", "gradient: after a write to a result"),
        "gradient: required since",
    ),
    "later calls": (
        *("repeat: same kind", "repeat: other size", "repeat: other strides", "repeat: other dtype"),
        *("repeat: other gradient", "repeat: other aliases", "repeat: other duplicates"),
        *("repeat: other mode", "repeat: other bases", "repeat: other bits", "repeat: other autocast"),
        "repeat: other inference",
    ),
    "threads": ("mode: two threads",),
    "dtypes": ("dtype: complex", "dtype: half", "dtype: small integer", "dtype: promotion"),
}


# What a compiler has to get right in every combination: a feature of one of these with one of another.
TOGETHER = {
    "mutation": (
        *("data: argument", "data: view of an argument", "data: leaf", "data: hidden", "data: slice"),
        *("data: differentiable view", "data: twice", "data: several arguments", "data: duplicate"),
        *("data: member of a group", "metadata: argument", "metadata: view of an argument"),
        "metadata: duplicate",
    ),
    "alias": (
        *("alias: base and view", "alias: views alone", "alias: same metadata", "alias: transposed"),
        *("alias: overlapping", "alias: disjoint", "alias: mixed gradient", "alias: other dtype"),
        *("alias: windows", "argument: detach", "argument: data", "argument: no_grad"),
    ),
    "duplicate": ("argument: duplicate",),
    "view": (
        *("view: several results", "view: detached", "view: under no_grad", "view: chain"),
        *("view: after a write", "view: then a write", "view: other dtype", "view: custom function"),
    ),
    "gradient": (
        *("argument: leaf", "argument: non-leaf", "gradient: partial", "gradient: double"),
        *("gradient: accumulated", "gradient: freed", "gradient: again"),
        *("gradient: after a write to an argument", "gradient: after a write to a result"),
    ),
    "mode": (
        "mode: no_grad",
        "mode: enable_grad",
        "mode: inference_mode",
        "mode: checkpoint",
        "mode: autocast",
        "mode: grad off",
    ),
    "flow": ("flow: branch", "flow: loop", "flow: nested"),
    "subclass": ("subclass: argument", "subclass: written", "subclass: view"),
    "autograd": ("gradient: hook", "gradient: custom function", "operator: custom"),
    "calls": (
        *("repeat: same kind", "repeat: other size", "repeat: other strides", "repeat: other dtype"),
        *("repeat: other gradient", "repeat: other aliases", "repeat: other duplicates"),
        "repeat: other mode",
    ),
}


Found = Callable[[str], tuple[frozenset[str], ...]]
Reached = Callable[[str], Counter[str]]


@pytest.fixture(scope="module")
def found(run_folder: Path) -> Found:
    """The features of each of a profile's programs. One worker of a run finds them for all."""

    @functools.cache
    def of(profile: str) -> tuple[frozenset[str], ...]:
        file = run_folder / f"features-{profile}.json"
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                programs = (generate(SeededChoices(1, index), profile) for index in range(CASES))
                file.write_text(json.dumps([sorted(features(program)) for program in programs]))
        return tuple(map(frozenset, json.loads(file.read_text())))

    return of


@pytest.fixture(scope="module")
def reached(found: Found) -> Reached:
    """How many of a profile's programs have each feature."""
    return functools.cache(lambda profile: Counter(name for names in found(profile) for name in names))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_feature_is_reached(profile: str, reached: Reached) -> None:
    missing = {name for name in FEATURES if reached(profile)[name] < 2}
    assert missing <= RARE[profile] | APART[profile]
    assert missing >= APART[profile]


def test_what_no_other_profile_has_is_reached_by_the_one_that_is_for_it(reached: Reached) -> None:
    assert all(reached("operators")[name] > CASES // 20 for name in HIGHER_ORDER)
    assert all(reached("python")[name] > CASES // 30 for name in PYTHON)


def test_rare_features_are_reached_by_some_profile(reached: Reached) -> None:
    together = sum((reached(profile) for profile in ALL), Counter[str]())
    assert {name for name in FEATURES if not together[name]} == set()


def test_for_each_feature_there_is_a_program_that_cannot_do_without_it(found: Found) -> None:
    """Its smallest is a line or two, each of which it takes: no feature comes with something else alone."""
    first: dict[str, tuple[str, int]] = {}
    for profile in ALL:
        for index, names in enumerate(found(profile)):
            for name in names:
                first.setdefault(name, (profile, index))
    sizes = []
    for name in FEATURES:
        profile, index = first[name]
        smallest = reduce(
            generate(SeededChoices(1, index), profile), lambda program, name=name: name in features(program)
        ).program
        sizes.append(len(smallest.statements))
        assert name in features(smallest)
        for dropped in range(len(smallest.statements)):
            less = without_statements(smallest, frozenset({dropped}))
            with contextlib.suppress(ProgramError):  # it would show what was never written
                check(less)
                assert name not in features(less), f"{name}: {smallest}"
    assert max(sizes) <= 5 and statistics.median(sizes) <= 1


def test_pairs_of_features_are_reached(found: Found) -> None:
    """In 12,000 programs, at least 99 of 100 pairs."""
    kind_of = {name: kind for kind, names in TOGETHER.items() for name in names}
    pairs = {
        (one, other) for one, other in itertools.combinations(kind_of, 2) if kind_of[one] != kind_of[other]
    }
    seen: set[tuple[str, str]] = set()
    for profile in PROFILES:
        for names in found(profile):
            seen.update(itertools.combinations((name for name in kind_of if name in names), 2))
    assert len(pairs) > 1200
    assert len(pairs - seen) <= len(pairs) / 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_profiles_reach_every_kind_of_mutation_and_aliasing(kind: str, reached: Reached) -> None:
    together = reached("aliasing") + reached("metadata")
    assert {name for name in KINDS[kind] if together[name] < 2} == set()


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_named_that_the_table_does_not_explain(profile: str, reached: Reached) -> None:
    assert set(reached(profile)) <= set(FEATURES)


def test_features_are_a_function_of_the_program() -> None:
    for index in range(50):
        program = generate(SeededChoices(2, index))
        assert features(program) == features(program)


def test_a_plain_program_has_no_hard_feature() -> None:
    double = Statement("mul_number", ("a0",), (("value", 2.0),), ("v0",))
    program = Program((Storage("float32", (2,), 1),), (Root(0),), (Ref("a0"),), (double,), Ref("v0"))
    assert features(program) == {"argument: root", "output: fresh"}


def test_names_are_a_group_and_words() -> None:
    for name, meaning in FEATURES.items():
        assert re.fullmatch(r"[a-z]+: \S.*", name)
        assert meaning and len(meaning) < 100
