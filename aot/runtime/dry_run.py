"""The wrapper, run once without data: one that does not leave what the function left is refused.

The wrapper makes of the arguments what the function made of them, but not by the same steps: it writes once
where the function wrote in turn with changes of metadata, and takes views when all is done. So before it is
used it runs on imitations of the arguments on the device meta, and what it leaves and returns is held against
what the run of the function did: sizes, storages, standing with autograd, which tensors are one and the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot import errors
from aot.runtime.build import CompiledWrapper
from aot.specialize.call import Arguments
from aot.tensors.fake_tensors import make_fakes
from aot.tensors.geometry import geometry
from aot.tensors.subclasses import SubclassCreationMeta, has_nested_ints, is_wrapper
from aot.tensors.symbolic_sizes import HintedGeometries, SymbolicSizes, with_hints
from aot.tensors.version_counters import version_of
from aot.torch_internals import autograd_state, plain_fakes, tensor_impl

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class ObservedState:
    """What can be seen of the tensors that a call leaves and returns, by the name of the tensor."""

    facts: Mapping[str, Mapping[str, object]]

    def hinted(self) -> ObservedState:
        """The same in numbers, where they are symbols."""
        facts = {
            name: {fact: with_hints(value) for fact, value in known.items()}
            for name, known in self.facts.items()
        }
        return ObservedState(facts)

    def first_difference(self, other: ObservedState) -> str | None:
        """Where the two differ first, in words."""
        for name, facts in self.facts.items():
            for fact, value in facts.items():
                given = other.facts[name][fact]
                if given != value:
                    return f"{name}: {fact} would be {given} instead of {value}"
        return None


def observe_call_state(
    tensors: Sequence[Tensor],
    versions: Sequence[int],
    storages: Sequence[object],
    outputs: Sequence[Any],
    storage: Callable[[Tensor], tuple[object, int]],
) -> ObservedState:
    """Look at a call's tensors and results.

    Args:
        tensors: the arguments.
        versions: their version counters when the call began.
        storages: what `storage` said of them then.
        outputs: the results; those that are no tensors are skipped.
        storage: what is the same for tensors on one storage, and its size in bytes.
    """
    named = {f"tensor {i}": tensor for i, tensor in enumerate(tensors)}
    named |= {f"output {i}": value for i, value in enumerate(outputs) if isinstance(value, Tensor)}
    objects: dict[int, str] = {}
    places: dict[object, tuple[str, int]] = {}
    for i, key in enumerate(storages):
        places.setdefault(key, (f"tensor {i} on entry", 0))
    bases: dict[int, str] = {}
    facts: dict[str, dict[str, object]] = {}
    for name, tensor in named.items():
        base = tensor._base if tensor._is_view() else None
        key, _ = storage(tensor)
        offset = geometry(tensor).offset * tensor.dtype.itemsize
        first, start = places.setdefault(key, (name, offset))
        facts[name] = {
            "the tensor that it is": objects.setdefault(id(tensor), name),
            "dtype": tensor.dtype,
            "shape": tuple(tensor.shape),
            "strides": _strides(tensor),
            "the tensor whose storage it shares": first,
            "its distance from that one in bytes": offset - start,
            "its conj bit": tensor.is_conj(),
            "its neg bit": tensor.is_neg(),
            "requires_grad": tensor.requires_grad,
            "its place in the autograd graph": _place(tensor),
            "whether gradients get from it to its base": base is not None and _leads_on(tensor),
            "whether it is a view": base is not None,
            "the first view of its base": None if base is None else bases.setdefault(id(base), name),
            "whether autograd can follow writes": base is None
            or autograd_state.creation_meta(tensor) == "DEFAULT",
            "whether it is an inference tensor": tensor.is_inference(),
        }
    for i, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
        facts[f"tensor {i}"]["the size of its storage"] = storage(tensor)[1]
        facts[f"tensor {i}"]["whether its version has moved"] = version_of(tensor) != version
    return ObservedState(facts)


def dry_run(
    built: CompiledWrapper,
    forward: fx.GraphModule,
    arguments: Arguments,
    expected: ObservedState,
    inference: bool,
    symbols: SymbolicSizes | None,
) -> None:
    """Run a wrapper without data.

    Args:
        built: the wrapper.
        forward: the forward graph, which is not run.
        arguments: the arguments of the call, which are only looked at. Plain tensors stand for wrapper
            subclasses, whose own code need not bear tensors without data.
        expected: what the run of the function left.
        inference: whether the call is made in inference mode.
        symbols: which of the tensors' numbers were symbols, if some were.

    Raises:
        StorageMutation: the wrapper would leave or return something else.
    """
    imitations, _ = make_fakes(
        arguments.tensors, META, None if symbols is None else HintedGeometries(symbols)
    )
    numbers: tuple[int, ...] = ()
    if symbols is not None:
        expected, numbers = expected.hinted(), with_hints(tuple(symbols.numbers.values()))
    grad = torch.is_grad_enabled()
    versions = [version_of(one) for one in imitations]
    storages = [_storage(one)[0] for one in imitations]
    computed = [] if symbols is None else [v for s, v in symbols.values.items() if s in symbols.computed]
    stubs = {
        "run_forward": _StubGraph(forward, with_hints(tuple(computed))),
        "set_rng_state": lambda device, state: None,
        "visible": None,
    }
    call = built.define({**stubs, **dict.fromkeys(built.makers, _FakeSubclasses())})
    try:
        metas = arguments.metas if symbols is None else [meta.showing(with_hints) for meta in symbols.metas]
        wrappers = _dry_run_stand_ins(arguments, metas, imitations)
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            outputs = call(*imitations, *wrappers, *numbers)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
    else:
        difference = expected.first_difference(
            observe_call_state(imitations, versions, storages, outputs, _storage)
        )
        if difference is None:
            return
        reason = difference
    raise errors.StorageMutation(
        f"the function changes the metadata or the storage of tensors, takes views of them and writes to "
        f"them in an order that cannot be repeated ({reason}); do some of it outside of the function"
    )


class _FakeSubclasses:
    """Makes plain tensors in place of the wrapper subclasses that the wrapper makes, with those of what these
    are made of."""

    def __init__(self) -> None:
        self._made: list[Tensor] = []

    def __call__(
        self, inner: Mapping[str, Tensor], context: object, size: Sequence[Any], stride: Sequence[Any]
    ) -> Tensor:
        dtype = next((part.dtype for part in inner.values()), torch.get_default_dtype())
        made = _plain(size, stride, dtype)
        for name, part in inner.items():
            if any(part is one for one in self._made):
                setattr(made, name, part)
        self._made.append(made)
        return made


def _plain(size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """A plain tensor in place of a wrapper subclass, which has no storage that ends somewhere."""
    storage = torch.empty(_ENDLESS, dtype=torch.uint8, device=META).untyped_storage()
    return _seen_as(torch.empty(0, dtype=dtype, device=META).set_(storage), size, stride).detach()


def _seen_as(tensor: Tensor, size: Sequence[Any], stride: Sequence[Any]) -> Tensor:
    """A view of one; contiguous, with some number for each name, where sizes are named."""
    if has_nested_ints(size):
        size = [2 if has_nested_ints([n]) else n for n in size]
    if has_nested_ints(stride):
        stride = torch.empty(size, device=META).stride()
    return tensor.as_strided(size, stride)


_ENDLESS = 1 << 60


def _dry_run_stand_ins(
    arguments: Arguments, metas: Sequence[SubclassCreationMeta], imitations: Sequence[Tensor]
) -> list[Tensor]:
    """Plain tensors in place of the wrapper subclasses among the arguments, views where these are."""
    made = {id(real): stands for real, stands in zip(arguments.tensors, imitations, strict=True)}
    of = {id(real): meta for real, meta in zip(arguments.wrappers, metas, strict=True)}

    def stand_in(real: Tensor) -> Tensor:
        if id(real) in made:
            return made[id(real)]
        meta = of.get(id(real))
        size, stride = (tuple(real.shape), real.stride()) if meta is None else (meta.size, meta.stride)
        base = real._base if real._is_view() else None
        if base is None:
            tensor = _plain(size, stride, real.dtype)
        else:
            if not is_wrapper(base):  # which has a storage that ends somewhere
                stride = [0] * len(size)
            with torch.enable_grad():
                tensor = _seen_as(stand_in(base), size, stride)
            autograd_state.copy_creation_meta(real, tensor)
        if real.requires_grad and real.is_leaf and not tensor.requires_grad:
            tensor.requires_grad_()
        elif real.requires_grad and not tensor.requires_grad:
            autograd_state.make_non_leaf(tensor)
        for name, part in () if meta is None else meta.parts:
            if isinstance(part, SubclassCreationMeta):
                setattr(tensor, name, stand_in(getattr(real, name)))
        return made.setdefault(id(real), tensor)

    return list(map(stand_in, arguments.wrappers))


def _storage(tensor: Tensor) -> tuple[object, int]:
    return tensor_impl.storage_key(tensor), tensor.untyped_storage().nbytes()


def _place(tensor: Tensor) -> str:
    try:
        return "a leaf" if tensor.is_leaf else "none" if tensor.grad_fn is None else "a result"
    except RuntimeError:  # a view whose history autograd cannot tell
        return "ambiguous"


def _leads_on(view: Tensor) -> bool:
    """Whether autograd has a view lead to what its base was computed from."""
    node = view.grad_fn if _place(view) == "a result" else None
    return node is not None and any(below is not None for below, _ in node.next_functions)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides that mean anything."""
    stride, size = with_hints((tensor.stride(), tuple(tensor.shape)))
    pairs = zip(stride, size, strict=True) if 0 not in size else ()
    return tuple(stride for stride, length in pairs if length != 1)


class _StubGraph:
    """Stands for the compiled forward graph: returns tensors like its results."""

    def __init__(self, module: fx.GraphModule, computed: Sequence[int]) -> None:
        self._computed = computed
        self._inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._results = next(node for node in module.graph.nodes if node.op == "output").args[0]

    def __call__(self, arguments: list[Any], numbers: Sequence[int] = ()) -> list[Any]:
        given = dict(zip(self._inputs, arguments, strict=True))
        made = (given[node] if node in given else _imitate_for_dry_run(node) for node in self._results)
        return [*made, *self._computed]


def _imitate_for_dry_run(node: fx.Node | None) -> Tensor | None:
    if node is None or node.meta.get("val") is None:
        return None
    value = node.meta["val"]
    result = torch.empty(0, dtype=value.dtype, device=META)
    storage = plain_fakes.make_storage(with_hints(value.untyped_storage().nbytes()), META)
    where = with_hints((value.storage_offset(), tuple(value.size()), value.stride()))
    return result.set_(storage, *where)
