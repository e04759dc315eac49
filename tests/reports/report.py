"""One public report: a program that shows it, and what torch's own compilers make of that program today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.corpus.buckets import primary_finding
from fuzz.targets.catalog import find_target
from oracles import Backward, Finding, Observation, Outcome, Write, judge, observe
from oracles.rerun.dense_operands import DenseOperands
from tests.support.agreement import Make, fresh

TARGETS = ("torch-aot-function", "torch-aot-eager")
RIGHT = "right"
RAISES = "raises"


@dataclass(frozen=True, slots=True)
class Program:
    """A function, how to make fresh arguments for it, and how it is called.

    `grad`, `differentiate`, `steps` and `backward_raises` are those of `agree.assert_agrees`. `refused` is a
    part of the message with which aot refuses the program; "" means that aot is right about it.
    """

    function: Callable[..., Any]
    make: Make
    grad: bool | None = None
    differentiate: tuple[int, ...] | None = None
    steps: Sequence[Backward | Write] = ()
    backward_raises: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Stock:
    """What torch's own compilers make of a report's program.

    "right", "raises" where eager does not, or else the clause of the contract that is broken. `function` is
    torch's `aot_function`, `eager` is `torch.compile` with the backend `aot_eager`.
    """

    function: str = RIGHT
    eager: str = RIGHT

    def of(self, target: str) -> str:
        """The state on one of `TARGETS`."""
        return self.function if target == "torch-aot-function" else self.eager


@dataclass(frozen=True, slots=True)
class Report:
    """A public report by its number in `repository`, and what it says in one line.

    `program` shows it; `variants` are others like it, which aot has to get right as well. `stock` is the
    state on torch 2.13, and on older ones unless `older` says otherwise. `as_reported` is False where torch
    2.13 is wrong about it in another way than the report has it, or where that is not known. Where it is
    still wrong as reported, a generated program shows the report if a campaign gives it the signature that
    `program` has, and if it has, reduced, the traits that `needs` lists (patterns of
    `fuzz.features.traits.TRAITS`); None says that the generator writes none such.

        Report(93363, "a write to every other element", Program(lambda x: x.add_(1), make))
    """

    number: int
    title: str
    program: Program
    stock: Stock = Stock()
    older: Stock | None = None
    as_reported: bool = True
    needs: tuple[str, ...] | None = ()
    variants: tuple[Program, ...] = ()
    repository: str = "pytorch/pytorch"

    @property
    def name(self) -> str:
        """As GitHub writes it: "pytorch/pytorch#93363"."""
        return f"{self.repository}#{self.number}"

    def expected(self, version: str) -> Stock:
        """The state on that version of torch: "2.13.0+cpu" or "2.11"."""
        major, minor = (int(part) for part in version.split(".")[:2])
        return self.older if self.older is not None and (major, minor) < (2, 13) else self.stock


def findings(program: Program, target: str) -> tuple[Finding, ...]:
    """What a shipped target of `fuzz.targets.target` gets wrong about a program; none where it is right.

    The call is made with grad mode on, unless the program says otherwise. Raises AssertionError if eager
    differs from itself, since then the program shows nothing.
    """
    compiler = find_target(target)
    compiler.prepare()

    def look(function: Callable[..., Any], **options: Any) -> Observation:
        return observe(
            function,
            lambda: fresh(program.make),
            grad=program.grad is not False,
            differentiate=program.differentiate,
            steps=program.steps,
            **options,
        )

    try:
        verdict = judge(
            look(program.function),
            look(compiler.compile(program.function)),
            None,
            lambda: look(program.function, terms=True),
            lambda: look(program.function, under=DenseOperands()),
        )
    finally:
        compiler.reset()
    assert verdict.outcome is not Outcome.POISONED, verdict.reason
    return verdict.findings


def state(found: Sequence[Finding]) -> str:
    """The word for what was found, as in `Stock`."""
    if not found:
        return RIGHT
    first = primary_finding(found)
    if first.clause == "errors" and first.eager == "no exception":
        return RAISES
    return first.clause
