"""Which roots there are, and which views on them: what goes together, for readers and generators."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from fuzz.ir import subclass
from fuzz.ir.nodes import Program, Storage, View
from fuzz.ir.value_classes import FORMULAS, VALUES
from fuzz.operators.dtypes import COMPLEX, FLOATS, INEXACT, ITEM_SIZE, reads_bytes

VIAS = ("view", "detach", "data", "no_grad", "multi", "parameter")
ALIASES = ("root", "detach", "data")
BASES = (*ALIASES, "wrapper")
LAZY = {"conj": COMPLEX, "neg": FLOATS | COMPLEX}
"""The bits of what is done when a tensor is read, and the dtypes that they are for."""


class FieldError(NamedTuple):
    """A field that does not go with the others: its name, what is wrong, and what to do."""

    field: str
    what: str
    hint: str


def root_error(storage: Storage) -> FieldError | None:
    """Why there is no such root, or None."""
    dtype = storage.dtype
    if storage.requires_grad and dtype not in INEXACT:
        return FieldError("requires_grad", f"{dtype} cannot require grad", "use a floating or complex dtype")
    if not storage.leaf and dtype not in INEXACT:
        return FieldError("leaf", f"a {dtype} root is always a leaf", "write true")
    if dtype not in VALUES[storage.values]:
        return FieldError("values", f"{dtype} has no {storage.values} values", "write plain")
    if storage.precision is not None and not _holds(dtype, storage.precision, storage.values):
        what = f"{dtype} does not hold the {storage.values} values of {storage.precision}"
        return FieldError("precision", what, "write null")
    if storage.values in FORMULAS and len(storage.size) < 2:
        return FieldError("values", "no matrix", "write plain, or use two dimensions")
    if storage.detached and (storage.leaf or not storage.requires_grad):
        return FieldError("detached", "a root without a history cannot lose it", "write false")
    if storage.inference and (storage.requires_grad or not storage.leaf):
        return FieldError("inference", "a tensor made in inference mode has no gradient", "write false")
    return None


def values_in(storage: Storage, dtype: str) -> str:
    """A root's value class, if another dtype has it as well."""
    return storage.values if dtype in VALUES[storage.values] else "plain"


def _holds(dtype: str, precision: str, values: str) -> bool:
    """Whether a wider dtype has the numbers that a narrower one has of a value class."""
    alike = {precision, dtype} <= FLOATS or {precision, dtype} <= COMPLEX
    return alike and precision in VALUES[values] and ITEM_SIZE[precision] <= ITEM_SIZE[dtype]


def view_error(view: View, storage: Storage) -> FieldError | None:
    """Why there is no such view on such a root, or None."""
    dtype = view.dtype or storage.dtype
    if view.leaf and (dtype not in INEXACT or view.via in ("view", "multi")):
        hint = "use detach, data, no_grad or parameter, and a floating dtype"
        return FieldError("leaf", f"a {dtype} view via {view.via!r} cannot be a leaf", hint)
    if view.via == "multi" and not view.size:
        return FieldError("via", "nothing without dimensions is a chunk", "use view")
    if storage.inference and (view.via not in ("view", "multi", "no_grad") or view.base != "root"):
        # (It has a version counter, which what is detached in inference mode has not.)
        return FieldError("via", "what was made in inference mode is detached outside", "use view or no_grad")
    if storage.inference and (view.leaf or view.wrapped is not None):
        field = "leaf" if view.leaf else "wrapped"
        return FieldError(field, "a tensor made in inference mode cannot be that", "use a plain view")
    if view.base == "wrapper":
        return _subclass_view_error(view, storage)
    if view.wrapped is not None and view.via not in subclass.VIAS:
        hint = f"use {', '.join(subclass.VIAS)}"
        return FieldError("wrapped", f"a view via {view.via!r} cannot be wrapped", hint)
    if reads_bytes(storage.dtype, dtype) and prod(storage.size) * ITEM_SIZE[storage.dtype] % ITEM_SIZE[dtype]:
        count = prod(storage.size)
        return FieldError("dtype", f"{count} {storage.dtype} are no whole {dtype}", "use another")
    if view.lazy is not None and dtype not in LAZY[view.lazy]:
        return FieldError("lazy", f"{dtype} has no {view.lazy} bit", "write null")
    if view.wrapped is not None and (view.lazy is not None or view.base != "root"):
        return FieldError("wrapped", "what is wrapped is a plain view of a root", "write null")
    return None


def _subclass_view_error(view: View, storage: Storage) -> FieldError | None:
    """Why there is no such view of a wrapper subclass, or None."""
    if view.wrapped is None:
        return FieldError("base", "of a wrapper there are wrapped views", "write root")
    if view.via not in subclass.PARTS:
        hint = f"use {', '.join(subclass.PARTS)}"
        return FieldError("via", f"a view via {view.via!r} is none of a wrapper", hint)
    if view.leaf or view.lazy is not None or view.dtype not in (None, storage.dtype):
        return FieldError(
            "base", "a view of a wrapper is no leaf, is not lazy and has its dtype", "write root"
        )
    return None


def call_error(program: Program) -> FieldError | None:
    """Why a call's arguments cannot be made, or None."""
    for storage in program.storages:
        reason = root_error(storage)
        if reason is not None:
            return reason
    for argument in program.arguments:
        if isinstance(argument, View):
            reason = view_error(argument, program.storages[argument.storage])
            if reason is not None:
                return reason
    return None
