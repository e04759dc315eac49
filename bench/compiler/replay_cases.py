"""What `replay_graphs` compiles: generated programs, small models, calls, and torch's operator database.

Each case has a name that stays the same whatever else is run, and a front end of `aot` that compiles it. All
of it goes through public names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

import aot
from bench.compiler import call_overhead, models
from bench.compiler.generated_code import GRAPHS, METADATA, OUTCOME, CodeRecorder
from bench.compiler.opinfo.cases import MODULES, OPERATORS, cases, variants
from bench.compiler.opinfo.sweep import run_case
from fuzz.choices import SeededChoices
from fuzz.execute.case import execute
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.ir.nodes import Call
from fuzz.program.decode import Program, ProgramError, check
from fuzz.program.printer import load
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Function, Target

_MOST_CALLS = 17  # of a program, the first one included
_CALLS = 3  # of anything else: the inline cache learns from the second


def _double(size: int) -> int:
    return 2 * size


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A way to have `aot` compile a function or a module.

    Attributes:
        options: of `aot_function` and `aot_module`; None for `torch.compile` with the backend aotfuzz.
        settings: of `aot.config`, while it is compiled and called.
    """

    options: dict[str, Any] | None = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def compile(self, function: Function) -> Function:
        """Compile a function or a module."""
        compiled: Function
        if self.options is None:
            compiled = torch.compile(function, backend="aotfuzz", options={"on_unsupported": "raise"})
        elif isinstance(function, nn.Module):
            compiled = aot.aot_module(function, aot.nop, **self.options)
        else:
            compiled = aot.aot_function(function, aot.nop, **self.options)
        return compiled


_MIN_CUT = aot.min_cut_rematerialization_partition
_RECOMPUTE = partial(_MIN_CUT, memory_budget=0)
FRONT_ENDS = {
    "default": FrontEnd(),
    "min-cut": FrontEnd({"partition_fn": _MIN_CUT, "keep_inference_input_mutations": True}),
    "recompute": FrontEnd({"partition_fn": _RECOMPUTE}),
    "rng": FrontEnd({"partition_fn": _RECOMPUTE, "functionalize_rng_ops": True}),
    "dynamic": FrontEnd({"dynamic": True}),
    "other sizes": FrontEnd({"dynamic": True}, {"traced_size": _double}),
    "traces": FrontEnd(settings={"stack_traces": True, "debug_assert": True}),
    "torch.compile": FrontEnd(None),
}
# A step takes parameters as arguments, and symbols for the sizes of all of them take too long.
_OF_MODELS = ("default", "min-cut", "rng", "dynamic", "torch.compile")
_OF_STEPS = ("default", "min-cut")
EXPORT = "export"
# In turn. (Their number has no divisor in common with that of the profiles.)
_TURNS = (
    *("default", "dynamic", "min-cut", "default", "default", "other sizes", "recompute", "default", EXPORT),
    *("default", "rng", "dynamic", "default", "torch.compile", "min-cut", "traces", "default"),
)
_EVERY = 8  # of so many programs one is of a profile by itself
_PROFILES = tuple(name for name in PROFILES if name != "mixed")


@dataclass(frozen=True, slots=True)
class Case:
    """Something to compile.

    Attributes:
        name: of the case.
        run: compiles it and calls it.
    """

    name: str
    run: Callable[[CodeRecorder], None]


def prepare() -> None:
    """Do once what would else be done in the process of each case: imports, and first compiles."""
    find_target("aot-compile").prepare()
    find_target("aot-compile").warm()
    for name in FRONT_ENDS:
        with CodeRecorder() as recorder:
            run_program(name, generate(SeededChoices(0, 0), PROFILES["uniform"]), recorder)
        recorder.texts()


def programs(count: int, seed: int) -> Iterator[Case]:
    """The first of a seed's generated programs."""
    for index in range(count):
        number, place = divmod(index, _EVERY)
        profile = "mixed" if place else _PROFILES[number % len(_PROFILES)]
        front_end = _TURNS[index % len(_TURNS)]
        run = partial(_run_generated, seed, index, profile, front_end)
        yield Case(f"program {seed}/{index}: {profile}, {front_end}", run)


def others() -> Iterator[Case]:
    """All that is not generated."""
    for name, (small, _) in models.available().items():
        for front_end in _OF_MODELS:
            yield Case(f"model {name}: {front_end}", partial(_run_model, small, front_end))
        yield Case(f"model {name}: {EXPORT}", partial(_export_model, small))
    for name in call_overhead.CASES:
        for side in ("aot", "aot simplified"):
            yield Case(f"call {name}: {side}", partial(_run_call, name, side))
    for kind, names in (("operator", OPERATORS), ("module", MODULES)):
        for name in names:
            yield Case(f"{kind} {name}", partial(_run_samples, name))


def _run_generated(seed: int, index: int, profile: str, front_end: str, recorder: CodeRecorder) -> None:
    program = _repeated(generate(SeededChoices(seed, index), PROFILES[profile]))
    if front_end == EXPORT:
        loaded = load(program)
        args, _, _ = loaded.make()
        _export(loaded.f, args, recorder)
    else:
        run_program(front_end, program, recorder)


