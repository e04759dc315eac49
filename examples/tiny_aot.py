"""An ahead-of-time autograd compiler in one file, to be read from top to bottom.

1. Arguments become *fakes*: tensors without memory that alias and differentiate as the arguments do.
2. The function runs once on fakes. A recorder notes operations and the value of every storage. So the graph
   has no views and no writes.
3. Autograd runs backward on the fakes. The recorder goes on in the same trace.
4. The trace is cut into a forward and a backward graph.
5. A wrapper runs them. It writes to arguments, makes views, and is a node of the caller's autograd graph.

`aot` has the same five steps. This compiler refuses what it does not know before anything has changed. Four
things it gets wrong, and `aot` does not. It counts a call as one write, so some errors of eager are missing.
A missing gradient is a gradient of zeros. A backward does not see writes through `.data`. A repeated call
does not look at globals and closures again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage, fx
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Layout = tuple[tuple[int, ...], tuple[int, ...], int]


class Refusal(Exception):
    """The compiler cannot keep what the function does."""


def map_tensors(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """Replace each tensor in nested tuples, lists and dictionaries."""
    if isinstance(tree, tuple | list):
        return type(tree)([map_tensors(change, each) for each in tree])
    if isinstance(tree, dict):
        return {key: map_tensors(change, each) for key, each in tree.items()}
    return change(tree) if isinstance(tree, Tensor) else tree


def tensors_in(tree: Any) -> list[Tensor]:
    """List the tensors of a nested structure."""
    found: list[Tensor] = []
    map_tensors(found.append, tree)
    return found


def layout_of(tensor: Tensor) -> Layout:
    """Where a tensor lies in its storage."""
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def base_of(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of for autograd, or the tensor itself."""
    return tensor if tensor._base is None else tensor._base


# ---- Memory: the value of every storage
@dataclass
class Memory:
    """What a storage holds now: nodes of the graph, which never change, in place of memory, which does."""

    graph: fx.Graph
    dtype: torch.dtype
    length: int
    flat: fx.Node | None = None  # all elements as one vector
    values: dict[Layout, fx.Node] = field(default_factory=dict)  # what tensors on the storage hold
    written: bool = False

    def read(self, layout: Layout) -> fx.Node:
        """Return the value of the tensor that lies there. A view is no operation, but another layout."""
        if layout not in self.values:
            self.values[layout] = self.graph.call_function(aten.as_strided.default, (self.flatten(), *layout))
        return self.values[layout]

    def write(self, layout: Layout, value: fx.Node) -> None:
        """Put a value where a tensor lies. Every other tensor on this storage changes with it."""
        scatter = (self.flatten(), value, *layout)
        self.flat = self.graph.call_function(aten.as_strided_scatter.default, scatter)
        self.values = {layout: value}
        self.written = True

    def flatten(self) -> fx.Node:
        """Return all elements as one vector. The result of an operation has none until it is needed."""
        if self.flat is None:
            ((layout, value),) = self.values.items()
            empty = self.graph.call_function(aten.new_zeros.default, (value, [self.length]))
            self.flat = self.graph.call_function(aten.as_strided_scatter.default, (empty, value, *layout))
        return self.flat


