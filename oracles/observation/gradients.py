"""Gradients: run backwards from results of a call, and write to results afterwards.

In: live results and the inputs' autograd edges. Out: `GradientRun` and `LaterWrite` records.

A backward starts from any subset of the results, each with a fixed cotangent, so that eager and the target
are given the same numbers. On request each backward also measures the terms that are summed into a gradient
(`measuring`), for rule 4 of `oracles.comparison.tolerance`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from oracles.object_names import class_name, message_of
from oracles.observation.exception_origin import exception_origin
from oracles.observation.operation_mode import current_operation_mode
from oracles.observation.records import GradientRun, LaterWrite, Raised, Value
from oracles.observation.result_structure import has_memory, wrapper_subclass_parts
from oracles.observation.tensor_state import Known, Register, element_reader, leaf_and_grad_fn, value_of

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_MESSAGE_LENGTH = 200
LARGEST_COTANGENT = 11 / 8
MAX_SINGLE_ROOTS = 4  # so many roots get a backward of their own, from no other root

Roots = tuple[tuple[str, torch.Tensor], ...]


def record_exception(stage: str, error: Exception, origin: str = "") -> Raised:
    """An exception as plain data: no traceback (which would keep tensors alive) and no addresses."""
    return Raised(
        stage=stage,
        type=class_name(type(error)),
        bases=tuple(class_name(base) for base in type.mro(type(error))),
        message=_ADDRESS.sub("0x...", gist(message_of(error)))[:_MESSAGE_LENGTH],
        origin=origin,
    )


def gist(text: str) -> str:
    """The first line of a message, with the next one while it ends in ":" ("backend raised:")."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for count, line in enumerate(lines, start=1):
        if not line.endswith(":"):
            return " ".join(lines[:count])
    return " ".join(lines)


class History:
    """The autograd edges of the inputs before a call, and which of them the call has changed.

    An edge names the value that a tensor had. An in-place write moves the tensor on to another edge.
    Gradients with regard to the first edge are still those of the argument as it was passed.
    """

    def __init__(self, register: Register, targets: int) -> None:
        """Record the edges of all known tensors; gradients are taken of the first `targets` of them."""
        self._inputs = register.items()
        edges = {path: edge_of(tensor) for path, tensor in self._inputs if tensor.requires_grad}
        self._edges = {path: edge for path, edge in edges.items() if edge is not None}
        self._targets = {path: self._edges[path] for path, _ in self._inputs[:targets] if path in self._edges}
        # Edges of leaves do not change, and to make one costs a view.
        self._leaves = {path for path, tensor in self._inputs if path in edges and tensor.grad_fn is None}

    def targets(self) -> dict[str, GradientEdge]:
        """The edges that gradients are taken of: inputs before the call, and leaves that the call made."""
        found = dict(self._targets)
        for path, tensor in self._inputs:
            if path not in self._leaves and tensor.requires_grad and leaf_and_grad_fn(tensor)[0]:
                edge = edge_of(tensor)
                if edge is not None:
                    found[f"{path} (a leaf since the call)"] = edge
        return found

    def moved(self) -> Roots:
        """The inputs that have another history now. They are results of the call, like its outputs."""
        return tuple((path, tensor) for path, tensor in self._inputs if self._has_moved(path, tensor))

    def _has_moved(self, path: str, tensor: torch.Tensor) -> bool:
        _, node = leaf_and_grad_fn(tensor)
        if node is None:
            return False
        before = self._edges.get(path)
        return before is None or node is not before.node or tensor.output_nr != before.output_nr


def edge_of(tensor: torch.Tensor) -> GradientEdge | None:
    """The autograd edge of a tensor that requires grad, or None if it has no edge.

    Two kinds of views require grad and have none: a view of a leaf that was taken without grad mode, and a
    view that autograd has forbidden, which raises.
    """
    try:
        return get_gradient_edge(tensor)
    except (AssertionError, RuntimeError):
        return None


def differentiable(results: Roots) -> Roots:
    """The results that a backward can start from."""
    return tuple(
        (path, tensor)
        for path, tensor in results
        if tensor.requires_grad and (leaf_and_grad_fn(tensor)[1] or edge_of(tensor)) is not None
    )


