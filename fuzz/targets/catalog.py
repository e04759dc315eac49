"""Catalog: find a target by its name: shipped, registered by a package, or named by its module."""

from __future__ import annotations

from fuzz.errors import TargetError
from fuzz.targets import plugins
from fuzz.targets.adapters import ADAPTED, adapter
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.target import Target


def find_target(name: str) -> Target:
    """Find a target by its name: shipped, registered, `backend:NAME`, or `package.module:function`.

    NAME is one of Dynamo's backends (`torch.compiler.list_backends`). For the last form the current directory
    is importable, as for `python -m`.

    Raises:
        TargetError: there is no such target, module or attribute, the attribute cannot be called, or the
            module fails.

    >>> find_target("eager").compile(len) is len
    True
    """
    if name in SHIPPED:
        return SHIPPED[name]
    return adapter(name).target if name in ADAPTED else plugins.load(name)


def usable_targets(names: list[str]) -> list[Target]:
    """The targets of these names, each once and in order.

    Raises:
        TargetError: a target, or one of its controls, cannot work here.
    """
    targets = [find_target(name) for name in dict.fromkeys(names)]
    for target in targets:
        for one in (target, *map(find_target, target.controls)):
            reason = one.available()
            if reason is not None:
                raise TargetError(f"target {one.name!r} cannot run here: {reason}")
    return targets
