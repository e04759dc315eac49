"""Source digest: data for a function or operator in a graph that changes when its code does.

In: a function or an operator. Out: data for the cache key. For functions of torch, of `operator` and of
`math` the name is enough, for one version of torch. For a custom operator (`torch.library.custom_op`) the
data has the code of the Python that a trace runs for it: shape function, derivative, and vmap rule. It also
has what that code reads, as `bytecode_interpreter` finds it: constants, functions, and pure functions of
libraries (`library_purity`). An operator that reads anything else has no such data (`Uncacheable`).
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from aot.cache import library_purity
from aot.cache.bytecode_interpreter import (
    CALLS,
    CHANGES,
    CODE,
    OBJECTS,
    SETS,
    object_title,
    reads_of_function,
)
from aot.cache.codec import Data, Encoder, Uncacheable
from aot.guards.bytecode import is_library
from aot.torch_internals import higher_order_ops, op_queries

_MOST_FUNCTIONS = 500
_MOST_ENTRIES = 10_000
_STATEFUL = tuple(f"torch.{name}" for name in ("backends", "cuda", "hub", "random", "serialization", "utils"))
_SPACES = ("torch", "_operator", "operator", "builtins", "math", "_thread")


@functools.cache
def own_source() -> str:
    """A digest of the source of this package.

    Raises:
        Uncacheable: the package has no source files.
    """
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    try:
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:
        raise Uncacheable("aot without its source", error) from None
    return digest.hexdigest()


def library_name_of(value: Any) -> str:
    """The qualified name of a function or type in torch, or in another library that graphs may name.

    Raises:
        Uncacheable: no such library has the object under its name.

    Example:
        >>> library_name_of(torch.nn.functional.relu)
        'torch.nn.functional.relu'
    """
    name = getattr(value, "__name__", "")
    is_method = isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType))
    if is_method and getattr(torch.Tensor, name, None) is value:
        return f"torch.Tensor.{name}"
    module = getattr(value, "__module__", None) or ""
    if is_library_function(value) and module.split(".")[0] in _SPACES:
        for path in dict.fromkeys((getattr(value, "__qualname__", ""), name)):
            found: Any = sys.modules.get(module.split(".")[0])
            for part in (*module.split(".")[1:], *path.split(".")):
                found = getattr(found, part, None)
            if found is value:
                return f"{module}.{path}"
    raise Uncacheable("a function or an object of the user's", f"{module}.{name}" if name else type(value))


def library_target_of(value: Any) -> str:
    """The name of a function that a graph calls; see `library_name_of`.

    Raises:
        Uncacheable: it has no name, or its result does not only depend on its arguments.
    """
    name = library_name_of(value)
    module, _, own = name.rpartition(".")
    if not library_purity.is_pure(value) and (
        (module == "builtins" and value is not getattr)
        or (module == "torch" and not own.startswith("_"))
        or (module == "torch._C" and own.startswith(("_get_", "_is_", "_has_")))
        or module.startswith(_STATEFUL)
    ):
        raise Uncacheable("a function that reads the state of the process", name)
    return name


def require_methods_of_torch() -> None:
    """Check that the methods of tensors are torch's own.

    Raises:
        Uncacheable: a method has been replaced.
    """
    for name, value in vars(torch.Tensor).items():
        if not is_library_function(value) and (name in _METHODS or name.startswith("__")):
            raise Uncacheable("a method of tensors that is not torch's", name)


def is_library_function(value: Any) -> bool:
    """Whether an object is no Python function of the user's. Its `__name__` does not count."""
    return type(value) is not types.FunctionType or is_library(value.__globals__.get("__name__"))


def operator_digest(op: op_queries.OpOverload) -> Data:
    """The data of a custom operator: its schema, and the Python that a trace runs for it.

    Its kernels do not count, because they run at each call.

    Raises:
        Uncacheable: it is not known what that Python depends on.
    """
    found = op_queries.custom_definition(op)
    if found is None:
        raise Uncacheable("a custom operator of which the source is not known", op)
    definition, parts = found
    tags = sorted(str(tag) for tag in op.tags)
    objects = _Objects(definition, op, op.overloadpacket)
    ours = _is_of_torch(definition._init_fn)
    behind = [
        [name, ["torch", object_title(value)] if ours and _is_of_torch(value) else objects.data(value)]
        for name, value in sorted(parts.items())
    ]
    objects.see_attributes()
    return [str(op._schema), tags, higher_order_ops.is_ordered(op), behind, objects.functions]


_METHODS = frozenset(dir(torch.Tensor.__base__)) | {
    n for n, v in vars(torch.Tensor).items() if is_library_function(v)
}


def _is_of_torch(value: Any) -> bool:
    """Whether an object is a function of torch's that holds nothing of the user's, so its name is enough."""
    if type(value) is not types.FunctionType or value.__closure__ is not None:
        return False
    return str(value.__globals__.get("__name__")).startswith("torch.")


