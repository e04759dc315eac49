"""Torch versions: ranges of versions in corpus files, for entries that do not hold for all versions."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version


def version_range_error(versions: str) -> str | None:
    """The error of a range, or None.

    >>> version_range_error(">=2.12,<2.14"), version_range_error("new")
    (None, "Invalid specifier: 'new'")
    """
    try:
        SpecifierSet(versions)
    except InvalidSpecifier as error:
        return str(error)
    return None


def includes(versions: str, torch: str) -> bool:
    """Whether a version of torch, of any build, is in a range. The empty range has all versions.

    >>> includes(">=2.12", "2.13.0+cpu"), includes(">=2.12", "2.11.0+cu130"), includes("", "2.11.0")
    (True, False, True)
    """
    return SpecifierSet(versions).contains(Version(torch).base_version, prereleases=True)
