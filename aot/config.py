"""Settings of this library: `settings` reads them, `patch` changes them for a while."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from aot.errors import UnsupportedOption

OnUnsupported = Literal["raise", "eager"]
"""What becomes of a call that is refused: `Unsupported` is raised, or the function runs as in eager."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set.

    Attributes:
        stack_traces: whether nodes of graphs tell where they come from (``meta["stack_trace"]``, the lines of
            the function, and ``meta["nn_module_stack"]``, the modules around them), and those of the backward
            where what they differentiate comes from. It makes compiling slower.
        warn_after: at which number of compiles for calls that are alike `RecompileWarning` is given.
        debug_assert: whether what is compiled is held, at each call, against what was found when it was
            traced: what graphs get and return, what they save, which memory results lie in, what is written
            to. Inputs are copied for that. (A backward graph is compiled by the first backward, with the
            setting of then.) What is violated raises `AssumptionViolated`.
        traced_size: with ``dynamic=True``: which number stands for a size (or stride, offset) of the call
            while its function is traced, if not that number itself. For tests: a call is then answered by
            what was compiled for other sizes, if that says that it may.
        cache: the folder in which compiles of front ends' graphs are kept, for other processes (`aot.cache`);
            True for the usual one (``AOTFUZZ_CACHE_DIR``, or ``aotfuzz`` in the user's folder for caches),
            False for none, None for that of ``AOTFUZZ_CACHE_DIR``, if that is set. It has to be the user's
            alone, and its entries carry the seal of a key (``AOTFUZZ_CACHE_KEY`` names its file).
        cache_limit: how many bytes it may take; what was not read for the longest time goes first.
        on_unsupported: what becomes of a call that is refused, where the front end is given no
            ``on_unsupported`` of its own: ``"raise"`` or ``"eager"``. With None each front end has its
            default: ``"eager"`` for the backends of `torch.compile`, ``"raise"`` for the others. It is read
            when a call is refused.

    Example:
        >>> aot.config.settings().warn_after
        8
    """

    stack_traces: bool = False
    warn_after: int = 8
    debug_assert: bool = False
    traced_size: Callable[[int], int] | None = None
    cache: bool | str | os.PathLike[str] | None = None
    cache_limit: int = 1 << 30
    on_unsupported: OnUnsupported | None = None


_settings = Settings()


def settings() -> Settings:
    """The settings of now.

    Example:
        >>> aot.config.settings().stack_traces
        False
    """
    return _settings


@contextlib.contextmanager
def patch(**changes: Any) -> Iterator[Settings]:
    """While this lasts, settings are others, in every thread; what is compiled meanwhile keeps them.

    Args:
        changes: `Settings`' attributes and their values.

    Raises:
        UnsupportedOption: there is no such setting, or it has no such value.

    Example:
        >>> with aot.config.patch(stack_traces=True):
        ...     aot.aot_function(torch.sin, aot.nop)(torch.ones(2))
        tensor([0.8415, 0.8415])
    """
    global _settings
    known = {field.name for field in fields(Settings)}
    unknown = sorted(changes.keys() - known)
    if unknown:
        raise UnsupportedOption(f"there is no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    check_on_unsupported(changes.get("on_unsupported"))
    before = _settings
    _settings = replace(before, **changes)
    try:
        yield _settings
    finally:
        _settings = before


def check_on_unsupported(value: Any) -> OnUnsupported | None:
    """The value of an option or setting ``on_unsupported``.

    Raises:
        UnsupportedOption: it has no meaning.
    """
    if value is None or value in get_args(OnUnsupported):
        return value  # type: ignore[no-any-return]
    raise UnsupportedOption(
        f"on_unsupported={value!r}: it is 'raise' (a refusal is raised) or 'eager' (the function runs as in "
        f"eager, with a warning)"
    )
