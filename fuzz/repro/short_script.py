"""A short script: the arguments as constructors, the function, one probe, the comparison.

In: a program, a compiler, a finding that has a probe. Out: `ShortScript`, whose `text` is the script of
`aotfuzz repro` and whose `reproducer` is what a report to PyTorch holds. A finding without a probe gets the
long script, which looks at everything (`fuzz.repro.script`).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuzz.ir.nodes import Dict, Literal, Program, Ref, Scenario, Seq, Tree, split_calls
from fuzz.ir.subclass import definitions
from fuzz.operators import OPERATORS
from fuzz.program.argument_text import tree_text
from fuzz.program.decode import ProgramError, check
from fuzz.program.printer import keeps_state, render
from fuzz.repro import probes
from fuzz.repro.compilers import Compiler
from fuzz.repro.constructors import construct_arguments
from fuzz.repro.probes import Probe, find_probe
from oracles import CLAUSES, Finding

__all__ = ["ShortScript", "short_script"]

_IN_LATER_CALL = re.compile(r"call ([1-9][0-9]{0,2}): ([a-z-]+): (.*)", re.DOTALL)
_ALLOWED = re.compile(r"off by up to (\S+) where (\S+) is allowed")
# Operators that draw from generators of Python or NumPy.
_OTHER_GENERATORS = ("python_random", "numpy_random")
_DEVICE = re.compile(r"cpu|cuda(:[0-9])?")
_WEAK = "from torch.multiprocessing.reductions import StorageWeakRef"


@dataclass(frozen=True, slots=True)
class ShortScript:
    """A script in parts.

    Attributes:
        imports: lines of imports besides that of torch.
        setup: lines that the compiler needs.
        definitions: classes that the function uses, and the function `f`.
        run: `def run(function)`, which makes the arguments, calls the function and returns what is looked at.
        compiled: `f` compiled, as an expression.
        probe: what is looked at.
        is_same: whether `eager` and `target` are alike, as an expression.
        draws: the program, or the probe, draws random numbers.
    """

    imports: tuple[str, ...]
    setup: str
    definitions: str
    run: str
    compiled: str
    probe: Probe
    is_same: str
    draws: bool

    @property
    def text(self) -> str:
        """The script: it prints what both gave, and exits with 1 while they differ."""
        return self.text_with(self.compiled, [f"raise SystemExit({_negated(self.is_same)})"], self.setup)

    def text_with(self, compiled: str, end: Sequence[str], setup: str = "") -> str:
        """The script for another compiler, or with another end."""
        head = [*self.imports, "import torch", *([setup] if setup else [])]
        runs = f"eager, target = run(f), run({compiled})"
        if self.probe.kind == probes.MEMORY:
            runs = f"compiled = {compiled}\neager, target = run(f), run(compiled)\ngc.collect()\n"
            runs += (
                "eager, target = ("
                + ", ".join(f'"freed" if {side}.expired() else "alive"' for side in ("eager", "target"))
                + ")"
            )
        shown = r'print(f"eager:  {eager}\ntarget: {target}")'
        return (
            "\n".join([*head, "", "", self.definitions, "", "", self.run, "", "", runs, shown, *end]) + "\n"
        )


def short_script(program: Program, compiler: Compiler, finding: Finding) -> ShortScript | None:
    """The short script of a finding, None where it takes the long one."""
    try:
        check(program)
    except ProgramError:  # of a stranger's campaign
        return None
    if _is_beyond(program) or finding.target.startswith(("crash", "timeout")):
        return None
    number, original = 0, finding
    if finding.clause == "repeat":
        found = _IN_LATER_CALL.fullmatch(finding.path)
        if found is None or int(found[1]) > len(program.later) + 1 or found[2] not in CLAUSES:
            return None
        number = int(found[1]) - 1
        message = re.sub(r"^in [^,]*, ", "", finding.message)
        finding = Finding(found[2], found[3], finding.eager, finding.target, message)
    calls = split_calls(program)
    made = construct_arguments(calls[number])
    probe = find_probe(calls[number], finding, made.names)
    if probe is None or (probe.kind == probes.VALUES and not _is_plain(probe.expression, calls[number])):
        return None
    lines = [line for call in calls[:number] for line in _call_lines(call, None, False, finding)]
    draws = _draws(program) or finding.clause == "randomness"
    lines += _call_lines(calls[number], probe, draws, finding)
    run = "\n".join(["def run(function):", *(f"    {line}" for line in lines)])
    imports, definitions_ = _definitions_of(program)
    imports += ["import gc"] if probe.kind == probes.MEMORY else []
    own = [_WEAK] if probe.kind == probes.MEMORY else []
    setup = "\n".join([*own, *([compiler.setup] if compiler.setup else [])])
    if re.search(r"\bsys\.", setup):
        imports.append("import sys")
    return ShortScript(
        tuple(sorted(imports)),
        setup,
        definitions_,
        run,
        _compiled(program, compiler, original),
        probe,
        _is_same(probe, compiler, finding, program),
        draws,
    )


def _is_beyond(program: Program) -> bool:
    """Whether a program is made in a way that only the long script knows."""
    names = [statement.operator for statement in program.statements]
    return (
        any(
            call.scenario.threads or not _DEVICE.fullmatch(call.scenario.device)
            for call in split_calls(program)
        )
        or keeps_state(program)
        or any(OPERATORS[name].has_side_effect or name in _OTHER_GENERATORS for name in names)
        or (program.module is not None and bool(program.later))
    )


def _is_plain(expression: str, program: Program) -> bool:
    """Whether the elements are those of a plain tensor: a wrapper subclass's are told by its parts."""
    names = [statement.operator for statement in program.statements]
    return expression.endswith((".first", ".second")) or not definitions(program.arguments, names)


