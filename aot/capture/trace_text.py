"""What a run has left, as text: `print` of a `Traced`.

Invariant: the trace stays as it is. No value is read, which would append a node, and no tensor is asked for
its history, which autograd may derive when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from aot.capture.inputs import FakeInputs
from aot.capture.memory.metadata_log import MetadataMutation, StorageRebind
from aot.capture.memory.storage import Storage
from aot.capture.recorder.recorder import Recorder
from aot.capture.trace_result import Primal
from aot.graph.graph_text import argument_text, graph_lines, labels, layout_text, meta_text, section
from aot.tensors.geometry import geometry
from aot.tensors.subclasses import is_wrapper


def trace_text(
    recorder: Recorder, entry: FakeInputs, primals: Sequence[Primal], outputs: Sequence[Any]
) -> str:
    """The graph's inputs, the graph, what was done to tensors and storages, and the outputs."""
    metas = recorder.builder.metas
    text = _TraceText(recorder, entry, outputs)
    graph = graph_lines(
        recorder.builder.graph, recorder.builder.root, lambda node: meta_text(metas.get(node))
    )
    return "".join(
        (
            section("arguments", text.arguments()),
            section("graph inputs", primals),
            section("graph", graph),
            section("views", text.views()),
            section("writes", text.writes()),
            section("changes", text.changes()),
            section("storages", text.storages()),
            section("outputs", text.outputs()),
        )
    )


class _TraceText:
    """Names tensors and storages: arguments t0, t1, ..., outputs o0, o1, ..., others x0, x1, ... as they
    come; storages s0, s1, ..."""

    def __init__(self, recorder: Recorder, entry: FakeInputs, outputs: Sequence[Any]) -> None:
        self._recorder = recorder
        self._entry = entry
        self._outputs = outputs
        self._tensors: dict[int, str] = {}
        self._storages: dict[Storage, str] = {}
        self._others = 0
        for number, fake in enumerate(entry.tensors_and_subclasses):
            self._tensors.setdefault(id(fake), f"t{number}")
        for base, view in entry.bases:
            self._tensors.setdefault(id(base), f"base of t{view}")
        for number, output in enumerate(outputs):
            if isinstance(output, Tensor):
                self._tensors.setdefault(id(output), f"o{number}")

    def arguments(self) -> Iterator[str]:
        """How each lay when the run began."""
        entry = self._entry
        for number, (where, state) in enumerate(zip(entry.before, entry.states, strict=True)):
            words = [f"t{number}: {layout_text(where)} on {self._storage(state)}"]
            words += ["a leaf"] if entry.leaves[number] and entry.requires_grad[number] else []
            words += ["requires grad"] if entry.requires_grad[number] else []
            yield ", ".join(words)
        for number, wrapper in enumerate(entry.wrappers, len(entry.fakes)):
            made = ", ".join(f"t{position}" for position in wrapper.meta.positions)
            kind = f"t{number}: {wrapper.meta.kind.__name__} of ({made})"
            yield ", ".join([kind, *labels(wrapper, "is_view")])

    def views(self) -> Iterator[str]:
        """What each view was taken from, and how, and how often its metadata had been changed in place."""
        for view, origin in self._recorder.journal.origins.values():
            yield f"{self._tensor(view)}: {origin.step.text(self._tensor(origin.parent))}"

    def writes(self) -> Iterator[str]:
        """What was written to: each place once, and through which tensor."""
        for state in dict.fromkeys(self._recorder.states.values()):
            for (where, root), target in state.writes.items():
                words = [f"{self._storage(state)} as {layout_text(where)}, through {self._tensor(target)}"]
                words += ["in grad mode"] if root in state.written_in_grad_mode else []
                words += ["counted"] if any(one is target for one in state.version_bumped) else []
                yield ", ".join(words)

    def changes(self) -> Iterator[str]:
        """What changed about tensors besides their data, in order."""
        journal = self._recorder.journal
        told: dict[int, int] = {}
        for tensor in journal.mutations:
            number = told[id(tensor)] = told.get(id(tensor), -1) + 1
            yield f"{self._tensor(tensor)}: {self._change(journal.changes_of(tensor)[number])}"

    def storages(self) -> Iterator[str]:
        """What holds the value of each storage that something names."""
        for state, name in list(self._storages.items()):
            values = [f"{node.name} as {layout_text(where)}" for where, node in state.current().items()]
            grown = [f"grown to {state.nbytes} bytes"] if state.grown else []
            yield f"{name}: {'; '.join([*values, *grown, *labels(state, 'inference')])}"

    def outputs(self) -> Iterator[str]:
        """What each is, and where it lies."""
        for number, output in enumerate(self._outputs):
            yield f"o{number}: {self._output(number, output)}"

    def _output(self, number: int, output: Any) -> str:
        if not isinstance(output, Tensor):
            return argument_text(output)
        name = self._tensor(output)
        if name != f"o{number}":
            return name
        words = [self._place(output), *labels(output, "requires_grad")]
        return ", ".join(words)

    def _place(self, tensor: Tensor) -> str:
        if is_wrapper(tensor):
            return type(tensor).__name__
        return f"{layout_text(geometry(tensor))} on {self._storage(self._recorder.state(tensor))}"

    def _change(self, change: MetadataMutation | StorageRebind) -> str:
        if isinstance(change, MetadataMutation):
            return str(change)
        how = ".data =" if change.assigned else "set_"
        place = f"put onto {self._storage(change.state)} as {layout_text(change.where)} by {how}"
        return ", ".join([place, *change.mode.labels])

    def _tensor(self, tensor: Tensor) -> str:
        name = self._tensors.get(id(tensor))
        if name is None:
            name = self._tensors[id(tensor)] = f"x{self._others}"
            self._others += 1
        return name

    def _storage(self, state: Storage) -> str:
        return self._storages.setdefault(state, f"s{len(self._storages)}")
