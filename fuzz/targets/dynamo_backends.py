"""Dynamo backends: backends of torch.compile as targets, and the names that Dynamo knows.

A backend is a function of a GraphModule and example inputs, or a name that Dynamo knows. All of them are
treated alike. Dynamo's caches are dropped after each case, Dynamo never falls back to eager silently, and
Dynamo alone is the control. No torch is imported before a target is prepared or compiles.

    backend_target("openvino").controls    # ("torch-dynamo",)
    named_backend("cudagraphs").controls   # ("torch-dynamo", "torch-aot-eager"): it gets AOT graphs
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from fuzz.errors import TargetError
from fuzz.patterns import matches
from fuzz.targets.aot_autograd_refusals import aot_autograd_refusal
from fuzz.targets.target import Function, Target, do_nothing

Backend = str | Callable[..., Any]

PREFIX = "backend:"  # begins the name of a target that is one of Dynamo's backends

DYNAMO, AOT_EAGER = "torch-dynamo", "torch-aot-eager"

# This project's backends run refused programs as in eager, unless an option makes them raise.
OUR_BACKENDS = ("aotfuzz", "aotfuzz_inductor")
OUR_OPTIONS: Mapping[str, str] = MappingProxyType({"on_unsupported": "raise"})

# Backends of torch that are functions which call AOTAutograd.
_AOT = ("inductor", "aot_*")


def prepare_dynamo() -> None:
    """Set Dynamo up for tests: no silent fall-back to eager, and no state on disk."""
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.config.suppress_errors = False
    torch._functorch.config.enable_autograd_cache = False
    logging.getLogger("torch").setLevel(logging.ERROR)


def reset_dynamo() -> None:
    """Drop everything that Dynamo has compiled."""
    import torch._dynamo

    torch._dynamo.reset()


def backend_target(
    backend: Backend,
    *,
    name: str = "",
    description: str = "",
    aot: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    controls: tuple[str, ...] | None = None,
    prepare: Callable[[], None] = do_nothing,
    reset: Callable[[], None] = do_nothing,
    **more: Any,
) -> Target:
    """The target of a backend. `fuzz.Target.from_backend` describes the arguments and errors."""
    if not (isinstance(backend, str) and backend) and not callable(backend):
        raise TargetError(
            f"a backend is a name or a function of a GraphModule and example inputs, not {backend!r}"
        )
    called = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    compile_function = partial(
        _compile_with_backend, backend=backend, dynamic=dynamic, options=dict(options) if options else None
    )
    if isinstance(backend, str):
        more.setdefault("available", partial(_why_unavailable, backend))
    if aot:
        more.setdefault("refusal", aot_autograd_refusal)
    return Target(
        name or called,
        description or f"torch.compile with the backend {called}",
        compile_function,
        prepare=partial(_prepare_backend, prepare, reset, compile_function),
        reset=partial(_reset_backend, reset),
        controls=((DYNAMO, AOT_EAGER) if aot else (DYNAMO,)) if controls is None else controls,
        **{"in_pieces": True, "clauses": ("torch.compile",), **more},
    )


@cache
def named_backend(name: str) -> Target | None:
    """The target `backend:NAME` for one of Dynamo's backends; None if Dynamo has no backend of that name.

    The backend is loaded to see if it gets the graphs of AOTAutograd.

    Raises:
        TargetError: it cannot be loaded.
    """
    import torch._dynamo
    from torch._dynamo.backends.common import AotAutograd

    if name not in dynamo_backends():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch._dynamo.lookup_backend(name)
    except Exception as error:
        raise TargetError(f"backend {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    aot = isinstance(loaded, AotAutograd) or any(matches(pattern, name) for pattern in _AOT)
    options = OUR_OPTIONS if name in OUR_BACKENDS else None
    return backend_target(name, name=f"{PREFIX}{name}", aot=aot, options=options)


def dynamo_backends() -> list[str]:
    """The names of all backends that Dynamo knows here, with those for debugging."""
    import torch._dynamo

    return list(torch._dynamo.list_backends(exclude_tags=()))


def _compile_with_backend(
    function: Function, *, backend: Backend, dynamic: bool | None, options: dict[str, Any] | None
) -> Function:
    import torch

    compiled: Function = torch.compile(function, backend=backend, dynamic=dynamic, options=options)
    return compiled


def _prepare_backend(
    prepare: Callable[[], None], reset: Callable[[], None], compile_function: Callable[[Function], Function]
) -> None:
    prepare_dynamo()
    prepare()
    warm_up_with(compile_function)
    _reset_backend(reset)


def _reset_backend(reset: Callable[[], None]) -> None:
    reset_dynamo()
    reset()


def warm_up_with(compile_function: Callable[[Function], Function]) -> None:
    """Run a toy forward and backward.

    The first compilation of a process loads libraries, starts threads and takes memory for good, and no case
    should be blamed for that. If the backend fails on it, the cases will show that.
    """
    import torch

    tensor = torch.ones(2, 2, requires_grad=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile_function(lambda value: value.mul(2).t().sin())(tensor).sum().backward()
    except Exception as error:
        logging.getLogger(__name__).debug("the toy failed: %s", error)


def _why_unavailable(name: str) -> str | None:
    known = dynamo_backends()
    return None if name in known else f"Dynamo has no backend {name!r}; it has {', '.join(known)}"
