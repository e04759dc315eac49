"""Whether an interpreter can run a campaign: it makes the same programs, or says what it lacks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from fuzz.campaign.configuration import Configuration, generator_fingerprint
from fuzz.campaign.torch_pair.campaign_probe import require_campaign
from fuzz.errors import InterpreterError
from fuzz.interpreters import Interpreter, find_interpreter, write_source_copy
from tests.support.fuzz.interpreters import write_script


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "source"
    write_source_copy(folder)
    return folder


@pytest.fixture(scope="module")
def here() -> Interpreter:
    return find_interpreter(sys.executable)


def test_an_interpreter_makes_the_same_programs_with_a_copy(source: Path, here: Interpreter) -> None:
    configuration = Configuration(targets=("eager",), cases=1)
    assert require_campaign(here, source, configuration) == generator_fingerprint(configuration)


def test_a_target_that_an_interpreter_lacks_is_said(source: Path, here: Interpreter) -> None:
    said = f"torch {re.escape(torch.__version__)}.*no target named 'no-such'"
    with pytest.raises(InterpreterError, match=said):
        require_campaign(here, source, Configuration(targets=("no-such",), cases=1))


def test_an_interpreter_that_cannot_import_aotfuzz_says_why(source: Path, tmp_path: Path) -> None:
    broken = write_script(tmp_path / "python", "echo No module named hypothesis >&2; exit 1")
    with pytest.raises(InterpreterError, match="cannot run aotfuzz: No module named hypothesis"):
        require_campaign(Interpreter(broken, "3.12", "2.0"), source, Configuration(("eager",), cases=1))
