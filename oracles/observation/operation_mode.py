"""Operation mode: a dispatch mode around the call and each backward of an observation.

`observe` enters it around the program only, so that the observer's own operations are not affected. The mode
of `observe(under=...)` reaches the backwards through a context variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Self

from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode:
    """A context manager that calls `operation` in place of each ATen operation. Subclasses override that."""

    def __init__(self) -> None:
        self._entered: list[ExitStack] = []

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of `func`, an ATen overload, for these arguments."""
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        self._entered.append(ExitStack())
        self._entered[-1].enter_context(_Dispatch(self.operation))
        return self

    def __exit__(self, *raised: object) -> None:
        self._entered.pop().close()


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, operation: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operation = operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._operation(func, args, kwargs or {})


_operation_mode: ContextVar[OperationMode | None] = ContextVar("_operation_mode", default=None)


@contextmanager
def using_operation_mode(mode: OperationMode | None) -> Iterator[None]:
    """While it lasts, `current_operation_mode` gives this mode."""
    token = _operation_mode.set(mode)
    try:
        yield
    finally:
        _operation_mode.reset(token)


def current_operation_mode() -> AbstractContextManager[object]:
    """The mode of the innermost `using_operation_mode`, or a context that does nothing."""
    return _operation_mode.get() or nullcontext()
