"""Value dependence: calls of which a run tells which compile answers them.

What such a function does depends on sizes or numbers that follow from the values of tensors. Each compile has
assumed some, and its graph raises `DataSizesDiffer`, before anything is written, where they are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from aot import errors
from aot.capture.intercept.exception_handlers import Handler, with_handler_check
from aot.frontends.specialization import Specialization
from aot.graph.purity import is_random_node, node_has_external_effect
from aot.graph.symint_inputs import OTHER_NUMBERS, has_data_numbers
from aot.runtime.data_checks import with_data_check
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
    forget: Callable[[Specialization], None],
) -> Any:
    """Answer a call by the first compile of its kind that holds for its values, else by another one.

    One that has been made for this very call holds, and the function has run for it: what it changed is not
    changed once more.

    Args:
        name: of the function, for messages.
        chosen: the compile that is asked first, and what it takes; it need not be in the `cache`.
        cache: the compiles by kind of call; the one that answers comes first after that.
        compile_anew: makes a compile for the call, and what that takes.
        forget: takes a compile out of the cache, for a call at which the function itself raises.

    Raises:
        DataDependentValue: none holds, and there are `MOST_COMPILES` already.
    """
    leaves = [value if i is None else arguments.tensors_and_subclasses[i] for i, value in arguments.leaves]
    raised: BaseException | None = None
    tried: list[Specialization] = []
    while (specialization := _untried(tried, chosen[0], cache.get(key, ()))) is not None:
        tried.append(specialization)
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
        known = cache.get(key, ())
        others = without(known, specialization)
        if len(others) < len(known) and specialization is not known[0]:
            cache[key] = (specialization, *others)
        return result
    known = cache.get(key, ())
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
        forget(specialization)  # which answers no call that others do not
        raise difference.__cause__ from None  # the function's own


def without(known: Sequence[Specialization], specialization: Specialization) -> tuple[Specialization, ...]:
    """All specializations but one."""
    return tuple(one for one in known if one is not specialization)


def _untried(
    tried: Sequence[Specialization], chosen: Specialization, known: Sequence[Specialization]
) -> Specialization | None:
    """A compile that has not been asked yet; other threads may have made some meanwhile."""
    return next((one for one in (chosen, *known) if all(one is not other for other in tried)), None)


def with_value_checks(
    call: Callable[..., Any], graph: fx.Graph, handlers: Iterable[Handler]
) -> Callable[..., Any]:
    """The same call of a forward graph, which finds out that it does not answer for the values it is given.

    Args:
        handlers: of the exceptions that the function catches.

    Raises:
        DataSizesDiffer, DataDependentValue: when called; see `with_data_check` and `with_handler_check`.
    """
    acts = any(map(node_has_external_effect, graph.nodes))
    if has_data_numbers(graph):
        call = with_data_check(call, draws=any(map(is_random_node, graph.nodes)), acts=acts)
    return with_handler_check(call, handlers, acts)
