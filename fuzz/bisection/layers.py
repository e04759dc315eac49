"""Layers: find the layer of torch that makes a script wrong.

In: a script and an interpreter. Out: a `Blame`, in the words of PyTorch's triage, with two commands that
differ by one step. The layers are eager, Dynamo, AOTAutograd, decompositions, and Inductor with its parts.
torch's CompilerBisector searches, in a separate process and folder (`fuzz.bisection.layer_search`). Both
commands run once more, each in a new process, before they are shown.

    blame = find_layer(interpreter, Script(Path("wrong.py")), folder=Path("bisection"), limit=120)
    blame.layer, blame.part, blame.name    # "Inductor", "lowerings", "%relu : ... aten.relu.default"
    blame.right.text, blame.wrong.text     # two commands of a shell
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzz.bisection.forked_trial import CANNOT_SAY
from fuzz.bisection.trial import Script
from fuzz.corpus.dates import AOT_AUTOGRAD, BACKEND, DECOMPOSITIONS, DYNAMO, EAGER, INDUCTOR
from fuzz.errors import ScriptError
from fuzz.interpreters import Interpreter
from fuzz.safe_text import one_line, shell_command

# The most runs of a script in one search, for the time limit of the process.
_RUNS = 150
_SEARCH = "fuzz.bisection.layer_search"
# torch's backends, from first to last, with the layer that each adds and its label in PyTorch's triage.
BACKEND_LAYERS = {
    "eager": (DYNAMO, "module: dynamo"),
    "aot_eager": (AOT_AUTOGRAD, "module: pt2-dispatcher"),
    "aot_eager_decomp_partition": (DECOMPOSITIONS, "module: pt2-dispatcher"),
    "inductor": (INDUCTOR, "module: inductor"),
}
DYNAMIC_SHAPES = "module: dynamic shapes"
LABELS = {EAGER: "", BACKEND: "", **dict(BACKEND_LAYERS.values())}
"""The label of each layer in PyTorch's triage, or ""."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line: its words, and additions to the environment."""

    words: tuple[str, ...]
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The command as a line of a shell."""
        before = [f"{name}={shell_command(value)}" for name, value in self.changes.items()]
        return " ".join([*before, shell_command(*self.words)])


@dataclass(frozen=True, slots=True)
class Blame:
    """The layer of torch that makes a script wrong.

    Attributes:
        torch: the version of torch.
        layer: a key of LABELS, or "" if none was found.
        label: the layer's label in PyTorch's triage, or "".
        part: of the layer, in the words of torch's bisector: "lowerings", "post_grad_passes", a setting; or
            "".
        name: the pass, the node of the graph or the operator to which the part is applied.
        number: the number of that application, among `applications`; None for a setting.
        right, wrong: commands that differ by one step, or None.
        is_confirmed: both commands ran, and ended as they should.
        said: remarks in words.
        runs: how often the script ran.
    """

    torch: str
    layer: str
    label: str = ""
    part: str = ""
    name: str = ""
    number: int | None = None
    applications: int = 0
    right: Command | None = None
    wrong: Command | None = None
    is_confirmed: bool = False
    said: str = ""
    runs: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "torch": self.torch,
            "layer": self.layer or None,
            "label": self.label or None,
            "part": self.part or None,
            "name": self.name or None,
            "number": self.number,
            "applications": self.applications,
            "right": self.right and self.right.text,
            "wrong": self.wrong and self.wrong.text,
            "confirmed": self.is_confirmed,
            "said": self.said,
            "runs": self.runs,
        }


def find_layer(interpreter: Interpreter, script: Script, *, folder: Path, limit: float) -> Blame:
    """Find the layer of an interpreter's torch that makes a script wrong.

    Args:
        interpreter: the interpreter.
        script: exits with 0 if right, with 125 if it cannot tell; any other end is wrong.
        folder: gets all files, and loses those that only the search needs. It is made if it does not exist.
        limit: the seconds for one run of the script.

    Raises:
        ScriptError: the script is right, cannot tell, or never calls `torch.compile`.
    """
    folder = folder.absolute()
    isolation = isolate(folder)
    try:
        found = _search(interpreter, script, folder, limit, isolation)
        blame = _blame(interpreter, script, found)
        if blame.right is None or blame.wrong is None:
            return blame
        return _confirm(interpreter, blame, limit, isolation)
    finally:
        for name in ("cache", "tmp", "output.txt", "exception.json", "applications.txt", "backends.txt"):
            place = folder / name
            shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)


def isolate(folder: Path) -> dict[str, str]:
    """The environment with which torch writes only to a folder, and no compile finds another's files."""
    for name in ("cache", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "cache" / "triton"),
        "TORCH_COMPILE_DEBUG_DIR": str(folder / "tmp"),
        "TMPDIR": str(folder / "tmp"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(("TORCH_BISECT_BACKEND", "TORCH_BISECT_SUBSYSTEM", "TORCH_BISECT_MAX"), ""),
    }


