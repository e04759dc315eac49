"""Minify: make a user's own function smaller while a compiler still differs from eager on it.

In: a function, its arguments and a target. Out: a `Minified`, whose text is a script that shows the
difference.

The function is recorded in eager as the calls of torch's functions that it makes. From then on the
recording's text is what runs. Passes make it smaller, `fuzz.reduce.search` searches, and `fuzz.execute.case`
judges, as in campaigns. The smallest recording is printed as a script (`fuzz.repro.script`).

Modules in reading order:

- `recording`: the recorded function as data; `record`, `inputs`: how it is recorded.
- `script_text`: the recording as Python source; `eager_types`: its tensors in one eager call.
- `passes`: how a recording is made smaller.
- `compiler_source`: a compiler that was given as a function, as source.
"""

from __future__ import annotations

import contextlib
import gc
import io
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzz.corpus import buckets
from fuzz.errors import DifferenceLost, NoDifference, RecordingDiffers
from fuzz.execute.call import CallSpec, Result, Twin
from fuzz.execute.case import execute_trials
from fuzz.ir.nodes import Scenario
from fuzz.minify.compiler_source import compiler_source
from fuzz.minify.eager_types import survey_eager_types
from fuzz.minify.passes import reduction_problem
from fuzz.minify.passes.call_deletion import GLOBALS
from fuzz.minify.record import Recorded, as_plain_containers, fill_opaque_arguments, record
from fuzz.minify.recording import Recording, globals_of
from fuzz.minify.script_text import load, render, upcast
from fuzz.program.printer import Make
from fuzz.reduce.search import reduce_subject
from fuzz.repro import script
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.catalog import find_target, usable_targets
from fuzz.targets.plugins import reset_if_loaded
from fuzz.targets.target import Function, Target
from oracles import Arguments, Finding, Observation, compare, observe
from oracles.observation.ambient import restoring_ambient

__all__ = ["Minified", "minify"]


@dataclass(frozen=True, slots=True)
class Minified:
    """The smallest function that was found to differ, and what it cost.

    Attributes:
        text: a script that needs only torch and the compiler. It prints what eager and the target give where
            they differ, and exits with 1 while they do.
        shown: the script has exited with 1 in this process.
        calls, calls_before: the calls of torch's functions that are left, and those at the beginning.
        findings: the differences.
        bucket: the differences in short, with the calls that they need.
        evaluations: how many functions were tried.
    """

    text: str
    shown: bool
    calls: int
    calls_before: int
    findings: tuple[Finding, ...]
    bucket: str
    evaluations: int

    def __str__(self) -> str:
        return self.text


def minify(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    target: str | Function | Target,
    *,
    evaluations: int = 500,
) -> Minified:
    """Make a function smaller while a compiler differs from eager on it.

    The kept difference is always the same one by clause, place and kind (`fuzz.corpus.buckets.signature`); it
    is never exchanged for another. All clauses of docs/reference/contract.md are judged.
    Everything runs in this process.

    The function runs several times, on tensors like its arguments. Tensors that it reads from outside
    (parameters, buffers, globals) are written to in the meantime, and are restored afterwards.

    Args:
        fn: any function or module of torch's tensors. It is called as `fn(*args)` in the present grad mode
            and inference mode.
        args: tensors, or tuples, lists and dicts of them.
        target: the name of a target (`aotfuzz targets`, `package.module:function`), or a function that takes
            a function and returns it compiled.
        evaluations: the most candidates that are compiled.

    Raises:
        TargetError: there is no such target, or it cannot work here.
        FunctionRaises: `fn` raises in eager.
        NoDifference: the target does what eager does, or refuses.
        CannotRecord: `fn` does something that cannot be written as calls of torch's functions.
        RecordingDiffers: the recording does not do what `fn` does.
        DifferenceLost: the target differs on `fn`, but not on the recording.

    Example:
        print(minify(f, (x, y), lambda f: torch.compile(f, backend="aot_eager")))
    """
    compiler = _target_of_compiler(target)
    recorded = record(fn, tuple(args))
    with _older_heap_frozen(), torch.inference_mode(False), torch.enable_grad():
        return _minified_recording(fn, recorded, target, compiler, evaluations)


