"""Containment: whether a program has everything that a smaller, reduced one has.

If so, both may show the same bug. Operators are compared in the words of buckets. `has_operators` compares a
program as it was generated with a reduced one, which may have lost its blocks. `contains` compares two
reduced programs, with blocks, arguments, shared memory, and the steps of each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fuzz.corpus import buckets
from fuzz.program.decode import Program, split_calls


def bare_operators(program: Program) -> Counter[str]:
    """The operators of a program in the words of its bucket, without the blocks around them."""
    counts: Counter[str] = Counter()
    for name, count in buckets.operator_counts(program).items():
        counts[name.partition("@")[0]] += count
    return counts


def has_operators(whole: Counter[str], part: Counter[str]) -> bool:
    """Whether a multiset of operators contains another one.

    >>> has_operators(Counter(["expand", "expand", "in-place"]), Counter(["expand"]))
    True
    """
    return part <= whole


def contains(whole: Program, part: Program) -> bool:
    """Whether a program has the operators, arguments and calls of another one.

    Other arguments may be between them. They must share memory in the same way, and each must be of the same
    kind (dtype, history, kind of view). Calls are matched from the first on, each with its steps.
    """
    calls, wanted = split_calls(whole), split_calls(part)
    if len(wanted) > len(calls) or not buckets.operator_counts(part) <= buckets.operator_counts(whole):
        return False
    return all(
        _has_scenario(call, other)
        and _has_arguments(
            buckets.bucket_arguments(call).split(" "), buckets.bucket_arguments(other).split(" ")
        )
        for call, other in zip(calls, wanted, strict=False)
    )


def _has_scenario(call: Program, other: Program) -> bool:
    words, wanted = (Counter(buckets.scenario_words(one.scenario)) for one in (call, other))
    return wanted <= words


def _has_arguments(words: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether some of the words are the wanted ones, in order, under one renaming of storages."""
    patterns = [_pattern(word) for word in _arguments(words)]

    def match(at: int, place: int, names: dict[str, str]) -> bool:
        if place == len(needed):
            return True
        letter, kind = needed[place]
        for index in range(at, len(patterns)):
            own, own_kind = patterns[index]
            free = letter not in names and own not in names.values()
            if (
                own_kind == kind
                and (free or names.get(letter) == own)
                and match(index + 1, place + 1, {**names, letter: own})
            ):
                return True
        return False

    needed = [_pattern(word) for word in _arguments(wanted)]
    return match(0, 0, {})


def _arguments(words: Iterable[str]) -> list[str]:
    return [word for word in words if word != "nothing"]


def _pattern(word: str) -> tuple[str, str]:
    """The letter of a word's storage, and the rest. A duplicate (`=`) has no letter."""
    return (word[0], word[1:]) if word[0].isalpha() else ("", word)
