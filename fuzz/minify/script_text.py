"""Script text: a recorded function as Python source, which is what runs and what is printed.

In: a `Recording`. Out: the text of a module that imports only torch, as for programs
(`fuzz.program.printer`). It defines `make()`, which makes fresh arguments, and the function `f`. An input
that `f` reads from outside is a global that `make` sets.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch

from fuzz.ir import nodes as programs
from fuzz.minify.recording import (
    Call,
    Dict,
    Input,
    Lit,
    Mode,
    Recording,
    Ref,
    Seq,
    Size,
    Storage,
    Tree,
    arguments,
    dtype_of,
    globals_of,
    names,
    operands,
    recording_leaves,
    with_operands,
)
from fuzz.operators.dtypes import COMPLEX, FLOATS, REAL_OF
from fuzz.operators.layout import contiguous_strides
from fuzz.program.argument_text import root_values_text
from fuzz.program.printer import Loaded, definitions
from fuzz.program.statements import describe

SHORT = 32
"""The most elements that are printed as numbers; more elements are printed as bytes."""


def load(recording: Recording) -> Loaded:
    """Execute the text of a recorded function. That only makes its definitions."""
    text = render(recording)
    namespace = definitions(text, "recording")
    return Loaded(text, namespace["make"], namespace["f"])


def render(recording: Recording) -> str:
    """The text of a recorded function: a complete Python module."""
    lines = ["import torch", "", "", "def make():"]
    made = list(_make_function_text(recording))
    if any("base64." in line for line in made):
        lines.insert(0, "import base64")
    lines += (f"    {line}" for line in made)
    lines += ["", "", f"def f({', '.join(_parameters(recording))}):"]
    lines += (f"    {line}" for line in _body_text(recording))
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------------------------------
# make


def _make_function_text(recording: Recording) -> Iterator[str]:
    outside = globals_of(recording)
    if outside:
        yield f"global {', '.join(outside)}"
    tensors: list[str] = []
    leaf_names: list[str] = []
    for i, one in enumerate(recording.inputs):
        storage = recording.storages[one.storage]
        name, root = f"x{i}", one.via == "own" and one.requires_grad and not one.leaf
        if root:
            name = f"leaf{i}"
        lines = list(_root_text(name, one, storage) if one.base is None else _view_text(name, one, recording))
        needs = root or (one.requires_grad and one.leaf)
        *before, last = lines
        yield from before
        if one.parameter:
            place, _, made = last.partition(" = ")
            last = f"{place} = torch.nn.Parameter({made}{'' if needs else ', requires_grad=False'})"
        elif needs:
            last += ".requires_grad_()"
        yield f"{last}  # {describe(one.dtype, one.size)}"
        tensors.append(name)
        if needs:
            leaf_names.append(name)
        if root:
            yield f"x{i} = leaf{i} * 1"
            tensors.append(f"x{i}")
    yield f"args = {tree_text(Seq('tuple', recording.parameters))}"
    yield f"leaves = {_names(leaf_names)}"
    yield f"tensors = {_names(tensors)}"
    yield "return args, leaves, tensors"


def _names(wanted: Sequence[str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in wanted) + "}"


def is_plain(one: Input, storage: Storage) -> bool:
    """Whether an input shows all of its storage, contiguously."""
    whole = one.offset == 0 and storage.length == math.prod(one.size) and one.dtype == storage.dtype
    return whole and (
        storage.length == 0 or _steps(one.size, one.stride) == _steps(one.size, contiguous_strides(one.size))
    )


def _steps(size: Size, stride: Size) -> list[int]:
    return [step for length, step in zip(size, stride, strict=True) if length != 1]


def _root_text(name: str, one: Input, storage: Storage) -> Iterator[str]:
    """The lines that make a tensor with a storage of its own, which is no view."""
    if is_plain(one, storage):
        yield f"{name} = {_values_text(storage, one.size, one.storage)}"
        return
    yield f"s{one.storage} = {_values_text(storage, (storage.length,), one.storage)}"
    place = f"{one.size}, {one.stride}, {one.offset}"
    yield f"{name} = s{one.storage}.as_strided({place}).detach()"


def _view_text(name: str, one: Input, recording: Recording) -> Iterator[str]:
    """The lines that make a tensor on the storage of another one."""
    assert one.base is not None
    base, at = recording.inputs[one.base], f"x{one.base}"
    hidden = {"detach": ".detach()", "data": ".data"}.get(one.via, "")
    alike = (one.dtype, one.size, one.stride, one.offset) == (base.dtype, base.size, base.stride, base.offset)
    if alike:
        view = f"{at}{hidden or '.view_as(' + at + ')'}"
    else:
        if one.dtype != base.dtype:
            at = _reinterpreted_text(at, one, base, recording)
        view = f"{at}.as_strided({one.size}, {one.stride}, {one.offset}){hidden}"
    if one.via == "no_grad":
        yield "with torch.no_grad():"
        yield f"    {name} = {view}"
    else:
        yield f"{name} = {view}"


def _reinterpreted_text(at: str, one: Input, base: Input, recording: Recording) -> str:
    """An expression for a whole storage as elements of another dtype."""
    old, new = dtype_of(base.dtype).itemsize, dtype_of(one.dtype).itemsize
    storage = recording.storages[base.storage]
    whole = (
        storage.length * dtype_of(storage.dtype).itemsize // new * new
    )  # bytes, without an incomplete last element
    length = whole // old
    flat = f"{at}.as_strided(({length},), (1,), 0)"
    if REAL_OF.get(one.dtype) == base.dtype:
        return f"torch.view_as_complex({flat}.view(-1, 2))"
    if REAL_OF.get(base.dtype) == one.dtype:
        return f"torch.view_as_real({flat})"
    return f"{flat}.view(torch.{one.dtype})"


def _values_text(storage: Storage, size: Size, number: int) -> str:
    """An expression for a fresh tensor with the elements of a storage."""
    dtype, device = f"dtype=torch.{storage.dtype}", ""
    if storage.device != "cpu":
        device = f', device="{storage.device}"'
    plain = "" if storage.dtype == "float32" else f", {dtype}"
    if storage.values == "ramp":
        return root_values_text(programs.Storage(storage.dtype, size, number), device)
    if isinstance(storage.values, str):
        shape = ", ".join(map(str, size)) if size else "()"
        return f"torch.{storage.values}({shape}{plain}{device})"
    tensor = as_tensor(storage).reshape(size)
    if storage.length <= SHORT and storage.length:
        return f"torch.tensor({constant_text(tensor.tolist())}{plain}{device})"
    if not storage.length:
        return f"torch.zeros({', '.join(map(str, size))}{plain}{device})"
    data = base64.b64encode(storage.values).decode()
    text = f'torch.frombuffer(bytearray(base64.b64decode("{data}")), {dtype}).reshape({size})'
    return text + (f'.to("{storage.device}")' if device else ".clone()")


def as_tensor(storage: Storage) -> torch.Tensor:
    """The elements of a storage whose values are bytes, as a tensor."""
    assert isinstance(storage.values, bytes)
    if not storage.values:
        return torch.empty(0, dtype=dtype_of(storage.dtype))
    return torch.frombuffer(bytearray(storage.values), dtype=dtype_of(storage.dtype))


def as_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of a contiguous tensor as bytes."""
    flat = tensor.detach().reshape(-1).cpu().contiguous()
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