# ---- Trace: a dispatch mode that records the functional form of each operation
class Recorder(TorchDispatchMode):
    """Records operations on fakes. The mode is below autograd, so it sees those of a backward, too."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.graph = fx.Graph()
        self.memories: dict[UntypedStorage, Memory] = {}

    def add(self, fake: Tensor, value: fx.Node | None = None, flat: fx.Node | None = None) -> None:
        """Begin to follow a storage, which holds a value."""
        length = fake.untyped_storage().nbytes() // fake.element_size()
        values = {} if value is None else {layout_of(fake): value}
        self.memories[fake.untyped_storage()] = Memory(self.graph, fake.dtype, length, flat, values)

    def memory_of(self, fake: Tensor) -> Memory:
        """Return the memory that a tensor lies in."""
        memory = self.memories.get(fake.untyped_storage())
        if memory is None:
            raise Refusal("the function uses a tensor that is no argument, and that it has not made")
        if memory.dtype != fake.dtype or fake.is_complex():
            raise Refusal("the function reads memory as elements of another dtype")
        return memory

    def value_of(self, fake: Tensor) -> fx.Node:
        """Return the node that has the elements of a tensor as they are now."""
        return self.memory_of(fake).read(layout_of(fake))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, _, overload = func.name().removeprefix("aten::").partition(".")
        if func is aten._local_scalar_dense.default:
            raise Refusal("the function asks for the value of a tensor")
        if torch.Tag.inplace_view in func.tags or (func._schema.is_mutable and not name.endswith("_")):
            raise Refusal(f"{func} changes a tensor in a way that this compiler does not know")
        real, fake = dict(kwargs or {}), dict(kwargs or {})
        map_tensors(self.memory_of, (tuple(args), real))  # refuses tensors of others
        if "device" in real:  # what the function makes is a fake, too
            real["device"] = self.device if str(real["device"]) == "meta" else real["device"]
            fake["device"] = "meta"
        result = func(*args, **fake)
        if name.endswith("_"):  # `x.mul_(y)` is `mul(x, y)`, which is the value of x from now on
            functional = getattr(getattr(aten, name[:-1], None), overload or "default", None)
            if functional is None or not isinstance(args[0], Tensor):
                raise Refusal(f"{func} has no functional form")
            value = self.call(functional, args, real)
            if any(each.dtype != args[0].dtype for each in tensors_in(args)):
                value = self.graph.call_function(aten.copy.default, (self.value_of(args[0]), value))
            self.memory_of(args[0]).write(layout_of(args[0]), value)
        elif any(each.untyped_storage() not in self.memories for each in tensors_in(result)):
            value = self.call(func, args, real)
            for i, each in enumerate([result] if isinstance(result, Tensor) else result):
                if isinstance(each, Tensor):
                    part = value if each is result else self.graph.call_function(operator.getitem, (value, i))
                    self.add(each, part)
        return result  # (what lies in a storage that is known is a view)

    def call(self, func: Any, args: Any, kwargs: Any) -> fx.Node:
        return self.graph.call_function(func, *map_tensors(self.value_of, (tuple(args), kwargs)))


# ---- Compile: fakes, one trace, a backward, a cut
def fake_in(storage: UntypedStorage, tensor: Tensor) -> Tensor:
    """Make a fake that lies in a storage as a tensor lies in its own."""
    shape, stride, offset = layout_of(tensor)
    return torch.empty(0, dtype=tensor.dtype, device="meta").set_(storage, offset, shape, stride)


class Enter(torch.autograd.Function):
    """Makes a fake that has a history, and hands its gradient to a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return fake_in(UntypedStorage(leaf.untyped_storage().nbytes(), device="meta"), leaf)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def make_fakes(tensors: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Make a fake of each argument, and the leaf that its gradient goes to."""
    fakes, bases = [], dict[UntypedStorage, Tensor]()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        group = [each for each in tensors if each.untyped_storage() is storage]
        root = base_of(tensor) if len(group) > 1 else tensor
        if len(group) > 1 and any(base_of(each) is not root or each.requires_grad for each in group):
            raise Refusal("arguments share memory, and require grad or are no views of one tensor")
        if storage not in bases:
            bases[storage] = fake_in(UntypedStorage(storage.nbytes(), device="meta"), root)
        fake = bases[storage].requires_grad_(root.requires_grad)
        if tensor is not root:
            fake = fake.as_strided(*layout_of(tensor))
        fakes.append((fake if tensor.is_leaf else Enter.apply(fake), fake))
    return fakes


@dataclass
class Compiled:
    """A compiled call: graphs, and what the wrapper does, as data."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    storages: dict[int, int]  # argument: length of its storage, an input of the forward graph
    written: dict[int, bool]  # argument: autograd knows of the write; their values come first
    known: list[bool]  # values of the forward graph that have a gradient
    wanted: list[int]  # arguments that get a gradient
    result: Any  # what the function returned: fakes
    owners: dict[int, tuple[int, bool]]  # fake: which argument or value it is a view of, or is itself


def compile_call(function: Callable[..., Any], args: Any, tensors: list[Tensor], compiler: Any) -> Compiled:
    """Trace one call, and make its graphs."""
    fakes, leaves = map(list, zip(*make_fakes(tensors), strict=True))
    recorder, storages = Recorder(tensors[0].device), dict[int, int]()
    for i, fake in enumerate(fakes):
        if fake.untyped_storage() not in recorder.memories:
            recorder.add(fake, flat=recorder.graph.placeholder(f"storage_{i}"))
            storages[i] = recorder.memory_of(fake).length
    history = [fake.grad_fn for fake in fakes]
    fake_of = {id(tensor): fake for tensor, fake in zip(tensors, fakes, strict=True)}
    with recorder:
        result = function(*map_tensors(lambda tensor: fake_of[id(tensor)], args))

    # The forward graph returns what was written to arguments, and what results are or are views of.
    changed = [i for i, fake in enumerate(fakes) if recorder.memory_of(fake).written]
    written = {i: fakes[i].grad_fn is not history[i] for i in changed}
    if any(0 in fakes[i].stride() for i in written):
        raise Refusal("the function writes to an argument that overlaps itself")
    candidates, owners = [*fakes, *[fakes[i] for i in written]], dict[int, tuple[int, bool]]()
    for fake in tensors_in(result):
        same = [i for i, each in enumerate(candidates) if each.untyped_storage() is fake.untyped_storage()]
        if not same:
            same, candidates = [len(candidates)], [*candidates, base_of(fake)]
        owner = next((i for i in same if candidates[i] is fake), same[0])
        owners[id(fake)] = owner, candidates[owner] is fake
        if fake.requires_grad and not candidates[same[0]].requires_grad:
            raise Refusal("a result requires grad, and another tensor on its memory does not")
    values = candidates[len(fakes) :]
    known = [*written.values(), *[value.requires_grad for value in values[len(written) :]]]
    outputs = [recorder.value_of(value) for value in values]

    # The backward goes on in the same trace. Tangents are the gradients that come in.
    boundary = len(recorder.graph.nodes)
    roots = [value for value, has_gradient in zip(values, known, strict=True) if has_gradient]
    tangents = [torch.empty_like(root, requires_grad=False) for root in roots]
    for i, tangent in enumerate(tangents):
        recorder.add(tangent, recorder.graph.placeholder(f"tangent_{i}"))
    wanted = {i: leaves[i] for i, tensor in enumerate(tensors) if tensor.requires_grad and roots}
    with recorder:
        found = torch.autograd.grad(roots, [*wanted.values()], tangents, allow_unused=True) if wanted else ()
    gradients = [None if each is None else recorder.value_of(each) for each in found]
    forward, backward = map(compiler, cut(recorder.graph, boundary, outputs, gradients))
    return Compiled(forward, backward, storages, written, known, [*wanted], result, owners)


def cut(graph: fx.Graph, boundary: int, outputs: list[Any], gradients: list[Any]) -> list[fx.GraphModule]:
    """Cut a joint graph in two. Save what nodes behind the boundary use of those before it."""
    nodes = list(graph.nodes)
    first, second = nodes[:boundary], nodes[boundary:]
    saved = [node for node in first if not node.users.keys().isdisjoint(second) or node in gradients]
    halves = []
    for inputs, part, results in ([], first, [outputs, saved]), (saved, second, gradients):
        half = fx.Graph()
        copies = {node: half.placeholder(node.name) for node in inputs}
        for node in sorted(part, key=lambda node: node.op != "placeholder"):
            copies[node] = half.node_copy(node, copies.__getitem__)
        half.output(fx.node.map_arg(results, copies.__getitem__))
        halves.append(fx.GraphModule(torch.nn.Module(), half))
    return halves


# ---- Wrapper: what a call does besides running graphs
class Run(torch.autograd.Function):
    """The node of the caller's autograd graph. It runs the forward graph, and later the backward graph."""

    @staticmethod
    def forward(ctx: Any, compiled: Compiled, *tensors: Tensor) -> Any:
        # These views count writes with the arguments, so that autograd sees a write before the backward.
        flats = [tensors[i].as_strided((length,), (1,), 0) for i, length in compiled.storages.items()]
        values, saved = compiled.forward(*flats)
        ctx.compiled = compiled
        ctx.save_for_backward(*saved)
        pairs = zip(values, compiled.known, strict=True)
        ctx.mark_non_differentiable(*[value for value, has_gradient in pairs if not has_gradient])
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        pairs = zip(tangents, ctx.compiled.known, strict=True)
        found = ctx.compiled.backward(*ctx.saved_tensors, *[each for each, used in pairs if used])
        gradients = dict(zip(ctx.compiled.wanted, found, strict=True))
        return None, *[gradients.get(i) for i in range(len(ctx.needs_input_grad) - 1)]


def run(compiled: Compiled, tensors: list[Tensor]) -> Any:
    """Answer a call: run the graph, write to arguments, make the results."""
    values = Run.apply(compiled, *tensors)
    for (i, has_history), value in zip(compiled.written.items(), values, strict=False):
        with torch.set_grad_enabled(has_history):
            _ = tensors[i].grad_fn  # has autograd bring the history of a view up to date
            tensors[i].copy_(value)
    everything, made = [*tensors, *values], dict[int, Tensor]()
    for fake in tensors_in(compiled.result):
        i, is_owner = compiled.owners[id(fake)]
        result = everything[i] if is_owner else everything[i].as_strided(*layout_of(fake))
        made[id(fake)] = result if fake.requires_grad or not result.requires_grad else result.detach()
    return map_tensors(lambda fake: made[id(fake)], compiled.result)


def tiny_aot(function: Callable[..., Any], compiler: Callable[[fx.GraphModule], Any] = lambda g: g) -> Any:
    """Compile a function of tensors and constants. `compiler` gets each graph, and returns what runs it."""
    cache: dict[str, Compiled] = {}

    def call(*args: Any) -> Any:
        tensors = list({id(tensor): tensor for tensor in tensors_in(args)}.values())
        number = {id(tensor): i for i, tensor in enumerate(tensors)}
        # What must be equal for one compile to answer two calls.
        key = [map_tensors(lambda tensor: number[id(tensor)], args), torch.is_grad_enabled()]
        for each in tensors:
            key += [layout_of(each), each.dtype, each.device, each.requires_grad, each.is_leaf]
            storages = [other.untyped_storage() for other in tensors]
            key += [each.untyped_storage().nbytes(), storages.index(each.untyped_storage())]
            key += [number.get(id(base_of(each)))]
        if repr(key) not in cache:
            cache[repr(key)] = compile_call(function, args, tensors, compiler)
        return run(cache[repr(key)], tensors)

    return call
