"""Calls of graphs that assert what was assumed of the numbers that they compute from values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from aot.errors import DataDependentValue, DataSizesDiffer
from aot.graph.symint_inputs import OTHER_NUMBERS
from aot.torch_internals import dynamo_api, rng


def with_data_check(
    call: Callable[..., Any], *, draws: bool = False, acts: bool = False
) -> Callable[..., Any]:
    """The same call, with an error of its own where an assertion of the graph does not hold, or something
    else is raised that may come of that: a kernel may meet other sizes before the assertion does.

    Args:
        draws: whether it draws random numbers. Where it raises, generators are as before.
        acts: whether it acts outside (it prints). Then what a kernel raises comes out as it is: to find out
            whether sizes are its reason would act once more.

    Raises:
        DataSizesDiffer: when called, if values lead to other numbers than was assumed.
    """

    @functools.wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        generators = rng.default_generators() if draws else ()
        states = [generator.get_state() for generator in generators]
        try:
            return call(*args, **kwargs)
        # (Inductor words assertions itself, and kernels may find out before.)
        except (RuntimeError, AssertionError) as error:
            if acts and OTHER_NUMBERS not in str(error):
                raise
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            raise DataSizesDiffer(
                "a graph computes other sizes from values than it was compiled for"
            ) from error

    return dynamo_api.skip(checked)  # type: ignore[no-any-return]


def with_backward_data_check(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same backward graph, with a typed error where an assertion of it does not hold.

    Raises:
        DataDependentValue: when called, if values lead to other sizes than was assumed.
    """

    @functools.wraps(run)
    def checked(*args: Any) -> Any:
        try:
            return run(*args)
        except RuntimeError as error:
            if OTHER_NUMBERS not in str(error):
                raise
            raise DataDependentValue(
                "a size in the backward depends on the values of tensors, and is another one than what it "
                "was compiled for; compute it in the forward"
            ) from error

    return checked