# ---------------------------------------------------------------------------------------------------------
# f


def _parameters(recording: Recording) -> list[str]:
    """A name for each parameter: the input's own, unless it is nested or was passed before."""
    found: list[str] = []
    for i, tree in enumerate(recording.parameters):
        own = isinstance(tree, Ref) and tree.name not in found
        found.append(tree.name if own and isinstance(tree, Ref) else f"p{i}")
    return found


def _body_text(recording: Recording) -> Iterator[str]:
    parameters, needed = _parameters(recording), set(arguments(recording))
    for name, tree in zip(parameters, recording.parameters, strict=True):
        for inner, path in _path_texts(tree, name):
            if inner in needed and inner not in parameters:
                needed.remove(inner)
                yield f"{inner} = {path}"
    for mode, group in groupby(recording.calls, lambda call: call.mode):
        line = _mode_text(recording.mode, mode)
        if line:
            yield line
        yield from (f"{'    ' if line else ''}{_line(call)}" for call in group)
    yield f"return {tree_text(recording.returns)}"


def _path_texts(tree: Tree, path: str) -> Iterator[tuple[str, str]]:
    match tree:
        case Ref(name):
            yield name, path
        case Seq(_, items):
            for i, item in enumerate(items):
                yield from _path_texts(item, f"{path}[{i}]")
        case Dict(entries):
            for key, item in entries:
                yield from _path_texts(item, f"{path}[{key.text}]")


