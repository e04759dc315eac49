"""What programs make Inductor do: vectors, reductions, dtypes, patterns and extern kernels, by profile.

Each program is compiled as in a campaign, with its backwards and later calls. No C++ compiler runs: the text
of kernels is read, and kernels do nothing, on results of zeros. So it takes a tenth of a campaign's time. A
cell is the percentage of the programs of a profile that do so at least once; how many elements make a vector
depends on the machine.
"""

from __future__ import annotations

import argparse
import logging
import signal
import statistics
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from bench.fuzzer.cases import forked
from bench.fuzzer.kernel_text import DTYPES, extents, kernel_traits, wrapper_traits
from bench.report import Table
from fuzz.campaign.workers.handlers import program
from fuzz.execute.call import LazyCompiled, reset_target, run_and_observe
from fuzz.execute.case import load_calls
from fuzz.generate.profile_names import find_profile
from fuzz.generate.profiles import PROFILES
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target

TARGETS = ("torch-inductor", "torch-inductor-dynamic", "aot-inductor")
SECONDS = 60  # for one program
_STRETCH = 8  # programs for each process
REDUCTION = "reduction: "
PATTERN = "pattern: "
LOWERED = "operator: "
ANY_REDUCTION = "reduction: any loop"
ANY_EXTERN = "extern: any"
BACKWARD = "graph: a backward"
_ADAPTIVE = "operator: _adaptive_avg_pool"
_ACTIVATIONS = tuple(
    f"operator: {name}" for name in ("relu", "sigmoid", "tanh", "erf", "hardtanh", "clamp_min")
)
FAMILIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention": (("pattern: _sfdp", "extern: _scaled_dot_product"),),
    "softmax": (("operator: amax", "operator: prepare_softmax"), ("operator: exp",), (ANY_REDUCTION,)),
    "norm": (("operator: rsqrt", "operator: native_batch_norm"), ("operator: mean", "operator: var_mean")),
    "mkldnn fusion": (("pattern: mkldnn", "extern: mkldnn", "counter: mkldnn"),),
    "linear and activation": (
        ("operator: addmm", "operator: mm", "operator: _linear_pointwise"),
        _ACTIVATIONS,
    ),
    "convolution and activation": (
        ("operator: convolution", "operator: _convolution_pointwise"),
        _ACTIVATIONS,
    ),
    "addmm": (("extern: addmm", "extern: baddbmm", "extern: bias_addmm"),),
    "chain around a reduction": ((ANY_REDUCTION,), ("operator: mul", "operator: add", "operator: sub")),
    "cat": (("operator: cat",),),
    "padding": (("operator: constant_pad_nd", "operator: reflection_pad", "operator: replication_pad"),),
    "pooling": (("operator: max_pool", "operator: avg_pool", "operator: _low_memory_max_pool", _ADAPTIVE),),
    "scatter": (
        ("operator: scatter", "operator: index_put", "operator: index_add", "operator: slice_scatter"),
    ),
    "scan": (("operator: cumsum", "operator: cumprod", "operator: cummax", "operator: logcumsumexp"),),
    "embedding bag": (("operator: _embedding_bag",),),
    "foreach": (("operator: _foreach_",),),
    "custom operator": (("operator: custom ",),),
}
"""Families of what a compiler looks for. Of each there are parts that a program needs, and of a part how the
names of what shows it may begin."""


@dataclass(slots=True)
class Reach:
    """What one program made Inductor do.

    Attributes:
        traits: what was seen, by name.
        extents: how often each loop runs.
    """

    traits: set[str] = field(default_factory=set)
    extents: list[int] = field(default_factory=list)


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--target", choices=TARGETS, default="torch-inductor", help="default: torch-inductor")
    parser.add_argument(
        "--profile", action="append", metavar="P", help="a profile; may be given several times (default: all)"
    )
    parser.add_argument("--programs", type=int, default=40, help="of each profile (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the programs (default: 1)")
    parser.add_argument(
        "--least", type=float, default=1.0, help="rows that reach so many percent (default: 1)"
    )


def measure(options: argparse.Namespace) -> list[Table]:
    """Compile the programs of each profile, each in a process of its own."""
    profiles = options.profile or list(PROFILES)
    for profile in profiles:
        find_profile(profile)
    warm(find_target(options.target))
    found = {
        profile: list(reaches_of(options.seed, range(options.programs), profile, options.target))
        for profile in profiles
    }
    return tables(found, options.programs, options.least)


