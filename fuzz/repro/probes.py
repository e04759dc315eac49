"""Probes: what one finding is about, as an expression to evaluate after the call.

In: a program of one call, a finding, the names of `Constructed`. Out: a `Probe`, or None where the finding is
about something that no short expression shows (`fuzz.repro.checks` looks at everything then).
Invariant: of a finding's texts, which may be a stranger's, none reaches a script. They choose among literals
of this module and names of the program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fuzz.abstract.state import AbstractState, AbstractTensor
from fuzz.ir.nodes import Dict, Literal, Program, Ref, Require, Seq, Tree, Write, tree_paths
from fuzz.operators.dtypes import COMPLEX
from fuzz.program.decode import final_state, initial_state
from fuzz.program.statements import constant_text
from fuzz.repro.constructors import MAX_LITERAL, tensor_text
from oracles import Backward, Finding

VALUES, EXACTLY, OUTCOME, MEMORY = "values", "exactly", "outcome", "memory"
"""How two sides are compared: elements; `==`; how a call or a backward ends; whether memory is freed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What to look at.

    Attributes:
        expression: what is looked at. "" for an outcome, which is how the lines end.
        kind: VALUES, EXACTLY, OUTCOME or MEMORY.
        before: lines ahead of the call.
        after: lines behind it.
        what: what is looked at, in words.
        restores_grad_mode: the function may leave another grad mode behind.
    """

    expression: str
    kind: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    what: str = ""
    restores_grad_mode: bool = False


# What a message begins with, before "of" and the tensor's path; how the tensor is asked.
_ASPECTS = {
    "dtype": "{0}.dtype",
    "device": "{0}.device",
    "layout": "{0}.layout",
    "shape": "tuple({0}.shape)",
    "strides": "{0}.stride()",
    "conj bit": "{0}.is_conj()",
    "neg bit": "{0}.is_neg()",
    "storage offset in bytes": "{0}.storage_offset()",
    "storage size in bytes": "{0}.untyped_storage().nbytes()",
    "requires_grad": "{0}.requires_grad",
    "is_leaf": "{0}.is_leaf",
    "grad_fn present": "{0}.grad_fn is not None",
    "retains_grad": "{0}.retains_grad",
}
_STRIDES_THAT_COUNT = "[step for length, step in zip({0}.shape, {0}.stride()) if length > 1 and {0}.numel()]"
_AT_AN_ELEMENT = re.compile(r"(in call \d+, )?.* at (the )?element .*differ.*", re.DOTALL)
_PATH = re.compile(r"((?:arg|out|tensor|leaf)(?:\[[^]]*\])*)((?:\.first|\.second)*)")
_STARTS = re.compile(r"starting at ([^:]*): ")


def find_probe(program: Program, finding: Finding, names: Mapping[str, str]) -> Probe | None:
    """The probe of a finding about a program of one call."""
    return _Finder(program, finding, names).find()


@dataclass(frozen=True, slots=True)
class _Finder:
    program: Program
    finding: Finding
    names: Mapping[str, str]

    def find(self) -> Probe | None:
        finding, steps = self.finding, self.program.scenario.steps
        if finding.clause == "errors" and finding.path == "call":
            return Probe("", OUTCOME, what="how the call ends")
        if steps:
            return self._find_in_steps()
        match finding.clause:
            case "values" | "input-data" | "strides" | "input-metadata" | "versions":
                return self._about_tensor()
            case "identity":
                return self._about_identity()
            case "structure":
                return self._about_type()
            case "aliasing":
                return self._about_storage()
            case "autograd-metadata":
                return self._about_history() or self._about_tensor() or self._about_later_write()
            case "errors":
                return self._about_backward_that_raises() or self._about_what_follows()
            case "gradients":
                return self._about_gradient()
            case "randomness":
                return self._about_generator()
            case "ambient" if finding.path == "grad mode":
                return Probe(
                    "torch.is_grad_enabled()",
                    EXACTLY,
                    what="grad mode after the call",
                    restores_grad_mode=True,
                )
        return None

    def expression_of(self, path: str) -> str | None:
        """The tensor at a path as an expression of the script; None if this program has none there."""
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        inputs = {place: self.names[name] for name, place in self._inputs()}
        outputs = dict(_nodes(self.program.returns, "out", "out"))
        # A wrapper subclass is printed by its parts, which it has as attributes of these names.
        tensor = inputs.get(found[1]) or outputs.get(found[1])
        return None if tensor is None else tensor + found[2]

    def _inputs(self) -> Iterator[tuple[str, str]]:
        yield from tree_paths(Seq("tuple", self.program.parameters), "arg")
        for name in self.names:
            yield name, f"tensor[{name!r}]"
            yield name, f"leaf[{name!r}]"

    def _about_tensor(self) -> Probe | None:
        """Elements, or one attribute of a tensor."""
        tensor, message = self.expression_of(self.finding.path), self.finding.message
        if tensor is None:
            return None
        if self.finding.clause in ("values", "input-data") and _AT_AN_ELEMENT.fullmatch(message):
            return Probe(tensor, VALUES, what=f"the elements of {tensor}")
        if message.startswith("movement of the version counter of "):
            before = (f"version = {tensor}._version",)
            return Probe(
                f"{tensor}._version > version", EXACTLY, before, what=f"whether {tensor}._version moves"
            )
        if message.startswith("same storage as before the call of "):
            before = (f"storage = {tensor}.untyped_storage().data_ptr()",)
            kept = f"{tensor}.untyped_storage().data_ptr() == storage"
            return Probe(kept, EXACTLY, before, what=f"whether {tensor} keeps its storage")
        for words, asked in _ASPECTS.items():
            if message.startswith(f"{words} of "):
                if words == "strides" and "None" in self.finding.eager + self.finding.target:
                    asked = _STRIDES_THAT_COUNT
                return Probe(asked.format(tensor), EXACTLY, what=f"the {words} of {tensor}")
        return None

    def _about_identity(self) -> Probe | None:
        tensor = self.expression_of(self.finding.path)
        for text in (self.finding.eager, self.finding.target):
            other = self.expression_of(text.removeprefix("the same object as "))
            if tensor and other and text.startswith("the same object as "):
                return Probe(f"{tensor} is {other}", EXACTLY, what=f"whether {tensor} is {other}")
        return None

    def _about_type(self) -> Probe | None:
        tensor = self.expression_of(self.finding.path)
        if tensor is None or " " in self.finding.eager + self.finding.target:
            return None
        return Probe(f"type({tensor}).__name__", EXACTLY, what=f"the type of {tensor}")

    def _about_storage(self) -> Probe | None:
        tensor = self.expression_of(self.finding.path)
        if tensor is None or not self.finding.message.startswith("storage of "):
            return None
        sides = [
            {path[0] for path in re.finditer(_PATH, text)}
            for text in (self.finding.eager, self.finding.target)
        ]
        for path in sorted(sides[0] ^ sides[1]):
            other = self.expression_of(path)
            if other is not None:
                pointer = "untyped_storage().data_ptr()"
                shared = f"{tensor}.{pointer} == {other}.{pointer}"
                return Probe(shared, EXACTLY, what=f"whether {tensor} shares the memory of {other}")
        return None

    def _about_history(self) -> Probe | None:
        """Whether the call continues a history, or what a view is a view of."""
        tensor, finding = self.expression_of(self.finding.path), self.finding
        if tensor is None:
            return None
        if finding.message.startswith("history of ") and " after " not in finding.message.split(":")[0]:
            moved = f"{tensor}.grad_fn is not before"
            before = (f"before = {tensor}.grad_fn",)
            return Probe(moved, EXACTLY, before, what=f"whether the call gives {tensor} another grad_fn")
        if not finding.message.startswith("base of "):
            return None
        if (finding.eager[:5] == "none,") != (finding.target[:5] == "none,"):
            return Probe(f"{tensor}._is_view()", EXACTLY, what=f"whether {tensor} is a view")
        for text in (finding.eager, finding.target):
            other = self.expression_of(text)
            if other is not None:
                return Probe(
                    f"{tensor}._base is {other}", EXACTLY, what=f"whether {tensor} is a view of {other}"
                )
        return None

    def _about_later_write(self) -> Probe | None:
        """Whether eager lets the caller write to the result."""
        tensor = self.expression_of(self.finding.path)
        if tensor is None or tensor != "out" or not self.finding.message.startswith("a later out.mul_(2): "):
            return None
        return Probe("", OUTCOME, after=("out.mul_(2)",), what="a later in-place write to the result")

    def _about_what_follows(self) -> Probe | None:
        if self.finding.path != "after the call":
            return None
        return Probe("", OUTCOME, after=("torch.ones(1).sin()",), what="the next operator after the call")

    # ------------------------------------------------------------------------------------------------
    # backwards

    def _results(self) -> list[tuple[str, str]]:
        """The results that eager differentiates, as names of the program and expressions of the script."""
        first, final = _tensors(initial_state(self.program)), _tensors(final_state(self.program))
        found: dict[str, str] = {}
        for name, place in tree_paths(self.program.returns, "out", constant_text):
            if name in final and final[name].requires_grad:
                found[place] = name
        written: list[AbstractTensor] = []
        for name in _given(self.program):
            if name in first and final[name].clock.version != first[name].clock.version:
                tensor = final[name]
                if tensor.requires_grad and not any(tensor is other for other in written):
                    written.append(tensor)
                    found[self.names[name]] = name
        return [(name, place) for place, name in found.items()]

    def _cotangent(self, name: str, number: int) -> str | None:
        """The gradient that a result is given, as the oracles choose it."""
        meta = _tensors(final_state(self.program))[name].meta
        count = math.prod(meta.size)
        if meta.dtype in COMPLEX or not 0 < count <= MAX_LITERAL:
            return None
        elements: list[float] = [((7 * i + 3 * number) % 11 * 2 - 11) / 8 for i in range(count)]
        size = meta.size
        if number % 2 and len(size) > 1:
            reverse = ", ".join(str(i) for i in reversed(range(len(size))))
            return f"{tensor_text([*elements], meta.dtype, size[::-1])}.permute({reverse})"
        return tensor_text([*elements], meta.dtype, size)

    def _about_gradient(self, number: int | None = None, later: tuple[str, ...] = ()) -> Probe | None:
        """The gradient of one argument, by the results that the finding names."""
        which = "" if number is None else f" in step {number}"
        pattern = r"grad of ((?:arg|tensor|leaf)\S*)(?: from (\S+))?" + re.escape(which)
        found = re.fullmatch(pattern, self.finding.path)
        results = self._results()
        if found is None or not results:
            return None
        chosen = list(range(len(results)))
        if found[2] is not None:
            place = self.expression_of(found[2])
            chosen = [i for i, (_, shown) in enumerate(results) if shown == place]
        elif number is None and self.program.scenario.differentiate is not None:
            chosen = sorted({i % len(results) for i in self.program.scenario.differentiate})
        tensor = self.expression_of(found[1])
        cotangents = [self._cotangent(results[i][0], i) for i in chosen]
        if tensor is None or not chosen or None in cotangents:
            return None
        roots = _listed([results[i][1] for i in chosen])
        given = _listed([text for text in cotangents if text is not None])
        before, targets = self._targets(tensor)
        taken = f"torch.autograd.grad({roots}, {targets}, {given}, allow_unused=True)"
        after = (*later, f"{'gradient, *_' if before else '(gradient,)'} = {taken}")
        is_numeric = _AT_AN_ELEMENT.fullmatch(self.finding.message) is not None
        shown = "gradient" if is_numeric else "gradient is None"
        if not is_numeric and "None" not in (self.finding.eager, self.finding.target):
            shown = "(gradient.dtype, tuple(gradient.shape))"
        what = f"the gradient of {tensor}"
        return Probe(shown, VALUES if is_numeric else EXACTLY, before, after, what)

    def _targets(self, tensor: str) -> tuple[tuple[str, ...], str]:
        """What gradients are taken of: this tensor first.

        Of a call that writes, these are all arguments as they were before it, as a backward may need.
        """
        if not _writes(self.program):
            return (), tensor
        first = _tensors(initial_state(self.program))
        asked = [name for name in _given(self.program) if name in first and first[name].requires_grad]
        leaves = [f"leaf{i}" for i, storage in enumerate(self.program.storages) if not storage.leaf]
        shown = dict.fromkeys(
            (tensor, *(self.names[name] for name in (*asked, *leaves) if name in self.names))
        )
        edge = "torch.autograd.graph.get_gradient_edge"
        return (f"edges = [{edge}(one) for one in ({', '.join(shown)},)]",), "edges"

    def _about_backward_that_raises(
        self, number: int | None = None, later: tuple[str, ...] = ()
    ) -> Probe | None:
        finding = self.finding
        which = "" if number is None else f" in step {number}"
        starts = _STARTS.search(finding.message)
        if starts is None or not re.fullmatch(rf"backward( from \S+)?{re.escape(which)}", finding.path):
            return None
        roots = [self.expression_of(path) for path in starts[1].split(", ")]
        if None in roots or any(dtype in COMPLEX for dtype in self._dtypes()):
            return None
        total = " + ".join(f"{root}.sum()" for root in roots)
        total = total if len(roots) == 1 else f"({total})"
        keep = "retain_graph=True" if number is None or self._step(number).retain else ""
        return Probe("", OUTCOME, after=(*later, f"{total}.backward({keep})"), what="how the backward ends")

    def _step(self, number: int) -> Backward:
        step = self.program.scenario.steps[number - 1]
        return step if isinstance(step, Backward) else Backward()

    def _dtypes(self) -> Iterator[str]:
        return (storage.dtype for storage in self.program.storages)

    def _about_generator(self) -> Probe | None:
        drawn = Probe("torch.rand(())", EXACTLY, what="the next random number")
        if self.finding.path == "random state":
            return replace(drawn, what="the next random number after the call")
        results = self._results()
        if self.finding.path != "random state after the backward" or not results:
            return None
        total = " + ".join(f"{shown}.sum()" for _, shown in results)
        total = total if len(results) == 1 else f"({total})"
        return replace(
            drawn, after=(f"{total}.backward()",), what="the next random number after the backward"
        )

    # ------------------------------------------------------------------------------------------------
    # steps

    def _find_in_steps(self) -> Probe | None:
        """The steps ahead of the one that the finding is about, then that one."""
        finding, steps = self.finding, self.program.scenario.steps
        if finding.clause == "lifetime":
            return self._about_memory()
        number = next((int(found) for found in re.findall(r" in step (\d{1,2})\b", finding.message)), None)
        if number is None:
            return self._without_steps().find()
        if not 0 < number <= len(steps):
            return None
        later = self._step_lines(number - 1)
        if later is None:
            return None
        step = steps[number - 1]
        match step:
            case Write():
                lines = self._step_lines(number)
                if lines is None or ".mul_(2) in step" not in finding.message:
                    return None
                return Probe("", OUTCOME, after=lines, what="a later in-place write")
            case Backward(how="double") if finding.clause == "double-backward":
                return self._about_second_derivative(later)
            case Backward(how="plain") if finding.clause == "errors":
                return self._about_backward_that_raises(number, later)
            case Backward(how="plain" | "double", roots=None) if finding.clause == "gradients":
                return self._about_gradient(number, later)
        return None

    def _without_steps(self) -> _Finder:
        """The same without steps, which come after what the finding is about."""
        return replace(self, program=replace(self.program, scenario=replace(self.program.scenario, steps=())))

    def _step_lines(self, count: int) -> tuple[str, ...] | None:
        """The first steps as lines; None where one of them is a backward."""
        lines: list[str] = []
        places = dict(tree_paths(self.program.returns, "out", constant_text))
        for step in self.program.scenario.steps[:count]:
            if isinstance(step, Backward):
                return None
            tensor = self.names.get(step.name) or places.get(step.name)
            if tensor is None:
                return None
            if isinstance(step, Require):
                lines.append(f"{tensor}.requires_grad_()")
            else:
                lines += ["with torch.no_grad():", f"    {tensor}.mul_(2)"]
        return tuple(lines)

    def _about_second_derivative(self, later: tuple[str, ...]) -> Probe | None:
        results = self._results()
        leaves = [
            self.names[name]
            for name, place in tree_paths(Seq("tuple", self.program.parameters), "arg")
            if f"grad of {place}" in self.finding.message
        ]
        if len(results) != 1 or not leaves or _writes(self.program):
            return None
        root, target = results[0][1], _listed(leaves)
        first = (
            f"(gradient,) = torch.autograd.grad({root}, {target}, torch.ones_like({root}), create_graph=True)"
        )
        if len(leaves) > 1:
            return None
        if self.finding.path.startswith("gradients that require grad"):
            what = "whether the gradient requires grad, with create_graph=True"
            return Probe("gradient.requires_grad", EXACTLY, after=(*later, first), what=what)
        if not self.finding.path.startswith("double backward in step"):
            return None
        after = (*later, first, "gradient.sum().backward()")
        return Probe("", OUTCOME, after=after, what="a second derivative")

    def _about_memory(self) -> Probe | None:
        tensor = self.expression_of(self.finding.path)
        lines = self._step_lines(len(self.program.scenario.steps))
        if tensor is None or lines is None or not self.finding.message.startswith("memory of a call"):
            return None
        what = f"whether the memory of {tensor} is freed when all has been dropped"
        return Probe(f"StorageWeakRef({tensor}.untyped_storage())", MEMORY, after=lines, what=what)


def _nodes(tree: Tree, path: str, shown: str) -> Iterator[tuple[str, str]]:
    """The places in a result, as the oracles name them and as Python has them."""
    yield path, shown
    match tree:
        case Seq(_, items):
            for i, item in enumerate(items):
                yield from _nodes(item, f"{path}[{i}]", f"{shown}[{i}]")
        case Dict(entries):
            for key, item in entries:
                yield from _nodes(item, f"{path}[{key!r}]", f"{shown}[{constant_text(key)}]")
        case Ref() | Literal():
            pass


def _writes(program: Program) -> bool:
    """Whether a statement changes a tensor that there is before it."""
    first, final = _tensors(initial_state(program)), _tensors(final_state(program))
    return any(final[name].clock.version != tensor.clock.version for name, tensor in first.items())


def _tensors(state: AbstractState) -> dict[str, AbstractTensor]:
    """The tensors that have names."""
    return {name: value for name, value in state.names.items() if isinstance(value, AbstractTensor)}


def _given(program: Program) -> list[str]:
    """The names of what the function is given, in order."""
    return [name for name, _ in tree_paths(Seq("tuple", program.parameters), "arg")]


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
