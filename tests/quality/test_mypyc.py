"""The generator makes the same programs when mypyc compiles it; `python -m bench fuzz` says how fast."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOK = """
import hashlib, json
import fuzz.generate.program_builder
from fuzz.choices import Random
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.program.decode import to_json

found = hashlib.sha256()
for profile in PROFILES:
    for index in range(1000):
        found.update(json.dumps(to_json(generate(Random(19, index), profile)), sort_keys=True).encode())
print(json.dumps([fuzz.generate.program_builder.__file__, found.hexdigest()]))
"""


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_compiled_generator_makes_the_same_programs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fuzz", tmp_path / "fuzz", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("aot", "oracles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    interpreted = _look(tmp_path)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tmp_path, env=os.environ | {"AOTFUZZ_COMPILE": "1"}, check=True)
    compiled = _look(tmp_path)
    assert interpreted[0].endswith(".py")
    assert not compiled[0].endswith(".py")
    assert compiled[1] == interpreted[1]


def _look(folder: Path) -> list[str]:
    """Which file the builder is, and a digest of programs of each profile."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout)
    return found