def warm(target: Target) -> None:
    """Have Inductor make its tables of patterns here, and not in each of the processes forked from here."""
    target.prepare()
    toy = LazyCompiled(target, lambda value: value.mul(2).t().sin())
    with recording_inductor(Reach()):
        toy(torch.ones(2, 2, requires_grad=True)).sum().backward()
    reset_target(target)


def reaches_of(seed: int, indices: Sequence[int], profile: str, target: str) -> Iterator[Reach]:
    """What each program of a profile makes a target do; those whose process dies or hangs are left out."""
    for start in range(0, len(indices), _STRETCH):
        some = indices[start : start + _STRETCH]
        given = {"seed": seed, "indices": list(some), "profile": profile, "target": target}
        value, failure, _ = forked(_reach_in_fork, given)
        if not failure:
            yield from (Reach(set(one["traits"]), one["extents"]) for one in value)
        elif len(some) > 1:
            for index in some:
                yield from reaches_of(seed, [index], profile, target)


def _reach_in_fork(given: dict[str, Any]) -> list[dict[str, Any]]:
    logging.disable(logging.CRITICAL)  # of what Dynamo says of programs that eager refuses
    warnings.simplefilter("ignore")
    target, found = find_target(given["target"]), []
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        for index in given["indices"]:
            signal.alarm(SECONDS)
            reach = compile_program(program(given["seed"], index, given["profile"]), target)
            found.append({"traits": sorted(reach.traits), "extents": reach.extents})
    return found


def compile_program(given: Any, target: Target) -> Reach:
    """Have a target of Inductor's compile all calls of a program, and say what it did."""
    reach = Reach()
    function, trials = load_calls(given)
    compiled = LazyCompiled(target, function)
    with recording_inductor(reach):
        for trial in trials:
            run_and_observe(trial, compiled)
    reset_target(target)
    return reach


