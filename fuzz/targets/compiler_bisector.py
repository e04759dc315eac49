"""Compiler bisector: torch's own bisector (`torch._inductor.compiler_bisector`), in one folder.

The bisector keeps its state in files in Inductor's cache folder, and every later compile that finds them
obeys them. So the folder is a separate one, named before torch is imported, and the process that bisects does
nothing else.

Layers have torch's names of backends, from first to last: "eager" is Dynamo only. The cross-reference mode,
which torch has before Inductor, is left out. It checks fake tensors, and raises for right programs.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.config
import torch._inductor.config
from torch._dynamo.backends.registry import lookup_backend
from torch._inductor import compiler_bisector
from torch._inductor.compiler_bisector import CompilerBisector

CROSSREF = "aot_eager_decomp_partition_crossref"
INDUCTOR = "inductor"
# A search over n applications takes about log2(n) runs. More runs mean that the program is unstable.
MOST_RUNS = 120


@dataclass(frozen=True, slots=True)
class Blamed:
    """The result of the bisector.

    Attributes:
        backend: the first of torch's backends that is wrong.
        subsystem: its part that is to blame, or "".
        number: the application of that part; None if it is a setting.
        name: the name of that application, such as a pass or a node of the graph.
        applications: the number of applications of that part.
    """

    backend: str
    subsystem: str = ""
    number: int | None = None
    name: str = ""
    applications: int = 0


class TooManyRuns(Exception):
    """The bisector does not end, because the program is not wrong each time."""


def prepare_bisection(folder: Path) -> None:
    """Prepare this process: torch's state is in `folder`, custom backends are kept, nothing is cached.

    The environment variable TORCHINDUCTOR_CACHE_DIR must name the same folder.
    """
    compiler_bisector.BACKENDS.pop(CROSSREF, None)
    CompilerBisector.in_process_cache = str(folder)
    keep_custom_backends()
    # It is imported before forks, so that not each of them imports it.
    import torch._inductor.compile_fx  # noqa: F401


def bisect_compiler(is_right: Callable[[bool], bool], log: io.TextIOBase) -> Blamed | None:
    """Let torch's bisector find the part to blame; None if it finds no layer that is wrong.

    Args:
        is_right: runs the program once, in a process forked from this one. Its argument says if a part of a
            backend is switched off in this run.
        log: gets what the bisector prints.

    Raises:
        TooManyRuns: the answers of `is_right` contradict each other.
    """
    runs = 0

    def right() -> bool:
        nonlocal runs
        runs += 1
        if runs > MOST_RUNS:
            raise TooManyRuns
        return is_right(bool(CompilerBisector.get_subsystem()))

    try:
        with contextlib.redirect_stdout(log):
            found = CompilerBisector.do_bisect(right)
    except RuntimeError as error:  # "Function succeeded with 'find_max_bounds' status"
        raise TooManyRuns from error
    if found is None:
        return None
    if found.subsystem is None:
        return Blamed(found.backend)
    subsystem = CompilerBisector.get_subsystem_object(found.backend, found.subsystem)
    if not isinstance(subsystem, compiler_bisector.BisectSubsystem):
        return Blamed(found.backend, found.subsystem)
    return Blamed(found.backend, found.subsystem, found.bisect_number)


def setting_of(backend: str, subsystem: str) -> tuple[str, str, object] | None:
    """The module, name and value of the setting that a subsystem means; None if it is no setting."""
    found: Any = CompilerBisector.get_subsystem_object(backend, subsystem)
    if not isinstance(found, compiler_bisector.ConfigChange):
        return None
    module = "torch._inductor.config" if backend == INDUCTOR else "torch._functorch.config"
    return module, found.config_field, found.config_value


def record_applications(file: Path) -> None:
    """Write the name of each application of the bisected part to a file, one a line.

    torch records some of these names, and before 2.13 only in memory.
    """
    disable = CompilerBisector.disable_subsystem

    def disable_subsystem(backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        disabled = disable(backend, subsystem, debug_info)
        if CompilerBisector.get_backend() == backend and CompilerBisector.get_subsystem() == subsystem:
            name = debug_info() if debug_info is not None else subsystem
            with file.open("a", encoding="utf-8", errors="replace") as stream:
                stream.write(" ".join(name.split()) + "\n")
        return disabled

    CompilerBisector.disable_subsystem = disable_subsystem  # type: ignore[method-assign]


def switch_compiler_off() -> None:
    """Make `torch.compile` return its argument, in this process and in those that it starts."""
    torch._dynamo.config.disable = True
    os.environ["TORCH_COMPILE_DISABLE"] = os.environ["TORCHDYNAMO_DISABLE"] = "1"


def without_dynamic_shapes() -> None:
    """Make every size static in this process."""
    torch._dynamo.config.assume_static_by_default = True
    torch._dynamo.config.automatic_dynamic_shapes = False
    _change_options(lambda options: {**options, "dynamic": False})


def record_backends(file: Path) -> None:
    """Write the backends that `torch.compile` gets to a file, one a line."""

    def record(options: dict[str, Any]) -> dict[str, Any]:
        backend = options.get("backend", INDUCTOR)
        with file.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(backend_name(backend) + "\n")
        return options

    _change_options(record)


def backend_name(backend: Any) -> str:
    """The name of a backend: torch's own name, or module and function."""
    if isinstance(backend, str):
        return backend
    name = getattr(backend, "__qualname__", type(backend).__qualname__)
    return f"{getattr(backend, '__module__', '')}:{name}"


def keep_custom_backends() -> None:
    """Let the bisector replace only torch's own backends.

    A custom backend is kept when Inductor is bisected.
    """
    torch._inductor.config.test_configs.bisect_keep_custom_backend_for_inductor = True

    def keep(options: dict[str, Any]) -> dict[str, Any]:
        backend = options.get("backend", INDUCTOR)
        # torch keeps backends that are functions, and replaces names.
        if isinstance(backend, str) and backend not in compiler_bisector.BACKENDS:
            return {**options, "backend": lookup_backend(backend)}
        return options

    _change_options(keep)


def _change_options(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the options of `torch.compile` before each of its calls."""
    compile_function = torch.compile

    def changed(*args: Any, **options: Any) -> Any:
        return compile_function(*args, **change(options))

    torch.compile = changed