@dataclass(frozen=True, slots=True)
class _Cotangent:
    """A cotangent that all observations share, with its original elements."""

    tensor: torch.Tensor
    read: Callable[[], bytes | None]
    data: bytes | None

    def restore_if_written(self) -> bool:
        """Whether a backward has written to it; if so its elements are put back."""
        if self.read() == self.data:
            return False
        original = Value(self.tensor.dtype, tuple(self.tensor.shape), self.data or b"").tensor()
        self.tensor.copy_(original)
        return True


@lru_cache(maxsize=1024)
def _cotangent_of_root(
    ordinal: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> _Cotangent:
    """The cotangent of a root: odd eighths up to LARGEST_COTANGENT, which every floating dtype represents."""
    steps = torch.arange(math.prod(shape) + 1, dtype=torch.float64)
    numbers = (((7 * steps + 3 * ordinal) % 11) * 2 - 11) / 8
    numbers = torch.complex(numbers[:-1], numbers[1:]) if dtype.is_complex else numbers[:-1]
    if ordinal % 2:
        # A user's cotangent may have any strides; a backward that assumes contiguous ones is wrong.
        numbers = numbers.reshape(shape[::-1]).permute(tuple(reversed(range(len(shape)))))
    tensor = numbers.reshape(shape).to(device=device, dtype=dtype)
    if dtype.is_complex and not ordinal % 2:
        tensor = tensor.conj_physical().conj()  # the same numbers with the conj bit, as a user's may have it
    read = element_reader(tensor)
    return _Cotangent(tensor, read, read())


def _cotangent_like(ordinal: int, root: torch.Tensor) -> _Cotangent:
    """The cotangent of a root; for a wrapper subclass, a wrapper of the same class around cotangents."""
    parts = wrapper_subclass_parts(root)
    if parts is None:
        return _cotangent_of_root(ordinal, tuple(root.shape), root.dtype, root.device)
    tensor = _gradient_made_like(2 * ordinal, root)
    return _Cotangent(tensor, lambda: None, None)


def _gradient_made_like(ordinal: int, root: torch.Tensor) -> torch.Tensor:
    parts = wrapper_subclass_parts(root)
    if parts is None:
        if not (root.is_floating_point() or root.is_complex()):
            return root.detach()
        return _cotangent_of_root(ordinal, tuple(root.shape), root.dtype, root.device).tensor.clone()
    wrapper: Any = root
    inner = {name: _gradient_made_like(ordinal, part) for name, part in parts.tensors}
    _, context = wrapper.__tensor_flatten__()
    with torch.no_grad():
        made = type(wrapper).__tensor_unflatten__(inner, context, root.shape, root.stride())
        return made.detach()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Differentiated:
    """One backward: its record, and the live gradients (none if it raised) or the exception."""

    run: GradientRun
    gradients: tuple[torch.Tensor | None, ...]
    error: Exception | None


def differentiate_roots(
    roots: Roots,
    targets: Mapping[str, GradientEdge],
    ordinals: Sequence[int],
    stage: str = "backward",
    *,
    retain: bool = True,
    create: bool = False,
) -> Differentiated:
    """Take the gradients of some roots with `torch.autograd.grad`, each with the cotangent of its ordinal.

    `retain` keeps the graph. `create` keeps it too, and gives the gradients histories of their own.
    """

    def take(cotangents: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        return torch.autograd.grad(
            [tensor for _, tensor in roots],
            list(targets.values()),
            cotangents,
            retain_graph=retain or create,
            create_graph=create,
            allow_unused=True,
        )

    return _differentiate_roots_once(roots, targets, ordinals, stage, take)


def accumulate_gradients(
    roots: Roots, leaves: Roots, ordinals: Sequence[int], *, retain: bool
) -> Differentiated:
    """Accumulate gradients of some roots into `.grad`; the record has what the leaves' `.grad` is then."""

    def take(cotangents: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        torch.autograd.backward([tensor for _, tensor in roots], cotangents, retain_graph=retain)
        return [leaf.grad for _, leaf in leaves]

    edges = {path: edge_of(leaf) for path, leaf in leaves}
    return _differentiate_roots_once(roots, edges, ordinals, "backward", take)


def _differentiate_roots_once(
    roots: Roots,
    targets: Mapping[str, GradientEdge | None],
    ordinals: Sequence[int],
    stage: str,
    take: Callable[[list[torch.Tensor]], Sequence[torch.Tensor | None]],
) -> Differentiated:
    cotangents = [
        _cotangent_like(ordinal, tensor) for ordinal, (_, tensor) in zip(ordinals, roots, strict=True)
    ]
    error: Exception | None = None
    origin = ""
    gradients: tuple[torch.Tensor | None, ...] = ()
    terms: dict[str, torch.Tensor] = {}
    try:
        with _gradient_term_magnitudes(roots, targets) as terms, current_operation_mode():
            gradients = tuple(take([cotangent.tensor for cotangent in cotangents]))
    except Exception as exception:
        origin = exception_origin(exception.__traceback__)
        error = BaseException.with_traceback(exception, None)  # whose frames would keep tensors alive
    written = [cotangent.restore_if_written() for cotangent in cotangents]
    run = GradientRun(
        roots=tuple(path for path, _ in roots),
        raised=None if error is None else record_exception(stage, error, origin),
        gradients=tuple(
            (path, None if gradient is None else value_of(gradient))
            for path, gradient in zip(targets, gradients, strict=error is None)
        ),
        cotangents_kept=not any(written),
        stage=stage,
        terms=tuple((path, _value(term)) for path, term in terms.items()),
    )
    return Differentiated(run, gradients, error)


_measuring = ContextVar("_measuring", default=False)


@contextmanager
def measuring(on: bool) -> Iterator[None]:
    """While it lasts, and if `on`, backwards also measure the terms of the gradients."""
    token = _measuring.set(on)
    try:
        yield
    finally:
        _measuring.reset(token)


@contextmanager
def _gradient_term_magnitudes(
    roots: Roots, targets: Mapping[str, GradientEdge | None]
) -> Iterator[dict[str, torch.Tensor]]:
    """While it lasts, measure the terms of which each gradient is the sum.

    Yields the largest magnitude of the terms, element by element, by the path of the target. A gradient may
    be computed from that of another target, or of a root, to which the root's cotangent is added as a term.
    Then each of its elements counts as no less than the largest term there.
    """
    largest: dict[str, torch.Tensor] = {}
    if not _measuring.get():
        yield largest
        return

    def note(path: str, term: torch.Tensor | None) -> None:
        if term is not None:
            size = _elements(term.detach()).abs().to("cpu", torch.float64)
            known = largest.get(path, size)
            largest[path] = torch.fmax(known, size) if known.shape == size.shape else known

    paths: dict[tuple[object, int], list[str]] = {}
    edges = {path: edge for path, edge in targets.items() if edge is not None}
    among_roots = {f"root {path}": edge for path, tensor in roots if (edge := edge_of(tensor)) is not None}
    edges |= among_roots
    for path, edge in edges.items():
        paths.setdefault((edge.node, edge.output_nr), []).append(path)
    handles = []
    for node in _nodes_below([tensor.grad_fn for _, tensor in roots]):
        ends = [(i, path) for i, end in enumerate(node.next_functions) for path in paths.get(end, ())]

        def hook(given: Sequence[torch.Tensor | None], _: object, ends: list[tuple[int, str]] = ends) -> None:
            for i, path in ends:
                note(path, given[i])

        if ends:
            handles.append(node.register_hook(hook))
    try:
        yield largest
    finally:
        for handle in handles:
            handle.remove()
    for path, sizes in tuple(largest.items()):
        size = float(sizes.nan_to_num(posinf=0.0).max()) if sizes.numel() else 0.0
        below = _nodes_below([edges[path].node])
        for other, edge in edges.items():
            if other in largest and edge.node in below and edge != edges[path]:
                largest[other] = largest[other].clamp(min=size)
    for path in among_roots:
        largest.pop(path, None)


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor; for a wrapper subclass the elements of its inner tensors, in the order of `value_of`."""
    value = None if wrapper_subclass_parts(tensor) is None else value_of(tensor)
    return tensor if value is None else value.tensor()


def _value(numbers: torch.Tensor) -> Value:
    return Value(numbers.dtype, tuple(numbers.shape), numbers.contiguous().numpy().tobytes())


def _nodes_below(nodes: Sequence[Node | None]) -> set[Node]:
    """The nodes, and all nodes that a backward from them may reach."""
    ahead, seen = [node for node in nodes if node is not None], set[Node]()
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [after for after, _ in node.next_functions if after is not None]
    return seen


def choose_backward_roots(count: int, differentiated: tuple[int, ...] | None) -> tuple[tuple[int, ...], ...]:
    """Choose from which of `count` roots each backward starts.

    The first backward starts from the roots that are wanted. Then each of the first `MAX_SINGLE_ROOTS` roots
    has a backward of its own.

        choose_backward_roots(3, None)      # ((0, 1, 2), (0,), (1,), (2,))
        choose_backward_roots(3, (4, 1))    # ((1,), (0,), (2,)): indices count modulo the number of roots
    """
    if count == 0:
        return ()
    wanted = range(count) if differentiated is None else sorted({index % count for index in differentiated})
    runs = [tuple(wanted), *((index,) for index in range(min(count, MAX_SINGLE_ROOTS)))]
    return tuple(dict.fromkeys(run for run in runs if run))


def observe_later_write(path: str, tensor: torch.Tensor, known: Sequence[Known]) -> LaterWrite:
    """Double a result in place, and record what that did to every known tensor.

    The write multiplies: an addition would pass on a gradient unchanged, and so hide a lost history.
    """
    error: Raised | None = None
    # Autograd saves wrapper subclasses, not their inner tensors, so inner version counters mean nothing.
    wrappers = [one.tensor for one in known if wrapper_subclass_parts(one.tensor) is not None]
    parts = {id(part) for wrapper in wrappers for part in _within(wrapper)}
    here = _memories(tensor)
    apart = id(tensor) in parts
    counting = [
        None if other.tensor.is_inference() or id(other.tensor) in parts else other.tensor._version
        for other in known
    ]
    try:
        tensor.mul_(2)
    except Exception as exception:
        error = record_exception("later write", exception, exception_origin(exception.__traceback__))
    counted = tuple(
        None if before is None else other.tensor._version != before
        for other, before in zip(known, counting, strict=True)
    )
    relatives = (not here.isdisjoint(_memories(other.tensor)) for other in known)
    uncounted = any(close and moved is False for close, moved in zip(relatives, counted, strict=True))
    return LaterWrite(
        path=path,
        raised=error,
        uncounted=error is None and uncounted,
        requires_grad=tuple(other.tensor.requires_grad for other in known),
        data=tuple(other.read() for other in known),
        counted=(None,) * len(counted) if apart else counted,
    )


def _within(wrapper: torch.Tensor) -> Iterator[torch.Tensor]:
    """All inner tensors of a wrapper subclass, at every depth."""
    parts = wrapper_subclass_parts(wrapper)
    for _, part in () if parts is None else parts.tensors:
        yield part
        yield from _within(part)


def _plain(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor itself; for a wrapper subclass its innermost tensors."""
    parts = wrapper_subclass_parts(tensor)
    return [tensor] if parts is None else [one for _, part in parts.tensors for one in _plain(part)]


def _memories(tensor: torch.Tensor) -> set[int]:
    """The addresses of the storages of a tensor, or of its innermost tensors; without empty storages."""
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
        address = tensor.untyped_storage().data_ptr()
        return {address} if address else set()
    lying = filter(has_memory, _plain(tensor))
    return {one.untyped_storage().data_ptr() for one in lying} - {0}


def may_be_written(tensor: torch.Tensor) -> bool:
    """Whether a later write to this result tests something: autograd forbids a write to a leaf anyway."""
    floating = tensor.is_floating_point() or tensor.is_complex()
    is_leaf, _ = leaf_and_grad_fn(tensor)
    return floating and not (is_leaf and tensor.requires_grad)
