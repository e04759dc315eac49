"""Plugins: other people's compilers, registered by their package or named as `package.module:function`.

Backends of torch.compile that Dynamo knows by name are targets as `backend:NAME`
(`fuzz.targets.dynamo_backends`). A package registers its own target in its pyproject.toml:

    [project.entry-points."aotfuzz.targets"]
    mine = "mypackage.fuzzing:target"

The object there is a function that takes a function and returns it compiled, or a `fuzz.Target`, which can
also say what it refuses on purpose, what it lacks, and where it works.
Invariant: nothing is imported before a target is asked for by name.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from importlib import metadata
from typing import Any

from fuzz.errors import TargetError
from fuzz.features.capabilities import CAPABILITIES, is_capability
from fuzz.module_attributes import load_attribute, make_current_folder_importable
from fuzz.targets.adapters import ADAPTED
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.clause_sets import clauses_of
from fuzz.targets.dynamo_backends import PREFIX, dynamo_backends, named_backend, reset_dynamo
from fuzz.targets.target import Target, do_nothing
from oracles.object_names import class_name

GROUP = "aotfuzz.targets"


def registered_targets() -> dict[str, str]:
    """The registered names of installed packages, each with its `package.module:function`.

    A name of a shipped target is left out.
    """
    found = {entry.name: entry.value for entry in metadata.entry_points(group=GROUP)}
    return {
        name: value for name, value in sorted(found.items()) if name not in SHIPPED and name not in ADAPTED
    }


def load(name: str) -> Target:
    """Load the target with a registered name, or with the name `backend:NAME` or `package.module:function`.

    Raises:
        TargetError: there is none, its module fails, or it is no target.
    """
    if name.startswith(PREFIX):
        target = named_backend(name.removeprefix(PREFIX))
        if target is not None:
            return target
        make_current_folder_importable()
        if importlib.util.find_spec(PREFIX.removesuffix(":")) is None:
            known = ", ".join(dynamo_backends())
            raise TargetError(f"target {name!r}: Dynamo has no such backend; it has {known}")
    # Every worker calls this, and to look through all packages takes longer than a case.
    registered = {} if ":" in name else registered_targets()
    path = registered.get(name, name)
    if ":" not in path:
        raise TargetError(
            f"no target named {name!r}; shipped are {', '.join([*SHIPPED, *ADAPTED])}, "
            + (f"registered are {', '.join(registered)}, " if registered else "")
            + "and your own is written package.module:function"
        )
    must_be = "a function that takes a function and returns it compiled, or a fuzz.Target"
    found = attribute(f"target {name!r}", path, must_be)
    if isinstance(found, Target):
        _check_plugin_capabilities(found, name)
        reset = reset_if_loaded if found.reset is do_nothing else found.reset
        return replace(found, name=name, reset=reset)
    return Target(name, path.replace(":", "."), found, reset=reset_if_loaded)


def attribute(what: str, path: str, must_be: str) -> Any:
    """The object at `package.module:function`; the current directory is importable.

    Raises:
        TargetError: there is no such module or attribute, the attribute cannot be called, or the module
            fails. The message begins with `what`, and says what the attribute `must_be`.
    """
    found = load_attribute(what, path, TargetError)
    if not callable(found):
        kind = class_name(type(found))
        raise TargetError(f"{what}: {path.partition(':')[2]} is of type {kind}; it must be {must_be}")
    return found


def _check_plugin_capabilities(target: Target, name: str) -> None:
    """Check the names of capabilities and clauses.

    A misspelt one would count as a capability that the target has.
    """
    try:
        clauses_of(target.clauses)
    except TargetError as error:
        raise TargetError(f"target {name!r} promises what is no clause: {error}") from error
    try:
        _ = target.arithmetic
    except ValueError as error:
        raise TargetError(f"target {name!r} computes in what is no precision: {error}") from error
    words = [("lacks", word) for word in target.lacks] + [("declines", word) for word in target.declines]
    for verb, word in words:
        if not is_capability(word):
            raise TargetError(
                f"target {name!r} {verb} {word!r}, which is neither a capability ({', '.join(CAPABILITIES)}) "
                "nor a pattern of any trait in fuzz.features.traits.TRAITS"
            )


def reset_if_loaded() -> None:
    """Drop Dynamo's caches if Dynamo is loaded, because any target may use torch.compile."""
    if "torch._dynamo" in sys.modules:
        reset_dynamo()
