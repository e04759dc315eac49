"""Ablation: run a reproducer under each of torch's backends, to find the layer that makes it wrong.

In: scripts, one for each backend, that exit with 0 if all is right. Out: an `Ending` for each. A separate
process loads torch, and each script runs in a fork of it.

    python -m fuzz.bisection.ablation FOLDER SECONDS

runs FOLDER/0.py, FOLDER/1.py, ... and writes FOLDER/endings.json.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz.bisection.forked_trial import Ending, run_forked
from fuzz.bisection.layers import BACKEND_LAYERS, isolate
from fuzz.errors import ScriptError
from fuzz.interpreters import run_process

BACKENDS = tuple(BACKEND_LAYERS)
"""torch's backends, from the first to the last layer."""
# A run under Inductor starts a C++ compiler.
RUN_SECONDS = 120.0
_ENDINGS = "endings.json"
_START_SECONDS = 300.0


def run_scripts(scripts: Sequence[str], *, limit: float = RUN_SECONDS) -> list[Ending]:
    """Run scripts one after the other, each in a fork of one process that has loaded torch.

    Args:
        scripts: texts.
        limit: the seconds for one script.

    Raises:
        ScriptError: the process ended without an answer.
    """
    with TemporaryDirectory(prefix="aotfuzz-ablation-") as name:
        folder = Path(name)
        for number, text in enumerate(scripts):
            (folder / f"{number}.py").write_text(text, encoding="utf-8")
        ran = run_process(
            [sys.executable, "-P", "-m", "fuzz.bisection.ablation", folder, str(limit)],
            limit=_START_SECONDS + limit * len(scripts),
            folder=folder,
            environment={
                **os.environ,
                **isolate(folder),
                "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
        )
        if ran.status != 0:
            raise ScriptError(f"the process that runs scripts ended with {ran.status}: {ran.last_words}")
        found = json.loads((folder / _ENDINGS).read_text(encoding="utf-8"))
    return [Ending(**ending) for ending in found]


def least_layer(endings: Mapping[str, Ending]) -> tuple[str, str]:
    """The layer that the first wrong backend adds, and its label in PyTorch's triage.

    Both are "" if no backend is wrong. Only a failed assertion counts as wrong, because another exception is
    another difference.

    >>> right, wrong = Ending("exit 0"), Ending("raises AssertionError")
    >>> least_layer({"eager": right, "aot_eager": wrong, "inductor": wrong})
    ('AOTAutograd', 'module: pt2-dispatcher')
    """
    wrong = (backend for backend in BACKENDS if backend in endings and is_wrong(endings[backend]))
    return BACKEND_LAYERS.get(next(wrong, ""), ("", ""))


def is_wrong(ending: Ending) -> bool:
    """Whether a script's own assertion failed, or its process died."""
    return ending.kind == "raises AssertionError" or ending.kind.startswith("signal") or ending.is_timeout


def main(arguments: Sequence[str]) -> None:
    """Run the scripts of a folder."""
    folder, limit = Path(arguments[0]), float(arguments[1])
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "functorch.compile"):
        importlib.import_module(name)
    files = sorted(folder.glob("[0-9]*.py"), key=lambda file: int(file.stem))
    endings = [run_forked(file, (), folder, limit, lambda: None) for file in files]
    (folder / _ENDINGS).write_text(json.dumps([asdict(ending) for ending in endings]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
