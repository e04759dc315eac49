"""The data of one snapshot: everything that the contract names, after one call, as plain immutable values.

Nothing here holds a live tensor: elements are bytes, objects are named by their *path*. Paths are
`arg[0]`, `arg[1]['k']` (arguments), `tensor['base']` (tensors that are no argument but are known to the
caller), `leaf['w']` (leaves that are neither), `out[0]` (results; a result that is one tensor is `out`).
An object that is reachable by several paths has the first one, in that order, as its *name*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Refusal = Callable[[BaseException], str | None]
"""Says why an exception is a legitimate refusal, or None when it is not one."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Fresh arguments of one call.

    `args` are passed to the function as they are. `leaves` are the leaf tensors that require grad, by
    name. `tensors` are all tensors behind the arguments (storage roots, bases), by name, so that what
    happens to an argument's aliases is seen too; tensors that are arguments as well do no harm here.
    `objects` are Python objects that the function reads and writes, by name. They live longer than the call.
    """

    args: tuple[Any, ...]
    leaves: Mapping[str, torch.Tensor] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    objects: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's elements, copied: `data` holds them in row-major order, conj and neg bits resolved.

    Those of a wrapper subclass are those of all that it is made of, one after the other, and `kind` says what
    it is.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes
    kind: str = ""

    def tensor(self) -> torch.Tensor:
        """The elements as a fresh CPU tensor."""
        if not self.data:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(bytearray(self.data), dtype=self.dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class TensorState:
    """One tensor after the call.

    `stride` has None where a stride means nothing (size 1, or no elements at all). `base` is "" for a
    tensor that is no view, the name of the base where that is a known tensor, and otherwise `hidden 0`,
    `hidden 1`, ... in order of appearance. `offset` and `storage_bytes` are in bytes. `storage` numbers
    the storages in order of appearance; None for a tensor that has none, or an empty one. `is_leaf` and
    `has_grad_fn` are None where torch raises on being asked (a view whose base was written to in a way
    that autograd forbids). `storage_kept` and `version_moved` compare with the moment before the call
    and are None for tensors that did not exist then. `value` is None where there is nothing to read (a
    storage resized away). `attributes` are what Python code has stored on a plain tensor, in words.
    """

    path: str
    value: Value | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int | None, ...]
    device: torch.device
    layout: torch.layout
    conj: bool
    neg: bool
    requires_grad: bool
    is_leaf: bool | None
    has_grad_fn: bool | None
    retains_grad: bool
    is_view: bool
    base: str
    offset: int
    storage: int | None
    storage_bytes: int
    storage_kept: bool | None
    version_moved: bool | None
    grad: Value | None
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PythonState:
    """The Python objects that a function can reach: (path, description) of each, and the tensors' elements.

    A tensor that nobody can read, such as one of a trace that has ended, has None for its elements.
    """

    nodes: tuple[tuple[str, str], ...] = ()
    tensors: tuple[tuple[str, Value | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception: where it came from, its class, and the first line of its message.

    `stage` is `call`, `backward`, `double backward` or `later write`. `bases` are the qualified names of all
    its classes. `origin` is the function that raised it (`exception_origin`), which is not compared.
    """

    stage: str
    type: str
    bases: tuple[str, ...]
    message: str
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Ambient:
    """The ambient state that a call may read, and must leave as eager leaves it.

    `modes` are the classes of the function modes and dispatch modes that the call entered and did not leave.
    """

    grad_mode: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    default_dtype: torch.dtype
    default_device: torch.device
    deterministic: bool
    modes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GradientRun:
    """One backward: from `roots` (paths), each with a fixed cotangent, to every leaf and argument.

    `gradients` are (path, value or None), in the order of arguments, then other leaves. `cotangents_kept`
    is false when the backward wrote to a cotangent that it was given. `stage` is `backward`, or `double
    backward` where the roots are gradients. `terms` has, where they were measured, how large the terms are
    that each element of a gradient is the sum of, as float64.
    """

    roots: tuple[str, ...]
    raised: Raised | None
    gradients: tuple[tuple[str, Value | None], ...]
    cotangents_kept: bool
    stage: str = "backward"
    terms: tuple[tuple[str, Value], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class LaterWrite:
    """What `tensor.mul_(2)` after the call did: raised, or changed these elements and flags.

    `requires_grad`, `data` and `counted`, whether the version counter moved, have one entry for each of
    `Observation.states`; the last one is None for a tensor that has no counter, or is a part of another,
    and where a part of another was written to.
    `uncounted` tells that a known tensor on the same storage counts its writes apart (`.data`), so that
    autograd does not notice this one: a backward that has kept it reads what it finds.
    """

    path: str
    raised: Raised | None
    uncounted: bool
    requires_grad: tuple[bool, ...]
    data: tuple[bytes | None, ...]
    counted: tuple[bool | None, ...]


@dataclass(frozen=True, slots=True)
class LaterRequire:
    """What `tensor.requires_grad_()` after the call did: raised, or gave histories to views of it.

    `leading` has the paths of the known tensors from which a backward can start then.
    """

    path: str
    raised: Raised | None
    leading: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """A write through `writer` as it is read through `reader`: one tag for each reached element.

    `tags` are the bytes of the reader in row-major order: zero where it was not reached, elsewhere the
    tag of the writer's element. Equal tags mean that the same elements overlap.
    """

    writer: str
    reader: str
    tags: bytes


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that can be seen of one call.

    `raised` is the call's own exception; `refused` is the reason when the call or a backward was refused.
    `states` holds each known tensor once, under its name: first the `inputs` (arguments, leaves, other
    tensors, and storages that an argument was moved away from), then the outputs that are none of these.
    `ambient_before` and `ambient` are the state that the call was made in, and the one that it left.
    `drew` says whether the call took random numbers; `generator` and `generator_after_backward` are
    digests of the generators' states. `python` are the objects that the call was given to read and write,
    after it, `python_before` before it. When the call raised, `before` has the inputs before the call, and
    everything below `retried` is empty. `retried` is what is seen of the same call on the same objects when
    a refused call is made once more, in eager.

    `structure` lists (path, description) for every node of the result, and of the arguments after the
    call. `outputs` are (path, name) of every tensor in the result: a name other than the path means that
    this output *is* that tensor. `moved` are the inputs whose autograd history is another one after the
    call. What comes after a backward is None where nothing was differentiated. `steps` are the records of
    the steps that were asked for; then there are no `gradients` and `later_writes`. `alive` are the names of
    the tensors whose memory was not freed when all that the observation held had been dropped; if there are
    none, `grown` is how many bytes more CUDA's allocator had given out then than before the call.
    """

    raised: Raised | None
    refused: str | None
    states: tuple[TensorState, ...]
    inputs: int
    ambient_before: Ambient
    ambient: Ambient
    drew: bool
    generator: str
    generator_before: str = ""
    python_before: PythonState = PythonState()
    python: PythonState = PythonState()
    before: tuple[TensorState, ...] = ()
    retried: Observation | None = None
    structure: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    moved: tuple[str, ...] = ()
    gradients: tuple[GradientRun, ...] = ()
    ambient_after_backward: Ambient | None = None
    generator_after_backward: str | None = None
    later_writes: tuple[LaterWrite, ...] = ()
    later_gradients: tuple[GradientRun, ...] = ()
    steps: tuple[GradientRun | LaterWrite | LaterRequire, ...] = ()
    reaches: tuple[Reach, ...] = ()
    alive: tuple[str, ...] = ()
    grown: int = 0

    def state(self, name: str) -> TensorState | None:
        """The state of the tensor with this name, or None."""
        return next((state for state in self.states if state.path == name), None)