@contextmanager
def recording_inductor(reach: Reach) -> Iterator[None]:
    """While this lasts, Inductor's kernels are noted, and not compiled, and do nothing."""
    import torch._inductor.async_compile
    import torch._inductor.codegen.cpp as cpp
    from torch._dynamo.utils import counters
    from torch._inductor import pattern_matcher
    from torch._inductor.graph import GraphLowering

    def kernel(_compiler: Any, *given: Any, **_named: Any) -> Callable[..., None]:
        text = next(one for one in reversed(given) if isinstance(one, str))
        reach.traits.update(kernel_traits(text))
        reach.extents.extend(extents(text))
        if "atomic_add" in text:
            reach.traits.add("kernel: atomic_add")
        return lambda *_arguments: None

    def zeros(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype).zero_()

    def note_code(code: str, *_more: Any) -> None:
        # (Kernels' text stands in it as well, between three quotes.)
        reach.traits.update(wrapper_traits("".join(code.split("'''")[::2])))

    before = dict(counters["inductor"])
    with ExitStack() as stack:

        def change(owner: Any, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for name in ("cpp_pybinding", "cpp"):
            change(torch._inductor.async_compile.AsyncCompile, name, kernel)
        change(torch._C._dynamo.guards, "_empty_strided_cpu", zeros)
        change(GraphLowering, "save_output_code", staticmethod(note_code))
        for owner in (cpp.CppKernel, cpp.CppVecKernel):
            change(owner, "reduction", _noting_reduction(owner.reduction, reach))
        for entry in ("GraphPatternEntry", "LoweringPatternEntry", "ReplacementPatternEntry"):
            owner = getattr(pattern_matcher, entry)
            change(owner, "apply", _noting_pattern(owner.apply, reach))
        change(GraphLowering, "run", _noting_graph(GraphLowering.run, reach))
        yield
    for name, count in counters["inductor"].items():
        if count > before.get(name, 0):
            reach.traits.add(f"counter: {name}")
    if any(name.startswith("extern: ") for name in reach.traits):
        reach.traits.add(ANY_EXTERN)


def _noting_reduction(right: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    def reduction(self: Any, dtype: Any, src_dtype: Any, reduction_type: str, value: Any) -> Any:
        reach.traits.update((f"{REDUCTION}{reduction_type}", ANY_REDUCTION))
        return right(self, dtype, src_dtype, reduction_type, value)

    return reduction


def _noting_pattern(right: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    def apply(self: Any, match: Any, *more: Any) -> Any:
        reach.traits.add(f"{PATTERN}{_pattern_name(self)}")
        return right(self, match, *more)

    return apply


def _pattern_name(entry: Any) -> str:
    """What a pattern is called: its replacement, its function, or the function that it is made of."""
    named = getattr(entry, "pattern_name", None) or getattr(getattr(entry, "handler", None), "__name__", "")
    if named:
        return str(named)
    check: Any = getattr(entry, "extra_check", None)
    names = getattr(getattr(check, "__code__", None), "co_freevars", ())
    if "search_fn" in names:
        return str(check.__closure__[names.index("search_fn")].cell_contents.__name__)
    return type(entry).__name__


def _noting_graph(right: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    def run(self: Any, *given: Any) -> Any:
        if getattr(self, "is_backward", False):
            reach.traits.add(BACKWARD)
        reach.traits.update(
            f"{LOWERED}{name}" for node in self.module.graph.nodes if (name := _operator(node))
        )
        return right(self, *given)

    return run


def _operator(node: Any) -> str:
    """The name of the operator that a node calls, without its overload; "" if it calls none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    namespace, name = node.target.namespace, node.target._schema.name.partition("::")[2]
    return name if namespace in ("aten", "prims", "inductor", "mkldnn", "quantized") else f"custom {name}"


def tables(found: dict[str, list[Reach]], programs: int, least: float) -> list[Table]:
    """The shares of each profile, by group, and the lengths of loops."""
    profiles = tuple(found)
    shares = {profile: _shares(reaches) for profile, reaches in found.items()}
    families = {
        name: tuple(_share_of_family(found[profile], parts) for profile in profiles)
        for name, parts in FAMILIES.items()
    }
    counts = tuple(len(found[profile]) for profile in profiles)
    lengths = [[length for reach in found[profile] for length in reach.extents] for profile in profiles]
    medians = tuple(statistics.median(some) if some else None for some in lengths)
    names = sorted({name for one in shares.values() for name in one})
    groups = {
        "loops, dtypes and graphs": ("vectors: ", "dtype: ", "dynamic: ", "graph: "),
        "reductions": (REDUCTION,),
        "patterns that matched": (PATTERN,),
        "extern kernels": ("extern: ",),
    }
    made = [
        Table(
            f"Programs that reach families of what compilers look for, in % ({programs} of each profile)",
            ("family", *profiles),
            tuple((name, *row) for name, row in families.items()),
        )
    ]
    for title, begins in groups.items():
        rows: list[tuple[str | float | int | None, ...]] = []
        if title.startswith("loops"):
            rows = [("programs", *counts), ("median extent of a loop", *medians)]
            names_here = [*_fixed_rows(), *(name for name in names if name.startswith(begins))]
            names_here = list(dict.fromkeys(names_here))
        else:
            names_here = [name for name in names if name.startswith(begins)]
        for name in names_here:
            row = tuple(shares[profile].get(name, 0.0) for profile in profiles)
            if name in _fixed_rows() or max(row) >= least:
                rows.append((name, *row))
        made.append(Table(f"Programs that make Inductor do so, in %: {title}", ("", *profiles), tuple(rows)))
    return made


def _fixed_rows() -> list[str]:
    """Rows that stand in the table even where no program reaches them."""
    from bench.fuzzer import kernel_text as text

    vectors = (text.FULL_AND_TAIL, text.FULL, text.PART, text.TILE, text.SCALAR)
    return [
        *vectors,
        ANY_REDUCTION,
        ANY_EXTERN,
        BACKWARD,
        text.DYNAMIC,
        *(f"dtype: {one}" for one in DTYPES.values()),
    ]


def _shares(reaches: Sequence[Reach]) -> dict[str, float]:
    counted = Counter(name for reach in reaches for name in reach.traits)
    return {name: 100 * count / len(reaches) for name, count in counted.items()}


def _share_of_family(reaches: Sequence[Reach], parts: tuple[tuple[str, ...], ...]) -> float:
    hit = sum(all(any(name.startswith(part) for name in one.traits) for part in parts) for one in reaches)
    return 100 * hit / len(reaches) if reaches else 0.0
