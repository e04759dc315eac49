"""Which operators of torch's own operator database programs contain, and why not the others.

Each row of the operator table is drawn into a program, which runs in eager, forward and backward. An operator
of the database (`torch.testing`, CPU) is *called* if a program calls it, its method or another of its names,
and *made of others* if all that it dispatches to is among what programs dispatch to: below Dynamo a backend
sees these. Each of the others has its reason in `REASONS`.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench.report import Table
from fuzz.choices import SeededChoices
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.ir.json_readers import ProgramError
from fuzz.ir.nodes import Program
from fuzz.operators import OPERATORS, Kind, Operator
from fuzz.program.printer import load
from oracles.observation.mode_stacks import recording_leaked_modes

_TRIES = 30  # programs that are drawn for a row
_RUNS = 8  # of those that have it, and are run
_SAMPLES = 3  # of an operator of the database
_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.bfloat16)
_UNEXPLAINED = "gaps without a reason"

_DEVICE = "it needs a GPU"
_SPARSE = "programs have no sparse tensors; gradients of embeddings are sparse"
_MEMORY = "the memory of its result is not initialized"
_NO_TENSOR = "its result is no tensor"
_BY_VALUES = (
    "the size of its result depends on values; rows have such sizes inside (`fuzz/operators/data_sizes.py`)"
)
_INNER = "an operator that torch's own compilers and layers put into graphs, and nobody calls"
_ORDER = "its results come in no order, and its vectors have any phase"
REASONS: dict[str, str] = {
    "allclose": _NO_TENSOR,
    "as_strided_copy": "it reads all the memory of its argument, wherever the argument lies in that",
    "as_strided_scatter": "it reads all the memory of its argument, wherever the argument lies in that",
    "broadcast_shapes": _NO_TENSOR,
    "empty_permuted": _MEMORY,
    "empty_strided": _MEMORY,
    "hash_tensor": "its result is uint64, which programs do not have",
    "histogramdd": "it takes a list of edges or counts for each column; `histogram` is there",
    "linalg.eig": _ORDER,
    "linalg.eigvals": _ORDER,
    "multinomial": "it raises for what values at the edge make of probabilities",
    "nonzero_static": "what it is filled up with stands in its size",
    "cholesky": "torch 2.15 does not have it; `linalg.cholesky` is there",
    "triangular_solve": "torch has deprecated it; `linalg.solve_triangular` is there",
    **dict.fromkeys(
        [f"nn.functional.max_unpool{n}d{variant}" for n in (1, 2, 3) for variant in ("", ".grad")],
        "it warns where algorithms are to be deterministic, as programs ask",
    ),
    **dict.fromkeys(
        ("argwhere", "bincount", "masked_select", "nonzero", "unique", "unique_consecutive"), _BY_VALUES
    ),
    **dict.fromkeys(("sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"), _SPARSE),
    **dict.fromkeys(
        (
            "jiterator_unary",
            "jiterator_binary",
            "jiterator_4inputs_with_extra_args",
            "jiterator_binary_return_by_ref",
            "jiterator_2inputs_2outputs",
            "torch._scaled_mm",
            "torch._scaled_mm_v2",
            "torch.ops.aten._flash_attention_forward",
            "torch.ops.aten._efficient_attention_forward",
        ),
        _DEVICE,
    ),
    **dict.fromkeys(
        (
            "_batch_norm_with_update",
            "_chunk_cat",
            "_native_batch_norm_legit",
            "_unsafe_masked_index",
            "_unsafe_masked_index_put_accumulate",
            "native_dropout_backward",
        ),
        _INNER,
    ),
    **dict.fromkeys(
        (
            "nn.functional.linear_cross_entropy",
            "nn.functional.linear_cross_entropy.chunked",
            "nn.functional.linear_cross_entropy.chunked_none",
        ),
        "torch 2.11 does not have it",
    ),
}
"""Why no program contains an operator, by its name in the database. A test holds that none is out of date."""


@dataclass(frozen=True)
class Recorded:
    """What programs call and dispatch to.

    Attributes:
        functions: what they call, as torch functions.
        packets: names of what these dispatch to, such as ``aten.add``.
    """

    functions: set[object] = field(default_factory=set)
    packets: set[str] = field(default_factory=set)


class _Functions(TorchFunctionMode):
    def __init__(self, found: set[object]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found.add(function)
        return function(*args, **(kwargs or {}))


class _Packets(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found.add(str(function.overloadpacket))
        return function(*args, **(kwargs or {}))


@contextmanager
def _recording(recorded: Recorded) -> Iterator[None]:
    with warnings.catch_warnings(), _Functions(recorded.functions), _Packets(recorded.packets):
        warnings.simplefilter("ignore")
        yield


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--seed", type=int, default=0, help="stream of the programs")


def measure(options: argparse.Namespace) -> list[Table]:
    """Compare the tables."""
    recorded = record_rows(list(OPERATORS.values()), options.seed)
    called, composed, gaps = compare(recorded)
    unexplained = [name for name in gaps if name not in REASONS]
    by_reason: dict[str, list[str]] = {}
    for name in gaps:
        by_reason.setdefault(REASONS.get(name, _UNEXPLAINED), []).append(name)
    counts = (
        ("called", len(called)),
        ("made of others", len(composed)),
        ("not there, for a reason", len(gaps) - len(unexplained)),
        (_UNEXPLAINED, len(unexplained)),
    )
    rows = tuple((reason, ", ".join(names)) for reason, names in sorted(by_reason.items()))
    return [
        Table("operators of torch's database in programs", ("operators", "number"), counts),
        Table("what no program contains", ("why", "operators"), rows),
    ]


def status(tables: Sequence[Table]) -> int:
    """The exit status: 1 if an operator is missing for no reason that is written down."""
    return int(bool(tables[0].rows[-1][1]))


def record_rows(rows: Sequence[Operator], seed: int = 0) -> Recorded:
    """Run programs with each row: until a backward ran, if the row is differentiable, but a few at most."""
    recorded = Recorded()
    for row in rows:
        runs = 0
        for index in range(_TRIES):
            program = _draw(row, seed, index)
            if not any(statement.operator == row.name for statement in program.statements):
                continue
            with suppress(ProgramError):  # `resize_` alone cannot write to the memory that it adds
                runs += 1
                if _run(program, recorded) or not row.differentiable or runs == _RUNS:
                    break
    return recorded


def _draw(row: Operator, seed: int, index: int) -> Program:
    name = "lowerings" if row.kind in (Kind.KERNEL, Kind.REFUSED) else "mixed"
    profile = replace(PROFILES[name], mixture=(), operators=frozenset({row.name}))
    return generate(SeededChoices(seed, index), profile)


def _run(program: Program, recorded: Recorded) -> bool:
    """Run a program in eager; whether its backward ran."""
    loaded = load(program)
    args = loaded.make()[0]
    # (A program may enter a mode for good.)
    with recording_leaked_modes(), _recording(recorded), torch.set_grad_enabled(program.scenario.grad):
        try:
            results = loaded.f(*args)
            roots = [
                result for result in results if isinstance(result, torch.Tensor) and result.requires_grad
            ]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        except Exception:
            return False  # eager may refuse a program, or have no backward for it
        return bool(roots)


def compare(recorded: Recorded) -> tuple[list[str], list[str], list[str]]:
    """Names of the operators of torch's database: those called, those made of others, those missing."""
    from torch.testing._internal.common_methods_invocations import op_db

    called: list[str] = []
    composed: list[str] = []
    gaps: list[str] = []
    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        if _is_called(info, recorded):
            called.append(name)
            continue
        packets = _packets_of(info)
        known = all({packet, f"{packet}_"} & recorded.packets for packet in packets)
        (composed if packets and known else gaps).append(name)
    return called, composed, gaps


def _is_called(info: Any, recorded: Recorded) -> bool:
    names: list[Callable[..., Any] | None] = [
        info.op,
        info.method_variant,
        info.inplace_variant,
        info.operator_variant,
        info.inplace_operator_variant,
        *(alias.op for alias in info.aliases),
    ]
    return any(name in recorded.functions for name in names if name is not None) or (
        f"aten.{info.aten_name}" in recorded.packets
    )


def _packets_of(info: Any) -> set[str]:
    """What the first samples of an operator dispatch to, with the first dtype that it takes."""
    for dtype in _DTYPES:
        if dtype not in info.dtypes:
            continue
        recorded = Recorded()
        with _recording(recorded):
            try:
                for sample in itertools.islice(info.sample_inputs("cpu", dtype), _SAMPLES):
                    info.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                continue
        if recorded.packets:
            return recorded.packets
    return set()
