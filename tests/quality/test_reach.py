"""Every hard feature is reached within a stated number of cases of the profiles that campaigns use."""

from __future__ import annotations

import functools
import re
from collections import Counter

import pytest

from fuzz.choices import Random
from fuzz.features import FEATURES, features
from fuzz.generate import generate
from fuzz.program import Program, Ref, Root, Statement, Storage

CASES = 2000  # of each profile, of one seed; a feature is to come up at least twice
PROFILES = ("mixed", "aliasing", "metadata")

# Rare on purpose: eager refuses it, little can go wrong, or another profile is for it.
RARE = {
    "mixed": {"data: expanded", "metadata: grown from nothing"},
    "aliasing": {
        *("data: expanded", "output: nothing", "metadata: both of a group"),
        *(name for name in FEATURES if re.match("metadata: (grown|onto|re|set_|detach_)", name)),
    },
    "metadata": {"data: expanded", "alias: many slices"},
}


@functools.cache
def reached(profile: str) -> Counter[str]:
    return Counter(name for index in range(CASES) for name in features(generate(Random(1, index), profile)))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_feature_is_reached(profile: str) -> None:
    missing = {name for name in FEATURES if reached(profile)[name] < 2}
    assert missing <= RARE[profile]


def test_rare_features_are_reached_by_some_profile() -> None:
    together = sum((reached(profile) for profile in PROFILES), Counter[str]())
    assert {name for name in FEATURES if not together[name]} == set()


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_named_that_the_table_does_not_explain(profile: str) -> None:
    assert set(reached(profile)) <= set(FEATURES)


def test_features_are_a_function_of_the_program() -> None:
    for index in range(50):
        program = generate(Random(2, index))
        assert features(program) == features(program)


def test_a_plain_program_has_no_hard_feature() -> None:
    double = Statement("mul_number", ("a0",), (("value", 2.0),), ("v0",))
    program = Program((Storage("float32", (2,), 1),), (Root(0),), (Ref("a0"),), (double,), Ref("v0"))
    assert features(program) == {"argument: root", "output: fresh"}


def test_names_are_a_group_and_words() -> None:
    for name, meaning in FEATURES.items():
        assert re.fullmatch(r"[a-z]+: \S.*", name)
        assert meaning and len(meaning) < 100
