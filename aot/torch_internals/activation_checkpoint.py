"""What `torch.utils.checkpoint` keeps in the place of saved tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["checkpoint_inputs", "checkpoints_around", "inputs_if_unpacked", "is_packed", "release_inputs"]


def is_packed(node: torch.autograd.graph.Node, name: str, *, in_checkpoints: bool = True) -> bool:
    """Whether a pack hook got what `node` has saved as its attribute `name` (``_saved_...``); perhaps not if
    it was a checkpoint's, which keeps its inputs itself, and has autograd check them."""
    raw = getattr(node, f"_raw{name}", ())
    for one in raw if isinstance(raw, (tuple, list)) else (raw,):
        hook = one.unpack_hook
        if hook is not None and (in_checkpoints or hook.__module__ != torch.utils.checkpoint.__name__):
            return True
    return False


def checkpoint_inputs(node: torch.autograd.graph.Node, name: str) -> tuple[Tensor, ...]:
    """What the checkpoint was called with that got what `node` has saved as its attribute `name`: it unpacks
    all of it before it runs anything again.

    Raises:
        RuntimeError: autograd finds that some of it was written to since, or freed.
    """
    raw = getattr(node, f"_raw{name}", ())
    return tuple(_inputs_of_saved(raw if isinstance(raw, (tuple, list)) else (raw,)))


def _inputs_of_saved(saved: Sequence[Any]) -> Iterator[Tensor]:
    for one in saved:
        frame = _frame_of(one.unpack_hook)
        if frame is not None:
            yield from _checkpoint_inputs_of_frame(frame)


def _frame_of(unpack: Any) -> Any:
    """The checkpoint that an unpack hook belongs to, if it does to one (what runs again has hooks, too)."""
    if getattr(unpack, "__module__", "") != torch.utils.checkpoint.__name__:
        return None
    return inspect.getclosurevars(unpack).nonlocals.get("frame")


def checkpoints_around(hooks: tuple[Any, Any]) -> Iterator[object]:
    """The checkpoint whose saved-tensor hooks these are, if they are one's, and those around it, each as an
    object that stands for it."""
    frame = _frame_of(hooks[1])
    if frame is not None:
        yield frame
        for saved in _saved_inputs(frame):
            if saved.unpack_hook is not None:
                yield from checkpoints_around((None, saved.unpack_hook))


def _saved_inputs(frame: Any) -> list[Any]:
    saver = getattr(frame, "input_saver", None)  # torch 2.11
    inputs = frame.saved_args if saver is None else saver.grad_fn._raw_saved_tensors
    return [one for one in inputs if hasattr(one, "unpack_hook")]


def _checkpoint_inputs_of_frame(frame: Any) -> Iterator[Tensor]:
    saver = getattr(frame, "input_saver", None)  # torch 2.11
    inputs = _saved_inputs(frame)
    # (Those of a checkpoint inside of another one are had by running that one again.)
    if any(one.unpack_hook is not None for one in inputs):
        yield from _inputs_of_saved(inputs)
    else:
        yield from (one.unpack() for one in inputs) if saver is None else saver.grad_fn.saved_tensors


def release_inputs(hooks: tuple[Any, Any], inputs: Mapping[int, Tensor]) -> bool:
    """Let a checkpoint, given by its saved-tensor hooks, keep some of its inputs as what it reads besides
    them, of which autograd checks nothing. False if it cannot."""
    frame = _frame_of(hooks[1])
    if frame is None or not hasattr(frame, "saved_args"):  # torch 2.11
        return False
    for position, tensor in inputs.items():
        frame.saved_args[position] = tensor
    return True


class _Unpacked(Exception):
    """A checkpoint is asked for what it has kept."""


def inputs_if_unpacked(hooks: tuple[Any, Any], run: Callable[[], object]) -> tuple[Tensor, ...] | None:
    """What a checkpoint, given by its saved-tensor hooks, was called with, if `run` asks it for what it has
    kept, which is then not computed: it raises inside of `run`, which does not let that out. Else None.

    Raises:
        RuntimeError: autograd finds that some of it was written to since, or freed.
    """
    frame = _frame_of(hooks[1])
    if frame is None:
        return None
    recomputed = []

    def stop(*args: object) -> None:
        recomputed.append(args)
        raise _Unpacked

    function, frame.recompute_fn = frame.recompute_fn, stop
    try:
        run()
    finally:
        frame.recompute_fn = function
    return tuple(_checkpoint_inputs_of_frame(frame)) if recomputed else None
