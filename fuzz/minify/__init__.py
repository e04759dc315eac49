"""A user's own function made as small as it gets while a compiler still does something else with it.

The function is recorded in eager as the calls of torch's functions that it makes (`record`); their text is
what runs from then on (`script_text`). Passes (`fuzz.minify.passes`) make it smaller, the search is that of
`fuzz.reduce.search`, and the judge that of campaigns (`fuzz.execute.case`). What is left is printed as a
script (`fuzz.repro.script`)."""

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

    `text` is a script that needs torch (and the compiler) alone: it prints what eager and the target give
    where they differ, and exits with 1 while they do; `shown` is whether it has, in this process. `calls`
    are the calls of torch's functions that are left of `calls_before`; `findings` is what differs, `bucket`
    that in short with the calls that it takes. `evaluations` are the functions that have been tried on the
    way."""

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
    """Make a function smaller for as long as a compiler does otherwise with it than eager does.

    `fn` is any function or module of torch's tensors, called as `fn(*args)` (tensors, or tuples, lists and
    dicts of them), in the grad mode and inference mode that this is called in. It runs several times, on
    tensors like its arguments; the tensors that it reads from outside (parameters, buffers, globals) are
    written to meanwhile, and are as they were afterwards. `target` is the name of a target (`aotfuzz
    targets`, `package.module:function`), or a function that takes a function and returns it compiled. At
    most so many `evaluations` compile a candidate. As text the result is a script that needs torch and the
    compiler alone, prints what differs, and exits with 1 while it does.

    What is kept is *that* difference, by its clause, place and kind (`fuzz.corpus.buckets.signature`): it is
    never exchanged for another one. Everything in docs/reference/contract.md is looked at. All of it happens
    in this process.

    Raises:
        TargetError: there is no such target, or it cannot work here.
        FunctionRaises: `fn` raises in eager.
        NoDifference: the target does what eager does, or refuses.
        CannotRecord: `fn` does something that cannot be written down as calls of torch's functions.
        RecordingDiffers: what was written down does not do what `fn` does.
        DifferenceLost: the target differs on `fn`, and not on what was written down.

        print(minify(f, (x, y), lambda f: torch.compile(f, backend="aot_eager")))
    """
    compiler = _target_of_compiler(target)
    recorded = record(fn, tuple(args))
    with _older_heap_frozen(), torch.inference_mode(False), torch.enable_grad():
        return _minified_recording(fn, recorded, target, compiler, evaluations)


@contextlib.contextmanager
def _older_heap_frozen() -> Iterator[None]:
    """Have collections pass over what is there already, unless that was somebody else's to say.

    Each look at what a call leaves alive may need a full collection, and a process that has torch's compilers
    loaded has a million objects."""
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
    """A target in a script."""
    has_name = isinstance(target, str) or SHIPPED.get(found.name) is target
    return script.compiler_named(found.name) if has_name else compiler_source(found.name, found.compile)


def _minified_script(
    recording: Recording, compiler: script.Compiler, findings: tuple[Finding, ...], target: Target
) -> tuple[str, bool]:
    """The script, and whether it shows the difference: with a tolerance if that suffices, else bit for
    bit."""
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
    """Whether a script ends with 1. It is run in this process, which knows all that the target needs."""
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
    """The coarse key of what differs, in which a tensor that is read from outside counts as an argument."""
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
    """The recording, and what the target makes of it, once it is sure that this is the function's, and
    differs likewise."""
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
        # (A module keeps its parameters alive, and a function that a counter has may count.)
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
    # (A compiler that takes the parameters of modules may take nothing else that is read from outside.)
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
    """What became of a function that does not differ, and why, where that says more."""
    if result.outcome == "agree":
        return f"both {result.reason}"
    return f"{result.outcome}: {result.reason}" if result.reason else result.outcome


def _original_function(fn: Function, recorded: Recorded, make: Make) -> tuple[Function, Make]:
    """The function with plain containers in its result, and what makes its arguments and gives back its
    tensors."""
    outside, opaque = recorded.outside, recorded.opaque

    def original(*args: Any) -> Any:
        return as_plain_containers(fn(*fill_opaque_arguments(args, opaque)))

    def make_original() -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        recorded.untouched.clear_gradients()
        args, leaves, tensors = make()
        return args, _instead(leaves, outside), _instead(tensors, outside)

    return original, make_original


def _instead(tensors: Mapping[str, Any], outside: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The user's tensors in the places of those that were made like them."""
    return {name: outside.get(name, tensor) for name, tensor in _in_front(tensors, outside).items()}


def _in_front(tensors: Mapping[str, Any], outside: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Without the leaves that were made to stand behind a tensor of the user's."""
    behind = {name.replace("x", "leaf", 1) for name in outside}
    return {name: tensor for name, tensor in tensors.items() if name not in behind}


def _seen(function: Function, make: Make, recording: Recording) -> Observation:
    scenario = _scenario(recording)
    return observe(function, lambda: Arguments(*make()), grad=scenario.grad, inference=scenario.inference)


def _original_on_target(
    fn: Function, original: Function, make: Make, recorded: Recorded, target: Target
) -> Result:
    """What the target makes of the function itself."""

    def compile_function(_: Function) -> Function:
        compiled = target.compile(fn)
        return lambda *args: as_plain_containers(compiled(*fill_opaque_arguments(args, recorded.opaque)))

    trial = _trial_of_recording(recorded.recording, make)
    return execute_trials(original, [trial], replace(target, compile=compile_function))