def _mode_text(entry: Mode, mode: Mode) -> str:
    """The `with` statement that changes one mode into another; "" if they are equal."""
    managers = []
    grad = entry.grad
    if mode.inference != entry.inference:
        managers.append(f"torch.inference_mode({'' if mode.inference else 'False'})")
        grad = not mode.inference
    if mode.grad != grad:
        managers.append("torch.enable_grad()" if mode.grad else "torch.no_grad()")
    for one, other in zip(entry.autocast, mode.autocast, strict=True):
        if one != other:
            device, on, dtype = other
            managers.append(f'torch.autocast("{device}", dtype={dtype}{"" if on else ", enabled=False"})')
    return f"with {', '.join(managers)}:" if managers else ""


def _line(call: Call) -> str:
    text = call_text(call)
    if call.results is None or call.callee.endswith(_STATEMENTS):
        return text
    return f"{_pattern(call.results)} = {text}"


def _pattern(tree: Tree) -> str:
    """The target of an assignment for a pattern, without the outermost brackets."""
    if isinstance(tree, Seq):
        return ", ".join(map(tree_text, tree.items)) + ("," if len(tree.items) == 1 else "")
    return tree_text(tree)


_STATEMENTS = (".__set__", ".__setitem__")
_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "matmul": "@",
    "pow": "**",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
_OPERATORS = {f"__{name}__": f"{{0}} {sign} {{1}}" for name, sign in _BINARY.items()}
_OPERATORS |= {f"__r{name}__": f"{{1}} {sign} {{0}}" for name, sign in _BINARY.items()}
_OPERATORS |= {"__neg__": "-{0}", "__invert__": "~{0}"}
_METHOD = "torch.Tensor."


def call_text(call: Call) -> str:
    """A call as an expression, or as the statement that it is."""
    given = [tree_text(tree) for tree in call.operands]
    named = [f"{name}={tree_text(tree)}" for name, tree in call.keywords]
    if not call.callee.startswith(_METHOD) or not given:
        return f"{call.callee}({', '.join(given + named)})"
    name = call.callee.removeprefix(_METHOD)
    first = given[0]
    attribute, _, access = name.rpartition(".")
    if access == "__get__":
        return f"{first}.{attribute}"
    if access == "__set__":
        return f"{first}.{attribute} = {given[1]}"
    if name == "__getitem__":
        return f"{first}[{_index(call.operands[1])}]"
    if name == "__setitem__":
        return f"{first}[{_index(call.operands[1])}] = {given[2]}"
    if name in _OPERATORS and not named:
        return _OPERATORS[name].format(*(f"({one})" if one.startswith("-") else one for one in given))
    return f"{first}.{name}({', '.join(given[1:] + named)})"


def _index(tree: Tree) -> str:
    if isinstance(tree, Seq) and tree.kind == "tuple" and tree.items:
        items = ", ".join(map(_index_item, tree.items))
        return f"{items}," if len(tree.items) == 1 else items
    return _index_item(tree)


def _index_item(tree: Tree) -> str:
    if isinstance(tree, Seq) and tree.kind == "slice":
        start, stop, step = ("" if part == Lit("None") else tree_text(part) for part in tree.items)
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return tree_text(tree)


