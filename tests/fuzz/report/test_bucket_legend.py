"""The legend explains every word that a bucket's name may have."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fuzz.campaign.workers import handlers
from fuzz.corpus.buckets import bucket_arguments, scenario_words
from fuzz.ir.argument_rules import ALIASES, BASES, LAZY, VIAS
from fuzz.ir.value_classes import VALUES
from fuzz.operators.dtypes import DTYPES
from fuzz.program.decode import WRAPPED, split_calls
from fuzz.report import bucket_legend

WORDS = {word for word, _ in bucket_legend.ARGUMENTS}
STEPS = {word for word, _ in bucket_legend.STEPS}


def _explained_as(pattern: str) -> Iterator[str]:
    """The words of the legend that an argument pattern is put together of."""
    for word in re.sub(r"\b(wrapped|of) ", r"\1_", pattern).split(" "):
        if word in ("=", "nothing"):
            yield word
            continue
        storage, mark, view = word.partition("~")
        way, *of_view = view.split(":")
        yield f"a~{way}" if mark else "a"
        for before, parts in (("a:", storage.split(":")[1:]), ("a~:", of_view)):
            for part in parts:
                if part in DTYPES:
                    yield f"{before}float64"
                else:
                    yield f"a:{part}" if part in ("0d", "empty") else before + part.replace("_", " ", 1)


def test_every_word_of_an_argument_pattern_is_explained() -> None:
    met = set()
    for index in range(300):
        for call in split_calls(handlers.program(7, index, "mixed")):
            met |= set(_explained_as(bucket_arguments(call)))
    assert met <= WORDS
    assert len(met) > len(WORDS) / 2, "what was looked at is most of it"


def test_the_kinds_of_views_and_wrappers_are_all_explained() -> None:
    words = {f"a~{'' if via == 'view' else via}" for via in VIAS}
    words |= {f"a~:{lazy}" for lazy in LAZY} | {f"a~:wrapped {parts}" for parts in WRAPPED}
    words |= {f"a~:of {base}" for base in (*ALIASES, *BASES) if base != "root"}
    assert words <= WORDS


def test_the_classes_of_values_are_all_explained() -> None:
    assert {f"a:{name}" for name in VALUES if name != "plain"} <= WORDS


def test_every_step_of_a_call_is_explained() -> None:
    met = set()
    for index in range(300):
        for call in split_calls(handlers.program(8, index, "mixed")):
            for words in scenario_words(call.scenario):
                tensor = words.startswith(("write", "require"))
                met |= {words} if tensor or words == "two threads" else set(words.split(" "))
    assert met <= STEPS
    assert {"plain", "double", "kept", "write argument"} <= met


def test_a_pattern_of_the_documentation_is_made_of_these_words() -> None:
    assert list(_explained_as("a:grad a~ = b:float64:0d~:wrapped nested:of wrapper")) == [
        *("a", "a:grad", "a~", "=", "a~", "a:float64", "a:0d", "a~:wrapped nested", "a~:of wrapper")
    ]
