"""Named sets of the contract's clauses: what a compiler promises, and what a campaign judges.

Clauses are those of docs/reference/contract.md (`oracles.CLAUSES`). A clause that is not promised is not
judged: no finding of it counts, and one that stands behind it is seen.

    clauses_of(("inference",), without=("strides",))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fuzz.errors import TargetError
from oracles import CLAUSES

_OF_AUTOGRAD = ("autograd-metadata", "gradients")
_BOOKKEEPING = ("double-backward", "versions")
_OF_PLACE = ("strides", "identity", "aliasing", "once")


def _without(*names: str) -> tuple[str, ...]:
    return tuple(clause for clause in CLAUSES if clause not in names)


CLAUSE_SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "everything": CLAUSES,
        "torch.compile": _without(*_BOOKKEEPING, "refusals"),
        "training": _without(*_BOOKKEEPING),
        "inference": _without(*_BOOKKEEPING, *_OF_AUTOGRAD),
        "results": _without(*_BOOKKEEPING, *_OF_AUTOGRAD, *_OF_PLACE),
    }
)
"""The sets, from the widest to the narrowest.

everything: the whole contract.
torch.compile: what torch.compile promises: no second derivatives, which it refuses, no movement of version
    counters, and nothing of a program that is declined once pieces of it have run.
training: the same for a compiler that takes a program whole, or declines it.
inference: a call without grad mode; it is made so, and nothing is differentiated.
results: the same without where results lie: strides, which of them are views of what, and Python objects.
"""


def clauses_of(names: Iterable[str], without: Iterable[str] = ()) -> tuple[str, ...]:
    """The clauses of some sets and clauses, but for those of others, in the order of the contract.

    Raises:
        TargetError: a name is neither a set nor a clause.

    >>> clauses_of(("results", "strides"), without=("repeat", "threads", "lifetime"))[:4]
    ('errors', 'structure', 'values', 'strides')
    """
    wanted, unwanted = _expand(names), _expand(without)
    return tuple(clause for clause in CLAUSES if clause in wanted and clause not in unwanted)


def _expand(names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name not in CLAUSE_SETS and name not in CLAUSES:
            raise TargetError(
                f"{name!r} is neither a set of clauses ({', '.join(CLAUSE_SETS)}) "
                f"nor a clause ({', '.join(CLAUSES)})"
            )
        found.update(CLAUSE_SETS.get(name, (name,)))
    return found
