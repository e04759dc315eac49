"""Results whose backward raises: which, with what, and what has been done by then.

Eager runs the nodes of a backward from the youngest to the oldest until one raises. What acts outside in the
younger ones has been done then, and what acts in the older ones never is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot.capture.autograd.engine import BackwardRecorder, guess_tangent_layout, without_autocast
from aot.capture.autograd.segments import SegmentedGraph, UserTensor
from aot.capture.recorder.recorder import Recorder
from aot.capture.recorder.session import fake_of
from aot.errors import UnsupportedOperation
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import is_wrapper
from aot.torch_internals import autograd_graph

# A way to make the autograd graph of some of what the caller can differentiate, and what runs it, with
# tensors that look like the values' gradients.
Cut = Callable[[list[UserTensor], Mapping[int, Tensor]], tuple[SegmentedGraph, BackwardRecorder]]


@dataclass(frozen=True, slots=True)
class BackwardError:
    """What a value's backward raises.

    Attributes:
        error: the exception.
        strides: those of the gradient for which it does; None for any.
        number: that of the node that raises, which is the younger the greater it is (0 for none).
    """

    error: Exception
    strides: tuple[int, ...] | None
    number: int


def find_raising(
    recorder: Recorder, exposed: Sequence[UserTensor], histories: Mapping[int, Tensor], cut: Cut
) -> dict[int, BackwardError]:
    """The values whose backward raises, each on its own: what does not need what was modified in place is
    fine.

    Args:
        histories: the values, each as a tensor that looks like its gradient.

    Raises:
        UnsupportedOperation: an operation acts outside in such a backward, before it raises.
    """
    failing: dict[int, BackwardError] = {}
    for value, history in histories.items():
        # (What the caller's own histories lead to is reached as well.)
        only = [e for e in exposed if e.value in (value, None)]
        graph, engine = cut(only, histories)
        with recording_last_node(graph) as ran:
            try:
                with without_autocast():
                    engine.run()
            except Exception as error:
                where = None if is_wrapper(history) else guess_tangent_layout(history)
                acts = list(recorder.acts)
                if where is not None and _is_backward_error_layout_dependent(
                    recorder, value, where, only, histories, cut
                ):
                    where = None
                failing[value] = BackwardError(error, None if where is None else where.stride, ran())
                alone, _ = cut([e for e in only if e.value == value], histories)
                for node, at in acts:
                    if at in alone.segment_of:
                        raise _out_of_turn(node) from error
    return failing


def find_raising_node(graph: SegmentedGraph, engine: BackwardRecorder) -> int:
    """Which node of a backward that raises does so, by its number; 0 for none."""
    with recording_last_node(graph) as ran, contextlib.suppress(Exception), without_autocast():
        engine.run()
    return ran()


@contextlib.contextmanager
def recording_last_node(graph: SegmentedGraph) -> Iterator[Callable[[], int]]:
    """While this lasts: which node has begun to run last, by its number; 0 for none."""
    last = 0

    def noting(number: int) -> Callable[[tuple[Tensor | None, ...]], None]:
        def note(gradients: tuple[Tensor | None, ...]) -> None:
            nonlocal last
            last = number

        return note

    with contextlib.ExitStack() as stack:
        for node in graph.segment_of:
            handle = node.register_prehook(noting(autograd_graph.sequence_number(node)))
            stack.callback(handle.remove)
        yield lambda: last


def _is_backward_error_layout_dependent(
    recorder: Recorder,
    value: int,
    where: Geometry,
    exposed: list[UserTensor],
    histories: Mapping[int, Tensor],
    cut: Cut,
) -> bool:
    """Whether a backward that raises for a gradient raises for one that lies otherwise as well: some kernels
    do not take all strides (oneDNN's `gelu_backward`)."""
    columns = torch.empty(where.size[::-1], device="meta").stride()[::-1]
    if columns == where.stride:
        columns = torch.empty(where.size, device="meta").stride()
    like = fake_of(where._replace(stride=columns), histories[value].device, recorder.builder.symbolic)
    try:
        with without_autocast():
            cut(exposed, {**histories, value: recorder.lifetimes.track(like)})[1].run()
    except Exception:
        return True
    return False


def check_external_effects(
    acts: Iterable[tuple[fx.Node, Node, int]], firsts: Sequence[int], failing: Collection[BackwardError]
) -> None:
    """Refuse what acts outside in a segment that runs before a node which raises, where eager does not get
    there; or after, where eager does.

    Args:
        acts: the operations, each with its node of the autograd graph and the number of its segment.
        firsts: the number of the oldest node of each segment, which has the segment's turn.

    Raises:
        UnsupportedOperation: there is one.
    """
    for node, at, segment in acts:
        number = autograd_graph.sequence_number(at)
        if any((number > one.number) != (firsts[segment] > one.number) for one in failing):
            raise _out_of_turn(node)


def _out_of_turn(node: fx.Node) -> UnsupportedOperation:
    return UnsupportedOperation(
        f"{node.target} in a backward that raises (a tensor that it needs was modified in place): eager has "
        f"called it before it raises, or calls it no more; clone what is modified"
    )
