"""How realistic a program is: what in it real code does too, and what only a fuzzer writes.

`PATTERNS` is data: for each pattern a test of the program and a sentence. A report says all that apply.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.ir.nodes import Duplicate, Program, Region, Root, View, Write, split_calls
from fuzz.operators import OPERATORS, Kind
from fuzz.program.printer import render
from oracles import Backward


@dataclass(frozen=True, slots=True)
class Pattern:
    """Something that a program may do.

    Attributes:
        applies: tells whether a program does it.
        sentence: what it is, and what real code does the like.
        is_contrived: hardly any real code does.
    """

    applies: Callable[[Program], bool]
    sentence: str
    is_contrived: bool = False


def _uses(*names: str) -> Callable[[Program], bool]:
    return lambda program: any(statement.operator in names for statement in program.statements)


def _contains(text: str) -> Callable[[Program], bool]:
    return lambda program: any(text in statement.operator for statement in program.statements)


def _writes_in_place(program: Program) -> bool:
    return any(OPERATORS[statement.operator].writes for statement in program.statements)


def _shares_memory(program: Program) -> bool:
    counts = Counter(a.storage for a in program.arguments if isinstance(a, (Root, View)))
    return any(count > 1 for count in counts.values())


def _has_view(test: Callable[[View], bool]) -> Callable[[Program], bool]:
    return lambda program: any(isinstance(a, View) and test(a) for a in program.arguments)


def _has_region(*modes: str) -> Callable[[Program], bool]:
    return lambda program: any(isinstance(b, Region) and b.mode in modes for b in program.blocks)


def _has_kind(*kinds: Kind) -> Callable[[Program], bool]:
    return lambda program: any(OPERATORS[one.operator].kind in kinds for one in program.statements)


def _has_row(test: str) -> Callable[[Program], bool]:
    return lambda program: any(bool(getattr(OPERATORS[one.operator], test)) for one in program.statements)


def _expands(view: View) -> bool:
    return any(step == 0 and length > 1 for length, step in zip(view.size, view.stride, strict=True))


PATTERNS = (
    Pattern(
        _writes_in_place,
        "It writes to a tensor in place, as code does that updates a cache, a running statistic or a state.",
    ),
    Pattern(
        lambda program: any(_shares_memory(one) for one in split_calls(program)),
        "Arguments share memory, as a buffer and a view of it do when a caller passes both.",
    ),
    Pattern(
        lambda program: any(isinstance(a, Duplicate) for a in program.arguments),
        "It is given the same tensor twice, as code with tied weights is.",
    ),
    Pattern(
        _has_view(_expands),
        "An argument is an expanded tensor, as masks and biases that are broadcast are.",
    ),
    Pattern(
        _has_view(lambda view: view.wrapped == "twice"),
        "An argument is a tensor subclass whose two parts are the same memory, which no library makes.",
        is_contrived=True,
    ),
    Pattern(
        _has_view(lambda view: view.wrapped not in (None, "twice")),
        "An argument is a traceable tensor subclass, as DTensor and nested tensors are.",
    ),
    Pattern(
        _has_view(lambda view: view.via in ("data", "detach")),
        "An argument is a detached alias of another tensor, as `x.data` is in training loops.",
    ),
    Pattern(
        _has_view(lambda view: view.lazy is not None),
        "An argument is lazily conjugated or negated, as results of complex code are.",
    ),
    Pattern(
        lambda program: program.module is not None,
        "The function is a module with buffers or parameters, as models are.",
    ),
    Pattern(
        _uses("set_data_"),
        "It assigns to `.data`, as older optimizers and sharded training do.",
    ),
    Pattern(
        _uses("set_", "resize_", "resize_as_", "set_source_"),
        "It changes a tensor's memory or size in place, as code does that manages flat parameters.",
        is_contrived=True,
    ),
    Pattern(
        _has_region("no_grad", "enable_grad"),
        "A part of it runs under another grad mode, as a moving average or an optimizer's step does.",
    ),
    Pattern(
        _has_region("inference_mode"),
        "A part of it runs under inference mode, as a frozen encoder in a larger model does.",
    ),
    Pattern(_has_region("checkpoint"), "A part of it is checkpointed, as the layers of large models are."),
    Pattern(
        _has_region("swapped"),
        "A function mode replaces functions while it runs, which profilers and quantization tools do.",
        is_contrived=True,
    ),
    Pattern(
        lambda program: program.scenario.inference and program.scenario.grad,
        "Grad mode is on within inference mode, which real code hardly ever does.",
        is_contrived=True,
    ),
    Pattern(
        lambda program: program.scenario.inference and not program.scenario.grad,
        "It is called under inference mode, as models in production are.",
    ),
    Pattern(_has_kind(Kind.FUNCTION), "It calls a custom `autograd.Function`, as fused layers do."),
    Pattern(_has_row("random"), "It draws random numbers, as dropout and noise do."),
    Pattern(_contains("foreach"), "It calls `torch._foreach_*`, as torch's own optimizers do."),
    Pattern(
        _has_kind(Kind.HOOK, Kind.RETAIN),
        "It registers a hook or retains a gradient inside, as code does that clips or looks at gradients.",
    ),
    Pattern(_contains("custom"), "It calls a custom operator that writes to its argument, as kernels do."),
    Pattern(
        lambda program: any(s.special for s in program.storages),
        "Its values have infinities or NaN among them, as masked attention has.",
    ),
    Pattern(
        lambda program: any(isinstance(step, Write) for step in program.scenario.steps),
        "The caller writes to an argument or a result afterwards, as a training loop does.",
    ),
    Pattern(
        lambda program: any(
            isinstance(step, Backward) and step.how == "double" for step in program.scenario.steps
        ),
        "The gradient is differentiated once more, as gradient penalties do.",
    ),
    Pattern(
        lambda program: bool(program.later), "It is called again with other arguments, as functions are."
    ),
)


def describe_realism(program: Program) -> str:
    """What in a program real code does too, and an honest word on the whole.

    The operators are named; each pattern that applies has its sentence.
    """
    applying = [pattern for pattern in PATTERNS if pattern.applies(program)]
    names = called_functions(render(program))
    said = f"The function calls {_listed(names)}." if names else "The function calls no operator by name."
    sentences = [said, *(pattern.sentence for pattern in applying)]
    if any(pattern.is_contrived for pattern in applying):
        sentences.append("On the whole it is contrived: a fuzzer wrote it, and it is rare in real code.")
    elif len(applying) > 3:
        sentences.append("Each of these is common; together they are rare. A fuzzer found the combination.")
    elif applying:
        sentences.append("A fuzzer found it; real code can do the same.")
    else:
        sentences.append("A fuzzer found it; nothing in it is unusual.")
    return " ".join(sentences)


def called_functions(text: str) -> list[str]:
    """What the function `f` of a program's text calls, each once.

    >>> called_functions("def f(a): return torch.sin(a).mul_(2)")
    ['torch.sin', 'Tensor.mul_']
    """
    found: dict[str, None] = {}
    for definition in ast.walk(ast.parse(text)):
        if isinstance(definition, ast.FunctionDef) and definition.name in ("f", "forward"):
            called = [node.func for node in ast.walk(definition) if isinstance(node, ast.Call)]
            calls = [call for call in called if isinstance(call, ast.Attribute)]
            for call in sorted(calls, key=lambda call: (call.lineno, call.end_col_offset or 0)):
                shown = ast.unparse(call)
                is_name = re.fullmatch(r"[\w.]+", shown) is not None
                is_function = is_name and (shown.startswith("torch.") or shown[0].isupper())
                found[shown if is_function else f"Tensor.{call.attr}"] = None
    return list(found)


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