class _Objects:
    """Turns the objects that an operator's Python reads into data.

    Args:
        itself: objects that stand for the operator itself.

    Attributes:
        functions: code, defaults and reads of each function that was followed.
    """

    def __init__(self, *itself: Any) -> None:
        self.functions: list[Data] = []
        self._itself = itself
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps objects alive, so that no id is used twice
        self._stored: set[str] = set()
        self._asked: set[str] = set()
        self._own: set[str] = set()  # attributes that functions and similar objects have themselves

    def ask(self, name: str) -> None:
        """Record that an attribute of some value is read."""
        self._asked.add(name)

    def store(self, name: str) -> None:
        """Record that an attribute of some value is written."""
        if name.startswith("__"):
            raise Uncacheable(CHANGES, name)
        self._stored.add(name)

    def see_attributes(self) -> None:
        """Check that all attributes that are read are pure, when all that are written are known."""
        for name in sorted(self._asked):
            if not library_purity.is_pure_attribute(name, name in self._stored) or name in self._own:
                raise Uncacheable(OBJECTS, f"attribute {name}")

    def data(self, value: Any) -> Data:
        """The data of an object that goes where any value may go.

        The object may be called there, and its attributes may be read as those of values.

        Raises:
            Uncacheable: the object may depend on something that data does not show.
        """
        kind = type(value)
        if kind is tuple or kind is torch.Size:
            return [kind.__name__, *map(self.data, value)]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is slice:
            return ["slice", *map(self.data, (value.start, value.stop, value.step))]
        if library_purity.is_constant(value):
            return ["constant", Encoder().constant(value)]
        if issubclass(kind, numpy.generic) and kind.__module__ == "numpy" and not value.dtype.hasobject:
            return ["numpy", value.dtype.str, value.tobytes().hex()]
        if any(value is one for one in self._itself):
            self._own |= vars(value).keys()
            return ["itself"]
        if kind is functools.partial:
            self._own |= vars(value).keys()
            named = [[str(name), self.data(one)] for name, one in value.keywords.items()]
            return ["partial", self.data(value.func), self.data(value.args), named]
        if library_purity.is_pure(value):
            if not library_purity.is_value(value):
                self._own |= getattr(value, "__dict__", {}).keys()
            return ["library", *_library_object_digest(value)]
        decorated = library_purity.decorating_mode(value) if kind is types.FunctionType else None
        if decorated is not None:
            return ["under", decorated[0], self.data(decorated[1])]
        if kind is types.FunctionType and not is_library(value.__globals__.get("__name__")):
            return self._function_digest(value)
        raise Uncacheable(CALLS if callable(value) else OBJECTS, object_title(value))

    def container_digest(self, value: Any) -> Data:
        """The data of a container whose entries go where any value may go.

        Raises:
            Uncacheable: the container or an entry has no data.
        """
        if len(value) > _MOST_ENTRIES:
            raise Uncacheable(OBJECTS, f"a {type(value).__name__} of {len(value)} entries")
        if type(value) is dict:
            return ["dict", *([self.data(key), self.data(one)] for key, one in value.items())]
        entries = list(map(self.data, value))
        return [type(value).__name__, *(sorted(entries, key=repr) if type(value) in SETS else entries)]

    def _function_digest(self, function: types.FunctionType) -> Data:
        number = self._numbers.get(id(function))
        if number is None:
            number = self._numbers[id(function)] = len(self._numbers)
            if number >= _MOST_FUNCTIONS:
                raise Uncacheable(CODE, f"more than {_MOST_FUNCTIONS} functions")
            self._kept.append(function)
            self._own |= vars(function).keys()
            self.functions.append(None)
            codes = [_code(code) for code in _codes(function.__code__)]
            defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
            reads = reads_of_function(self, function)
            self.functions[number] = [codes, [self.data(one) for one in defaults], reads]
        return ["function", number]


def _library_object_digest(value: Any) -> list[Data]:
    """The data of a function or type of a library, and of what it depends on besides its arguments."""
    if isinstance(value, numpy.ufunc):
        errors = numpy.geterr()
        if not {"call", "log", "print"}.isdisjoint(errors.values()):
            raise Uncacheable(CALLS, "what numpy does where it errs")
        return [value.__name__, sorted(errors.items())]
    return [str(value) if isinstance(value, op_queries.OpOverload) else object_title(value)]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all code objects in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _code(code: types.CodeType) -> Data:
    constants = [_code_constant_digest(one) for one in code.co_consts if not isinstance(one, types.CodeType)]
    numbers = [code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount]
    names = [list(some) for some in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)]
    return [code.co_code.hex(), code.co_exceptiontable.hex(), numbers, names, constants]


def _code_constant_digest(value: Any) -> Data:
    """The data of a constant in a code object."""
    if type(value) is bytes:
        return ["bytes", value.hex()]
    if type(value) in (tuple, frozenset):
        entries = [_code_constant_digest(one) for one in value]
        return [type(value).__name__, *(sorted(entries, key=repr) if type(value) is frozenset else entries)]
    return Encoder().constant(value)
