"""torch's own logs of compiles: ``TORCH_LOGS``, ``TORCH_TRACE``, and the compile that they are about."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from torch._guards import CompileContext, compile_context
from torch._logging._internal import getArtifactLogger, trace_log, trace_structured

__all__ = ["current_compile", "log_graph", "within_compile"]

# What `TORCH_LOGS` calls each kind of graph; `TORCH_TRACE` has a name for each. (Loggers below "torch" write
# where torch's do.)
_LOGGERS = {name: getArtifactLogger("torch.aotfuzz", name) for name in ("aot_graphs", "aot_joint_graph")}


def current_compile() -> Any:
    """The compile of Dynamo's that this thread is in; None outside of one."""
    return CompileContext.try_get()


def within_compile(compile_: Any) -> contextlib.AbstractContextManager[Any]:
    """While this lasts, what is logged in this thread is about a compile of Dynamo's (None for none)."""
    return contextlib.nullcontext() if compile_ is None else compile_context(compile_)


def log_graph(kind: str, title: str, text: Callable[[], str]) -> None:
    """Log a graph of a kind (joint, forward, backward, inference), as torch's AOTAutograd does.

    The text is made only if somebody listens.
    """
    logger = _LOGGERS["aot_joint_graph" if kind == "joint" else "aot_graphs"]
    if logger.isEnabledFor(logging.INFO):
        logger.info("TRACED GRAPH\n ===== %s graph %s =====\n%s", kind.capitalize(), title, text())
    # (The handler that torch begins with has no folder, and goes when it is first used.)
    if any(getattr(handler, "root_dir", True) for handler in trace_log.handlers):
        trace_structured(f"aot_{kind}_graph", payload_fn=text, expect_trace_id=False)
