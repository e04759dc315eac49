"""Objects that are no tensors and that operators and graphs take as a whole."""

from __future__ import annotations

from typing import Any

import torch
from torch._library import opaque_object as _opaque_object
from torch._library.fake_class_registry import FakeScriptObject

__all__ = ["is_opaque_object", "is_script_object"]


def is_opaque_object(value: object) -> bool:
    """Whether it is an object of a class that torch lets graphs take as a whole (a mesh of devices)."""
    return bool(_opaque_object.is_opaque_type(type(value)))


def is_script_object(value: Any) -> bool:
    """Whether it is an object of a class that C++ or TorchScript has defined."""
    return isinstance(value, (torch.ScriptObject, FakeScriptObject))
