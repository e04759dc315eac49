"""Value dependence: calls of which a run tells which compile answers them.

What such a function does depends on sizes or numbers that follow from the values of tensors. Each compile has
assumed some, and its graph raises `DataSizesDiffer`, before anything is written, where they are others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aot import errors
from aot.frontends.specialization import Specialization
from aot.graph.symint_inputs import OTHER_NUMBERS
from aot.specialize.call import Arguments

MOST_COMPILES = 16
"""So many compiles one kind of call may have, for other sizes that depend on values."""


def answer_by_values(
    name: str,
    cache: dict[object, tuple[Specialization, ...]],
    key: object,
    chosen: tuple[Specialization, tuple[torch.Tensor, ...]],
    arguments: Arguments,
    compile_anew: Callable[[], tuple[Specialization, tuple[torch.Tensor, ...]]],
) -> Any:
    """Answer a call by the first compile of its kind that holds for its values, else by another one.

    One that has been made for this very call holds, and the function has run for it: what it changed is not
    changed once more.

    Args:
        name: of the function, for messages.
        chosen: the compile that is asked first, and what it takes; it need not be in the `cache`.
        cache: the compiles by kind of call; the one that answers comes first after that.
        compile_anew: makes a compile for the call, and what that takes.

    Raises:
        DataDependentValue: none holds, and there are `MOST_COMPILES` already.
    """
    leaves = [value if i is None else arguments.tensors_and_subclasses[i] for i, value in arguments.leaves]
    known = cache.get(key, ())
    raised: BaseException | None = None
    for specialization in (chosen[0], *(one for one in known if one is not chosen[0])):
        if specialization is chosen[0]:
            tensors: tuple[torch.Tensor, ...] | None = chosen[1]
        else:
            tensors = specialization.given(arguments) if specialization.holds() else None
        if tensors is None:
            continue
        try:
            result = specialization.answer(tensors, leaves)
        except errors.DataSizesDiffer as difference:
            raised = difference.__cause__
            continue
        others = tuple(one for one in known if one is not specialization)
        if len(others) < len(known) and specialization is not known[0]:
            cache[key] = (specialization, *others)
        return result
    if len(known) >= MOST_COMPILES:
        if raised is not None and OTHER_NUMBERS not in str(raised):
            raise raised
        raise errors.DataDependentValue(
            f"{name} has been compiled {len(known)} times, as what it does depends on sizes or numbers that "
            f"follow from the values of tensors (item, nonzero), and these are others again; compute them "
            f"outside, and pass them as arguments"
        )
    specialization, tensors = compile_anew()
    try:
        return specialization.answer(tensors, leaves)
    except errors.DataSizesDiffer as difference:
        if difference.__cause__ is None or OTHER_NUMBERS in str(difference.__cause__):
            raise
        raise difference.__cause__ from None  # the function's own
