"""Built-in targets: this project's compiler in six ways, torch's own compilers, and controls."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from fuzz.targets.aot_autograd_refusals import aot_autograd_refusal
from fuzz.targets.dynamo_backends import OUR_OPTIONS, prepare_dynamo, reset_dynamo
from fuzz.targets.target import Function, Target
from fuzz.torch_versions import includes


def _compile_with_aot(function: Function, *options: Any, **named: Any) -> Function:
    """Compile a module with `aot_module`, and anything else with `aot_function`."""
    import torch

    import aot

    if isinstance(function, torch.nn.Module):
        return aot.aot_module(function, aot.nop, *options, **named)
    compiled: Function = aot.aot_function(function, aot.nop, *options, **named)
    return compiled


def _compile_aot(function: Function) -> Function:
    return _compile_with_aot(function)


def _overwriting_backward_compiler(module: Any, _example_inputs: Any) -> Function:
    """A backward compiler that overwrites donated inputs after the graph has run, as it may.

    So a finding shows if something still reads them.
    """
    donated: tuple[int, ...] = module.meta["donated"]

    def run(*arguments: Any) -> Any:
        results = module(*arguments)
        # A zero tensor of autograd has no memory.
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
    return _compile_with_aot(
        function, _overwriting_backward_compiler, partition, keep_inference_input_mutations=True
    )


def _compile_aot_recompute(function: Function) -> Function:
    import aot

    partition = partial(aot.min_cut_rematerialization_partition, memory_budget=0)
    return _compile_with_aot(function, _overwriting_backward_compiler, partition)


def _compile_aot_rng(function: Function) -> Function:
    import aot

    partition = partial(aot.min_cut_rematerialization_partition, memory_budget=0)
    return _compile_with_aot(function, _overwriting_backward_compiler, partition, functionalize_rng_ops=True)


def _compile_aot_dynamic(function: Function) -> Function:
    """Compile with symbols for sizes, if possible for sizes twice as large as those of the calls.

    So every call is answered by a compile for another call.
    """
    import aot

    compiled = _compile_with_aot(function, dynamic=True)

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
    # Dynamo wraps an exception that a backend raises for a graph.
    return _refusal_aot(getattr(error, "inner_exception", error))


# Dynamo does not distinguish threads: it raises this in one thread while FX traces in another (pytorch
# issue 126024).
_TRACED_ELSEWHERE = "Detected that you are using FX to symbolically trace a dynamo-optimized function"


def _compile_torch_aot_function(function: Function) -> Function:
    """Compile through a dict of one entry, because torch's `aot_function` returns a list in place of a tuple.

    Otherwise every program that returns a flat tuple would be this one finding, and hide all others.
    """
    from functorch.compile import aot_function, nop

    def boxed(*args: Any) -> dict[str, Any]:
        return {"result": function(*args)}

    compiled = aot_function(boxed, fw_compiler=nop, bw_compiler=nop)
    return lambda *args: compiled(*args)["result"]


def _warm_up_target_with(compiler: Callable[[Function], Function]) -> Callable[[], None]:
    """A function that runs a toy forward and backward, to do imports and fill caches of a first
    compilation.
    """

    def warm() -> None:
        import torch

        tensor = torch.ones(2, 2, requires_grad=True)
        compiler(lambda value: value.mul(2).t().sin())(tensor).sum().backward()

    return warm


def _compile_with_inductor(function: Function, *, dynamic: bool | None = None, **options: Any) -> Function:
    """Compile with Inductor, and with eager's random numbers.

    By default Inductor's kernels draw others from the same seed. The option is not set for the process,
    because then `torch-aot-eager` would keep draws that it drops.
    """
    import torch

    options = {"fallback_random": True, **options}
    compiled: Function = torch.compile(function, dynamic=dynamic, options=options)
    return compiled


def _compile_target_with(backend: str, **options: Any) -> Callable[[Function], Function]:
    def compile_function(function: Function) -> Function:
        import torch

        compiled: Function = torch.compile(function, backend=backend, options=options or None)
        return compiled

    return compile_function


def _target_on_other_threads(function: Function) -> Function:
    """The function, which runs with another number of threads for kernels; its backward does so too."""
    import torch

    def called(*args: Any) -> Any:
        if not _threads:
            _threads.append(torch.get_num_threads())
            torch.set_num_threads(1 if _threads[0] > 1 else 2)
        return function(*args)

    return called


_threads: list[int] = []  # the number before


def _on_as_many_threads() -> None:
    import torch

    while _threads:
        torch.set_num_threads(_threads.pop())


def _prepare_inductor() -> None:
    import torch._inductor.config

    prepare_dynamo()
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fx_graph_cache = False
    # By default Inductor times kernels to decide if it pads matrices. The strides of products then depend on
    # the time, and a finding could not be replayed.
    torch._inductor.config.deterministic = True


def _warm_dynamo() -> None:
    prepare_dynamo()
    _warm_up_target_with(_compile_target_with("aot_eager"))()
    reset_dynamo()


def _warm_inductor() -> None:
    # It is only imported: to run it would start a pool of processes.
    importlib.import_module("torch._inductor.compile_fx")
    # Inductor compiles a test for each set of vector instructions. Otherwise each worker would do that.
    importlib.import_module("torch._inductor.cpu_vec_isa").pick_vec_isa()
    _warm_dynamo()


def _inductor_available() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler):
        return None
    return f"Inductor needs a C++ compiler and {compiler!r} is not on PATH (install one, or set CXX)"


def _strict_inductor_available() -> str | None:
    if not includes(">=2.15", importlib.metadata.version("torch")):
        return "Inductor has strict numerics from torch 2.15 on"
    return _inductor_available()


def _stock_torch_targets(name: str, description: str, backend: str, controls: tuple[str, ...] = ()) -> Target:
    return Target(
        name,
        description,
        _compile_target_with(backend),
        aot_autograd_refusal,
        in_pieces=True,
        prepare=prepare_dynamo,
        reset=reset_dynamo,
        warm=_warm_dynamo,
        controls=controls,
    )


# Tensors kept in state, generators other than torch's, modes that stay on, and caught exceptions: all Python
# state that `aot` refuses by docs/reference/refusals.md.
_DECLINES = (
    *("python: cached", "python: optimizer", "python: attribute set", "python: caught", "random: Python"),
    *("mode: entered", "mode: deterministic"),
)


# The share of generated programs that `aot` may decline: twice the largest that was measured.
_RARELY, _SELDOM = 0.01, 0.03


def _shipped_targets() -> Mapping[str, Target]:
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
            _compile_target_with("aotfuzz", **OUR_OPTIONS),
            _refusal_aot_compile,
            prepare=prepare_dynamo,
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
            _compile_target_with("aotfuzz_inductor", **OUR_OPTIONS),
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
            aot_autograd_refusal,
            warm=_warm_up_target_with(_compile_torch_aot_function),
            # Its `aot_function` takes a module's tensors for constants; `aot_module` is another function.
            lacks=("module",),
        ),
        _stock_torch_targets(
            "torch-aot-eager",
            "torch.compile: Dynamo and AOTAutograd, graphs run as captured",
            "aot_eager",
            ("torch-dynamo",),
        ),
        Target(
            "torch-inductor",
            "torch.compile as users get it: Dynamo, AOTAutograd and Inductor, which draws as eager does",
            _compile_with_inductor,
            aot_autograd_refusal,
            in_pieces=True,
            prepare=_prepare_inductor,
            reset=reset_dynamo,
            available=_inductor_available,
            warm=_warm_inductor,
            controls=("torch-dynamo", "torch-aot-eager"),
        ),
        Target(
            "torch-inductor-dynamic",
            "the same with dynamic=True: sizes are symbols from the first call on",
            partial(_compile_with_inductor, dynamic=True),
            prepare=_prepare_inductor,
            reset=reset_dynamo,
            available=_inductor_available,
            warm=_warm_inductor,
            controls=("torch-dynamo", "torch-aot-eager", "torch-inductor"),
        ),
        Target(
            "torch-inductor-strict",
            'the same with numerics="strict" (torch 2.15), whose numbers are to be eager\'s bit for bit',
            partial(_compile_with_inductor, numerics="strict"),
            aot_autograd_refusal,
            in_pieces=True,
            prepare=_prepare_inductor,
            reset=reset_dynamo,
            available=_strict_inductor_available,
            warm=_warm_inductor,
            controls=("torch-dynamo", "torch-aot-eager"),
            exact=True,
        ),
        _stock_torch_targets(
            "torch-dynamo", "control: torch.compile's Dynamo alone, graphs run as captured", "eager"
        ),
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
            _target_on_other_threads,
            reset=_on_as_many_threads,
            once=True,
        ),
    )
    return MappingProxyType({target.name: target for target in targets})


SHIPPED: Mapping[str, Target] = _shipped_targets()
