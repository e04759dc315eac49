"""Layer search: the process that finds which layer of torch makes a script wrong.

`fuzz.bisection.layers` starts it. It runs under the interpreter whose torch is examined, which needs only
torch. It has a folder of its own, with TORCHINDUCTOR_CACHE_DIR and TMPDIR in it. The script runs many times
in forks: unchanged, with the compiler switched off, as torch's CompilerBisector asks, and with static shapes.

    python -m fuzz.bisection.layer_search search FOLDER SECONDS SCRIPT [ARGUMENT...]
    python -m fuzz.bisection.layer_search run SCRIPT [ARGUMENT...]

The first writes FOLDER/found.json. The second runs a script once with custom backends kept, which torch does
not do by itself. The printed commands use it for such a script.
"""

from __future__ import annotations

import dataclasses
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.bisection.forked_trial import Ending, run_forked
from fuzz.targets import compiler_bisector

CACHE = "cache"
FOUND = "found.json"
BISECTED = "bisector.log"
_APPLICATIONS, _BACKENDS = "applications.txt", "backends.txt"


@dataclass(frozen=True, slots=True)
class Found:
    """The result of the search, as in `found.json`.

    Attributes:
        plain: how the script ends unchanged.
        backends: the backends with which it calls `torch.compile`.
        eager: how it ends with the compiler switched off, or "" if that was not tried.
        blamed: the result of torch's bisector, or None.
        setting: module, name and value of the setting that was found, if it is one.
        dynamic: the script is right if all shapes are static.
        contradiction: runs contradicted each other.
        too_slow: a run took too long, so there is no answer.
        runs: how often the script ran.
    """

    plain: Ending
    backends: tuple[str, ...] = ()
    eager: Ending = field(default_factory=lambda: Ending(""))
    blamed: compiler_bisector.Blamed | None = None
    setting: tuple[str, str, object] | None = None
    dynamic: bool = False
    contradiction: bool = False
    too_slow: bool = False
    runs: int = 0


class TooSlow(Exception):
    """A run was killed at its limit, although the first one was not."""


def search_layers(folder: Path, limit: float, script: Path, arguments: Sequence[str]) -> Found:
    """Find the layer that makes a script wrong. `folder` exists, and only this search uses it."""
    runs = 0

    def run(*prepare: Callable[[], None]) -> Ending:
        nonlocal runs
        runs += 1

        def prepare_child() -> None:
            for step in prepare:
                step()

        return run_forked(script, arguments, folder, limit, prepare_child)

    compiler_bisector.prepare_bisection(folder / CACHE)
    plain = run(lambda: compiler_bisector.record_backends(folder / _BACKENDS))
    backends = tuple(dict.fromkeys(_lines_of(folder / _BACKENDS)))
    if not plain.is_wrong or not backends:
        return Found(plain, backends, runs=runs)
    eager = run(compiler_bisector.switch_compiler_off)
    if eager.kind == plain.kind:
        return Found(plain, backends, eager, runs=runs)

    applications: list[str] = []

    def is_right(part_is_off: bool) -> bool:
        nonlocal applications
        file = folder / _APPLICATIONS
        file.unlink(missing_ok=True)
        ending = run(lambda: compiler_bisector.record_applications(file))
        if ending.is_timeout and not plain.is_timeout:
            raise TooSlow
        if ending.kind == plain.kind:
            applications = _lines_of(file) or applications
            return False
        # The ending is wrong in another way. So this backend does not show the difference, and to switch
        # this part off has broken something.
        return ending.is_right or not part_is_off

    contradiction = too_slow = False
    blamed = None
    try:
        with (folder / BISECTED).open("w", encoding="utf-8") as log:
            blamed = compiler_bisector.bisect_compiler(is_right, log)
    except compiler_bisector.TooManyRuns:
        contradiction = True
    except TooSlow:
        too_slow = True
    setting = None
    if blamed is not None and blamed.subsystem:
        setting = compiler_bisector.setting_of(blamed.backend, blamed.subsystem)
    if blamed is not None and blamed.number is not None and blamed.number < len(applications):
        blamed = dataclasses.replace(blamed, name=applications[blamed.number], applications=len(applications))
    dynamic = blamed is not None and run(compiler_bisector.without_dynamic_shapes).is_right
    return Found(plain, backends, eager, blamed, setting, dynamic, contradiction, too_slow, runs)


def _lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def main(arguments: Sequence[str]) -> None:
    """Run one of the two commands."""
    if arguments[0] == "run":
        script = Path(arguments[1])
        compiler_bisector.keep_custom_backends()
        sys.argv = list(arguments[1:])
        sys.path[0] = str(script.parent)
        runpy.run_path(str(script), run_name="__main__")
        return
    folder, seconds, script = Path(arguments[1]), float(arguments[2]), Path(arguments[3])
    found = search_layers(folder, seconds, script, arguments[4:])
    (folder / FOUND).write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
