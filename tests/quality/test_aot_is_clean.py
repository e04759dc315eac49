"""This project's own compiler agrees with eager on 2,000 random programs, and refuses hardly any.

One part of four is run each time, the others by night alone.
"""

from __future__ import annotations

import pytest

from fuzz.choices import SeededChoices
from fuzz.execute.call import LACKS
from fuzz.execute.case import execute
from fuzz.generate import generate
from fuzz.program.printer import render
from fuzz.targets.catalog import find_target

# 2,000 cases, in parts so that they run beside each other. By night there are 50,000 more, of other seeds.
SHARES = {"aot": 1050, "aot-min-cut": 300, "aot-recompute": 300, "aot-rng": 300, "aot-dynamic": 50}
PART = 25
PARTS = [(name, first) for name, share in SHARES.items() for first in range(0, share, PART)]
# Of a part, at most, besides what `Target.declines` names; of all it is less than one in two hundred.
REFUSED = 2


@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param(name, first, marks=pytest.mark.nightly if first // PART % 4 else ())
        for name, first in PARTS
    ],
)
def test_no_program_is_compiled_wrong(name: str, first: int) -> None:
    target = find_target(name)
    target.prepare()
    refusals = []
    for index in range(first, first + PART):
        program = generate(SeededChoices(26, index))
        result = execute(program, target)
        assert result.outcome != "finding", f"case {index}: {result.reason}\n\n{render(program)}"
        if result.outcome == "refused" and not result.reason.startswith(LACKS):
            refusals.append(f"case {index}: {result.reason}")
    assert len(refusals) <= REFUSED, refusals


def test_there_are_2000() -> None:
    assert sum(SHARES.values()) == len(PARTS) * PART == 2000
