"""What each stage prints for the functions of `functions.py` is what the golden files have.

`pytest tests/golden --rewrite-golden` writes them anew: read the difference before it is committed.
"""

from __future__ import annotations

import inspect
import logging
import re
from pathlib import Path

import pytest
import torch

import aot
from tests.golden.functions import EXAMPLES, Example

FOLDER = Path(__file__).parent / "texts"
STAGES = ("traced", "effects", "joint", "plan", "wrapper")
TITLES = {
    "traced": "the trace",
    "effects": "what it did",
    "joint": "forward and backward",
    "plan": "what a call does besides running graphs",
    "wrapper": "the generated code",
}


def printed(example: Example, caplog: pytest.LogCaptureFixture) -> str:
    """The source of a function, and what each stage prints of its compile."""
    for stage in STAGES:
        caplog.set_level(logging.DEBUG, f"aot.{stage}")
    compiled = aot.aot_function(example.function, aot.nop, **example.options)
    compiled(*example.arguments())
    parts = [inspect.getsource(example.function)]
    for stage in STAGES:
        (message,) = (r.getMessage() for r in caplog.records if r.name == f"aot.{stage}")
        _, _, text = message.partition("\n")
        parts.append(f"==== {stage}: {TITLES[stage]}\n\n{text.strip()}\n")
    # (Versions of torch name nodes of the autograd graph in their own ways.)
    text = re.sub(r"(output \d+ of) \w+", r"\1 a node", "\n".join(parts))
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_stages_print_what_the_golden_file_has(
    name: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    text = printed(EXAMPLES[name], caplog)
    file = FOLDER / f"{name}.txt"
    if request.config.getoption("--rewrite-golden"):
        file.write_text(text, encoding="utf-8")
    assert file.exists(), "there is no such file yet: pytest tests/golden --rewrite-golden"
    assert text == file.read_text(encoding="utf-8")


def test_each_golden_file_has_a_function() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(EXAMPLES)


def test_printing_a_stage_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A value that is read appends a node, and a history may be derived when it is asked for."""
    for example in EXAMPLES.values():
        quiet = aot.aot_function(example.function, aot.nop, **example.options)
        quiet(*example.arguments())
        caplog.clear()
        printed(example, caplog)
        (wrapper,) = (r.getMessage() for r in caplog.records if r.name == "aot.wrapper")
        assert quiet.specializations[0].wrapper.strip() in wrapper
        for stage in STAGES:
            logging.getLogger(f"aot.{stage}").setLevel(logging.NOTSET)


def test_explain_has_the_text_of_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aot.plan")
    compiled = aot.aot_function(EXAMPLES["write_to_an_argument"].function, aot.nop)
    compiled(torch.ones(2, 3))
    (record,) = (r for r in caplog.records if r.name == "aot.plan")
    assert record.getMessage().partition("\n")[2] in aot.explain(compiled)
    assert "t0 <- v0, counted" in record.getMessage()