def _draws(program: Program) -> bool:
    return any(OPERATORS[statement.operator].random for statement in program.statements)


def _definitions_of(program: Program) -> tuple[list[str], str]:
    """Imports besides torch, and the text of the program without what makes arguments."""
    text = render(program)
    lines, imports, kept = text.splitlines(), [], []
    for node in ast.parse(text).body:
        segment = lines[node.lineno - 1 : node.end_lineno]
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports += [line for line in segment if line != "import torch"]
        elif not (isinstance(node, ast.FunctionDef) and re.fullmatch(r"make(_\d+)?", node.name)):
            if isinstance(node, ast.ClassDef) and node.decorator_list:
                segment = lines[node.decorator_list[0].lineno - 1 : node.end_lineno]
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                segment = lines[node.decorator_list[0].lineno - 1 : node.end_lineno]
            if len(segment) > 2 and segment[-1].strip() == "return None":
                segment = segment[:-1]
            kept.append("\n".join(segment))
    return imports, "\n\n\n".join(kept)


def _call_lines(program: Program, probe: Probe | None, draws: bool, finding: Finding) -> list[str]:
    """One call: its arguments, the call under its modes, and what the probe looks at."""
    made = construct_arguments(program)
    given = tree_text(_renamed(Seq("tuple", program.parameters), made.names))
    given = given[1:-1].rstrip(",")
    call = f"function({given})"
    rest = [*probe.before, *probe.after, probe.expression] if probe else []
    if re.search(r"\bout\b", "\n".join(rest)):
        call = f"out = {call}"
    modes: list[str] = []
    scenario = program.scenario
    if scenario.swapped:
        modes.append("Swap()")
    if scenario.autocast is not None:
        modes.append(
            f'torch.autocast("{scenario.device.partition(":")[0]}", dtype=torch.{scenario.autocast})'
        )
    modes += mode_texts(scenario)
    called = [f"with {', '.join(modes)}:", f"    {call}"] if modes else [call]
    looked = [*called, *(probe.after if probe else ())]
    if probe is not None and probe.expression:
        looked.append(f"return {probe.expression}")
    if probe is not None and probe.restores_grad_mode:
        looked = ["with torch.enable_grad():  # restores the mode", *(f"    {line}" for line in looked)]
    if probe is not None and probe.kind == probes.OUTCOME:
        looked = [
            "try:",
            *(f"    {line}" for line in looked),
            f"except {_caught(finding)} as error:",
            '    return f"{type(error).__name__}: {error}"',
            'return "no exception"',
        ]
    before = [*(probe.before if probe else ()), *(["torch.manual_seed(0)"] if draws else [])]
    body = [*before, *looked]
    used = {node.id for node in ast.walk(ast.parse(_as_function(body))) if isinstance(node, ast.Name)}
    return [*made.lines_for(used), *body]


