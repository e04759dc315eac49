"""The arguments of a call inside of the trace: fakes that share storage as they do, and graph inputs.

In: `Arguments`. Out: `FakeInputs`. `make_graph_inputs` makes one fake tensor per tensor, so that identity,
storage sharing, geometry, autograd bases, leafness and version counters of the fakes are those of the real
tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import GradientEdge

from aot import errors
from aot.capture.memory.storage import Storage
from aot.capture.recorder.recorder import Recorder
from aot.capture.recorder.session import fake_of
from aot.capture.subclass_inputs import FakeSubclassInput, make_subclass_inputs
from aot.capture.trace_result import Primal
from aot.graph.value_meta import ValueMeta, intern, meta_of
from aot.specialize.call import Arguments
from aot.tensors.fake_tensors import base_was_detached, edge_of, make_fakes, root_of
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.version_counters import version_of
from aot.torch_internals import tensor_impl


@dataclass(frozen=True, slots=True)
class FakeInputs:
    """The arguments inside the trace.

    Attributes:
        fakes: one per tensor.
        before: the geometry of each when the function starts.
        states: the storage that each lies in when the function starts.
        versions: the version counter of each when the function starts.
        requires_grad, leaves: of each when the function starts.
        grads: stand-ins for the gradients that leaves hold; to compute with one is refused.
        edges: the gradient edge of each when the function starts; None where it requires none.
        bases: fake bases of views whose base is not itself an argument, each with the index of one view (in
            `tensors_and_subclasses`).
        base_edges: their gradient edges.
        loses_history_on_write: those that require grad by way of a leaf which is a view, as they are, of a
            base that does not: where they are written to under no_grad, autograd forgets the leaf.
        wrappers: the wrapper subclasses, numbered after the plain tensors.
    """

    fakes: tuple[Tensor, ...]
    before: tuple[Geometry, ...]
    states: tuple[Storage, ...]
    versions: tuple[int, ...]
    requires_grad: tuple[bool, ...]
    leaves: tuple[bool, ...]
    grads: tuple[Tensor | None, ...]
    edges: tuple[GradientEdge | None, ...]
    bases: tuple[tuple[Tensor, int], ...]
    base_edges: tuple[GradientEdge | None, ...]
    loses_history_on_write: frozenset[int]
    wrappers: tuple[FakeSubclassInput, ...] = ()

    @property
    def tensors_and_subclasses(self) -> tuple[Tensor, ...]:
        """What stands for the plain tensors, and then for the wrapper subclasses."""
        return (*self.fakes, *(wrapper.fake for wrapper in self.wrappers))


def make_graph_inputs(recorder: Recorder, arguments: Arguments, primals: list[Primal]) -> FakeInputs:
    """Make the fakes of a call's tensors and a placeholder for each plain one; `primals` is extended as more
    graph inputs turn out to be needed."""
    tensors = arguments.tensors
    fakes, roots = make_fakes(tensors, places=recorder.symbols)
    for position, (tensor, fake) in enumerate(zip(tensors, fakes, strict=True)):
        state = recorder.states.get(tensor_impl.storage_key(fake)) or recorder.track_storage(fake)
        where = geometry(fake)
        if _is_part(tensor):
            recorder.parts.add(fake, tensor.is_leaf)
        if base_was_detached(tensor):
            recorder.apart.append(fake)
        node = recorder.builder.placeholder(f"primals_{position + 1}", meta_of(fake), where.offset)
        primals.append(Primal(node, position, tensor.dtype, where.is_lazy))
        state.enter(recorder.lifetimes.track(fake), where, node)
        recorder.journal.watch_data_assignment(fake)
        state.make_span_input = _input_stretch(recorder, position, tensor, primals)
        if fake.requires_grad != tensor.requires_grad or fake.is_leaf != tensor.is_leaf:
            raise errors.UnsupportedArgument(
                f"tensor {position} stands in a relation to its base that cannot be modelled "
                f"(requires_grad={tensor.requires_grad}, is_leaf={tensor.is_leaf}); clone it"
            )
    argument_ids = {id(t) for t in tensors}
    shown = {id(root_of(t)): i for i, t in reversed(list(enumerate(tensors)))}
    hidden: list[tuple[Tensor, int]] = []
    for name, fake in roots.items():
        if name not in argument_ids:
            recorder.lifetimes.track(fake)
            hidden.append((fake, shown[name]))
    before = tuple(geometry(f) for f in fakes)
    versions = tuple(version_of(f) for f in fakes)
    states = tuple(recorder.state(f) for f in fakes)
    requires_grad = tuple(f.requires_grad for f in fakes)
    leaves = tuple(f.is_leaf for f in fakes)
    grads = tuple(_held_gradient(recorder, t, f) for t, f in zip(tensors, fakes, strict=True))
    known = {**roots, **{id(t): f for t, f in zip(tensors, fakes, strict=True)}}
    wrappers, bases = make_subclass_inputs(
        recorder, arguments.wrappers, arguments.metas, tensors, fakes, known
    )
    hidden.extend((base, len(fakes) + i) for base, i in bases)
    edges = tuple(edge_of(f) for f in fakes)
    return FakeInputs(
        fakes=tuple(fakes),
        before=before,
        states=states,
        versions=versions,
        requires_grad=requires_grad,
        leaves=leaves,
        grads=grads,
        edges=edges,
        bases=tuple(hidden),
        base_edges=tuple(edge_of(f) for f, _ in hidden),
        loses_history_on_write=frozenset(
            i for i, tensor in enumerate(tensors) if not tensor.is_leaf and _is_part(tensor)
        ),
        wrappers=wrappers,
    )


def with_fake_tensors(arguments: Arguments) -> Arguments:
    """The same call with tensors that have no memory in the places of its own: it can be traced once more."""
    fakes, _ = make_fakes(arguments.tensors)
    for tensor, fake in zip(arguments.tensors, fakes, strict=True):
        if tensor.is_leaf and tensor.grad is not None:
            fake.grad = fake_of(geometry(fake), fake.device, False)
    return replace(arguments, tensors=tuple(fakes), tensors_and_subclasses=tuple(fakes))


def _is_part(tensor: Tensor) -> bool:
    """Whether it requires grad, and is a view of a tensor that does not."""
    base = tensor._base if tensor.requires_grad and tensor._is_view() else None
    return base is not None and not base.requires_grad


def _held_gradient(recorder: Recorder, tensor: Tensor, fake: Tensor) -> Tensor | None:
    """What the function finds in ``.grad``: something, where the real leaf holds something."""
    if not tensor.is_leaf or tensor.grad is None:
        return None
    fake.grad = recorder.lifetimes.track(fake_of(geometry(fake), fake.device, recorder.builder.symbolic))
    return fake.grad


def _input_stretch(recorder: Recorder, position: int, tensor: Tensor, primals: list[Primal]) -> Any:
    # The trace outlives the call, so it must not hold the tensor itself.
    own, device, lazy = tensor.dtype, tensor.device, tensor.is_conj() or tensor.is_neg()

    def make(dtype: torch.dtype, start: int, stop: int) -> fx.Node:
        where = Geometry((stop - start,), (1,), start, dtype)
        meta = intern(ValueMeta(where.size, where.stride, dtype, device))
        node = recorder.builder.placeholder(f"primals_{len(primals) + 1}", meta, start)
        primals.append(Primal(node, position, own, lazy, where))
        return node

    return make