def _repeated(program: Program) -> Program:
    """The program, its first call made twice more at the end, as the inline cache learns from the second.

    Calls are made in one thread: what two compile at once is compiled in any order.
    """

    def alone(call: Any) -> Any:
        return replace(call, scenario=replace(call.scenario, threads=False))

    first = Call(program.storages, program.arguments, program.scenario)
    program = replace(alone(program), later=tuple(map(alone, program.later)))
    repeated = replace(program, later=(*program.later, alone(first), alone(first))[: _MOST_CALLS - 1])
    try:
        check(repeated)
    except ProgramError:
        return program
    return repeated


def run_program(front_end: str, program: Program, recorder: CodeRecorder) -> None:
    """Compile a program and make its calls."""
    one = FRONT_ENDS[front_end]
    compiled: list[Function] = []
    base = find_target("aot" if one.options is not None else "aot-compile")
    with aot.config.patch(cache=False, **one.settings):
        result = execute(program, _recording(base, one, compiled, recorder))
        _explain(compiled, recorder)
    recorder.add(OUTCOME, f"{result.outcome}: {result.reason}")


def _recording(base: Target, one: FrontEnd, compiled: list[Function], recorder: CodeRecorder) -> Target:
    """A target of the fuzzer that records errors and notes what is compiled."""

    def compile_function(function: Function) -> Function:
        made = one.compile(function)
        compiled.append(made)
        return partial(_call, made, recorder)

    return replace(base, compile=compile_function, controls=(), once=False)


def _call(compiled: Function, recorder: CodeRecorder, *args: Any) -> Any:
    try:
        return compiled(*args)
    except Exception as error:
        recorder.add_error(error)
        raise


def _explain(compiled: list[Function], recorder: CodeRecorder) -> None:
    for one in compiled:
        function = one.compiled if isinstance(one, aot.AOTModule) else one
        if isinstance(function, aot.CompiledFunction):
            recorder.add_explanation(function)


class _AsModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _export(function: Function, args: tuple[Any, ...], recorder: CodeRecorder) -> None:
    """Export a function, without and with its backward."""
    module = function if isinstance(function, nn.Module) else _AsModule(function)
    with _recording_errors(recorder):
        graph, signature = aot.aot_export_module(module, args, trace_joint=False)
        recorder.add(GRAPHS, graph.print_readable(print_output=False))
        recorder.add(METADATA, str(signature))
    with _recording_errors(recorder):
        graph = aot.aot_export_joint_simple(function, args, trace_joint=True)
        recorder.add(GRAPHS, graph.print_readable(print_output=False))


@contextmanager
def _recording_errors(recorder: CodeRecorder) -> Iterator[None]:
    """An exception ends what runs here, and is recorded."""
    try:
        yield
    except Exception as error:
        recorder.add_error(error)


def _run_model(make: Callable[[], models.Model], front_end: str, recorder: CodeRecorder) -> None:
    """Train a model's function of parameters and buffers, and its module."""
    model = _made(make)
    one = FRONT_ENDS[front_end]
    compiled = [one.compile(model.module)]
    arguments: list[tuple[Any, ...]] = [model.batch[:1]]
    if front_end in _OF_STEPS:
        compiled.append(one.compile(model.step))
        arguments.append((*model.state(), *model.batch))
    with aot.config.patch(cache=False, **one.settings):
        for function, args in zip(compiled, arguments, strict=True):
            with _recording_errors(recorder):
                for _ in range(_CALLS):
                    function(*args).sum().backward()
            with _recording_errors(recorder), torch.no_grad():
                function(*args)
        _explain(compiled, recorder)


def _export_model(make: Callable[[], models.Model], recorder: CodeRecorder) -> None:
    model = _made(make)
    _export(model.module, model.batch[:1], recorder)
    with _recording_errors(recorder):
        module = _AsModule(lambda *batch: model.loss(model.module(batch[0]), batch[-1]))
        module.add_module("inner", model.module)
        graph, signature = aot.aot_export_module(module, model.batch, trace_joint=True, output_loss_index=0)
        recorder.add(GRAPHS, graph.print_readable(print_output=False))
        recorder.add(METADATA, str(signature))


def _made(make: Callable[[], models.Model]) -> models.Model:
    torch.manual_seed(0)
    return make()


def _run_call(name: str, side: str, recorder: CodeRecorder) -> None:
    """What `bench calls` times."""
    case = call_overhead.CASES[name]
    inputs = [torch.ones(call_overhead.WIDTH, requires_grad=case.train) for _ in range(case.inputs)]
    with _recording_errors(recorder):
        compiled = call_overhead.COMPILERS[side](case, call_overhead.Stubs(), "cpu")
        for _ in range(_CALLS):
            results = compiled(*inputs)
        if case.train:
            torch.autograd.backward(results, [torch.ones_like(one) for one in results])
        _explain([compiled], recorder)


def _run_samples(name: str, recorder: CodeRecorder) -> None:
    """The first sample of an operator or a module in each variant."""
    compiled: list[Function] = []
    target = _recording(find_target("aot"), FRONT_ENDS["default"], compiled, recorder)
    with aot.config.patch(cache=False):
        for variant in variants(name):
            case = next(cases(name, variant), None)
            if case is not None:
                result = run_case(case, target)
                recorder.add(OUTCOME, f"{variant}: {result.word}: {result.reason}")
        _explain(compiled, recorder)
