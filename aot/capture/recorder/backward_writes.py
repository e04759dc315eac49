"""Writes of a backward to what the forward has left: a buffer that a checkpointed block updates once more, or
what a custom function keeps and changes.

Such memory is *live*: a backward reads what is there when it runs, and writes to that. So a node of its own
stands for it, which nothing in the forward reads, and what it becomes is copied onto that in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot.capture.memory.region import RegionValue
from aot.capture.memory.storage import Storage
from aot.errors import DoubleBackwardUnsupported, Unsupported, UnsupportedOperation
from aot.graph.builder import GraphBuilder
from aot.graph.purity import is_recorded_in_backward
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.version_counters import version_of
from aot.torch_internals import autograd_graph, tensor_impl


@dataclass(slots=True)
class LiveRegion:
    """Memory that the forward has left and a backward writes to.

    Attributes:
        where: all of it.
        node: the node for what is there when the backward runs.
        counted: whether a write moves the version counter.
        writers: the nodes of the autograd graph that write.
        versions: the tensors that are written to, each with its version before.
    """

    state: Storage
    region: RegionValue
    where: Geometry
    node: fx.Node
    counted: bool = False
    writers: set[Node] = field(default_factory=set)
    versions: list[tuple[Tensor, int]] = field(default_factory=list)


class BackwardWrites:
    """The writes of the backward that is recorded with the forward.

    Attributes:
        make_live: makes the node for what is in a region when the backward runs, given its storage, where it
            lies and what the forward has left there; None when it is known what is written to.
    """

    def __init__(self) -> None:
        self.make_live: Callable[[Storage, Geometry, fx.Node], fx.Node] | None = None
        self._is_recording = False
        self._is_known = False
        self._regions: dict[int, LiveRegion] = {}

    def __bool__(self) -> bool:
        return bool(self._regions)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While a backward is recorded, and not only tried. It leaves version counters as they were."""
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording, self._is_known = False, True
            for live in self._regions.values():
                for fake, version in reversed(live.versions):
                    tensor_impl.set_version_counters((fake,), (version,))
                live.versions.clear()

    def enter(self, state: Storage, fake: Tensor) -> None:
        """A backward is about to write to a tensor of the forward.

        Raises:
            UnsupportedOperation: it cannot be told what of the memory that is, or when it is written to.
            DoubleBackwardUnsupported: the backward is recorded again.
        """
        if not self._is_recording:
            raise self._refusal("other than in a backward that is recorded with its forward")
        region = state.region(geometry(fake))
        live = self._regions.get(id(region))
        if live is None:
            live = self._regions[id(region)] = self._make_live_region(state, region, fake)
        writer = autograd_graph.current_node()
        if writer is None:
            raise self._refusal("outside of the nodes of the autograd graph")
        live.writers.add(writer)
        live.versions.append((fake, version_of(fake)))

    def write(self, state: Storage, fake: Tensor, value: fx.Node, counted: bool) -> None:
        """The tensor, which was entered, now shows `value`."""
        where = geometry(fake)
        live = self._regions.get(id(state.region(where)))
        if live is None:
            raise self._refusal("that lies in memory with others")
        if where != live.where:
            live.region.begin_at_zero()
        live.region.write(where, value)
        live.counted |= counted

    def end(self) -> Iterator[tuple[LiveRegion, fx.Node]]:
        """What each region has become. To what is recorded later it is what is there then."""
        for live in self._regions.values():
            where, value = live.region.base()
            if where != live.where:
                raise self._refusal("that lies in memory with others")
            live.region.put(live.where, live.node)
            yield live, value
            live.writers.clear()

    def is_live(self, state: Storage) -> bool:
        """Whether a backward writes to some of a storage."""
        return any(live.state is state for live in self._regions.values())

    def release(self) -> None:
        """Let go of the trace."""
        self._regions.clear()

    def _make_live_region(self, state: Storage, region: object, fake: Tensor) -> LiveRegion:
        if self.make_live is None or fake.is_inference():
            raise self._refusal("which the backward that was recorded first does not write to")
        if not isinstance(region, RegionValue):
            raise self._refusal("that lies between others")
        where, before = region.base()
        if where.overlaps_itself_somehow:
            raise self._refusal("that shows an element several times")
        parts = [node for node in region.current().values() if node is not before]
        readers = [user for node in parts for user in node.users]
        if any(map(is_recorded_in_backward, (before, *readers))):
            raise self._refusal("of which it has read a part before")
        node = self.make_live(state, where, before)
        for user in list(before.users):
            if is_recorded_in_backward(user):
                user.replace_input_with(before, node)
        region.put(where, node)
        return LiveRegion(state, region, where, node)

    def _refusal(self, which: str) -> Unsupported:
        if self._is_known:
            return DoubleBackwardUnsupported(
                f"a backward that is recorded again writes to a tensor of the forward {which}; call the "
                f"original function"
            )
        return UnsupportedOperation(
            f"a backward (a custom function's, or of what a checkpoint runs again) writes to a tensor of the "
            f"forward {which}; return what is to be written instead"
        )


def pin_readers(graph: fx.Graph, live: fx.Node) -> None:
    """What a backward computes from live memory it computes when it runs, whatever else a partitioner might
    choose."""
    readers = {live}
    for node in graph.nodes:
        if is_recorded_in_backward(node) and not readers.isdisjoint(node.all_input_nodes):
            node.meta["partitioner_tag"] = "must_be_in_backward"
            readers.add(node)


def copy_back(builder: GraphBuilder, live: fx.Node, value: fx.Node, segment: int) -> None:
    """Let the backward leave `value` in live memory."""
    copy = builder.graph.call_function(torch.ops.aten.copy_.default, (live, value))
    builder.metas[copy] = builder.metas[live]
    copy.meta.update(partitioner_tag="must_be_in_backward", segment=segment)
