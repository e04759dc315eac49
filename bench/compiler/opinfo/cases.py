"""torch's `op_db` and `module_db` as cases: a function, and fresh arguments for each call of it.

A sample's tensors become the arguments of the function, everything else in it is part of the function. Each
operator is used in several *variants*:

* `function`: as it is, on arguments that require grad where the operator is differentiable;
* `no_grad`: the same under `torch.no_grad`;
* `in-place`: its in-place form on an argument that was computed from a leaf;
* `in-place plain`: its in-place form on an argument that does not require grad, while the others do.

    for case in cases("mul", "in-place"):
        observe(case.function, case.make, grad=case.grad)
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from oracles import Arguments

SEED = 0
# The dtype of an operator's samples is the first of these that it supports.
DTYPES = (torch.float32, torch.complex64, torch.int64)
OPERATORS: dict[str, Any] = {
    op.formatted_name: op
    for op in common_methods_invocations.op_db
    if any(op.supports_dtype(dtype, "cpu") for dtype in DTYPES)
}
MODULES: dict[str, Any] = {info.name: info for info in module_db}
OPERATOR_VARIANTS = ("function", "no_grad", "in-place", "in-place plain")
MODULE_VARIANTS = ("training", "evaluation")
# Their results are whatever was in memory: all of it but the elements can be compared.
UNINITIALIZED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


def _as_it_is(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs)


# The database runs random operators under a seed of their own and puts the generator back. Here they are to
# draw from the caller's generator, which the oracles seed and look at.
vars(common_methods_invocations)["wrapper_set_seed"] = _as_it_is


@dataclass(frozen=True, slots=True)
class Case:
    """One sample in one variant: call `function(*make().args)`, with `grad` as the grad mode.

    `double` makes the same arguments in double precision. `leaves` is what the sample consists of, tensors
    and others, in order; for a module, after its parameters and buffers.
    """

    name: str
    index: int
    variant: str
    function: Callable[..., Any]
    make: Callable[[], Arguments]
    double: Callable[[], Arguments]
    grad: bool
    leaves: tuple[Any, ...]
    module: torch.nn.Module | None = None


def cases(name: str, variant: str) -> Iterator[Case]:
    """The cases of an operator or of a module, in the order of the database; the same ones at every time.

    Raises KeyError for names that neither database has.
    """
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    if name in MODULES:
        yield from _module_cases(name, variant)
    else:
        yield from _operator_cases(name, variant)


def variants(name: str) -> tuple[str, ...]:
    """The variants that an operator or a module has."""
    if name in MODULES:
        return MODULE_VARIANTS
    in_place = OPERATORS[name].inplace_variant is not None
    return OPERATOR_VARIANTS if in_place else OPERATOR_VARIANTS[:2]


def _operator_cases(name: str, variant: str) -> Iterator[Case]:
    op = OPERATORS[name]
    dtype = next(dtype for dtype in DTYPES if op.supports_dtype(dtype, "cpu"))
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    call = op.inplace_variant if variant.startswith("in-place") else op.op
    for index, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=differentiable)):
        if variant.startswith("in-place") and not isinstance(sample.input, torch.Tensor):
            continue
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        function = _Call(call, leaves, spec, name in UNINITIALIZED)
        make, double = (_Maker(leaves, variant, convert) for convert in (_alike, _in_double))
        yield Case(name, index, variant, function, make, double, variant != "no_grad", tuple(leaves))


class _Call:
    """A call of an operator, as a function of the tensors of a sample."""

    def __init__(
        self, call: Callable[..., Any], leaves: Sequence[Any], spec: pytree.TreeSpec, blank: bool
    ) -> None:
        self._call, self._spec, self._blank = call, spec, blank
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        result = self._call(first, *args, **kwargs)
        return result.zero_() if self._blank else result


class _Maker:
    """Makes the arguments of a case anew: copies that lie in memory as the sample's tensors do."""

    def __init__(
        self, leaves: Sequence[Any], variant: str, convert: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._variant, self._convert = variant, convert

    def __call__(self) -> Arguments:
        tensors = _copies(self._tensors, self._convert)
        if not tensors or not self._variant.startswith("in-place"):
            return Arguments(tuple(tensors))
        first, *others = tensors
        if self._variant == "in-place plain" or not first.requires_grad:
            return Arguments((first.detach(), *(first.detach() if t is first else t for t in others)))
        written = first.clone()
        return Arguments((written, *(written if t is first else t for t in others)), leaves={"self": first})


def _copies(
    tensors: Sequence[torch.Tensor], convert: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Leaves with copies of the tensors' memory; what was one object or one storage still is."""
    memory: dict[int, Any] = {}
    objects: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in objects:
            plain = tensor.detach()
            # (deepcopy asks for a storage.)
            made = convert(copy.deepcopy(plain, memory) if tensor.layout is torch.strided else plain.clone())
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, tensor.requires_grad)
            objects[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    return [objects[id(tensor)] for tensor in tensors]


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _in_double(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def _module_cases(name: str, variant: str) -> Iterator[Case]:
    info = MODULES[name]
    training = variant == "training"
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    for index, sample in enumerate(inputs):
        if sample.forward_input is None:
            continue
        torch.manual_seed(SEED)
        built = sample.constructor_input
        module = info.module_cls(*built.args, **built.kwargs).train(training)
        given = sample.forward_input
        if any(map(torch.nn.parameter.is_lazy, module.parameters())):
            module(*given.args, **given.kwargs)
        state = (dict(module.named_parameters()), dict(module.named_buffers()))
        leaves, spec = pytree.tree_flatten((state, given.args, given.kwargs))
        function = _Call(_Functional(module), leaves, spec, False)
        make, double = (_Maker(leaves, variant, convert) for convert in (_alike, _in_double))
        yield Case(name, index, variant, function, make, double, True, tuple(leaves), module)


class _Functional:
    """A module's forward as a function of its parameters, its buffers and its inputs."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __call__(self, state: tuple[dict[str, Any], ...], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(self._module, state, args, kwargs)
