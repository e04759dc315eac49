"""Fallback: whether a function runs as in eager where it is refused, and how often it did.

A refusal is raised before anything of the caller's has been changed, so that the original function can still
answer the call. Which calls were refused is kept: the next call of that kind is not traced again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping

from aot import config
from aot.errors import FallbackWarning, Unsupported
from aot.frontends.caller import level_of_caller

MOST_KINDS = 256
"""So many refused kinds of calls are kept; a call of another kind is traced, and refused once more."""


class Fallback:
    """What one compiled function does about its refusals.

    Attributes:
        chosen: what the caller of the front end has asked for, if anything.
        default: what the front end does otherwise, if there is no setting either.

    Example:
        >>> fallback = Fallback(None, "eager")
        >>> fallback.is_on
        True
        >>> with config.patch(on_unsupported="raise"):
        ...     fallback.is_on
        False
    """

    def __init__(self, chosen: config.OnUnsupported | None, default: config.OnUnsupported = "raise") -> None:
        self.chosen = config.check_on_unsupported(chosen)
        self.default = default
        self._calls: Counter[str] = Counter()
        self._refused: dict[object, Unsupported] = {}

    @property
    def is_on(self) -> bool:
        """Whether refused calls run as in eager now."""
        return (self.chosen or config.settings().on_unsupported or self.default) == "eager"

    @property
    def calls(self) -> Mapping[str, int]:
        """How many calls ran as in eager, by the refusal's class and text."""
        return self._calls

    def note_call(self, refusal: Unsupported, name: str) -> None:
        """Count a call of the function `name` that runs as in eager, and warn of the first one."""
        reason = f"{type(refusal).__name__}: {refusal}"
        first = not self._calls
        self._calls[reason] += 1
        if first:
            warnings.warn(
                f"{name} is not compiled and runs as in eager. {reason} (on_unsupported='raise' makes an "
                f"error of this.)",
                FallbackWarning,
                stacklevel=level_of_caller(),
            )

    def keep(self, key: object, refusal: Unsupported) -> None:
        """Note that calls of this kind are refused, if they run as in eager."""
        if self.is_on and len(self._refused) < MOST_KINDS:
            # (A traceback would keep the frames of the trace, and all that is in them.)
            self._refused[key] = type(refusal)(*refusal.args)

    def check(self, key: object) -> None:
        """Refuse a call of a kind that was refused before, if such calls run as in eager.

        Raises:
            Unsupported: as it was refused then.
        """
        if self._refused and self.is_on:
            known = self._refused.get(key)
            if known is not None:
                raise type(known)(*known.args)
