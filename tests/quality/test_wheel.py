"""What is installed: the three packages, whole, and nothing that another project may be called like."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = ("aot", "fuzz", "oracles")
DATA = {".py", ".typed", ".jinja", ".json"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sources as they are, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in (*INSTALLED, "bench", "tests", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "-w", folder, source], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    return unpacked


def files_in(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix in DATA and "__pycache__" not in path.parts
    }


def test_it_has_the_packages_alone_and_whole(wheel: Path) -> None:
    expected = {f"{name}/{path}" for name in INSTALLED for path in files_in(ROOT / name)}
    assert {path for path in files_in(wheel) if ".dist-info/" not in path} == expected
    tops = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == set(INSTALLED)


IMPORT_ALL = """
import importlib, pkgutil, sys
for name in {names!r}:
    package = importlib.import_module(name)
    assert package.__file__.startswith({folder!r}), package.__file__
    for module in pkgutil.walk_packages(package.__path__, f"{{name}}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""


def test_every_module_of_it_can_be_imported(wheel: Path) -> None:
    """A folder without an ``__init__.py`` is left out, and the sources beside would hide that."""
    script = IMPORT_ALL.format(names=INSTALLED, folder=str(wheel))
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}){script}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=wheel, timeout=200)
    assert done.returncode == 0, done.stderr
    modules = [path for path in files_in(wheel) if path.endswith(".py") and not path.endswith("__main__.py")]
    tops = {f"{name}/__init__.py" for name in INSTALLED}
    assert len(done.stdout.split()) == len([path for path in modules if path not in tops])
