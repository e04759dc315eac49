"""Record: what a function does in one eager call, as a straight line of calls of torch's functions.

In: a function and its arguments. Out: a `Recorded`. A `TorchFunctionMode` sees each function and method of
torch that Python calls, with its tensors. Decisions of the function's Python are made by then, and results of
other code are constants. So a recording is valid for these arguments only. The modes of each call are
recorded too.

If something cannot be written as such calls, `CannotRecord` names it. Some writes are not seen at all, as
those of numpy or of an extension. They show when the recording is compared with the function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function, resolve_name

from fuzz.errors import CannotRecord, FunctionRaises
from fuzz.minify.inputs import Inputs, Untouched, address
from fuzz.minify.recording import IGNORED, NONE, Call, Dict, Lit, Mode, Recording, Ref, Seq, Tree, names
from fuzz.minify.script_text import constant_text, load
from oracles.observation.ambient import record_ambient, restore_ambient, restoring_ambient, seed_generators
from oracles.observation.records import Ambient

SEED = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A function's recording, and what is needed to call the function itself in the same way.

    Attributes:
        recording: the recorded function.
        outside: tensors that the function reads from outside, by their names in the recording.
        opaque: parts of the arguments that are no tensors and no constants, by path.
        untouched: restores the tensors of `outside`.
    """

    recording: Recording
    outside: Mapping[str, torch.Tensor]
    opaque: Mapping[tuple[Any, ...], Any]
    untouched: Untouched


def record(function: Callable[..., Any], args: tuple[Any, ...]) -> Recorded:
    """Call a function once in eager, on tensors like its arguments, and record what it does.

    Tensors that it reads from outside are the user's own, and are restored afterwards.

    Raises:
        CannotRecord: the function does, gets or returns something that cannot be written down.
        FunctionRaises: the function raises.

    >>> recorded = record(lambda x: x.mul_(2).sum(), (torch.ones(3),))
    >>> [call.callee for call in recorded.recording.calls]
    ['torch.Tensor.mul_', 'torch.Tensor.sum']
    """
    inputs, untouched = Inputs(), Untouched()
    opaque: dict[tuple[Any, ...], Any] = {}
    parameters = tuple(_recorded_argument(arg, (i,), inputs, opaque) for i, arg in enumerate(args))
    _check_recordable_surroundings(record_ambient())
    entry = Mode.now()
    given = Recording(tuple(inputs.storages), tuple(inputs.inputs), parameters, (), NONE, entry)
    with torch.inference_mode(False), torch.enable_grad():
        copies, _, made = load(given).make()
    known = {id(tensor): name for name, tensor in made.items()}
    recorder = _Recorder(inputs, known, made, untouched)
    with restoring_ambient() as ambient:
        seed_generators(SEED)
        try:
            with torch.inference_mode(ambient.inference_mode):
                torch.set_grad_enabled(ambient.grad_mode)
                result = _run_recorded(function, fill_opaque_arguments(copies, opaque), recorder)
                left = record_ambient()
            returns = recorder.record_returned(result)
            recorder.find_custom_functions([*recorder.values(), *made.values()])
        finally:
            untouched.restore()
        calls = recorder.calls
        if left != ambient:
            if replace(left, grad_mode=ambient.grad_mode) != ambient:
                raise CannotRecord("the function leaves another mode or default behind than it found")
            calls.append(Call("torch.set_grad_enabled", (Lit(repr(left.grad_mode)),), (), None, entry))
        restore_ambient(ambient, left)
    recording = Recording(
        tuple(inputs.storages), tuple(inputs.inputs), parameters, tuple(calls), returns, entry
    )
    outside = {f"x{i}": inputs.tensors[i] for i in range(len(given.inputs), len(inputs.inputs))}
    return Recorded(recording, outside, opaque, untouched)


def _check_recordable_surroundings(ambient: Ambient) -> None:
    """Refuse modes and transforms around the call that a script on its own would not have."""
    autocast = any(on for _, on, _ in ambient.autocast)
    default = (ambient.default_dtype, ambient.default_device.type) != (torch.float32, "cpu")
    if autocast or default or ambient.deterministic:
        raise CannotRecord(
            "autocast, another default dtype or device, or determinism is on around the call: "
            "set it inside of the function (autocast), or leave it out"
        )


