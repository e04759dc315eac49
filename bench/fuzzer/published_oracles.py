"""The oracles that others have published, for programs of ours: what each of them would notice.

Each is written anew from its published rule, and given what it is made for: a function, its arguments, a
gradient of the sum of its results. None of them looks at anything that a call does to its arguments.
`python -m bench power --method` races them.

- `sums`: torchfuzz (tools/experimental/torchfuzz in PyTorch) adds up all results, and reports a relative
  difference above 5 % that is also larger than 1, or an exception. Its backward has to run.
- `allclose`: NNSmith (Liu et al., ASPLOS 2023) compares results, and gradients where both sides have some,
  element by element with rtol 1e-2 and atol 1e-3, and reports exceptions.
- `same`: the accuracy mode of PyTorch's minifier compares results, their sum and gradients with
  `torch._dynamo.utils.same` at 1e-3 against float64, takes a missing gradient for zeros, and takes an
  exception for a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import same
from torch.utils import _pytree as pytree

from fuzz.ir.nodes import Program
from fuzz.program.printer import Loaded, load, upcast
from fuzz.targets.target import Target
from oracles.observation.ambient import restoring_ambient, seed_generators
from oracles.observation.mode_stacks import recording_leaked_modes

SEED = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program gave: the tensors among its results, and the gradients of its leaves, in order.

    `error` is the exception that the call or its backward ended in, if it did.
    """

    results: tuple[Tensor, ...] = ()
    gradients: tuple[Tensor | None, ...] = ()
    error: Exception | None = None


Oracle = Callable[[Ran, Ran, "Callable[[], Ran | None]"], bool]
"""Whether it notices something: eager's side, the target's, and how to get the results in float64."""


def notices(oracle: Oracle, program: Program, target: Target) -> bool:
    """Whether an oracle notices anything about the first call of a program on a target.

    What the target declines is not noticed, nor is anything where eager itself raises.

    >>> from fuzz.ir.nodes import Ref, Root, Statement, Storage
    >>> from fuzz.targets.catalog import find_target
    >>> double = Statement("mul_number", ("a0",), (("value", 2.0),), ("v0",))
    >>> program = Program((Storage("float32", (2,), 1),), (Root(0),), (Ref("a0"),), (double,), Ref("v0"))
    >>> notices(sums, program, find_target("eager"))
    False
    """
    loaded, own = load(program), load(program)  # each side has what the function keeps to itself
    eager = _run(loaded, loaded.f, program)
    if eager.error is not None:
        return False

    def compiled(*args: Any) -> Any:
        return target.compile(own.f)(*args)  # here, so that an exception of the compiler is caught

    try:
        seen = _run(own, compiled, program)
    finally:
        target.reset()
    if seen.error is not None and target.refusal(seen.error) is not None:
        return False

    def exact() -> Ran | None:
        twin = upcast(program)
        if twin is None:
            return None
        double = load(twin)
        return _run(double, double.f, program)

    return oracle(eager, seen, exact)


def _run(loaded: Loaded, function: Callable[..., Any], program: Program) -> Ran:
    """Call, and differentiate the sum of the results."""
    with restoring_ambient(), recording_leaked_modes():
        seed_generators(SEED)
        args, leaves, _ = loaded.make()
        try:
            with (
                torch.inference_mode(program.scenario.inference),
                torch.set_grad_enabled(program.scenario.grad),
            ):
                results = tuple(r for r in pytree.tree_leaves(function(*args)) if isinstance(r, Tensor))
            roots = [r for r in results if r.requires_grad and r.grad_fn is not None]
            if roots:
                torch.autograd.backward(_sum(roots))
        except Exception as error:
            return Ran(error=error.with_traceback(None))
        gradients = tuple(leaf.grad for leaf in leaves.values())
        return Ran(tuple(r.detach() for r in results), gradients)


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all elements: a loss. (Of complex numbers, the sum of both parts.)"""
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return torch.stack([part.double().sum() for part in parts]).sum()


def sums(eager: Ran, target: Ran, _exact: Callable[[], Ran | None]) -> bool:
    """torchfuzz's rule."""
    if target.error is not None:
        return True
    if not eager.results or not target.results:
        return False
    before, after = float(_sum(eager.results)), float(_sum(target.results))
    difference = abs(before - after)
    return difference > 1.0 and difference > 0.05 * abs(before)


def allclose(eager: Ran, target: Ran, _exact: Callable[[], Ran | None]) -> bool:
    """NNSmith's rule."""
    if target.error is not None or len(eager.results) != len(target.results):
        return True
    pairs = list(zip(eager.results, target.results, strict=True))
    for before, after in zip(eager.gradients, target.gradients, strict=True):
        if before is None or after is None:
            break
        pairs.append((before, after))
    return not all(
        a.shape == b.shape and torch.allclose(*_in_double(a, b), rtol=1e-2, atol=1e-3, equal_nan=True)
        for a, b in pairs
    )


def _in_double(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    is_complex = first.is_complex() or second.is_complex()
    dtype = torch.complex128 if is_complex else torch.float64
    return first.to(dtype), second.to(dtype)


def minifier(eager: Ran, target: Ran, exact: Callable[[], Ran | None]) -> bool:
    """The minifier's rule."""
    if target.error is not None:
        return False
    double = exact()
    if double is not None and (double.error is not None or len(double.results) != len(eager.results)):
        double = None
    sides = [None if side is None else _collected(side) for side in (eager, target, double)]
    return not same(
        sides[0], sides[1], sides[2], tol=1e-3, equal_nan=True, log_error=lambda *_args, **_options: None
    )


def _collected(ran: Ran) -> list[Tensor]:
    loss = [_sum(ran.results)] if ran.results else []
    found = [g for g in ran.gradients if g is not None and bool(g.count_nonzero())]
    return [*ran.results, *loss, *found]


PUBLISHED: Mapping[str, Oracle] = MappingProxyType({"sums": sums, "allclose": allclose, "same": minifier})
