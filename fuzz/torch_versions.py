"""Ranges of torch versions in the corpus: what is written there of one version may not hold of another."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version


def version_range_error(versions: str) -> str | None:
    """What is wrong with a range; None if it is one.

    >>> version_range_error(">=2.12,<2.14"), version_range_error("new")
    (None, "Invalid specifier: 'new'")
    """
    try:
        SpecifierSet(versions)
    except InvalidSpecifier as error:
        return str(error)
    return None


def includes(versions: str, torch: str) -> bool:
    """Whether a version of torch, of whatever build, is in a range. The empty range has all.

    >>> includes(">=2.12", "2.13.0+cpu"), includes(">=2.12", "2.11.0+cu130"), includes("", "2.11.0")
    (True, False, True)
    """
    return SpecifierSet(versions).contains(Version(torch).base_version, prereleases=True)
