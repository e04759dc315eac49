"""Comparison context: two observations side by side, and the wording of findings.

The comparisons of tensors, of autograd and of refusals share it. It remembers which tensors were found to
differ, so that no difference is reported twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from oracles.comparison.tolerance import EXACTLY_AS_SAID, Arithmetic, first_mismatch
from oracles.findings import Finding
from oracles.observation.gradients import LARGEST_COTANGENT
from oracles.observation.records import Observation, Raised, TensorState, Value


@dataclass(frozen=True, slots=True)
class Difference:
    """A finding, with what a judge must know to weigh it.

    Attributes:
        finding: the finding.
        numeric: only elements differ, so a reference may explain it.
        noise: the reference shows that eager's own elements mean nothing, or the elements are bytes of
            floating numbers that agree as numbers.
        slight: half of the digits agree.
    """

    finding: Finding
    numeric: bool = False
    noise: bool = False
    slight: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two snapshots of the same case, with what helps to weigh their differences.

    Attributes:
        eager, target: the two snapshots.
        reference: the program in double precision, or None.
        terms: eager once more, with the terms of the gradients measured, or None.
        exact: elements must be equal bit for bit.
        eager_states, target_states, reference_states: each snapshot's tensors by name.
        arithmetic: in which precision the target computes.
        unlike: paths of tensors whose shape, dtype, device or layout differs, so that elements cannot be
            compared. Comparisons add to it.
        differing: paths of tensors whose elements were found to differ. Comparisons add to it.
    """

    eager: Observation
    target: Observation
    reference: Observation | None
    terms: Observation | None
    exact: bool
    eager_states: dict[str, TensorState]
    target_states: dict[str, TensorState]
    reference_states: dict[str, TensorState]
    arithmetic: Arithmetic = EXACTLY_AS_SAID
    unlike: set[str] = field(default_factory=set)
    differing: set[str] = field(default_factory=set)

    @staticmethod
    def of(
        eager: Observation,
        target: Observation,
        reference: Observation | None,
        terms: Observation | None,
        exact: bool,
        arithmetic: Arithmetic = EXACTLY_AS_SAID,
    ) -> Comparison:
        """Put snapshots side by side. A reference that raised, or whose outputs differ from eager's in
        number or identity, is not used."""
        if reference is not None and (reference.raised is not None or reference.outputs != eager.outputs):
            reference = None
        return Comparison(
            eager,
            target,
            reference,
            terms,
            exact,
            states_of(eager),
            states_of(target),
            {} if reference is None else states_of(reference),
            arithmetic,
        )

    def numbers(
        self,
        clause: str,
        path: str,
        what: str,
        eager: Value,
        target: Value,
        reference: Value | None,
        scale: float | Value = 0.0,
    ) -> Iterator[Difference]:
        """Compare elements of equal dtype and shape under the error policy."""
        if eager.data == target.data:
            return
        found = first_mismatch(
            eager, target, reference, exact=self.exact, scale=scale, arithmetic=self.arithmetic
        )
        if found is not None:
            finding = difference(clause, path, f"{what} at {found.detail}", found.eager, found.target).finding
            yield Difference(finding, numeric=True, noise=found.noise, slight=found.slight)

    def gradients(
        self,
        clause: str,
        what: str,
        eager: Value | None,
        target: Value | None,
        reference: Value | None,
        terms: Value | None,
    ) -> Iterator[Difference]:
        """Compare two gradients, which may be None, or differ in dtype and shape.

        `terms` has the magnitude of the largest term of each element, if it was measured. Without it the
        largest cotangent stands for it.
        """
        if eager is None or target is None or _like(eager) != _like(target):
            if eager is not target:
                yield difference(clause, what, what, kind(eager), kind(target))
        else:
            scale = LARGEST_COTANGENT if terms is None else terms
            yield from self.numbers(clause, what, what, eager, target, reference, scale)


def states_of(observation: Observation) -> dict[str, TensorState]:
    """A snapshot's tensors by name."""
    return {state.path: state for state in observation.states}


def difference(clause: str, path: str, what: str, eager: str, target: str) -> Difference:
    """A finding that is not about elements, with its sentence."""
    message = f"{what}: {eager} in eager, {target} in the target"
    return Difference(Finding(clause, path, eager, target, message))


def same_exception(eager: Raised | None, target: Raised | None) -> bool:
    """Whether two outcomes count as the same: both returned, or the same type of exception.

    Types are the same when one derives from the other, because torch raises subclasses of RuntimeError
    (NotImplementedError, OutOfMemoryError) where another road to the same error raises RuntimeError
    itself. `Exception` itself is too wide to count.
    """
    if eager is None or target is None:
        return eager is target
    if eager.type == target.type:
        return True
    return "Exception" not in (eager.type, target.type) and (
        eager.type in target.bases or target.type in eager.bases
    )


def outcome(raised: Raised | None) -> str:
    """How a call or a backward ended, in words: "no exception", or its type and message."""
    return "no exception" if raised is None else f"{raised.type}: {raised.message}"


def kind(value: Value | None) -> str:
    """A value's dtype and shape in words, such as "a tensor float32[2, 3]"; "None" for None."""
    kind = "tensor" if value is None or not value.kind else value.kind
    return "None" if value is None else f"a {kind} {text(value.dtype)}{list(value.shape)}"


def _like(value: Value) -> tuple[object, ...]:
    return value.dtype, value.shape, value.kind


def text(value: object) -> str:
    """A plain value in words: dtypes without their module, "*" for each stride that means nothing."""
    if isinstance(value, torch.dtype | torch.layout):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return f"({', '.join('*' if item is None else str(item) for item in value)}{comma})"
    return str(value)


def listing(items: list[str], most: int = 4) -> str:
    """Items separated by commas: at most `most` by name, then "and 3 more"."""
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return ", ".join(items)