def _search(
    interpreter: Interpreter, script: Script, folder: Path, limit: float, isolation: Mapping[str, str]
) -> dict[str, Any]:
    """The result of the search process, after checks of the script."""
    ran = interpreter.run(
        ["-m", _SEARCH, "search", folder, str(limit), script.file.absolute(), *script.arguments],
        limit=_RUNS * limit,
        changes=isolation,
    )
    if ran.status != 0:
        raise ScriptError(f"{interpreter.python}: the search for the layer failed: {ran.last_words}")
    found: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    kind, said = found["plain"]["kind"], one_line(found["plain"]["said"].strip()[-300:])
    if kind == "exit 0":
        raise ScriptError(f"{script.file} is right with torch {interpreter.torch}: nothing is to blame")
    if kind == f"exit {CANNOT_SAY}":
        raise ScriptError(f"{script.file} cannot tell whether it is right (status {CANNOT_SAY}): {said}")
    if not found["backends"]:
        raise ScriptError(
            f"{script.file} is wrong ({kind}) and never calls torch.compile, so no layer is to blame: {said}"
        )
    return found


def _blame(interpreter: Interpreter, script: Script, found: Mapping[str, Any]) -> Blame:
    """The result in the words of triage."""
    torch, plain, runs = interpreter.torch, found["plain"]["kind"], found["runs"]
    run = _Runner(interpreter, script, _is_custom(found["backends"]))
    if found["eager"]["kind"] == plain:
        off = Command(run.plain.words, {"TORCH_COMPILE_DISABLE": "1"})
        return Blame(torch, EAGER, wrong=off, said="it is wrong without torch.compile, too", runs=runs)
    if found["too_slow"]:
        return Blame(torch, "", said="a run took too long; try a larger --limit", runs=runs)
    if found["contradiction"]:
        return Blame(torch, "", said="it is not wrong each time that it is compiled alike", runs=runs)
    if found["blamed"] is None:
        return Blame(torch, "", said="it is right under torch's bisector, which caches nothing", runs=runs)
    blamed = found["blamed"]
    layer, label = BACKEND_LAYERS[blamed["backend"]]
    said = ""
    if layer == INDUCTOR and run.is_custom and not blamed["subsystem"]:
        layer, label, said = BACKEND, "", f"the backend of the script: {', '.join(found['backends'])}"
    if found["dynamic"]:
        label, said = DYNAMIC_SHAPES, "it is right when all shapes are static"
    right, wrong = run.steps(blamed, found["setting"])
    return Blame(
        torch,
        layer,
        label,
        blamed["subsystem"] if found["setting"] is None else " = ".join(map(str, found["setting"][1:])),
        blamed["name"],
        blamed["number"],
        blamed["applications"],
        right,
        wrong,
        said=said,
        runs=runs,
    )


def _is_custom(backends: Sequence[str]) -> bool:
    return any(name not in BACKEND_LAYERS for name in backends)


@dataclass(frozen=True, slots=True)
class _Runner:
    """Makes the commands that run a script under a part of torch's compiler."""

    interpreter: Interpreter
    script: Script
    is_custom: bool

    @property
    def plain(self) -> Command:
        return Command((str(self.interpreter.python), *self._script_words))

    @property
    def _script_words(self) -> tuple[str, ...]:
        return str(self.script.file), *self.script.arguments

    def steps(self, blamed: Mapping[str, Any], setting: Sequence[Any] | None) -> tuple[Command, Command]:
        """The right command and the wrong one, which differ by one step."""
        backend, subsystem, number = blamed["backend"], blamed["subsystem"], blamed["number"]
        under = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCH_BISECT_BACKEND": backend}
        wrong = Command(self._words_for(backend), under)
        if setting is not None:
            return Command(self._words_with(setting), under), wrong
        if subsystem:
            under = {**under, "TORCH_BISECT_SUBSYSTEM": subsystem}
            before, after = ({**under, "TORCH_BISECT_MAX": str(n)} for n in (number - 1, number))
            return Command(wrong.words, before), Command(wrong.words, after)
        if backend == "eager":
            return Command(self.plain.words, {"TORCH_COMPILE_DISABLE": "1"}), wrong
        names = list(BACKEND_LAYERS)
        less = names[names.index(backend) - 1]
        if self.is_custom and backend == "inductor":
            wrong = Command(self.plain.words, {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})
        return Command(self.plain.words, {**under, "TORCH_BISECT_BACKEND": less}), wrong

    def _words_for(self, backend: str) -> tuple[str, ...]:
        """The words that start a command.

        For a custom backend they start our module: torch's bisector would replace it by Inductor.
        """
        if self.is_custom and backend == "inductor":
            return str(self.interpreter.python), "-m", _SEARCH, "run", *self._script_words
        return self.plain.words

    def _words_with(self, setting: Sequence[Any]) -> tuple[str, ...]:
        module, name, value = setting
        code = (
            f"import runpy, sys, {module}; {module}.{name} = {value!r}; sys.argv = sys.argv[1:]; "
            'runpy.run_path(sys.argv[0], run_name="__main__")'
        )
        return str(self.interpreter.python), "-c", code, *self._script_words


def _confirm(interpreter: Interpreter, blame: Blame, limit: float, isolation: Mapping[str, str]) -> Blame:
    """Run both commands, each in a new process."""
    assert blame.right is not None and blame.wrong is not None
    statuses: list[int | None] = []
    for command in (blame.right, blame.wrong):
        ran = interpreter.run(command.words[1:], limit=limit, changes={**isolation, **command.changes})
        statuses.append(ran.status)
    if None in statuses:
        said = "; ".join(filter(None, (blame.said, f"a command took more than {limit:g} s")))
        return replace(blame, said=said)
    confirmed = statuses[0] == 0 and statuses[1] not in (0, CANNOT_SAY)
    return replace(blame, is_confirmed=confirmed)