@contextlib.contextmanager
def _older_heap_frozen() -> Iterator[None]:
    """While it lasts, collections skip the objects that exist already, unless the caller has frozen some.

    To see what a call leaves alive may need a full collection, and a process with torch's compilers has a
    million objects.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _minified_recording(
    fn: Function, recorded: Recorded, target: str | Function | Target, compiler: Target, evaluations: int
) -> Minified:
    start, result = _checked_recording(fn, recorded, compiler)
    signature = _signature_of_recording(result.findings)
    found: dict[Recording, Result] = {start: result}

    def interesting(recording: Recording) -> bool:
        if recording not in found:
            found[recording] = _tried(recording, compiler)
        seen = found[recording]
        return seen.outcome == "finding" and _signature_of_recording(seen.findings) == signature

    best, count = reduce_subject(start, reduction_problem(start), interesting, budget=evaluations)
    findings = found[best].findings
    text, shown = _minified_script(best, _printed(target, compiler), findings, compiler)
    bucket = f"{signature}/{_ingredients(best)}"
    before = len(recorded.recording.calls)
    return Minified(text, shown, len(best.calls), before, findings, bucket, count)


def _printed(target: str | Function | Target, found: Target) -> script.Compiler:
    """How a script names a target."""
    has_name = isinstance(target, str) or SHIPPED.get(found.name) is target
    return script.compiler_named(found.name) if has_name else compiler_source(found.name, found.compile)


def _minified_script(
    recording: Recording, compiler: script.Compiler, findings: tuple[Finding, ...], target: Target
) -> tuple[str, bool]:
    """The script, and whether it shows the difference.

    It compares with a tolerance if that is enough, else bit for bit.
    """
    tries = (compiler,) if compiler.exact else (compiler, replace(compiler, exact=True))
    texts = [
        script.script_of_recording(
            render(recording), _scenario(recording), one, buckets.primary_finding(findings)
        )
        for one in tries
    ]
    shown = next((text for text in texts if _is_shown_by_script(text, target)), None)
    return shown or texts[0], shown is not None


def _is_shown_by_script(text: str, target: Target) -> bool:
    """Whether a script exits with 1. It runs in this process, because the target may need objects of it."""
    path = list(sys.path)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), restoring_ambient():
            warnings.simplefilter("ignore")
            exec(compile(text, "<script>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code == 1
    except Exception:
        return False
    finally:
        sys.path[:] = path
        target.reset()
    return False


def _signature_of_recording(findings: tuple[Finding, ...]) -> str:
    """The coarse key of the differences. A tensor that is read from outside counts as an argument."""
    return buckets.signature(
        [
            replace(one, path=_OUTSIDE.sub("arg[", one.path), message=_OUTSIDE.sub("arg[", one.message))
            for one in findings
        ]
    )


_OUTSIDE = re.compile(r"\b(tensor|leaf)\[")


def _ingredients(recording: Recording) -> str:
    """The calls of a recording as a multiset."""
    counts = Counter(call.callee.removeprefix("torch.") for call in recording.calls)
    return " + ".join(name if n == 1 else f"{n} {name}" for name, n in sorted(counts.items())) or "nothing"


def _target_of_compiler(target: str | Function | Target) -> Target:
    if isinstance(target, str):
        usable_targets([target])
        found = find_target(target)
    elif isinstance(target, Target):
        found = target
    else:
        name = getattr(target, "__qualname__", type(target).__qualname__)
        found = Target(name, "a compiler that was passed", target, reset=reset_if_loaded)
    for one in (found, *map(find_target, found.controls)):
        one.prepare()
    return found


def _scenario(recording: Recording) -> Scenario:
    return Scenario(grad=recording.mode.grad, inference=recording.mode.inference)


def _tried(recording: Recording, target: Target) -> Result:
    loaded = load(recording)
    return execute_trials(loaded.f, [_trial_of_recording(recording, loaded.make)], target)


def _trial_of_recording(recording: Recording, make: Make) -> CallSpec:
    def exact() -> Twin:
        assert twin is not None
        loaded = load(twin)
        return loaded.f, loaded.make, None

    twin = upcast(recording)
    return CallSpec(make, _scenario(recording), exact=exact if twin else None)


def _checked_recording(fn: Function, recorded: Recorded, target: Target) -> tuple[Recording, Result]:
    """The recording, and the target's result on it, after two checks.

    The recording does in eager what the function does, and the target differs on it in the same way.
    """
    recording = recorded.recording
    loaded = load(recording)
    original, make = _original_function(fn, recorded, loaded.make)

    def make_alike() -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        args, leaves, tensors = loaded.make()
        return args, _in_front(leaves, recorded.outside), _in_front(tensors, recorded.outside)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = compare(_seen(original, make, recording), _seen(loaded.f, make_alike, recording))
        # A module keeps its parameters alive, and a function with a counter may count calls.
        telling = [one for one in other if one.clause not in ("lifetime", "once")]
        if telling:
            message = telling[0].message.replace("in eager", "in the function")
            raise RecordingDiffers(
                "the calls of torch's functions that were seen do not do what the function does: "
                f"{message.replace('in the target', 'in what was recorded')}"
            )
        before = _original_on_target(fn, original, make, recorded, target)
    finally:
        recorded.untouched.restore()
    if before.outcome != "finding":
        raise NoDifference(
            f"{target.name} does not differ from eager ({_result_in_words(before)})",
            proves_nothing=before.outcome != "agree",
        )
    wanted = _signature_of_recording(before.findings)
    # A compiler may support parameters of modules, and no other tensors from outside.
    passed = GLOBALS.apply(recording, frozenset(globals_of(recording)))
    instead: list[str] = []
    for one in dict.fromkeys((recording, passed)):
        if one is not None and (one is recording or survey_eager_types(one) is not None):
            result = _tried(one, target)
            if result.outcome == "finding" and _signature_of_recording(result.findings) == wanted:
                return one, result
            instead.append(result.reason or result.outcome)
    raise DifferenceLost(
        f"{target.name} differs on the function ({before.reason}), and not so on the calls of torch's "
        f"functions that it makes ({', '.join(dict.fromkeys(instead))})"
    )


def _result_in_words(result: Result) -> str:
    """The result for a function that does not differ, in words, with the reason if there is one."""
    if result.outcome == "agree":
        return f"both {result.reason}"
    return f"{result.outcome}: {result.reason}" if result.reason else result.outcome


def _original_function(fn: Function, recorded: Recorded, make: Make) -> tuple[Function, Make]:
    """The function with plain containers in its result, and a function that makes its own arguments."""
    outside, opaque = recorded.outside, recorded.opaque

    def original(*args: Any) -> Any:
        return as_plain_containers(fn(*fill_opaque_arguments(args, opaque)))

    def make_original() -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        recorded.untouched.clear_gradients()
        args, leaves, tensors = make()
        return args, _instead(leaves, outside), _instead(tensors, outside)

    return original, make_original


def _instead(tensors: Mapping[str, Any], outside: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The tensors with the user's own in place of those that were made like them."""
    return {name: outside.get(name, tensor) for name, tensor in _in_front(tensors, outside).items()}


def _in_front(tensors: Mapping[str, Any], outside: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The tensors without the leaves that were made only as a history of a user's tensor."""
    behind = {name.replace("x", "leaf", 1) for name in outside}
    return {name: tensor for name, tensor in tensors.items() if name not in behind}


def _seen(function: Function, make: Make, recording: Recording) -> Observation:
    scenario = _scenario(recording)
    return observe(function, lambda: Arguments(*make()), grad=scenario.grad, inference=scenario.inference)


def _original_on_target(
    fn: Function, original: Function, make: Make, recorded: Recorded, target: Target
) -> Result:
    """The target's result on the function itself."""

    def compile_function(_: Function) -> Function:
        compiled = target.compile(fn)
        return lambda *args: as_plain_containers(compiled(*fill_opaque_arguments(args, recorded.opaque)))

    trial = _trial_of_recording(recorded.recording, make)
    return execute_trials(original, [trial], replace(target, compile=compile_function))
