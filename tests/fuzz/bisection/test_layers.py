"""Layers: what is blamed, what is refused, and that nothing is left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from fuzz.bisection.layers import Blame, Command, find_layer
from fuzz.bisection.trial import Script
from fuzz.errors import ScriptError
from fuzz.interpreters import Interpreter

HERE = Interpreter(Path(sys.executable), "3", torch.__version__)

# Dynamo alone makes it wrong: only it knows that it compiles.
DYNAMO = """
import sys, torch
def f(x):
    return x + 1 if torch.compiler.is_compiling() else x
x = torch.ones(3)
sys.exit(0 if torch.equal(torch.compile(f, backend="aot_eager")(x), f(x)) else 1)
"""
EAGER = """
import sys, torch
torch.compile(lambda x: x, backend="aot_eager")(torch.ones(3))
sys.exit(int(torch.ones(3).sum() == 3))
"""
CUSTOM = """
import sys, torch
def backend(graph, inputs):
    return lambda *args: [-result for result in graph(*args)]
def f(x):
    return x.sin()
x = torch.ones(3)
sys.exit(0 if torch.equal(torch.compile(f, backend=backend)(x), f(x)) else 1)
"""
# A registered name, which torch's own bisector replaces.
REGISTERED = CUSTOM.replace("backend=backend", "backend='negating'").replace(
    "def f(x)", "torch._dynamo.register_backend(backend, 'negating')\ndef f(x)"
)
DYNAMIC = """
import sys, torch
def backend(graph, inputs):
    wrong = any(isinstance(value, torch.SymInt) for value in inputs)
    return lambda *args: [-result if wrong else result for result in graph(*args)]
compiled = torch.compile(lambda x: x.sin(), backend=backend)
sys.exit(0 if all(torch.equal(compiled(torch.ones(n)), torch.ones(n).sin()) for n in (3, 4, 5)) else 1)
"""


def blamed(text: str, folder: Path) -> Blame:
    """What is blamed for a script; whatever torch writes by default would be seen in `outside`."""
    script = folder / "script.py"
    script.write_text(text)
    (folder / "outside").mkdir()
    places = dict.fromkeys(("TMPDIR", "HOME", "XDG_CACHE_HOME"), str(folder / "outside"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in places.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        blame = find_layer(HERE, Script(script), folder=folder / "bisection", limit=240)
    assert sorted(os.listdir(folder)) == ["bisection", "outside", "script.py"]
    assert list((folder / "outside").rglob("*")) == []
    assert set(os.listdir(folder / "bisection")) <= {"bisector.log", "found.json"}
    return blame


def test_dynamo_is_blamed_with_two_commands(tmp_path: Path) -> None:
    blame = blamed(DYNAMO, tmp_path)
    assert (blame.layer, blame.label, blame.part) == ("Dynamo", "module: dynamo", "")
    assert blame.is_confirmed
    script = (sys.executable, str(tmp_path / "script.py"))
    assert blame.right == Command(script, {"TORCH_COMPILE_DISABLE": "1"})
    assert blame.wrong is not None
    assert blame.wrong.text.endswith(f"TORCH_BISECT_BACKEND=eager {' '.join(script)}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "script.py is right with torch"),
        ("import sys; sys.exit(125)", "script.py cannot tell whether it is right"),
        ("raise ValueError('odd')", "is wrong .raises ValueError. and never calls torch.compile.*odd"),
    ],
)
def test_scripts_without_anything_to_blame_are_refused(text: str, said: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    with pytest.raises(ScriptError, match=said):
        find_layer(HERE, Script(script), folder=tmp_path / "bisection", limit=240)
    assert sorted(os.listdir(tmp_path / "bisection")) == ["found.json"]


@pytest.mark.nightly
def test_what_is_wrong_without_a_compiler_is_eagers(tmp_path: Path) -> None:
    blame = blamed(EAGER, tmp_path)
    assert (blame.layer, blame.label, blame.right) == ("eager", "", None)


@pytest.mark.nightly
@pytest.mark.parametrize(("text", "name"), [(CUSTOM, "__main__:backend"), (REGISTERED, "negating")])
def test_a_custom_backend_is_kept_and_blamed(text: str, name: str, tmp_path: Path) -> None:
    blame = blamed(text, tmp_path)
    assert (blame.layer, blame.label) == ("backend", "")
    assert name in blame.said
    assert blame.is_confirmed


@pytest.mark.nightly
def test_what_is_right_with_static_shapes_is_of_dynamic_shapes(tmp_path: Path) -> None:
    assert blamed(DYNAMIC, tmp_path).label == "module: dynamic shapes"


def test_a_command_is_a_line_of_a_shell() -> None:
    assert Command(("python", "a b.py"), {"A": "x y", "B": "1"}).text == "A='x y' B=1 python 'a b.py'"
