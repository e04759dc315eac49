"""Calls of graphs that assert what was assumed of the numbers that they compute from values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from aot.errors import DataSizesDiffer
from aot.torch_internals import dynamo_api, rng


def with_data_check(call: Callable[..., Any], *, draws: bool = False) -> Callable[..., Any]:
    """The same call, with an error of its own where an assertion of the graph does not hold, or something
    else is raised that may come of that. (It is for other numbers, too, that the function raises.)

    Args:
        draws: whether it draws random numbers. Where it raises, generators are as before.

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
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            raise DataSizesDiffer(
                "a size or a number that depends on the values of tensors is another one than those that this "
                "was compiled for, and what follows from it would be otherwise; compute it outside"
            ) from error

    return dynamo_api.skip(checked)  # type: ignore[no-any-return]
