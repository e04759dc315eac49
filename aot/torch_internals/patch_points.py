"""Where torch looks up functions that a trace replaces: the owner and the attribute's name."""

from __future__ import annotations

import importlib
from typing import Any

import torch

__all__ = ["CUDA_SYNCHRONIZE", "ENGINE_RUN_BACKWARD", "NODE_REGISTER_HOOK", "collective_tracing_check"]

CUDA_SYNCHRONIZE = (torch._C, "_cuda_synchronize")
"""Where `torch.cuda.synchronize` looks up what it calls. Only a torch with CUDA has it."""


def collective_tracing_check() -> tuple[Any, str] | None:
    """The function, by its module and its name, that decides whether a collective returns what has been
    waited for, or a tensor subclass that waits when it is used; None where none can be called."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return importlib.import_module("torch.distributed._functional_collectives"), "_are_we_tracing"


# Nodes are C++ classes; all their methods that register a Python hook call this one.
NODE_REGISTER_HOOK = (torch.autograd.Function, "_register_hook")
# What `backward` and `grad` call.
ENGINE_RUN_BACKWARD = (torch.autograd, "_engine_run_backward")
