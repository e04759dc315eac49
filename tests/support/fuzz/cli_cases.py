"""Recorded cases and JSON for tests of the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.corpus import case_file
from tests.fuzz.corpus.test_corpus import CASE

HERE = Path(__file__).parents[1]


def printed_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1, "with --json stdout holds one line"
    data = json.loads(lines[0])
    assert isinstance(data, dict)
    return data


def record_case(name: str, **changes: Any) -> Path:
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    case_file.write_case(file, replace(CASE, **changes))
    return file


KNOWN = """format = 1
[[issue]]
title = "writes are lost"
targets = ["tests.fuzz.bad_targets:drops_mutation", "eager"]
signature = "*"
case = "a.json"
"""
