"""Profiles by name: anybody's own, and with some operators alone; the shipped ones are as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz.campaign.workers import handlers
from fuzz.choices import SeededChoices
from fuzz.cli import _command_line_parser, main
from fuzz.commands.campaigns import _campaign_configuration
from fuzz.errors import ConfigurationError
from fuzz.features.traits import TRAITS, described_traits
from fuzz.generate import generate
from fuzz.generate.profile_names import find_profile, no_profile_imported, profile_name
from fuzz.generate.profiles import PROFILES
from fuzz.operators import OPERATORS
from fuzz.patterns import matches

OWN = """
from dataclasses import replace

from fuzz.generate.profiles import PROFILES, Profile

short = replace(PROFILES["aliasing"], name="short", statements=(1, 2), motif=0.0)
mixing = Profile("mixing", mixture=("aliasing", "no-such"))
number = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_profiles.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_module")
def test_who_reads_a_campaign_of_somebody_else_imports_no_profile() -> None:
    with no_profile_imported():
        assert find_profile("mixed[add]").operators == {"add"}
        with pytest.raises(ConfigurationError, match=r"own_profiles:number.*say --import-profile"):
            find_profile("own_profiles:number")
    with pytest.raises(ConfigurationError, match="is of type int"):
        find_profile("own_profiles:number")


def test_a_shipped_profile_is_found_by_its_name_and_makes_the_programs_that_it_made() -> None:
    assert all(find_profile(name) is profile for name, profile in PROFILES.items())
    made = handlers.program(3, 5, "aliasing")
    assert made == generate(SeededChoices(3, 5), PROFILES["aliasing"])
    assert find_profile("aliasing").operators is None


@pytest.mark.parametrize("profile", ["mixed", "scenes", "python", "single", "uniform", "operators"])
@pytest.mark.parametrize(
    ("operators", "without"),
    [(("add", "mul*", "sin", "exp_", "t", "sum"), ("mul_out",)), ((), ("add*", "*_", "expand"))],
)
def test_programs_have_the_operators_that_are_chosen_alone(
    profile: str, operators: tuple[str, ...], without: tuple[str, ...]
) -> None:
    name = profile_name(profile, operators, without)
    used = {
        statement.operator for index in range(12) for statement in handlers.program(0, index, name).statements
    }
    assert used
    for operator in used:
        assert not operators or any(matches(pattern, operator) for pattern in operators)
        assert not any(matches(pattern, operator) for pattern in without)


@pytest.mark.usefixtures("own_module")
def test_a_profile_of_ones_own_is_named_as_a_target_is() -> None:
    for index in range(5):
        assert 1 <= len(handlers.program(0, index, "own_profiles:short[-relu]").statements) <= 4
    options = _command_line_parser().parse_args(
        ["run", "--target", "eager", "--profile", "own_profiles:short", "--operators", "add, mul*"]
    )
    assert _campaign_configuration(options).profile == "own_profiles:short[add,mul*]"


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "no-such",
            "no profile named 'no-such'; there are uniform, .*, and your own is written package.module:NAME",
        ),
        (
            "own_profiles:number",
            "is of type int; it must be a fuzz.generate.profiles.Profile, such as replace",
        ),
        ("own_profiles:absent", "own_profiles has no attribute 'absent'"),
        ("own_profiles:mixing", "mixes 'no-such'; there are uniform"),
        ("no_such_module:p", "profile 'no_such_module:p': no module named 'no_such_module'"),
        ("mixed[add", r"there is no \] at the end"),
        ("mixed[addd]", "no operator is called 'addd'; `aotfuzz traits` lists them"),
        ("mixed[add,-add]", "no operator is left"),
    ],
)
def test_a_profile_that_cannot_be_had_says_why(name: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        find_profile(name)


def test_the_command_line_refuses_it_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--target", "eager", "--operators", "addd"]) == 2
    assert "no operator is called 'addd'" in capsys.readouterr().err


def test_traits_are_listed_with_descriptions_and_capabilities(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(described_traits()) == TRAITS
    assert main(["traits", "--json"]) == 0
    told = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(told.out)["traits"]}
    assert list(rows) == list(TRAITS)
    assert all(row["description"] for row in rows.values())
    assert rows["dtype: complex64"]["capabilities"] == ["complex"]
    assert rows["operator: add"]["description"] == "pointwise: {0} + {1}"
    listed = [line.split()[1] for line in told.err.splitlines() if line.startswith("operator: ")]
    assert set(OPERATORS) <= set(listed)
