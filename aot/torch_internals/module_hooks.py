"""Hooks that calls of all modules run."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as _modules

__all__ = ["global_hook_registries", "has_global_hooks"]


def global_hook_registries() -> tuple[dict[int, Any], ...]:
    """The registries of hooks that calls of all modules run (`register_module_forward_hook` and others)."""
    return (
        _modules._global_forward_pre_hooks,
        _modules._global_forward_hooks,
        _modules._global_backward_pre_hooks,
        _modules._global_backward_hooks,
    )


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules."""
    return any(
        bool(hooks) for name, hooks in vars(torch.nn.modules.module).items() if _is_hook_registry(name)
    )


def _is_hook_registry(name: str) -> bool:
    return name.startswith("_global_") and name.endswith("hooks")
