"""docs/reference/compatibility.md: every name of torch's is there, and what the page says of it is true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import functorch.compile
import pytest
import torch._functorch.aot_autograd

import aot

PAGE = Path(__file__).parents[3] / "docs/reference/compatibility.md"
MODULES = {
    "functorch.compile": functorch.compile,
    "torch._functorch.aot_autograd": torch._functorch.aot_autograd,
}


class Row(NamedTuple):
    status: str
    text: str
    everywhere: bool  # in all supported versions of torch


def rows(section: str) -> dict[str, Row]:
    """What the page says of each name of a section."""
    _, _, rest = PAGE.read_text().partition(f"\n## {section}\n")
    found = {}
    for line in rest.partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            names, status, text = (cell.strip() for cell in line.strip("|").split(" | "))
            for name, version in re.findall(r"`(\w+)`( \(2\.\d+\))?", names):
                assert name not in found
                found[name] = Row(status, text.strip(" |"), not version)
    return found


def public(section: str) -> set[str]:
    """The names that torch has there."""
    module = MODULES[section]
    own = section != "functorch.compile"
    names = {name for name in dir(module) if not name.startswith("_")}
    return {
        name
        for name in names
        if not (isinstance(getattr(module, name), ModuleType) and (own or name != "config"))
        and not (
            own and not str(getattr(getattr(module, name), "__module__", "")).startswith("torch._functorch")
        )
    }


@pytest.mark.parametrize("section", MODULES)
def test_the_page_has_the_names_that_torch_has(section: str) -> None:
    known = rows(section)
    elsewhere = set() if section == "functorch.compile" else rows("functorch.compile").keys()
    assert public(section) - elsewhere <= known.keys()
    assert {name for name, row in known.items() if row.everywhere} <= public(section)


@pytest.mark.parametrize("section", MODULES)
def test_what_the_page_says_is_so(section: str) -> None:
    for name, row in rows(section).items():
        assert row.status in ("same", "different", "not offered"), name
        assert hasattr(aot, name) is (row.status != "not offered"), name
        assert bool(row.text) is (row.status != "same"), name
        if row.status == "same":
            ours, theirs = (inspect.signature(getattr(m, name)).parameters for m in (aot, MODULES[section]))
            assert len(ours) == len(theirs), name