def tree_text(tree: Tree) -> str:
    """A tree as an expression."""
    match tree:
        case Ref(name):
            return name
        case Lit(text):
            return text
        case Seq("list", items):
            return f"[{', '.join(map(tree_text, items))}]"
        case Seq("slice", items):
            return f"slice({', '.join(map(tree_text, items))})"
        case Seq(_, items):
            return f"({', '.join(map(tree_text, items))}{',' if len(items) == 1 else ''})"
        case Dict(entries):
            return "{" + ", ".join(f"{key.text}: {tree_text(item)}" for key, item in entries) + "}"


_NAMED = (torch.dtype, torch.layout, torch.memory_format)


def constant_text(value: Any) -> str | None:
    """A Python value as source; None if there is no source that needs only torch.

    >>> constant_text((torch.float32, float("inf"), None))
    '(torch.float32, float("inf"), None)'
    """
    if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes, range):
        return "..." if value is Ellipsis else repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value!r}")'
    if type(value) is complex:
        return f"complex({constant_text(value.real)}, {constant_text(value.imag)})"
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, type) and value in (bool, int, float, complex):
        return value.__name__
    if type(value) in (tuple, list):
        items = [constant_text(item) for item in value]
        if None in items:
            return None
        text = ", ".join(str(item) for item in items)
        return f"[{text}]" if type(value) is list else f"({text}{',' if len(items) == 1 else ''})"
    return None


# ---------------------------------------------------------------------------------------------------------
# the same in double precision


def upcast(recording: Recording) -> Recording | None:
    """The same function in float64 and complex128, for the reference of the error policy.

    None if the function looks at the bytes of floating point numbers, so that there is no such function.
    """
    viewed = any(
        one.base is not None and one.dtype != recording.inputs[one.base].dtype for one in recording.inputs
    )
    if viewed or any(_looks_at_bytes(call) for call in recording.calls):
        return None
    calls = tuple(_upcast_call(call) for call in recording.calls)
    if any(not set(names(*operands(call))) for call in calls):
        # A call without tensor operands makes a tensor of the default dtype.
        wanted = Lit("torch.float64")
        calls = (Call("torch.set_default_dtype", (wanted,), (), None, recording.mode), *calls)
    return replace(
        recording,
        storages=tuple(_upcast_storage(storage) for storage in recording.storages),
        inputs=tuple(replace(one, dtype=_double(one.dtype)) for one in recording.inputs),
        calls=calls,
    )


def _looks_at_bytes(call: Call) -> bool:
    given = [leaf.text for tree in operands(call) for leaf in recording_leaves(tree) if isinstance(leaf, Lit)]
    return call.callee == "torch.Tensor.view" and any(text.startswith("torch.") for text in given)


def _upcast_call(call: Call) -> Call:
    if call.callee in _CONVERSIONS:
        return replace(call, callee=_CONVERSIONS[call.callee])

    def change(leaf: Ref | Lit) -> Tree:
        if isinstance(leaf, Lit) and leaf.text.startswith("torch."):
            return Lit(f"torch.{_double(leaf.text.removeprefix('torch.'))}")
        return leaf

    return with_operands(call, change)


_CONVERSIONS = {
    "torch.Tensor.float": "torch.Tensor.double",
    "torch.Tensor.half": "torch.Tensor.double",
    "torch.Tensor.bfloat16": "torch.Tensor.double",
    "torch.Tensor.cfloat": "torch.Tensor.cdouble",
}


def _upcast_storage(storage: Storage) -> Storage:
    dtype = _double(storage.dtype)
    if isinstance(storage.values, str) or dtype == storage.dtype:
        return replace(storage, dtype=dtype)
    return replace(storage, dtype=dtype, values=as_bytes(as_tensor(storage).to(dtype_of(dtype))))


def _double(dtype: str) -> str:
    return "float64" if dtype in FLOATS else "complex128" if dtype in COMPLEX else dtype
