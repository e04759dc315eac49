"""Compilers under test: each is a name, a way to compile one function, and which refusals are legitimate.

A target takes a Python function of tensors and gives back a callable that ought to be indistinguishable from
it. The shipped ones are found by name; anybody's own is named as `package.module:function`, where
`function(f)` returns the compiled `f`. A target lives in worker processes: `prepare` runs once in each, and
`reset` after every case so that no case depends on what was compiled before it.

    target = find("torch-aot-eager")
    compiled = target.compile(lambda x: x.mul_(2))
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fuzz.errors import TargetError

Function = Callable[..., Any]


def _no_refusal(_error: BaseException) -> str | None:
    """Stock targets promise to compile everything: no exception of theirs is a refusal."""
    return None


def _nothing() -> None:
    """For targets that need no preparation and keep no state."""


def _available() -> str | None:
    """For targets that work wherever torch does."""
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """One compiler under test.

    `refusal` gives the name of the reason when the target declined on purpose, None for any other exception;
    `available` gives None, or why the target cannot work on this machine. `warm` is what the process that
    workers are forked from may do once for all of them; it must leave no thread and no open device.
    """

    name: str
    description: str
    compile: Callable[[Function], Function]
    refusal: Callable[[BaseException], str | None] = _no_refusal
    prepare: Callable[[], None] = _nothing
    reset: Callable[[], None] = _nothing
    available: Callable[[], str | None] = _available
    warm: Callable[[], None] = _nothing


def _compile_aot(function: Function) -> Function:
    import aot

    compiled: Function = aot.aot_function(function, fw_compiler=aot.nop)
    return compiled


def _compile_aot_min_cut(function: Function) -> Function:
    import aot

    partition = aot.min_cut_rematerialization_partition
    compiled: Function = aot.aot_function(function, fw_compiler=aot.nop, partition_fn=partition)
    return compiled


def _compile_aot_recompute(function: Function) -> Function:
    import aot

    partition = partial(aot.min_cut_rematerialization_partition, memory_budget=0)
    compiled: Function = aot.aot_function(function, fw_compiler=aot.nop, partition_fn=partition)
    return compiled


def _refusal_aot(error: BaseException) -> str | None:
    from aot.errors import Unsupported

    return type(error).__name__ if isinstance(error, Unsupported) else None


def _compile_torch_aot_function(function: Function) -> Function:
    """Through a dict of one entry: torch's `aot_function` returns a list where the function returns a tuple.

    Every program that returns a flat tuple would be that one finding, and no other one could be seen.
    """
    from functorch.compile import aot_function, nop

    def boxed(*args: Any) -> dict[str, Any]:
        return {"result": function(*args)}

    compiled = aot_function(boxed, fw_compiler=nop, bw_compiler=nop)
    return lambda *args: compiled(*args)["result"]


def _warm_with(compiler: Callable[[Function], Function]) -> Callable[[], None]:
    """One forward and backward of a toy, which pays for imports and for the caches of a first compilation."""

    def warm() -> None:
        import torch

        tensor = torch.ones(2, 2, requires_grad=True)
        compiler(lambda value: value.mul(2).t().sin())(tensor).sum().backward()

    return warm


def _compile_with(backend: str) -> Callable[[Function], Function]:
    def compile_function(function: Function) -> Function:
        import torch

        compiled: Function = torch.compile(function, backend=backend)
        return compiled

    return compile_function


def _prepare_dynamo() -> None:
    """Make Dynamo answer for what it does: no silent fall-back to eager, no state kept on disk."""
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.config.suppress_errors = False
    torch._functorch.config.enable_autograd_cache = False
    logging.getLogger("torch").setLevel(logging.ERROR)


def _prepare_inductor() -> None:
    import torch._inductor.config

    _prepare_dynamo()
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fx_graph_cache = False


def _warm_dynamo() -> None:
    _prepare_dynamo()
    _warm_with(_compile_with("aot_eager"))()
    _reset_dynamo()


def _warm_inductor() -> None:
    # Imported, not run: it would start g++, and perhaps a pool of processes.
    importlib.import_module("torch._inductor.compile_fx")
    _warm_dynamo()


def _reset_dynamo() -> None:
    import torch._dynamo

    torch._dynamo.reset()


def _inductor_available() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler):
        return None
    return f"Inductor needs a C++ compiler and {compiler!r} is not on PATH (install one, or set CXX)"


def _stock(name: str, description: str, backend: str) -> Target:
    return Target(
        name,
        description,
        _compile_with(backend),
        prepare=_prepare_dynamo,
        reset=_reset_dynamo,
        warm=_warm_dynamo,
    )


def _shipped() -> Mapping[str, Target]:
    targets = (
        Target("aot", "this project's compiler, graphs run as captured", _compile_aot, _refusal_aot),
        Target("aot-min-cut", "the same with the min-cut partitioner", _compile_aot_min_cut, _refusal_aot),
        Target(
            "aot-recompute",
            "the same with a memory budget of 0: all that may be is recomputed",
            _compile_aot_recompute,
            _refusal_aot,
        ),
        Target(
            "torch-aot-function",
            "torch's own AOTAutograd, without Dynamo, graphs run as captured",
            _compile_torch_aot_function,
            warm=_warm_with(_compile_torch_aot_function),
        ),
        _stock(
            "torch-aot-eager", "torch.compile: Dynamo and AOTAutograd, graphs run as captured", "aot_eager"
        ),
        Target(
            "torch-inductor",
            "torch.compile as users get it: Dynamo, AOTAutograd and Inductor",
            _compile_with("inductor"),
            prepare=_prepare_inductor,
            reset=_reset_dynamo,
            available=_inductor_available,
            warm=_warm_inductor,
        ),
        _stock("torch-dynamo", "control: torch.compile's Dynamo alone, graphs run as captured", "eager"),
        Target("eager", "control: the function itself, which must never differ", lambda function: function),
    )
    return MappingProxyType({target.name: target for target in targets})


SHIPPED: Mapping[str, Target] = _shipped()


def find(name: str) -> Target:
    """The target of that name: a shipped one, or `package.module:function`.

    For the latter the current directory is importable, as it is for `python -m`. Raises TargetError if there
    is no such target, module or attribute, if the attribute cannot be called, or if the module fails.

    >>> find("eager").compile(len) is len
    True
    """
    if name in SHIPPED:
        return SHIPPED[name]
    if ":" not in name:
        raise TargetError(
            f"no target named {name!r}; shipped are {', '.join(SHIPPED)}, "
            "and your own is written package.module:function"
        )
    return _custom(name)


def _custom(name: str) -> Target:
    module_name, _, attribute = name.partition(":")
    if not module_name or not all(part.isidentifier() for part in f"{module_name}.{attribute}".split(".")):
        raise TargetError(f"target {name!r} is not of the form package.module:function")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise TargetError(
                f"target {name!r}: no module named {error.name!r} "
                f"(looked in {here} and the installed packages)"
            ) from error
        raise TargetError(f"target {name!r}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise TargetError(
            f"target {name!r}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise TargetError(f"target {name!r}: {module_name} has no attribute {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(
            f"target {name!r}: {attribute} is of type {type(found).__name__}; it must be a function that "
            "takes a function and returns it compiled"
        )
    return Target(name, f"{module_name}.{attribute}", found, prepare=_nothing, reset=_reset_if_loaded)


def _reset_if_loaded() -> None:
    """A custom target may go through torch.compile; then Dynamo's caches are dropped too."""
    if "torch._dynamo" in sys.modules:
        _reset_dynamo()


def usable(names: list[str]) -> list[Target]:
    """The targets of these names, each once and in order; TargetError if one cannot work here."""
    targets = [find(name) for name in dict.fromkeys(names)]
    for target in targets:
        reason = target.available()
        if reason is not None:
            raise TargetError(f"target {target.name!r} cannot run here: {reason}")
    return targets
