"""An alias of `fuzz.minify.minify`, loaded when it is called: this package imports nothing of `fuzz`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from aot.errors import MissingPackage


def minify(fn: Callable[..., Any], args: tuple[Any, ...], target: Any, *, evaluations: int = 500) -> Any:
    """As `fuzz.minify.minify`, which says what it takes, returns and raises.

    Raises:
        MissingPackage: the fuzzer is not installed.

    Example:
        >>> print(aot.minify(f, (x, y), "torch-aot-eager"))  # doctest: +SKIP
    """
    try:
        reducer = importlib.import_module("fuzz.minify")
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"aot.minify needs the package {error.name!r}, which is not installed: install aotfuzz whole"
        ) from error
    return reducer.minify(fn, args, target, evaluations=evaluations)
