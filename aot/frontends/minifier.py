"""The front door to the fuzzer's reducer, for users' own functions.

The reducer judges any compiler, and this package is one of them, so it imports nothing of it: the reducer is
loaded by its name when it is asked for, and said to be missing where `aot` was installed alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from aot.errors import MissingPackage


def minify(fn: Callable[..., Any], args: tuple[Any, ...], target: Any, *, evaluations: int = 500) -> Any:
    """The smallest function that a compiler does something else with than eager, made from one of yours.

    Args:
        fn: a function or module, called as `fn(*args)` in the grad mode that this is called in. It runs
            several times, on tensors like its arguments; what it reads from outside is as before afterwards.
        args: its arguments, in tuples, lists and dicts.
        target: the compiler: a name (`aotfuzz targets`, `package.module:function`) or a function that takes a
            function and returns it compiled.
        evaluations: how many candidates are compiled at most.

    Returns:
        A `fuzz.minify.Minified`. As text it is a script that needs torch and the compiler alone, prints what
        differs, and exits with 1 while it does.

    Raises:
        MissingPackage: the fuzzer is not installed.
        fuzz.errors.MinifyError: one class for each reason why there is nothing to make smaller, or no way to.

    Example:
        >>> print(aot.minify(f, (x, y), "torch-aot-eager"))  # doctest: +SKIP
        >>> aot.minify(f, (x, y), lambda f: torch.compile(f, backend="inductor")).bucket  # doctest: +SKIP
    """
    try:
        reducer = importlib.import_module("fuzz.minify")
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"aot.minify needs the package {error.name!r}, which is not installed: install aotfuzz whole"
        ) from error
    return reducer.minify(fn, args, target, evaluations=evaluations)
