"""Tests of what some versions of torch have and others do not."""

from __future__ import annotations

import pytest
import torch

from fuzz.torch_versions import includes


def needs_torch(versions: str, reason: str) -> pytest.MarkDecorator:
    """A mark that skips a test outside of a range of versions.

    needs_torch(">=2.15", "torch.switch is of torch 2.15")
    """
    return pytest.mark.skipif(not includes(versions, torch.__version__), reason=f"{reason} (issue 47)")
