"""Adapter: a target, and the lines with which a script shows a case with the target's library only."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.targets.target import Target


@dataclass(frozen=True, slots=True)
class Adapter:
    """Another project's compiler.

    Attributes:
        target: the compiler under test.
        setup: the lines of a script that import its library.
        compiled: the expression that compiles the function `f` of a script.
        distributions: the packages whose versions a report lists.
    """

    target: Target
    setup: str
    compiled: str
    distributions: tuple[str, ...] = ()


def requires(extra: str, *modules: str) -> Callable[[], str | None]:
    """For `Target.available`: None if all these modules are installed, else what to install.

    >>> requires("openvino", "json")(), requires("openvino", "no_such_module")()
    (None, "it needs no_such_module: pip install 'aotfuzz[openvino]'")
    """

    def available() -> str | None:
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        return f"it needs {', '.join(missing)}: pip install 'aotfuzz[{extra}]'" if missing else None

    return available


def imports(extra: str, module: str, distribution: str) -> Callable[[], str | None]:
    """For `Target.available` of a library that does not work with every torch: the module is imported.

    >>> imports("thunder", "json", "aotfuzz")(), imports("thunder", "no_such_module", "none")()
    (None, "it needs no_such_module: pip install 'aotfuzz[thunder]'")
    """

    def available() -> str | None:
        missing = requires(extra, module)()
        if missing is not None:
            return missing
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module)
        except Exception as error:
            versions = [f"{name} {importlib.metadata.version(name)}" for name in (distribution, "torch")]
            return f"{versions[0]} cannot be imported beside {versions[1]}: {type(error).__name__}: {error}"
        return None

    return available
