"""Arguments that are leaves, or views of these, and, as parameters in a flat buffer, parts of a tensor that
requires no grad.

In eager such a leaf is itself a view, so a view of it is one of the whole tensor, which has no history: under
no_grad or inference mode it has none, and, with a write, autograd forgets the one that it had. The leaf's
imitation is no view, and autograd tells of its views what it tells of any leaf's. Where the two are not the
same, it is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from aot import errors
from aot.ops.classify import tensors_in
from aot.tensors.version_counters import version_of
from aot.torch_internals import autograd_graph, autograd_state

# How views were made that autograd was not told of.
_UNRECORDED = ("NO_GRAD_MODE", "INFERENCE_MODE")


class LeafViews:
    """The arguments that are parts, and the views of leaves among them that have a history."""

    def __init__(self) -> None:
        self._parts: dict[int, Tensor] = {}  # by identity
        self._leaves: dict[int, Tensor] = {}  # those of them that are leaves
        self._views: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # and the leaf's version at that time

    def add(self, part: Tensor, leaf: bool) -> None:
        """Follow the imitation of a part, which may be a leaf."""
        self._parts[id(part)] = part
        if leaf:
            self._leaves[id(part)] = part

    def clear(self) -> None:
        """Let go of all."""
        self._parts.clear()
        self._leaves.clear()
        self._views.clear()

    def references(self) -> Iterator[Tensor]:
        """Those that are held, each as often as it is."""
        yield from self._parts.values()
        yield from self._leaves.values()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._parts)

    def viewed(self, source: Any, views: Any) -> None:
        """A view operation in grad mode has made `views` from `source`."""
        if isinstance(source, Tensor) and _is_of(source, self._leaves):  # (`aten.conj` takes numbers, too)
            for view in views if isinstance(views, (list, tuple)) else (views,):
                self._views[id(view)] = weakref.ref(view), version_of(source)

    def check_leaf_view_operation(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_view: bool) -> None:
        """Refuse an operation in grad mode on a view whose history is another one in eager.

        Raises:
            AutogradStateMutation: it is.
        """
        tensors = tuple(tensors_in(args, kwargs))
        self.check_forgotten_leaf_views(tensors)
        for tensor in tensors:
            if (self._is_unrecorded(tensor) and not is_view) or _leads_nowhere(tensor):
                raise _used()

    def check_returned_leaf_views(self, tensors: Iterable[Tensor]) -> None:
        """Refuse results whose history is another one in eager.

        Raises:
            AutogradStateMutation: there is one.
        """
        tensors = tuple(tensors)
        self.check_forgotten_leaf_views(tensors)
        for tensor in tensors:
            if self._parts and _leads_nowhere(tensor):
                raise _used()
            # (It requires grad here already, so what is asked of it changes nothing that shows.)
            if self._is_unrecorded(tensor) and autograd_state.can_accumulate_grad(tensor):
                raise errors.AutogradStateMutation(
                    "a view that was taken under no_grad or inference mode, of what is by way of a leaf a "
                    "part of a tensor that does not require grad, is made to require grad, and returned; "
                    "call requires_grad_ outside"
                )

    def _is_unrecorded(self, tensor: Tensor) -> bool:
        """Whether it is a view of a part, and eager knows of no history of it."""
        unrecorded = tensor._is_view() and autograd_state.creation_meta(tensor) in _UNRECORDED
        return unrecorded and _is_of(tensor, self._parts)

    def check_forgotten_leaf_views(self, tensors: Iterable[Tensor]) -> None:
        """Refuse views of which autograd forgets the history in eager, as the leaf was written to since.

        Raises:
            AutogradStateMutation: there is one.
        """
        for tensor in tensors:
            view, version = self._views.get(id(tensor), (None, 0))
            if view is not None and view() is tensor and version_of(tensor) != version:
                raise errors.AutogradStateMutation(
                    "a view of a leaf that is a part of a tensor which does not require grad is used, or "
                    "returned, after its memory was written to: autograd forgets what it was made from; "
                    "write outside, or take the view after the write"
                )


def _used() -> errors.AutogradStateMutation:
    return errors.AutogradStateMutation(
        "a view that was taken under no_grad or inference mode, of what is by way of a leaf a part of a "
        "tensor that does not require grad, is used in grad mode; detach it, or take it in grad mode"
    )


def _leads_nowhere(tensor: Tensor) -> bool:
    """Whether custom functions have made it of nothing that has a history.

    They compute without grad mode, so that nobody has seen which views they were given. Of an unrecorded one
    autograd notes no edge; that it is not of a part is not known.
    """
    root = tensor._base if tensor._is_view() else tensor  # (what is asked of a view may make a node)
    nodes = [None if root is None else root.grad_fn]
    for node in nodes:
        if node is None or not autograd_graph.is_function_node(node):
            return False
        nodes.extend(before for before, _ in node.next_functions if before is not None)
    return True


def _is_of(tensor: Tensor, some: dict[int, Tensor]) -> bool:
    """Whether a tensor is one of these, or a view of one."""
    return id(tensor) in some or id(tensor._base) in some
