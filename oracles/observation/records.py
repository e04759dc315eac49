"""Records: the data of one observation, as plain immutable values.

A record names an object by its *path*:

- `arg[0]`, `arg[1]['k']`: arguments;
- `tensor['base']`: tensors that are no argument but are known to the caller;
- `leaf['w']`: leaves that are neither;
- `out[0]`: results; a result that is one tensor is `out`.

An object that several paths reach has the first one as its *name*: first arguments, then leaves, tensors,
and results.
Invariant: a record holds no live tensor. Elements are bytes.
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

    Attributes:
        args: passed to the function as they are.
        leaves: the leaf tensors that require grad, by name.
        tensors: all tensors behind the arguments (storage roots, bases), by name. They show what happens to
            an argument's aliases. Arguments may be among them.
        objects: Python objects that the function reads and writes, by name. They live longer than the call.
    """

    args: tuple[Any, ...]
    leaves: Mapping[str, torch.Tensor] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    objects: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Value:
    """A copy of a tensor's elements.

    Attributes:
        dtype, shape: the tensor's.
        data: the elements in row-major order, with conj and neg bits resolved. A wrapper subclass has those
            of its inner tensors, one after the other, converted to its dtype.
        kind: for a wrapper subclass, its class and its inner tensors in words; else "".
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

    Attributes:
        path: the tensor's name.
        value: its elements; None if there is nothing to read, as in a storage that was resized to 0.
        stride: None for each stride that means nothing (a dimension of size 1, or a tensor without elements).
        is_leaf, has_grad_fn: None if torch raises when they are read, as for a view whose base was written to
            in a way that autograd forbids.
        base: "" for a tensor that is no view; the name of the base if it is a known tensor; else `hidden 0`,
            `hidden 1`, ... in order of appearance.
        offset, storage_bytes: the storage offset and the storage's size, in bytes.
        storage: a number for each storage, in order of appearance; None without a storage or with an empty
            one.
        storage_kept: the tensor has the storage that it had before the call; None if it did not exist then.
        version_moved: the version counter differs from before the call; None if the tensor did not exist
            then, or was made in inference mode.
        grad: the elements of `.grad`, or None.
        attributes: what Python code has stored on a plain tensor, in words.
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
    """The Python objects that a function can reach.

    Attributes:
        nodes: (path, description) of each object.
        tensors: (path, elements) of each tensor; None if nobody can read the tensor, as after its trace
            ended.
    """

    nodes: tuple[tuple[str, str], ...] = ()
    tensors: tuple[tuple[str, Value | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception.

    Attributes:
        stage: `call`, `backward`, `double backward`, `later write` or `later requires_grad_`.
        type: the qualified name of its class.
        bases: the qualified names of all its classes, the class itself first.
        message: the first line of its message, without addresses, at most 200 characters.
        origin: the function that raised it (`exception_origin`); it is not compared.
    """

    stage: str
    type: str
    bases: tuple[str, ...]
    message: str
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Ambient:
    """The ambient state that a call may read, and must leave as eager leaves it.

    `autocast` has (device type, enabled, dtype) of the CPU and of CUDA. `modes` has the classes of the
    function modes and dispatch modes that the call entered and did not leave.
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
    """One backward from some results to every argument and leaf.

    Attributes:
        roots: paths of the results, each of which gets a fixed cotangent.
        raised: its exception, or None.
        gradients: (path, elements or None), of the arguments in order, then of other leaves.
        cotangents_kept: the backward did not write to a cotangent that it was given.
        stage: `backward`, or `double backward` if the roots are gradients.
        terms: (path, float64 magnitudes) of the largest term that is summed into each element of a gradient;
            empty unless they were measured. It is not compared.
    """

    roots: tuple[str, ...]
    raised: Raised | None
    gradients: tuple[tuple[str, Value | None], ...]
    cotangents_kept: bool
    stage: str = "backward"
    terms: tuple[tuple[str, Value], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class LaterWrite:
    """What `tensor.mul_(2)` after the call did.

    `requires_grad`, `data` and `counted` have one entry for each of `Observation.states`.

    Attributes:
        path: the name of the tensor that was written to.
        raised: the exception of the write, or None.
        uncounted: a known tensor on the same storage has a version counter of its own (`.data`), which did
            not move. A backward that saved this tensor then reads the new elements without an error.
        requires_grad: each tensor's flag after the write.
        data: each tensor's elements after the write.
        counted: the version counter moved; None for a tensor without a counter, for an inner tensor of a
            wrapper subclass, and for all tensors if the write was to an inner tensor.
    """

    path: str
    raised: Raised | None
    uncounted: bool
    requires_grad: tuple[bool, ...]
    data: tuple[bytes | None, ...]
    counted: tuple[bool | None, ...]


@dataclass(frozen=True, slots=True)
class LaterRequire:
    """What `tensor.requires_grad_()` after the call did.

    Attributes:
        path: the name of the tensor.
        raised: the exception, or None.
        leading: the paths of the tensors from which a backward can start afterwards. Views of the tensor may
            be among them.
    """

    path: str
    raised: Raised | None
    leading: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """Which elements of `reader` a write through `writer` reaches.

    `tags` has the bytes of the reader in row-major order: zero where nothing was written, elsewhere the tag
    of the writer's element. Equal tags mean that the same elements overlap.
    """

    writer: str
    reader: str
    tags: bytes


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that can be seen of one call.

    If the call raised, the fields from `structure` to `reaches` are empty.

    Attributes:
        raised: the call's own exception, or None.
        refused: the reason if the call or a backward was refused, else None.
        states: each known tensor once, under its name. First come the inputs: arguments, leaves, other
            tensors, and storages that an argument has left. Then come the outputs that are none of these.
        inputs: how many of `states` are inputs.
        ambient_before, ambient: the ambient state before and after the call.
        drew: the call took random numbers.
        generator_before, generator: digests of the generators' states before and after the call.
        python_before, python: the objects that the call can read and write, before and after it.
        before: the inputs before the call, if it raised.
        retried: after a refused call, the observation of the same call in eager, on the same objects.
        structure: (path, description) of every node of the result, and of the arguments after the call.
        outputs: (path, name) of every tensor in the result. A name other than the path means that this output
            *is* that tensor.
        moved: the inputs whose autograd history the call has changed.
        gradients: the backwards, if there were no steps.
        ambient_after_backward, generator_after_backward: the state after the first backward; None without
            one.
        later_writes, later_gradients: the writes to results and the backwards after them, if there were no
            steps.
        steps: the records of the steps, if there were any.
        reaches: the pairs of tensors that overlap.
        alive: the names of the tensors whose memory was not freed when the observation had dropped
            everything.
        grown: how many bytes more CUDA's allocator had given out then than before the call; 0 if a tensor is
            alive.
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
