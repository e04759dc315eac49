"""Compilers under test: each is a name, a way to compile one function, and which refusals are legitimate.

A target takes a Python function of tensors and gives back a callable that ought to be indistinguishable from
it. The shipped ones are found by name, and so are those of packages that register theirs
(`fuzz.targets.plugins`); anybody's own is named as `package.module:function`, where `function(f)` returns the
compiled `f`. A target lives in worker processes: `prepare` runs once in each, and `reset` after every case so
that no case depends on what was compiled before it.

    target = find("torch-aot-eager")
    compiled = target.compile(lambda x: x.mul_(2))
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from fuzz.errors import TargetError
from fuzz.features.traits import traits
from fuzz.patterns import matches
from fuzz.program.decode import Program

Function = Callable[..., Any]


def _no_refusal(_error: BaseException) -> str | None:
    """Stock targets promise to compile everything: no exception of theirs is a refusal."""
    return None


def nothing() -> None:
    """For targets that need no preparation and keep no state."""


def _available() -> str | None:
    """For targets that work wherever torch does."""
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """One compiler under test.

    `refusal` gives the name of the reason when the target declined on purpose, None for any other exception;
    `available` gives None, or why the target cannot work on this machine. `warm` is what the process that
    workers are forked from may do once for all of them; it must leave no thread and no open device.

    `lacks` names capabilities that the target does without: keys of `CAPABILITIES`, or patterns of traits
    (`fuzz.features.traits.TRAITS`, with `*` for anything). Programs that need one are not run on it, and
    count as refused. `once` promises that a call runs the Python function at most once; then that is watched.
    `controls` names the targets that are this one without what is under test, such as the front end
    alone, or what is below with another layer above: where it agrees with one of these, a case in which
    both differ from eager proves nothing. They are prepared and reset in the same process. `in_pieces`
    says that a program may be cut into pieces which are compiled as they are reached: where one is
    declined, others have run, so that the clause `refusals` is not asked. `exact` promises that a target
    runs the kernels that eager runs, in the same order, so that numbers are equal bit for bit. `refuses`
    is the share of the programs that it may decline, besides those that need what it lacks or `declines`:
    a campaign in which it declines more has found something. (Programs with what it declines are run, so
    that what is left behind when it does is seen.) A target can be called like the function that
    compiles.

        Target("mine", "my compiler", compile_function, lacks=("complex", "operator: as_strided*"))
    """

    name: str
    description: str
    compile: Callable[[Function], Function]
    refusal: Callable[[BaseException], str | None] = _no_refusal
    prepare: Callable[[], None] = nothing
    reset: Callable[[], None] = nothing
    available: Callable[[], str | None] = _available
    warm: Callable[[], None] = nothing
    lacks: tuple[str, ...] = ()
    once: bool = False
    controls: tuple[str, ...] = ()
    in_pieces: bool = False
    declines: tuple[str, ...] = ()
    exact: bool = False
    refuses: float = 1.0

    def __call__(self, function: Function) -> Function:
        """Compile a function."""
        return self.compile(function)

    def lacking(self, program: Program) -> str | None:
        """The first capability that a program needs and this target lacks."""
        return _first(self.lacks, program)

    def declining(self, program: Program) -> str | None:
        """The first of what this target says it declines that a program has."""
        return _first(self.declines, program)


def _first(names: Sequence[str], program: Program) -> str | None:
    """The first of some capabilities that a program needs."""
    found = traits(program) if names else frozenset()
    for name in names:
        if any(matches(pattern, trait) for pattern in CAPABILITIES.get(name, (name,)) for trait in found):
            return name
    return None


CAPABILITIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "complex": ("dtype: complex*",),
        "cuda": ("device: cuda",),
        "double-backward": ("gradient: double",),
        "in-place": ("data: *",),
        "metadata": ("metadata: *",),
        "module": ("module: *",),
        "python": ("python: *", "mode: entered"),
        "random": ("random: *",),
        "subclass": ("subclass: *",),
    }
)
"""What a target may lack by name, and the traits of the programs that need it."""


def _aot(function: Function, *options: Any, **named: Any) -> Function:
    """A module by what is made for modules, anything else as a function."""
    import torch

    import aot

    if isinstance(function, torch.nn.Module):
        return aot.aot_module(function, aot.nop, *options, **named)
    compiled: Function = aot.aot_function(function, aot.nop, *options, **named)
    return compiled


def _compile_aot(function: Function) -> Function:
    return _aot(function)


def _overwriting(module: Any, _example_inputs: Any) -> Function:
    """A backward compiler that makes use of what it may: donated inputs are overwritten by a graph that has
    run, so that what still reads them is seen."""
    donated: tuple[int, ...] = module.meta["donated"]

    def run(*arguments: Any) -> Any:
        results = module(*arguments)
        # (A tensor that is known to be zeros has no memory.)
        real = [r for r in results if r is not None and not r._is_zerotensor()]
        returned = {r.untyped_storage().data_ptr() for r in real}
        for position in donated:
            if arguments[position].untyped_storage().data_ptr() not in returned:
                arguments[position].fill_(1)
        return results

    return run


def _compile_aot_min_cut(function: Function) -> Function:
    import aot

    partition = aot.min_cut_rematerialization_partition
    return _aot(function, _overwriting, partition, keep_inference_input_mutations=True)


def _compile_aot_recompute(function: Function) -> Function:
    import aot

    partition = partial(aot.min_cut_rematerialization_partition, memory_budget=0)
    return _aot(function, _overwriting, partition)


def _compile_aot_rng(function: Function) -> Function:
    import aot

    partition = partial(aot.min_cut_rematerialization_partition, memory_budget=0)
    return _aot(function, _overwriting, partition, functionalize_rng_ops=True)


def _compile_aot_dynamic(function: Function) -> Function:
    """With symbols for sizes, and compiled for sizes twice as large as those of its calls, where it can be:
    what answers a call was then made for another one."""
    import aot

    compiled = _aot(function, dynamic=True)

    def call(*arguments: Any) -> Any:
        with aot.config.patch(traced_size=_twice):
            return compiled(*arguments)

    return call


def _twice(number: int) -> int:
    return 2 * number


def _refusal_aot(error: BaseException) -> str | None:
    from aot.errors import Unsupported

    return type(error).__name__ if isinstance(error, Unsupported) else None


def _refusal_aot_compile(error: BaseException) -> str | None:
    if str(error).startswith(_TRACED_ELSEWHERE):
        return "a call while another thread compiles"
    # (Dynamo wraps what a backend raises when it is given a graph.)
    return _refusal_aot(getattr(error, "inner_exception", error))


# What Dynamo says, which does not tell threads apart, in one thread while FX traces in another one: pytorch
# issue 126024.
_TRACED_ELSEWHERE = "Detected that you are using FX to symbolically trace a dynamo-optimized function"


def _compile_torch_aot_function(function: Function) -> Function:
    """Through a dict of one entry: torch's `aot_function` returns a list where the function returns a tuple.

    Every program that returns a flat tuple would be that one finding, and no other one could be seen.
    """
    from functorch.compile import aot_function, nop

    def boxed(*args: Any) -> dict[str, Any]:
        return {"result": function(*args)}

    compiled = aot_function(boxed, fw_compiler=nop, bw_compiler=nop)
    return lambda *args: compiled(*args)["result"]


def _warm_with(compiler: Callable[[Function], Function]) -> Callable[[], None]:
    """One forward and backward of a toy, which pays for imports and for the caches of a first compilation."""

    def warm() -> None:
        import torch

        tensor = torch.ones(2, 2, requires_grad=True)
        compiler(lambda value: value.mul(2).t().sin())(tensor).sum().backward()

    return warm


def _compile_with(backend: str) -> Callable[[Function], Function]:
    def compile_function(function: Function) -> Function:
        import torch

        compiled: Function = torch.compile(function, backend=backend)
        return compiled

    return compile_function


def _on_other_threads(function: Function) -> Function:
    """The function, with another number of threads for kernels than it is given, and so its backward."""
    import torch

    def called(*args: Any) -> Any:
        if not _threads:
            _threads.append(torch.get_num_threads())
            torch.set_num_threads(1 if _threads[0] > 1 else 2)
        return function(*args)

    return called


_threads: list[int] = []  # as many as there were


def _on_as_many_threads() -> None:
    import torch

    while _threads:
        torch.set_num_threads(_threads.pop())


def _prepare_dynamo() -> None:
    """Make Dynamo answer for what it does: no silent fall-back to eager, no state kept on disk."""
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.config.suppress_errors = False
    torch._functorch.config.enable_autograd_cache = False
    logging.getLogger("torch").setLevel(logging.ERROR)


def _prepare_inductor() -> None:
    import torch._inductor.config

    _prepare_dynamo()
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fx_graph_cache = False
    # By default it times kernels and chooses: whether it pads matrices, and so how products lie, depends on
    # the stopwatch, and a finding could not be replayed.
    torch._inductor.config.deterministic = True


def _warm_dynamo() -> None:
    _prepare_dynamo()
    _warm_with(_compile_with("aot_eager"))()
    reset_dynamo()


def _warm_inductor() -> None:
    # Imported, not run: it would start g++, and perhaps a pool of processes.
    importlib.import_module("torch._inductor.compile_fx")
    _warm_dynamo()


def reset_dynamo() -> None:
    import torch._dynamo

    torch._dynamo.reset()


def _inductor_available() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler):
        return None
    return f"Inductor needs a C++ compiler and {compiler!r} is not on PATH (install one, or set CXX)"


def _stock(name: str, description: str, backend: str) -> Target:
    return Target(
        name,
        description,
        _compile_with(backend),
        prepare=_prepare_dynamo,
        reset=reset_dynamo,
        warm=_warm_dynamo,
    )


# State that tensors are kept in, generators that are not torch's, modes for good and what is caught: all that
# LIMITATIONS.md says ours refuses of Python state.
_DECLINES = (
    *("python: cached", "python: optimizer", "python: attribute set", "python: caught", "random: Python"),
    *("mode: entered", "mode: deterministic"),
)

# The share of generated programs that ours may decline: twice what it is where it is most.
_RARELY, _SELDOM = 0.01, 0.03


def _shipped() -> Mapping[str, Target]:
    targets = (
        Target(
            "aot",
            "this project's compiler, graphs run as captured",
            _compile_aot,
            _refusal_aot,
            once=True,
            declines=_DECLINES,
            refuses=_RARELY,
        ),
        Target(
            "aot-min-cut",
            "the same with min-cut, donated buffers overwritten, mutations kept in inference graphs",
            _compile_aot_min_cut,
            _refusal_aot,
            once=True,
            declines=_DECLINES,
            refuses=_RARELY,
        ),
        Target(
            "aot-recompute",
            "the same with a memory budget of 0: all that may be is recomputed",
            _compile_aot_recompute,
            _refusal_aot,
            once=True,
            declines=_DECLINES,
            refuses=_RARELY,
        ),
        Target(
            "aot-rng",
            "the same with functionalized random draws, which are recomputed as well",
            _compile_aot_rng,
            _refusal_aot,
            once=True,
            declines=_DECLINES,
            refuses=_RARELY,
        ),
        Target(
            "aot-dynamic",
            "the same with symbols for sizes, compiled for others than it is called with",
            _compile_aot_dynamic,
            _refusal_aot,
            declines=_DECLINES,
            refuses=_RARELY,
        ),
        Target(
            "aot-compile",
            "the same through torch.compile: Dynamo's graphs, backend aotfuzz",
            _compile_with("aotfuzz"),
            _refusal_aot_compile,
            prepare=_prepare_dynamo,
            reset=reset_dynamo,
            warm=_warm_dynamo,
            controls=("torch-dynamo",),
            in_pieces=True,
            declines=_DECLINES,
            refuses=_SELDOM,
        ),
        Target(
            "aot-inductor",
            "the same with Inductor below: backend aotfuzz_inductor",
            _compile_with("aotfuzz_inductor"),
            _refusal_aot_compile,
            prepare=_prepare_inductor,
            reset=reset_dynamo,
            available=_inductor_available,
            warm=_warm_inductor,
            controls=("torch-dynamo", "torch-inductor"),
            in_pieces=True,
            declines=_DECLINES,
            refuses=_SELDOM,
        ),
        Target(
            "torch-aot-function",
            "torch's own AOTAutograd, without Dynamo, graphs run as captured",
            _compile_torch_aot_function,
            warm=_warm_with(_compile_torch_aot_function),
            # Its `aot_function` takes what a module holds for constants; `aot_module` takes another function.
            lacks=("module",),
        ),
        _stock(
            "torch-aot-eager", "torch.compile: Dynamo and AOTAutograd, graphs run as captured", "aot_eager"
        ),
        Target(
            "torch-inductor",
            "torch.compile as users get it: Dynamo, AOTAutograd and Inductor",
            _compile_with("inductor"),
            prepare=_prepare_inductor,
            reset=reset_dynamo,
            available=_inductor_available,
            warm=_warm_inductor,
        ),
        _stock("torch-dynamo", "control: torch.compile's Dynamo alone, graphs run as captured", "eager"),
        Target(
            "eager",
            "control: the function itself, which must never differ",
            lambda function: function,
            once=True,
            exact=True,
        ),
        Target(
            "eager-threads",
            "control: the function itself, whose kernels run on another number of threads",
            _on_other_threads,
            reset=_on_as_many_threads,
            once=True,
        ),
    )
    return MappingProxyType({target.name: target for target in targets})


SHIPPED: Mapping[str, Target] = _shipped()


def find(name: str) -> Target:
    """The target of that name: a shipped one, a registered one, or `package.module:function`.

    For the last the current directory is importable, as it is for `python -m`. Raises TargetError if there
    is no such target, module or attribute, if the attribute cannot be called, or if the module fails.

    >>> find("eager").compile(len) is len
    True
    """
    from fuzz.targets import plugins

    return SHIPPED[name] if name in SHIPPED else plugins.load(name)


def usable(names: list[str]) -> list[Target]:
    """The targets of these names, each once and in order; TargetError if one cannot work here.

    A target cannot without its controls.
    """
    targets = [find(name) for name in dict.fromkeys(names)]
    for target in targets:
        for one in (target, *map(find, target.controls)):
            reason = one.available()
            if reason is not None:
                raise TargetError(f"target {one.name!r} cannot run here: {reason}")
    return targets
