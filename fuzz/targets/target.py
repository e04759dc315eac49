"""Target: a compiler under test: a name, a way to compile a function, and legitimate refusals.

A target takes a Python function of tensors, and returns a callable that should be indistinguishable from it.
`fuzz.targets.catalog` finds targets by name. Targets live in worker processes. `prepare` runs once in each,
and `reset` after every case, so that no case depends on what was compiled before.

    target = find_target("torch-aot-eager")
    compiled = target.compile(lambda x: x.mul_(2))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzz.features.capabilities import excluded_traits
from fuzz.features.traits import traits
from fuzz.program.decode import Program
from fuzz.targets.clause_sets import clauses_of
from oracles import Arithmetic

Function = Callable[..., Any]


def _no_refusal(_error: BaseException) -> str | None:
    """For targets that promise to compile everything: no exception is a refusal."""
    return None


def do_nothing() -> None:
    """For targets that need no preparation and keep no state."""


def _available() -> str | None:
    """For targets that work wherever torch does."""
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """One compiler under test. A target can be called like the function that compiles.

    Attributes:
        name, description: of the target.
        compile: takes a function and returns it compiled.
        refusal: gives the reason if an exception declines a program on purpose, else None.
        available: gives None, or why the target cannot work on this machine.
        prepare, reset: run once in each process, and after every case.
        warm: what the process from which workers are forked may do once for all of them. It must leave no
            thread and no open device.
        lacks: capabilities that the target does without: keys of `fuzz.features.capabilities.CAPABILITIES`,
            or patterns of traits (`fuzz.features.traits.TRAITS`, with `*` for anything). A campaign draws
            programs that need none of them. Another program is not run, and counts as refused.
        declines: capabilities that the target declines at run time. Programs with them are run, to see what a
            refusal leaves behind.
        once: the target promises that a call runs the Python function at most once, and this is checked.
        controls: names of targets that are this one without the part under test, such as the front end alone.
            If the target agrees with a control, a case in which both differ from eager proves nothing.
            Controls are prepared and reset in the same process.
        in_pieces: a program may be cut into pieces that are compiled when they are reached. If one is
            declined, others have run, so the clause `refusals` is not judged.
        exact: the target promises to run eager's kernels in eager's order, so that numbers are equal bit for
            bit.
        refuses: the share of programs that it may decline, besides those with what it lacks or `declines`. If
            it declines more in a campaign, that is reported.
        clauses: the clauses of the contract that it promises, or names of sets (`fuzz.targets.clause_sets`).
            Others are not judged.
        computes_in: dtypes that it computes in another precision; the error policy counts digits in that.
        flushes_denormals: it takes denormals for zeros, and the error policy allows that.

    Example:
        Target("mine", "my compiler", compile_function, lacks=("complex", "operator: as_strided*"))
    """

    name: str
    description: str
    compile: Callable[[Function], Function]
    refusal: Callable[[BaseException], str | None] = _no_refusal
    prepare: Callable[[], None] = do_nothing
    reset: Callable[[], None] = do_nothing
    available: Callable[[], str | None] = _available
    warm: Callable[[], None] = do_nothing
    lacks: tuple[str, ...] = ()
    once: bool = False
    controls: tuple[str, ...] = ()
    in_pieces: bool = False
    declines: tuple[str, ...] = ()
    exact: bool = False
    refuses: float = 1.0
    clauses: tuple[str, ...] = ("everything",)
    computes_in: Mapping[str, str] = field(default_factory=dict)
    flushes_denormals: bool = False

    @classmethod
    def from_backend(cls, backend: str | Callable[..., Any], *, aot: bool = False, **more: Any) -> Target:
        """The target of a backend of torch.compile, with all settings that such a target needs.

        The controls are Dynamo alone and, if the backend gets AOTAutograd's graphs (`aot`), AOTAutograd
        alone. Dynamo's caches are dropped after each case. Dynamo does not fall back to eager silently. A
        program may come `in_pieces`. A prepared process compiles a toy first, and nothing is imported before
        that. The target promises the clauses of the set `torch.compile`.

        Args:
            backend: a name of `torch.compiler.list_backends`, or a function of a GraphModule and inputs.
            aot: the backend gets graphs of AOTAutograd: it is, or calls, `aot_autograd(...)`.
            more: attributes of `Target`, and `dynamic` and `options`, which go to torch.compile. Functions
                for `prepare` and `reset` run after those above.

        Raises:
            fuzz.errors.TargetError: the backend is no such thing.

        Example:
            target = Target.from_backend("openvino", lacks=("complex",))
        """
        from fuzz.targets.dynamo_backends import backend_target

        return backend_target(backend, aot=aot, **more)

    def __call__(self, function: Function) -> Function:
        """Compile a function."""
        return self.compile(function)

    @property
    def promised(self) -> tuple[str, ...]:
        """The clauses that the target promises, in the order of the contract.

        Raises:
            TargetError: it names an unknown clause.
        """
        return clauses_of(self.clauses)

    @property
    def arithmetic(self) -> Arithmetic:
        """The precision in which the target computes.

        Raises:
            ValueError: it names no floating dtype.
        """
        return Arithmetic(self.computes_in, self.flushes_denormals)

    def lacking(self, program: Program) -> str | None:
        """The first capability that a program needs and this target lacks, or None."""
        return _first(self.lacks, program)

    def declining(self, program: Program) -> str | None:
        """The first capability of a program that this target declines, or None."""
        return _first(self.declines, program)


def _first(names: Sequence[str], program: Program) -> str | None:
    """The first of these capabilities that a program needs, or None."""
    found = traits(program) if names else frozenset()
    return next((name for name in names if not found.isdisjoint(excluded_traits((name,)))), None)


def lacked_by_all(targets: Sequence[Target]) -> tuple[str, ...]:
    """The capabilities that all of some targets lack. A campaign on them draws no program that needs one.

    If none promises gradients, `autograd` is one of them. `cuda` is left out, because it says nothing of
    programs.

    >>> one = Target("one", "", lambda f: f, lacks=("complex", "cuda"))
    >>> lacked_by_all([one, Target("other", "", lambda f: f, lacks=("random", "complex"))])
    ('complex',)
    """
    first, *others = targets
    common = [name for name in first.lacks if name != "cuda" and all(name in one.lacks for one in others)]
    if not any("gradients" in target.promised for target in targets):
        common.append("autograd")
    return tuple(dict.fromkeys(common))
