"""Other people's targets: registered by their package, with what they refuse and lack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz import Target
from fuzz.campaign.workers.handlers import handle_item, program_item
from fuzz.cli import main
from fuzz.errors import TargetError
from fuzz.execute.case import execute
from fuzz.features.capabilities import CAPABILITIES
from fuzz.program.decode import Storage
from fuzz.repro import script as repro_script
from fuzz.targets import plugins
from fuzz.targets.catalog import find_target
from oracles import Finding
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND, SINE

MODULE = """
from fuzz import Target

def wrong(function):
    return lambda *args: (function(*args), 1)

def refuse(error):
    return "TooHard" if isinstance(error, NotImplementedError) else None

def hard(function):
    raise NotImplementedError("no")

target = Target("another name", "somebody's", wrong, lacks=("in-place",))
refusing = Target("refusing", "declines", hard, refuse)
misspelt = Target("misspelt", "", wrong, lacks=("complexx",))
"""


@pytest.fixture(autouse=True)
def somebodys_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed, as far as its metadata say."""
    (tmp_path / "somebodys_compiler.py").write_text(MODULE)
    info = tmp_path / "somebodys_compiler-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-compiler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[aotfuzz.targets]\n"
        "theirs = somebodys_compiler:target\n"
        "gone = somebodys_compiler:absent\n"
        "eager = somebodys_compiler:target\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_registered_target_has_its_name_and_a_shipped_one_keeps_its_own() -> None:
    assert plugins.registered_targets() == {
        "gone": "somebodys_compiler:absent",
        "theirs": "somebodys_compiler:target",
    }
    target = find_target("theirs")
    assert (target.name, target.description) == ("theirs", "somebody's")
    assert find_target("eager").description.startswith("control")
    assert find_target("somebodys_compiler:target").lacks == ("in-place",)
    with pytest.raises(TargetError, match="registered are gone, theirs"):
        find_target("no-such")


def test_what_a_target_lacks_is_refused_and_not_run() -> None:
    target = find_target("theirs")
    refused = execute(DOUBLE_IN_PLACE, target)
    assert (refused.outcome, refused.reason) == ("refused", "lacks in-place")
    assert execute(SINE, target).outcome == "finding"
    assert replace(target, lacks=("operator: exp*",)).lacking(LOST_THROUGH_EXPAND) == "operator: exp*"
    assert replace(target, lacks=("operator: exp*",)).lacking(SINE) is None
    double = replace(SINE, storages=(Storage("float64", (2, 3), 1),))
    assert replace(target, lacks=("dtype: float64",)).lacking(double) == "dtype: float64"
    assert replace(target, lacks=("complex", "cuda")).lacking(double) is None


def test_what_a_target_declines_by_itself_is_refused() -> None:
    refused = execute(SINE, find_target("somebodys_compiler:refusing"))
    assert (refused.outcome, refused.reason) == ("refused", "TooHard")


def test_a_misspelt_capability_is_said() -> None:
    with pytest.raises(TargetError, match="lacks 'complexx', which is neither a capability"):
        find_target("somebodys_compiler:misspelt")
    assert "complex" in CAPABILITIES


def test_targets_are_listed_and_a_broken_one_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["targets"]}
    assert rows["theirs"]["unavailable"] is None
    assert "no attribute 'absent'" in rows["gone"]["unavailable"]


def test_a_campaign_runs_a_registered_target_and_its_script_names_the_module(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "--target", "theirs", "--cases", "12", "--json", "--out", "found"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["profile"], data["refusals"]) == ("mixed{in-place}", {})
    assert data["findings"] > 0
    finding = Finding("structure", "out", "a", "b", "c")
    script = repro_script.repro_script(SINE, "theirs", finding)
    assert "import somebodys_compiler\n" in script
    assert "somebodys_compiler.target(f)" in script
    assert Target("x", "", lambda function: function)(len) is len


def test_a_module_that_exits_when_it_is_imported_is_said_to(tmp_path: Path) -> None:
    (tmp_path / "leaving_compiler.py").write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(TargetError, match=r"importing leaving_compiler failed: SystemExit: 0"):
        find_target("leaving_compiler:target")


def test_a_target_that_exits_when_it_is_made_ready_is_said_to() -> None:
    with pytest.raises(TargetError, match="cannot be made ready: its prepare raises SystemExit: 0"):
        handle_item(program_item(SINE, "tests.fuzz.hostile_targets:exits_when_made_ready"))
