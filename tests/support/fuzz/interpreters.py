"""Interpreters that are scripts: this one in another environment, or one that only says something."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def write_interpreter(file: Path, *, side: str) -> Path:
    """This interpreter, in an environment that names its side of a comparison."""
    return write_script(file, f'AOTFUZZ_TEST_SIDE={side} exec {shlex.quote(sys.executable)} "$@"')


def write_script(file: Path, line: str) -> Path:
    """A script of one line that may be run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)
    return file