def _caught(finding: Finding) -> str:
    """What a call may end in: `Escape` is the campaign's word for what is no `Exception`."""
    return "BaseException" if "Escape" in finding.eager + finding.target else "Exception"


def mode_texts(scenario: Scenario) -> list[str]:
    """The grad modes that a call is made under. Inference mode alone would turn grad mode off."""
    inference = ["torch.inference_mode()"] if scenario.inference else []
    if not scenario.grad:
        return inference or ["torch.no_grad()"]
    return [*inference, "torch.enable_grad()"] if inference else []


def _as_function(lines: Sequence[str]) -> str:
    return "\n".join(["def run(function):", *(f"    {line}" for line in lines)])


def _renamed(tree: Tree, names: Mapping[str, str]) -> Tree:
    """A tree of the script's names."""
    match tree:
        case Ref(name):
            return Ref(names.get(name, name))
        case Seq(kind, items):
            return Seq(kind, tuple(_renamed(item, names) for item in items))
        case Dict(entries):
            return Dict(tuple((key, _renamed(item, names)) for key, item in entries))
        case Literal():
            return tree


def _compiled(program: Program, compiler: Compiler, finding: Finding) -> str:
    """The function compiled; where a compiler may raise, it compiles within the call."""
    compiled = compiler.compiled
    # It gives a list for a tuple, and anything else as it is.
    keeps_type = finding.clause != "structure" or isinstance(program.returns, (Ref, Literal))
    is_bare = program.module is None and not program.later and keeps_type
    if compiler.name == "torch-aot-function" and is_bare:
        return "aot_function(f, nop, nop)"
    is_lazy = compiled.startswith(("torch.compile(", "aot.aot_")) or compiled == "f"
    if is_lazy or finding.clause == "repeat" or compiled.startswith("lambda"):
        return compiled
    return f"lambda *args: {compiled}(*args)"


def _is_same(probe: Probe, compiler: Compiler, finding: Finding, program: Program) -> str:
    if probe.kind == probes.OUTCOME:
        return 'eager.split(":")[0] == target.split(":")[0]'
    if probe.kind != probes.VALUES:
        return "eager == target"
    sizes = _ALLOWED.search(finding.message)
    special = any(storage.special for storage in program.storages)
    has_nan = special or "nan" in finding.eager + finding.target
    nan = ", equal_nan=True" if has_nan else ""
    if compiler.exact or sizes is None:
        return "torch.equal(eager, target)" if not nan else f"torch.allclose(eager, target, 0, 0{nan})"
    return f"torch.allclose(eager, target, rtol=0, atol={_tolerance(sizes[1], sizes[2])}{nan})"


def _tolerance(off: str, allowed: str) -> str:
    """A bound between what is allowed and what was seen, of which the finding tells."""
    try:
        middle = math.sqrt(float(off) * float(allowed))
    except (ValueError, OverflowError):
        return "1e-05"
    return f"{middle:.0e}" if 0 < middle < math.inf else "1e-05"


def _negated(condition: str) -> str:
    return condition.replace(" == ", " != ") if " == " in condition else f"not {condition}"
