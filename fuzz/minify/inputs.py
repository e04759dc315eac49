"""Inputs: describe the tensors that a function gets or reads, and restore the user's tensors.

In: live tensors. Out: a `Storage` for each storage, and an `Input` for each tensor, which says how it was
made from another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzz.errors import CannotRecord
from fuzz.minify.recording import Input, Storage
from fuzz.minify.script_text import as_bytes

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DEVICES = ("cpu", "cuda")


class Inputs:
    """Tensors in the order in which they are met, with all that is needed to make their like.

    The elements of a storage are taken when its first tensor is met.

        inputs = Inputs()
        inputs.number(torch.ones(2, 3))    # 0
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.inputs: list[Input] = []
        self.storages: list[Storage] = []
        self._numbers: dict[int, int] = {}
        self._lying: dict[int, int] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._numbers

    def lies_at(self, address: int) -> bool:
        """Whether a tensor that was met has its storage at this address."""
        return address in self._lying

    def input_number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor. At the first time the tensor is described, and its base too.

        Raises:
            CannotRecord: it is no plain strided tensor.
        """
        if id(tensor) not in self._numbers:
            described = self._describe_input(tensor)
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.inputs.append(described)
        return self._numbers[id(tensor)]

    def _describe_input(self, tensor: torch.Tensor) -> Input:
        _check_input(tensor)
        base, via = None, "own"
        if tensor._is_view() and tensor._base is not None:
            base = self.input_number(tensor._base)
            followed = tensor.requires_grad and not tensor.is_leaf
            if followed and not tensor._base.requires_grad:
                raise CannotRecord(
                    "the function gets or reads a view whose base was detached in place since; "
                    "detach it as well"
                )
            via = "view" if followed or not tensor._base.requires_grad else "no_grad"
        elif address(tensor) in self._lying:
            storage = self._lying[address(tensor)]
            base = next(i for i, one in enumerate(self.inputs) if (one.storage, one.via) == (storage, "own"))
            # `detach` shares the version counter, and `.data` does not.
            via = "detach" if tensor._version == self.tensors[base]._version else "data"
        return Input(
            self._describe_input_storage(tensor),
            _name(tensor.dtype),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.requires_grad,
            tensor.is_leaf,
            via,
            base,
            isinstance(tensor, torch.nn.Parameter),
        )

    def _describe_input_storage(self, tensor: torch.Tensor) -> int:
        found = self._lying.get(address(tensor))
        if found is not None:
            return found
        flat = flat_storage(tensor)
        device = "cpu" if flat.device.type == "cpu" else str(flat.device)
        self.storages.append(Storage(_name(flat.dtype), flat.numel(), device, as_bytes(flat)))
        self._lying[address(tensor)] = len(self.storages) - 1
        return len(self.storages) - 1


def address(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; for a storage without memory, a number that identifies it."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() or -storage._cdata


def flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor's storage, as a tensor without a history."""
    storage = tensor.untyped_storage()
    length = storage.nbytes() // tensor.element_size()
    return tensor.data.as_strided((length,), (1,), 0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_input(tensor: torch.Tensor) -> None:
    what = ""
    if type(tensor) not in _PLAIN:
        what = f"of type {type(tensor).__qualname__}, a tensor subclass"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        what = f"with layout {tensor.layout}" if tensor.layout is not torch.strided else "that is quantized"
    elif tensor.device.type not in _DEVICES:
        what = f"on the device {tensor.device}"
    elif tensor.is_conj() or tensor.is_neg():
        what = "that is conjugated or negated lazily (use resolve_conj() or resolve_neg())"
    elif tensor.is_inference():
        what = "that was made in inference mode"
    else:
        try:
            tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            what = "without memory, as torch.func's transforms make them"
    if what:
        raise CannotRecord(
            f"the function gets or reads a tensor {what}; only plain strided ones can be made anew"
        )


@dataclass(frozen=True, slots=True)
class _Before:
    """The state of one tensor of the user's before the recording."""

    tensor: torch.Tensor
    alias: torch.Tensor
    elements: torch.Tensor
    requires_grad: bool
    grad: torch.Tensor | None


class Untouched:
    """The user's tensors that the function reads from outside, to be restored.

    They are noted when they are met, which is before anything is written to them.
    """

    def __init__(self) -> None:
        self._before: list[_Before] = []

    def note(self, tensor: torch.Tensor) -> None:
        """Note a tensor and all its storage."""
        with torch.no_grad():
            elements = flat_storage(tensor).clone()
        grad = tensor.grad if tensor.is_leaf else None
        self._before.append(_Before(tensor, tensor.data, elements, tensor.requires_grad, grad))

    def tensors(self) -> Sequence[torch.Tensor]:
        """The tensors that were noted."""
        return [before.tensor for before in self._before]

    def clear_gradients(self) -> None:
        """Restore elements and metadata, and remove gradients. Every run begins in this state."""
        for before in reversed(self._before):  # the first on a storage knows its elements best
            self._put_back_inputs(before)
            if before.tensor.is_leaf:
                before.tensor.grad = None

    def restore(self) -> None:
        """Restore elements, metadata and gradients."""
        for before in reversed(self._before):  # the first on a storage knows its elements best
            self._put_back_inputs(before)
            if before.tensor.is_leaf:
                before.tensor.grad = before.grad

    def _put_back_inputs(self, before: _Before) -> None:
        with torch.no_grad():
            if before.alias.untyped_storage().nbytes():
                flat_storage(before.alias).copy_(before.elements)
        tensor, alias = before.tensor, before.alias
        if (address(tensor), tensor.shape, tensor.stride(), tensor.storage_offset()) != (
            *(address(alias), alias.shape, alias.stride(), alias.storage_offset()),
        ):
            tensor.data = alias
        if tensor.is_leaf and tensor.requires_grad != before.requires_grad:
            tensor.requires_grad_(before.requires_grad)