def _run_recorded(function: Callable[..., Any], args: tuple[Any, ...], recorder: _Recorder) -> Any:
    try:
        with _recording_unseen_calls(recorder), recorder:
            result = function(*args)
    except CannotRecord:
        raise
    except Exception as error:
        if recorder.error is None:
            raise FunctionRaises(f"the function raises {type(error).__name__} in eager: {error}") from error
    if recorder.error is not None:
        raise recorder.error
    return result


@contextmanager
def _recording_unseen_calls(recorder: _Recorder) -> Iterator[None]:
    """While it lasts, `set_` is patched to tell the recorder, because a mode does not see it; the other calls
    here, which no mode sees either, are refused.
    """
    written = torch.Tensor.set_

    def set_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if has_torch_function((self,)):
            return handle_torch_function(set_, (self,), self, *args, **kwargs)
        return written(self, *args, **kwargs)

    def refusal(name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise recorder.refused(f"the function calls {name}")

        return refuse

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.Tensor, "set_", set_))
        for owner, attribute, name in _UNSEEN:
            stack.enter_context(mock.patch.object(owner, attribute, refusal(name)))
        yield


_UNSEEN = (
    (
        torch.autograd.graph.saved_tensors_hooks,
        "__init__",
        "torch.autograd.graph.saved_tensors_hooks, as torch.utils.checkpoint does",
    ),
    (torch, "manual_seed", "torch.manual_seed"),
    (torch, "set_rng_state", "torch.set_rng_state"),
)


def as_plain_containers(tree: Any) -> Any:
    """A result with tuples and dicts in place of named tuples and other mappings, as in a recording."""
    if isinstance(tree, list):
        return [as_plain_containers(item) for item in tree]
    if isinstance(tree, tuple):
        return tuple(map(as_plain_containers, tree))
    if isinstance(tree, Mapping):
        return {key: as_plain_containers(item) for key, item in tree.items()}
    return tree


