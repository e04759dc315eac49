"""Compilers under test: each is a name, a way to compile one function, and which refusals are legitimate.

A target takes a Python function of tensors and gives back a callable that ought to be indistinguishable from
it. The shipped ones are found by name, and so are those of packages that register theirs
(`fuzz.targets.plugins`); anybody's own is named as `package.module:function`, where `function(f)` returns the
compiled `f`. A target lives in worker processes: `prepare` runs once in each, and `reset` after every case so
that no case depends on what was compiled before it.

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
    """For targets that promise to compile everything: no exception of theirs is a refusal."""
    return None


def do_nothing() -> None:
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

    `lacks` names capabilities that the target does without: keys of
    `fuzz.features.capabilities.CAPABILITIES`, or patterns of traits (`fuzz.features.traits.TRAITS`, with `*`
    for anything). A campaign draws programs that need none of them; one that does is not run, and counts as
    refused. `once` promises that a call runs the Python function at most once; then that is watched.
    `controls` names the targets that are this one without what is under test, such as the front end
    alone, or what is below with another layer above: where it agrees with one of these, a case in which
    both differ from eager proves nothing. They are prepared and reset in the same process. `in_pieces`
    says that a program may be cut into pieces which are compiled as they are reached: where one is
    declined, others have run, so that the clause `refusals` is not asked. `exact` promises that a target
    runs the kernels that eager runs, in the same order, so that numbers are equal bit for bit. `refuses`
    is the share of the programs that it may decline, besides those that need what it lacks or `declines`:
    a campaign in which it declines more has found something. (Programs with what it declines are run, so
    that what is left behind when it does is seen.) `clauses` are those of the contract that it promises,
    and names of sets of them (`fuzz.targets.clause_sets`); no other one is judged. `computes_in` has dtypes
    that it computes in another precision, and `flushes_denormals` says that it takes denormals for zeros:
    the error policy counts its digits so. A target can be called like the function that compiles.

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
        """The target of a backend of torch.compile, which sets all that such a target needs.

        The controls are Dynamo alone and, if the backend is given AOTAutograd's graphs (`aot`), AOTAutograd
        alone. Dynamo's caches are dropped after each case, Dynamo does not fall back to eager in silence, a
        program may come `in_pieces`, and a process that is made ready compiles a toy first. Nothing is
        imported before that. Of the clauses it promises the set `torch.compile`.

        Args:
            backend: a name of `torch.compiler.list_backends`, or a function of a GraphModule and inputs.
            aot: the backend is given graphs of AOTAutograd: it is, or calls, `aot_autograd(...)`.
            more: attributes of `Target`, and `dynamic` and `options`, which are given to torch.compile. What
                is given for `prepare` and `reset` is done after what is said above.

        Raises:
            fuzz.errors.TargetError: the backend is no such thing.

            target = Target.from_backend("openvino", lacks=("complex",))
        """
        from fuzz.targets.dynamo_backends import backend_target

        return backend_target(backend, aot=aot, **more)

    def __call__(self, function: Function) -> Function:
        """Compile a function."""
        return self.compile(function)

    @property
    def promised(self) -> tuple[str, ...]:
        """The clauses that it promises, in the order of the contract; TargetError if it names another one."""
        return clauses_of(self.clauses)

    @property
    def arithmetic(self) -> Arithmetic:
        """The precision that it computes in; ValueError if it names what is no floating dtype."""
        return Arithmetic(self.computes_in, self.flushes_denormals)

    def lacking(self, program: Program) -> str | None:
        """The first capability that a program needs and this target lacks."""
        return _first(self.lacks, program)

    def declining(self, program: Program) -> str | None:
        """The first of what this target says it declines that a program has."""
        return _first(self.declines, program)


def _first(names: Sequence[str], program: Program) -> str | None:
    """The first of some capabilities that a program needs."""
    found = traits(program) if names else frozenset()
    return next((name for name in names if not found.isdisjoint(excluded_traits((name,)))), None)


def lacked_by_all(targets: Sequence[Target]) -> tuple[str, ...]:
    """What each of some targets lacks: a campaign on them draws no program that needs it.

    Where none promises gradients, that is `autograd`, too. (`cuda` says nothing of programs.)

    >>> one = Target("one", "", lambda f: f, lacks=("complex", "cuda"))
    >>> lacked_by_all([one, Target("other", "", lambda f: f, lacks=("random", "complex"))])
    ('complex',)
    """
    first, *others = targets
    common = [name for name in first.lacks if name != "cuda" and all(name in one.lacks for one in others)]
    if not any("gradients" in target.promised for target in targets):
        common.append("autograd")
    return tuple(dict.fromkeys(common))
