"""`aotfuzz doctor`: what it says of an installation, its exit statuses and its JSON."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz.cli import main
from fuzz.diagnosis import environment, examine, private_api, sample_programs
from fuzz.diagnosis.diagnosis_text import Diagnosis, diagnosis_json, diagnosis_text, notes, problems
from fuzz.diagnosis.environment import Cache, Torch
from fuzz.diagnosis.private_api import PrivateApi
from fuzz.diagnosis.sample_programs import Sample, run_sample_programs
from fuzz.generate.profiles import PROFILES
from tests.support.fuzz.cli_cases import printed_json

WELL = Diagnosis(
    "3.11.9, CPython",
    Torch("2.13.0+cpu", "CPU"),
    "/usr/bin/g++",
    Cache("/home/me/.cache/aotfuzz", on=False),
    {"test": (), "rivals": ("nnsmith",)},
    PrivateApi(("2.11", "2.13"), ("2.13",), 300),
    {"mixed": Sample({"agree": 7, "refused": 1})},
)
MISSING = {"name": "torch._C._f", "before": "(a)", "after": None, "users": ["aot/torch_internals/x.py: g"]}
CHANGED = {
    "name": "torch._ops.h",
    "before": "(a)",
    "after": "(a, b)",
    "users": ["aot/torch_internals/y.py: k"],
}


def test_a_sound_installation_is_said_to_be_well() -> None:
    text = diagnosis_text(WELL)
    for part in (
        "2.13.0+cpu, built for CPU, tested",
        "/usr/bin/g++",
        "off (AOTFUZZ_CACHE_DIR is not set), /home/me/.cache/aotfuzz",
        "extra rivals  not installed: nnsmith",
        "300 names compared with torch 2.13: 0 missing, 0 changed",
        "All is well.",
    ):
        assert part in text
    assert problems(WELL) == [] and notes(WELL) == []


def test_what_is_missing_or_has_changed_is_named_with_its_users() -> None:
    diagnosis = replace(WELL, private_api=replace(WELL.private_api, changes=(MISSING, CHANGED)))
    assert problems(diagnosis) == [
        "missing torch._C._f (used in aot/torch_internals/x.py: g)",
        "changed signature torch._ops.h from (a) to (a, b) (used in aot/torch_internals/y.py: k)",
    ]
    assert "1 missing, 1 changed" in diagnosis_text(diagnosis)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"torch": Torch("", error="OSError: no libtorch")},
            "torch cannot be imported: OSError: no libtorch",
        ),
        ({"torch": Torch("2.10.1")}, "torch 2.10.1 is too old; install 2.11 or a newer one"),
        ({"private_api": PrivateApi(error="no answer")}, "private API cannot be looked at: no answer"),
        ({"cache": Cache("", False, error="ImportError: x")}, "aot cannot be imported: ImportError: x"),
        ({"cache": Cache("/a", True, "is not yours")}, "the cache cannot be used: is not yours"),
        ({"programs_error": "no worker starts"}, "programs cannot be run: no worker starts"),
    ],
)
def test_each_thing_that_is_wrong_is_a_problem(change: dict[str, Any], problem: str) -> None:
    diagnosis = replace(WELL, **change)
    assert problem in problems(diagnosis)
    assert f"Wrong: {problem}" in diagnosis_text(diagnosis)
    assert diagnosis_json(diagnosis)["well"] is False


def test_a_cache_that_is_off_may_be_unusable() -> None:
    assert problems(replace(WELL, cache=Cache("/a", False, "is not yours"))) == []


def test_a_newer_torch_and_no_compiler_are_notes() -> None:
    diagnosis = replace(WELL, torch=Torch("2.16.0.dev20261127", "CPU"), compiler=None)
    newer, compiler = notes(diagnosis)
    assert newer == "torch 2.16.0.dev20261127 is newer than what was tested (2.11, 2.13)"
    assert "C++ compiler" in compiler
    assert problems(diagnosis) == [] and "not tested" in diagnosis_text(diagnosis)


def test_a_program_that_differs_is_a_problem_with_the_command_that_shows_it() -> None:
    diagnosis = replace(WELL, programs={"calls": Sample({"finding": 1}, ("program 3: values: out",))})
    (problem,) = problems(diagnosis)
    assert "program 3: values: out" in problem
    assert "aotfuzz run --target aot --profile calls --seed" in problem


@pytest.mark.parametrize(("diagnosis", "status"), [(WELL, 0), (replace(WELL, programs_error="none"), 1)])
def test_the_exit_status_and_the_object(
    diagnosis: Diagnosis, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examine, "examine_installation", lambda: diagnosis)
    assert main(["doctor", "--json"]) == status
    data = printed_json(capsys)
    assert data["well"] is (status == 0)
    assert data["private_api"]["names"] == 300 and data["programs"]["mixed"]["outcomes"]["agree"] == 7


def test_a_wrong_request_exits_with_2() -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--nothing-of-the-kind"])
    assert left.value.code == 2


def test_one_program_of_each_profile_is_run() -> None:
    found = run_sample_programs("eager", cases=1)
    assert found.keys() == PROFILES.keys()
    assert all(sum(sample.outcomes.values()) == 1 for sample in found.values())
    assert all(not sample.problems for sample in found.values())


def test_a_wrong_target_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_programs, "PROFILES", {"aliasing": PROFILES["aliasing"]})
    (sample,) = run_sample_programs("tests.fuzz.bad_targets:drops_mutation", cases=6).values()
    assert sample.outcomes["finding"] == len(sample.problems) > 0
    assert sample.problems[0].startswith("program ")


def test_no_more_programs_are_begun_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_programs, "PROFILES", {"uniform": PROFILES["uniform"]})
    (sample,) = run_sample_programs("eager", cases=5, seconds=0).values()
    assert sum(sample.outcomes.values()) == 1


def test_the_environment_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = environment.installed_torch()
    assert here.version == torch.__version__ and not here.error
    assert here.build == (f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU")
    compiler = tmp_path / "my-c++"
    compiler.write_text("")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert environment.cpp_compiler() == str(compiler)
    monkeypatch.setenv("CXX", "no-compiler-of-the-kind")
    assert environment.cpp_compiler() is None


def test_extras_are_those_of_the_installed_package() -> None:
    missing = environment.missing_packages()
    assert missing.keys() >= {"cluster", "min-cut", "test", "lint"}
    assert "pytest" not in missing["test"]


def test_a_torch_that_cannot_be_imported_is_a_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert environment.installed_torch().error.startswith("ModuleNotFoundError: import of torch halted")


def test_an_aot_that_cannot_be_imported_is_a_diagnosis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "aot.py").write_text("raise ImportError('torch._C._f is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AOTFUZZ_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cache = environment.disk_cache()
    assert cache.on and cache.error == "ImportError: torch._C._f is missing"


def test_the_inventory_of_this_installation_is_made() -> None:
    api = private_api.compare_private_api()
    assert not api.error and api.names > 200 and api.baselines
    assert private_api.inventory_file().name == "inventory.py"


def test_an_inventory_that_fails_is_a_diagnosis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "inventory.py"
    broken.write_text("raise OSError('no libtorch')")
    monkeypatch.setattr(private_api, "inventory_file", lambda: broken)
    assert private_api.compare_private_api().error == "OSError: no libtorch"
