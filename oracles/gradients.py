"""What autograd sees of a call: gradients of any subset of its results, and writes to them later on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .observation import GradientRun, LaterWrite, Raised, Value
from .states import Known, Register, value_of

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_MESSAGE_LENGTH = 200

Roots = tuple[tuple[str, torch.Tensor], ...]


def record_exception(stage: str, error: Exception) -> Raised:
    """An exception as plain data: no traceback (which would keep tensors alive) and no addresses."""
    lines = str(error).strip().splitlines()
    return Raised(
        stage=stage,
        type=_qualified(type(error)),
        bases=tuple(_qualified(base) for base in type(error).__mro__),
        message=_ADDRESS.sub("0x...", lines[0])[:_MESSAGE_LENGTH] if lines else "",
    )


def _qualified(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class History:
    """The autograd edges of the inputs before a call, and what has become of them after it.

    An edge names the value that a tensor had: an in-place write moves the tensor on to another edge,
    and gradients with regard to the first one are still the gradients of the argument as it was passed.
    """

    def __init__(self, register: Register, targets: int) -> None:
        """Note all known tensors; the first `targets` of them get gradients."""
        self._edges = {
            path: get_gradient_edge(tensor) for path, tensor in register.items() if tensor.requires_grad
        }
        self._inputs = register.items()
        self._targets = tuple(path for path, _ in self._inputs[:targets] if path in self._edges)

    def targets(self) -> dict[str, GradientEdge]:
        """What gradients are taken of: inputs as they were, and inputs that became leaves in the call."""
        found = {path: self._edges[path] for path in self._targets}
        for path, tensor in self._inputs:
            if tensor.requires_grad and tensor.is_leaf and get_gradient_edge(tensor) != self._edges.get(path):
                found[f"{path} (a leaf since the call)"] = get_gradient_edge(tensor)
        return found

    def moved(self) -> Roots:
        """The inputs that have another history now: results of the call, as much as its outputs."""
        return tuple(
            (path, tensor)
            for path, tensor in self._inputs
            if tensor.grad_fn is not None and get_gradient_edge(tensor) != self._edges.get(path)
        )


@lru_cache(maxsize=512)
def _pattern(
    ordinal: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, bytes]:
    """A cotangent and its elements: odd eighths, which every floating dtype holds exactly."""
    count = 1
    for length in shape:
        count *= length
    steps = torch.arange(count + 1, dtype=torch.float64)
    numbers = (((7 * steps + 3 * ordinal) % 11) * 2 - 11) / 8
    if dtype.is_complex:
        numbers = torch.complex(numbers[:-1], numbers[1:])
    else:
        numbers = numbers[:-1]
    if ordinal % 2:
        # A user's cotangent has any strides; a backward that counts on contiguous ones is wrong.
        numbers = numbers.reshape(shape[::-1]).permute(tuple(reversed(range(len(shape)))))
    cotangent = numbers.reshape(shape).to(device=device, dtype=dtype)
    value = value_of(cotangent)
    assert value is not None
    return cotangent, value.data


def differentiate_roots(
    roots: Roots, targets: Mapping[str, GradientEdge], ordinals: Sequence[int], stage: str
) -> tuple[GradientRun, Exception | None]:
    """Take the gradients of some roots, each with the cotangent of its ordinal, keeping the graph.

    Returns the record and the exception, if the backward raised one.
    """
    names = tuple(path for path, _ in roots)
    if not targets:
        return GradientRun(names, None, (), True), None
    patterns = [
        _pattern(ordinal, tuple(tensor.shape), tensor.dtype, tensor.device)
        for ordinal, (_, tensor) in zip(ordinals, roots, strict=True)
    ]
    cotangents = [pattern.clone() for pattern, _ in patterns]
    try:
        gradients = torch.autograd.grad(
            [tensor for _, tensor in roots],
            list(targets.values()),
            cotangents,
            retain_graph=True,
            allow_unused=True,
        )
    except Exception as error:
        return GradientRun(names, record_exception(stage, error), (), True), error
    values: tuple[tuple[str, Value | None], ...] = tuple(
        (path, None if gradient is None else value_of(gradient))
        for path, gradient in zip(targets, gradients, strict=True)
    )
    kept = all(
        (value := value_of(cotangent)) is not None and value.data == data
        for cotangent, (_, data) in zip(cotangents, patterns, strict=True)
    )
    return GradientRun(names, None, values, kept), None


def choose(count: int, differentiated: tuple[int, ...] | None) -> tuple[tuple[int, ...], ...]:
    """Which of `count` roots each backward starts from: the wanted ones, then the first one alone.

    choose(3, None)      # ((0, 1, 2), (0,))
    choose(3, (4, 1))    # ((1,), (0,)): indices count modulo the number of roots
    """
    if count == 0:
        return ()
    wanted = range(count) if differentiated is None else sorted({index % count for index in differentiated})
    runs = [tuple(wanted), (0,)]
    return tuple(dict.fromkeys(run for run in runs if run))


def later_write(path: str, tensor: torch.Tensor, known: Sequence[Known]) -> LaterWrite:
    """Double a result in place and see what that did to every known tensor.

    It multiplies, because a gradient that is lost through an addition cannot be told from one that is
    not.
    """
    error: Raised | None = None
    try:
        tensor.mul_(2)
    except Exception as exception:
        error = record_exception("later write", exception)
    return LaterWrite(
        path=path,
        raised=error,
        requires_grad=tuple(other.tensor.requires_grad for other in known),
        data=tuple(other.read() for other in known),
    )


def may_be_written(tensor: torch.Tensor) -> bool:
    """Whether a later write to this result says anything: autograd forbids it on leaves anyway."""
    floating = tensor.is_floating_point() or tensor.is_complex()
    return floating and not (tensor.is_leaf and tensor.requires_grad)
