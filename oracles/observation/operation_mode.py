"""A mode that sees each operation of a program, around what an observation runs of it: the call, and each
backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Self

from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode:
    """What `operation` does, in place of each operation that runs; a context manager."""

    def __init__(self) -> None:
        self._entered: list[ExitStack] = []

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of an operation, an overload of torch's, with these arguments."""
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


_asked: ContextVar[OperationMode | None] = ContextVar("_asked", default=None)


@contextmanager
def using_operation_mode(mode: OperationMode | None) -> Iterator[None]:
    """Ask that all which `current_operation_mode` is put around runs under a mode, for as long as it
    lasts."""
    token = _asked.set(mode)
    try:
        yield
    finally:
        _asked.reset(token)


def current_operation_mode() -> AbstractContextManager[object]:
    """Put around the call and each backward: the mode that `using_operation_mode` was given."""
    return _asked.get() or nullcontext()
