"""Profiles by name: the shipped ones, anybody's own, and each with some operators alone.

    find_profile("mixed")                       # one of `PROFILES`
    find_profile("mypackage.fuzzing:profile")   # a `Profile` of a module
    find_profile("mixed[add,mul*]")             # programs of these operators alone
    find_profile("mixed[-as_strided*]")         # programs without these
    find_profile("mixed{complex,rank: 3}")      # programs that need none of these capabilities and traits

The whole name makes the programs of a seed what they are, and stands in a campaign's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache

from fuzz.errors import ConfigurationError
from fuzz.features.capabilities import CAPABILITIES, is_capability
from fuzz.generate.arguments import FEW
from fuzz.generate.limits import Limits
from fuzz.generate.operand_arguments import can_be_used
from fuzz.generate.profiles import PROFILES, Profile
from fuzz.module_attributes import load_attribute
from fuzz.operators import OPERATORS
from fuzz.patterns import matches


def profile_name(
    name: str, operators: Sequence[str] = (), without: Sequence[str] = (), lacks: Sequence[str] = ()
) -> str:
    """The name of a profile with some operators alone, without others, and for a target that lacks something.

    Operators and traits may be patterns with `*`.

    >>> profile_name("mixed", ("add", "mul*"), ("mul_out",), ("empty", "dtype: float64"))
    'mixed[add,mul*,-mul_out]{empty,dtype: float64}'
    """
    words = [*operators, *(f"-{one}" for one in without)]
    chosen = f"[{','.join(words)}]" if words else ""
    lacked = f"{{{','.join(dict.fromkeys(lacks))}}}" if lacks else ""
    return f"{name}{chosen}{lacked}"


_imports: ContextVar[bool] = ContextVar("_imports", default=True)


@contextmanager
def no_profile_imported() -> Iterator[None]:
    """While this lasts, `find_profile` imports no module: for whoever reads a file of somebody else."""
    token = _imports.set(False)
    try:
        yield
    finally:
        _imports.reset(token)


@cache
def find_profile(name: str) -> Profile:
    """The profile of that name.

    Raises:
        ConfigurationError: there is no such profile or module, what the module has is no `Profile`, a profile
            of its mixture does not exist, a pattern matches no operator, what is lacked is no capability, or
            no operator or no dtype is left.
    """
    rest, brace, lacks = name.partition("{")
    plain, bracket, words = rest.partition("[")
    profile = PROFILES[plain] if plain in PROFILES else _own_profile(plain)
    if bracket:
        if not words.endswith("]"):
            raise ConfigurationError(f"profile {name!r}: there is no ] at the end of its operators")
        profile = replace(profile, operators=_chosen_operators(name, words.removesuffix("]").split(",")))
    if brace:
        if not lacks.endswith("}"):
            raise ConfigurationError(f"profile {name!r}: there is no }} at the end of what is lacked")
        profile = _profile_without(name, profile, tuple(lacks.removesuffix("}").split(",")))
    return profile


def _profile_without(name: str, profile: Profile, lacks: tuple[str, ...]) -> Profile:
    """The profile within the limits of a target that lacks these capabilities."""
    for lacked in lacks:
        if not is_capability(lacked):
            raise ConfigurationError(
                f"profile {name!r}: {lacked!r} is neither a capability ({', '.join(CAPABILITIES)}) nor a "
                "pattern of any trait; `aotfuzz traits` lists both"
            )
    limits = Limits.of(lacks)
    left = limits.operators & (profile.operators or limits.operators)
    if len(left) <= FEW:  # each is drawn often, and must not be one that only takes what is lacked
        left = frozenset(operator for operator in left if can_be_used(operator, limits))
        limits = replace(limits, operators=left)
    if not left:
        raise ConfigurationError(
            f"profile {name!r}: no operator is left that needs nothing of what is lacked"
        )
    if not limits.dtypes:
        raise ConfigurationError(f"profile {name!r}: no dtype is left")
    return replace(profile, limits=limits)


def _own_profile(name: str) -> Profile:
    if ":" not in name:
        raise ConfigurationError(
            f"no profile named {name!r}; there are {', '.join(PROFILES)}, and your own is written "
            "package.module:NAME"
        )
    if not _imports.get():
        raise ConfigurationError(
            f"its programs are of the profile {name!r} of a module, which runs its code when it is imported; "
            "if it is yours, say --import-profile"
        )
    found = load_attribute(f"profile {name!r}", name, ConfigurationError)
    if not isinstance(found, Profile):
        raise ConfigurationError(
            f"profile {name!r} is of type {type(found).__name__}; it must be a "
            "fuzz.generate.profiles.Profile, "
            'such as replace(PROFILES["aliasing"], name="mine", statements=(1, 4))'
        )
    unknown = [one for one in found.mixture if one not in PROFILES]
    if unknown:
        raise ConfigurationError(
            f"profile {name!r} mixes {', '.join(map(repr, unknown))}; there are {', '.join(PROFILES)}"
        )
    return found


def _chosen_operators(name: str, words: list[str]) -> frozenset[str]:
    """The operators that patterns name, or all but those that patterns with a - name."""
    wanted = {word for word in words if not word.startswith("-")}
    unwanted = {word.removeprefix("-") for word in words if word.startswith("-")}
    for pattern in sorted(wanted | unwanted):
        if not any(matches(pattern, operator) for operator in OPERATORS):
            raise ConfigurationError(
                f"profile {name!r}: no operator is called {pattern!r}; `aotfuzz traits` lists them"
            )
    found = frozenset(
        operator
        for operator in OPERATORS
        if (not wanted or any(matches(pattern, operator) for pattern in wanted))
        and not any(matches(pattern, operator) for pattern in unwanted)
    )
    if not found:
        raise ConfigurationError(f"profile {name!r}: no operator is left")
    return found
