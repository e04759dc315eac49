"""What a case, or a script of a finding, comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz.execute.case import execute
from fuzz.program.decode import Program
from fuzz.targets.target import Target


def assert_found(compiler: Callable[..., Any], program: Program, clause: str) -> None:
    """The compiler breaks that clause on the program."""
    result = execute(program, Target("under-test", "", compiler))
    assert result.outcome == "finding"
    assert clause in {finding.clause for finding in result.findings}


def exit_status(script: str) -> object:
    """What the script of a finding exits with, run in this process."""
    with torch.enable_grad(), pytest.raises(SystemExit) as left:
        exec(compile(script, "repro.py", "exec"), {"__name__": "__main__"})
    return left.value.code