def fill_opaque_arguments(args: tuple[Any, ...], opaque: Mapping[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    """Arguments that a recording's text made, with the parts that it has no source for."""

    def put(tree: Any, path: tuple[Any, ...]) -> Any:
        if path in opaque:
            return opaque[path]
        if type(tree) in (tuple, list):
            return type(tree)(put(item, (*path, i)) for i, item in enumerate(tree))
        if type(tree) is dict:
            return {key: put(item, (*path, key)) for key, item in tree.items()}
        return tree

    filled: tuple[Any, ...] = put(args, ())
    return filled


def _recorded_argument(
    tree: Any, path: tuple[Any, ...], inputs: Inputs, opaque: dict[tuple[Any, ...], Any]
) -> Tree:
    if isinstance(tree, torch.Tensor):
        return Ref(f"x{inputs.input_number(tree)}")
    if type(tree) in (tuple, list):
        items = tuple(_recorded_argument(item, (*path, i), inputs, opaque) for i, item in enumerate(tree))
        return Seq("list" if type(tree) is list else "tuple", items)
    if type(tree) is dict and all(constant_text(key) for key in tree):
        entries = (
            (key, _recorded_argument(item, (*path, key), inputs, opaque)) for key, item in tree.items()
        )
        return Dict(tuple((Lit(str(constant_text(key))), item) for key, item in entries))
    text = constant_text(tree)
    if text is None:
        opaque[path] = tree
    return Lit(text) if text else NONE


_SKIPPED = re.compile(
    r"torch\._C\._set_grad_enabled|torch(\._C)?\.(set_autocast|autocast_|clear_autocast)\w*"
    r"|torch\.ops\.profiler\.\w+|torch\.autograd\.(_)?(record|profiler)\S*"
)
"""Calls that set modes, which are recorded with each call, and calls of profilers."""


_IN_PLACE = re.compile(r"[a-z0-9]_$|__get__$|__set__$|__setitem__$|__i[a-z]+__$")


class _Recorder(TorchFunctionMode):
    """The mode that records calls. `known` has the names of tensors by id, `made` the arguments by name."""

    def __init__(
        self, inputs: Inputs, known: dict[int, str], made: Mapping[str, torch.Tensor], untouched: Untouched
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.error: CannotRecord | None = None
        self._inputs = inputs
        self._known = known
        self._kept: list[Any] = [*made.values()]  # keeps objects alive, so that no id is used twice
        self._born: set[int] = set()
        self._arguments = {address(tensor) for tensor in inputs.tensors}
        self._untouched = untouched
        self._count = 0
        self._ambient = record_ambient()
        with torch.inference_mode(False), torch.enable_grad():
            self._first = _age((torch.zeros((), requires_grad=True) * 1).grad_fn)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            name = recorded_callee(func)
            if _SKIPPED.fullmatch(name):
                return func(*args, **kwargs)
            ambient = record_ambient()
            if (ambient.default_dtype, ambient.default_device, ambient.deterministic) != (
                *(self._ambient.default_dtype, self._ambient.default_device, self._ambient.deterministic),
            ):
                raise CannotRecord(
                    "the function changes the default dtype, the default device or determinism"
                )
            operands = tuple(self._record_operand(name, item) for item in args)
            keywords = tuple((key, self._record_operand(name, item)) for key, item in kwargs.items())
        except CannotRecord as error:
            self.error = self.error or error  # also if the function catches it
            raise
        result = func(*args, **kwargs)
        pattern = self._record_result_names(result, in_place=_IN_PLACE.search(name) is not None)
        if pattern is not None or not name.endswith(".__get__"):
            self.calls.append(Call(name, operands, keywords, pattern, Mode.of(ambient)))
        return result

    def refused(self, what: str) -> CannotRecord:
        """The error for something that cannot be recorded. It is kept, because the function may catch it."""
        self.error = self.error or CannotRecord(f"{what}, which cannot be written down")
        return self.error

    def values(self) -> Iterator[torch.Tensor]:
        """The tensors that the recorded calls have returned."""
        return (item for item in self._kept if isinstance(item, torch.Tensor))

    def record_returned(self, tree: Any) -> Tree:
        """Record the function's result, and return its tree."""
        tree = as_plain_containers(tree)
        if isinstance(tree, torch.Tensor):
            return Ref(self._name(tree))
        if isinstance(tree, (tuple, list)):
            items = tuple(self.record_returned(item) for item in tree)
            return Seq("list" if isinstance(tree, list) else "tuple", items)
        if isinstance(tree, dict) and all(constant_text(key) for key in tree):
            return Dict(
                tuple(
                    (Lit(str(constant_text(key))), self.record_returned(item)) for key, item in tree.items()
                )
            )
        text = constant_text(tree)
        if text is None:
            raise CannotRecord(f"the function returns an object of type {type(tree).__qualname__}")
        return Lit(text)

    def find_custom_functions(self, tensors: list[torch.Tensor]) -> None:
        """Refuse an `autograd.Function` in the history of a tensor, if the recorded call has put it there.

        Raises:
            CannotRecord: there is one.
        """
        nodes = [_history(tensor) for tensor in tensors]
        seen: set[Node] = set()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            name = _custom(node)
            if name is not None and _age(node) >= self._first:
                raise CannotRecord(f"the function calls {name}.apply, a torch.autograd.Function")
            nodes += [following for following, _ in node.next_functions]

    def _record_operand(self, name: str, value: Any) -> Tree:
        if isinstance(value, torch.Tensor):
            return Ref(self._name(value))
        text = None if type(value) in (tuple, list) else constant_text(value)
        if text is not None:
            return Lit(text)
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return Seq("slice", tuple(self._record_operand(name, part) for part in parts))
        if isinstance(value, (tuple, list)):
            items = tuple(self._record_operand(name, item) for item in value)
            return Seq("list" if isinstance(value, list) else "tuple", items)
        if isinstance(value, dict) and all(constant_text(key) for key in value):
            return Dict(
                tuple(
                    (Lit(str(constant_text(key))), self._record_operand(name, item))
                    for key, item in value.items()
                )
            )
        if id(value) in self._known:
            return Ref(self._known[id(value)])
        kind = "a function" if callable(value) else f"an object of type {type(value).__qualname__}"
        raise CannotRecord(f"the function calls {name} with {kind}, which cannot be printed as text")

    def _name(self, tensor: torch.Tensor) -> str:
        """The name of a tensor. A tensor without a name is read from outside, and gets one."""
        if id(tensor) not in self._known:
            self._record_outside_tensor(tensor)
        return self._known[id(tensor)]

    def _record_outside_tensor(self, tensor: torch.Tensor) -> None:
        made = tensor.grad_fn is not None and _age(tensor.grad_fn) >= self._first
        at = _lies_at(tensor)
        if made or (at and at in self._born):
            raise CannotRecord(
                "the function uses a tensor that it has made by other means than torch's functions: "
                "an autograd.Function, an extension, a transform"
            )
        if tensor in self._inputs or (at and at in self._arguments):
            raise CannotRecord(
                "the function reads a tensor from outside that lies on the memory of one of its arguments"
            )
        first = len(self._inputs.tensors)
        self._inputs.input_number(tensor)
        for i in range(first, len(self._inputs.tensors)):
            known = self._inputs.tensors[i]
            self._untouched.note(known)
            self._known[id(known)] = f"x{i}"
            self._kept.append(known)

    def _record_result_names(self, result: Any, in_place: bool) -> Tree | None:
        """The pattern that names the new tensors of a result.

        An operand that a function returns unchanged (`contiguous`, dropout in eval mode) gets a new name too,
        because a compiler may return another tensor there. It keeps its name if it was written to in place.
        """
        pattern = self._record_result_pattern(result, in_place)
        return pattern if any(names(pattern)) else None

    def _record_result_pattern(self, result: Any, in_place: bool) -> Tree:
        if type(result) in (tuple, list) or isinstance(result, tuple):
            return Seq("tuple", tuple(self._record_result_pattern(item, in_place) for item in result))
        if (in_place and id(result) in self._known) or constant_text(result) is not None:
            return IGNORED
        name = f"v{self._count}"
        self._count += 1
        self._known[id(result)] = name
        self._kept.append(result)
        if isinstance(result, torch.Tensor) and not self._inputs.lies_at(_lies_at(result)):
            self._born.add(_lies_at(result))
        return Ref(name)


def _history(tensor: torch.Tensor) -> Any:
    """The `grad_fn` of a tensor; None if it has none, or if autograd has forbidden the view."""
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view whose base was written to in a way that autograd forbids
        return None


def _custom(node: object) -> str | None:
    """The name of the `autograd.Function` that a node of autograd's graph belongs to, or None."""
    return type(node).__name__.removesuffix("Backward") if isinstance(node, BackwardCFunction) else None


def _age(node: Any) -> int:
    """The sequence number of a node of autograd's graph, which grows with time."""
    number: int = node._sequence_nr()
    return number


def _lies_at(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory; 0 if it has none."""
    try:
        return address(tensor)
    except (NotImplementedError, RuntimeError):
        return 0


def recorded_callee(func: Any) -> str:
    """The public name of a function of torch that a mode has seen.

    Raises:
        CannotRecord: it has no public name.

    >>> recorded_callee(torch.Tensor.mul_)
    'torch.Tensor.mul_'
    """
    own = getattr(func, "__name__", "")
    name: str | None = resolve_name(func)
    for place, where in ((torch, "torch"), (torch.Tensor, "torch.Tensor")):
        if name is None and getattr(place, own, None) == func:
            name = f"{where}.{own}"
    if name is None:
        module = getattr(func, "__module__", None) or "torch"
        name = f"{module}.{getattr(func, '__qualname__', own or func)}"
    if not name.startswith("torch."):
        name = f"torch.ops.{name}"  # as an operator names itself
    found: Any = torch
    for part in name.removesuffix(".__get__").removesuffix(".__set__").split(".")[1:]:
        found = getattr(found, part, None)
    if found is None or (name.startswith("torch.ops.") and not _COMES_WITH_TORCH.match(name)):
        raise CannotRecord(f"the function calls {name}, which torch alone does not have")
    return name


_COMES_WITH_TORCH = re.compile(r"torch\.ops\.(aten|prim|prims|profiler)\.")
