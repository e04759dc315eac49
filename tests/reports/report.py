"""One public report: a program that shows it, and what torch's own compilers make of that program today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from fuzz.corpus.buckets import primary_finding
from fuzz.targets.catalog import find_target
from oracles import Arguments, Backward, Finding, Observation, Outcome, Write, judge, observe
from oracles.rerun.dense_operands import DenseOperands
from tests.support.agreement import Make, fresh

TARGETS = ("torch-aot-function", "torch-aot-eager")
RIGHT = "right"
RAISES = "raises"

Story = Callable[[Callable[..., Any]], Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A function, how to make fresh arguments for it, and how it is called.

    `grad`, `differentiate`, `steps` and `backward_raises` are those of `agreement.assert_agrees`. `refused`
    is a part of the message with which aot refuses the program; "" means that aot is right about it. A
    `story` is given the function, uses it as it likes (several calls, optimizers, contexts), and stands in
    place of all this: what it returns or raises is compared.
    """

    function: Callable[..., Any]
    make: Make = list
    grad: bool | None = None
    differentiate: tuple[int, ...] | None = None
    steps: Sequence[Backward | Write] = ()
    backward_raises: bool = False
    refused: str = ""
    story: Story | None = None


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
    """A public report by its number in `repository`, and what it says in one line. `also` has the numbers of
    others of the same thing.

    `program` shows it; `variants` are others like it, which aot has to get right as well. `checks` are
    functions that fail where aot is wrong in what no program says: with another partitioner or graph
    compiler, in how often something runs, in what a refusal leaves behind. `stock` is the state on torch
    2.13, on older ones from `since` on unless `older` says otherwise, and on newer ones until the version
    that `newer` has a state for; None says that `TARGETS` have nothing of what the report is about, such as
    a graph compiler that copies.

    `as_reported` is False where torch 2.13 is wrong about it in another way than the report has it, or where
    that is not known. Where it is still wrong as reported, a generated program shows the report if a
    campaign gives it the signature that `program` has, and if it has, reduced, the traits that `needs` lists
    (patterns of `fuzz.features.traits.TRAITS`); None says that the generator writes none such.

        Report(93363, "a write to every other element", Program(lambda x: x.add_(1), make))
    """

    number: int
    title: str
    program: Program
    stock: Stock | None = Stock()
    older: Stock | None = None
    newer: tuple[tuple[int, int], Stock] | None = None
    since: tuple[int, int] = (2, 11)
    as_reported: bool = True
    needs: tuple[str, ...] | None = ()
    variants: tuple[Program, ...] = ()
    checks: tuple[Callable[[], None], ...] = ()
    also: tuple[int, ...] = ()
    repository: str = "pytorch/pytorch"

    @property
    def name(self) -> str:
        """As GitHub writes it: "pytorch/pytorch#93363"."""
        return f"{self.repository}#{self.number}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its own number, and those of the others that it stands for."""
        return self.number, *self.also

    def expected(self, version: str) -> Stock | None:
        """The state on that version of torch: "2.13.0+cpu" or "2.11". None where nothing is known of it."""
        major, minor = (int(part) for part in version.split(".")[:2])
        if (major, minor) < self.since:
            return None
        if self.newer is not None and (major, minor) >= self.newer[0]:
            return self.newer[1]
        return self.older if self.older is not None and (major, minor) < (2, 13) else self.stock


def findings(program: Program, target: str) -> tuple[Finding, ...]:
    """What a shipped target gets wrong about a program; none where it is right.

    The call is made with grad mode on, unless the program says otherwise. Raises AssertionError if eager
    differs from itself, since then the program shows nothing.
    """
    compiler = find_target(target)
    compiler.prepare()

    def look(function: Callable[..., Any], **options: Any) -> Observation:
        if program.story is not None:
            return observe(_told(program.story, function), lambda: Arguments(()), differentiate=(), **options)
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


def _told(story: Story, function: Callable[..., Any]) -> Callable[[], Any]:
    """The story with that function. Its tensors are copies, as it has come to its end."""
    return lambda: pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), story(function))


def state(found: Sequence[Finding]) -> str:
    """The word for what was found, as in `Stock`."""
    if not found:
        return RIGHT
    first = primary_finding(found)
    if first.clause == "errors" and first.eager == "no exception":
        return RAISES
    return first.clause
