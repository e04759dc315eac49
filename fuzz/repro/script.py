"""A script that shows one difference with torch alone: `aotfuzz repro FILE > repro.py; python repro.py`.

It holds the program as it ran, the line that compiles it, and the few lines that look at what the finding is
about: nothing of this project is imported, unless the compiler is this project's. It prints what eager and
the target gave where they differ, and exits with 1 while they differ and with 0 when they no longer do.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from fuzz.corpus import buckets
from fuzz.corpus.case_file import Case
from fuzz.ir.nodes import BOTH, DEVICES, Literal, Program, Scenario, Write, split_calls, where_names_are
from fuzz.ir.subclass import definitions
from fuzz.program.printer import keeps_state, make_function_name, render
from fuzz.repro.checks import (
    BASE,
    CHECKS,
    COTANGENT,
    DESCRIBED,
    EDGE,
    IN_TWO_THREADS,
    MEMORY,
    NAMED,
    REACHABLE,
    SAME_WRAPPERS,
    STRIDES,
    THEN_EAGER,
    VERSIONS,
    note_cotangents,
    with_wrappers,
)
from fuzz.repro.compilers import Compiler, compiler_named
from fuzz.repro.short_script import mode_texts, short_script
from fuzz.safe_text import one_line
from oracles import CLAUSES, Backward, Finding
from oracles.observation.gradients import MAX_SINGLE_ROOTS

__all__ = ["Compiler", "compiler_named", "main_finding", "repro_script", "script_of_recording"]


def main_finding(case: Case) -> Finding:
    """The finding that a corpus case is about; its clause alone where none is recorded."""
    if case.findings:
        return buckets.primary_finding(case.findings)
    return Finding(case.clause, "", "", "", case.note)


def repro_script(program: Program, target: str, finding: Finding, *, long: bool = False) -> str:
    """The script for a program on a target, about what a finding is about.

    It is short where the finding is about one thing that an expression shows. A long one looks at all that
    the finding's clause is about.

    Args:
        target: the name of a shipped or registered target, or package.module:function.
        long: the long script in any case.

    Raises:
        TargetError: `target` is none of these.
    """
    compiler = compiler_for(program, target)
    short = None if long else short_script(program, compiler, finding)
    if short is not None:
        said = f"{compiler.name}: {finding.clause}: {finding.message}"
        return f"{_HEAD}{_script_comment(said)}\n{short.text}"
    return _repro_script(render(program), program, compiler, finding)


def compiler_for(program: Program, target: str) -> Compiler:
    """The compiler of that name for a program, which may be a module."""
    compiler = compiler_named(target)
    if program.module is None:
        return compiler
    return replace(compiler, compiled=compiler.compiled.replace("aot.aot_function(", "aot.aot_module("))


def script_of_recording(text: str, scenario: Scenario, compiler: Compiler, finding: Finding) -> str:
    """The script for a function that a text defines as that of a program does, called once as `scenario`
    says."""
    return _repro_script(text, Program((), (), (), (), Literal(None), scenario), compiler, finding)


def _repro_script(definitions: str, program: Program, compiler: Compiler, finding: Finding) -> str:
    """The script for what `definitions` define; of the program only how it is called is looked at."""
    said = f"{compiler.name}: {finding.clause}: {finding.message}"
    finding, compiler = _script_after_refusal(finding, compiler)
    parts = [THEN_EAGER.strip()] if compiler.compiled.startswith("then_eager(") else []
    if finding.clause == "errors" and finding.target.startswith(("crash", "timeout")):
        parts.append(_script_of_dying_process(program, compiler.compiled))
    elif (finding.clause, finding.path) == ("lifetime", "memory"):
        parts.append(_script_of_growing_memory(program, compiler.compiled))
    elif finding.clause in ("repeat", "threads"):
        parts.append(_script_of_later_call(program, compiler, finding))
    else:
        parts.append(_script_look(program, finding, "", 0))
        parts.append("\n".join(_script_comparison(program, compiler, finding)))
    text = "\n\n\n".join((definitions.rstrip(), *parts)) + "\n"
    setup = f"{compiler.setup}\n"
    modules = [name for name in _MODULES if f"{name}." in text or f"{name}." in setup]
    imports = "\n".join(f"import {name}" for name in modules)
    imports += "\nimport numpy" if "numpy." in text else ""
    weak = "from torch.multiprocessing.reductions import StorageWeakRef"
    own = "\n".join(line for line in (weak if "StorageWeakRef" in text else "", compiler.setup) if line)
    text = _IMPORT_TORCH.sub(
        lambda found: f"{imports}\n\n{found[0]}" + (f"\n{own}\n" if own else ""), text, count=1
    )
    return f"{_HEAD}{_script_comment(said)}\n\n\n{text}"


# A line, not the end of one: a docstring or a constant may end with these words.
_IMPORT_TORCH = re.compile(r"^import torch\n", re.MULTILINE)
_MODULES = ("gc", "itertools", "random", "subprocess", "sys", "threading")
# In the first two lines of a file, a comment could say in which encoding Python is to read it.
_HEAD = """
# Exits with 1 while there is a difference, with 0 when there no longer is, with 2 if the target is not here.
#
""".lstrip()

_IN_EAGER = re.compile("(call [0-9]+: )?(?:refusals: )?([a-z-]+): (.*)")


def _script_after_refusal(finding: Finding, compiler: Compiler) -> tuple[Finding, Compiler]:
    """What a finding about eager's call after a refused one is about, and a compiler that makes both."""
    refused = finding.clause == "refusals" or ": refusals: " in finding.path
    found = _IN_EAGER.fullmatch(finding.path)
    if not refused or found is None or found[2] not in CLAUSES or found[2] == "refusals":
        return finding, compiler
    clause, path = found[2], found[3]
    if found[1] is not None:
        clause, path = finding.clause, f"{found[1]}{found[2]}: {found[3]}"
    message = finding.message.replace("after the refused call, in eager: ", "")
    inner = Finding(clause, path, finding.eager, finding.target, message)
    return inner, replace(compiler, compiled=f"then_eager({compiler.compiled})", exact=True)


def _script_look(program: Program, finding: Finding, suffix: str, number: int) -> str:
    """`look` for a finding's topic, at one call of the program: the helpers that it needs, and itself."""
    one = split_calls(program)[number]
    topic = _script_topic(one, finding)
    before, after = CHECKS[topic]
    after = after.replace("CHOSEN", _chosen(one)).replace("STEP_LIST", repr(_script_step_list(one)))
    after = note_cotangents(after, finding.path.startswith("cotangents "))
    body = f"{before}\n{after}"
    helpers = [
        helper
        for helper, name in (
            (NAMED, "named("),
            (COTANGENT, "cotangent("),
            (EDGE, "edge("),
            (STRIDES, "strides("),
            (BASE, "base("),
            (VERSIONS, "versions("),
            (DESCRIBED, "described("),
            (DESCRIBED, "reachable("),
            (REACHABLE, "reachable("),
        )
        if helper is NAMED or name in body
    ]
    call = "result = function(*args)"
    modes = mode_texts(one.scenario)
    if modes:
        call = f"with {', '.join(modes)}:\n    {call}"
    if one.scenario.autocast is not None:
        call = f"with {autocast(one.scenario)}:\n{textwrap.indent(call, '    ')}"
    if one.scenario.swapped:
        call = f"with Swap():\n{textwrap.indent(call, '    ')}"
    operators = {statement.operator for statement in program.statements}
    lines = [
        *(["start(state)"] if number == 0 and keeps_state(program) else []),
        f"args, leaves, tensors = {make_function_name(number)}()",
        'inputs = dict(named(args, "arg"))',
        "for name, tensor in {**leaves, **tensors}.items():",
        "    if not any(tensor is known for known in inputs.values()):",
        "        inputs[name] = tensor",
        *_lines(before),
        "torch.manual_seed(0)",
        *(["random.seed(0)"] if "python_random" in operators else []),
        *(["numpy.random.seed(0)"] if "numpy_random" in operators else []),
        "seen = {}",
    ]
    look = [*call.splitlines(), 'outputs = dict(named(result, "out"))', *_lines(after)]
    if topic in ("errors", "errors in the call"):
        lines += [
            "try:",
            *_indent([*look, 'return {"outcome": "no exception"}']),
            "except BaseException as error:",
            '    return {"outcome": f"{type(error).__name__}: {error}"}',
        ]
    elif topic == "refusals":
        lines += [
            *("try:", *_indent(call.splitlines()), "except Exception:", "    after = reachable(inputs)"),
            "    changed = [name for name in before if before[name] != after[name]]",
            '    seen.update({name: "changed by the refused call" for name in changed})',
            "return seen",
        ]
    else:
        lines += [*look, "return seen"]
    text = "\n\n".join(helper.strip() + "\n" for helper in dict.fromkeys(helpers))
    text = "\n".join([text, "", f"def look{suffix}(function):", *_indent(lines)])
    if _has_wrappers(program):
        text = with_wrappers(text)
        if "memory(" in text:
            text = f"{MEMORY.strip()}\n\n\n{text}"
    return text


def autocast(scenario: Scenario) -> str:
    """The context that a call is made in."""
    kind = "device" if scenario.device == BOTH else f'"{scenario.device.partition(":")[0]}"'
    return f"torch.autocast({kind}, dtype=torch.{scenario.autocast})"


def _has_wrappers(program: Program) -> bool:
    """Whether its text defines wrapper subclasses."""
    names = [statement.operator for statement in program.statements]
    return any(definitions(call.arguments, names) for call in split_calls(program))


_OF_ONE_CALL = frozenset(CLAUSES) - {"repeat", "threads"}


def _script_of_later_call(program: Program, compiler: Compiler, finding: Finding) -> str:
    """What is wrong in a later call, or in two threads that make one at once.

    The calls before it are made, by the same compiled function.
    """
    found = re.fullmatch(r"call ([1-9][0-9]{0,2}): ([a-z-]+): (.*)", finding.path, re.DOTALL)
    number, inner = len(program.later), replace(finding, clause="values")
    # (What stands in a file may be of no call of this program, and of no clause that one call can break.)
    if found is not None and int(found[1]) <= len(program.later) + 1 and found[2] in _OF_ONE_CALL:
        number, message = int(found[1]) - 1, re.sub("^in [^,]*, ", "", finding.message)
        inner = Finding(found[2], found[3], finding.eager, finding.target, message)
    one = split_calls(program)[number]
    counted, function, compiled = _script_counted_function(
        program, compiler.compiled, _script_topic(one, inner)
    )
    earlier = Finding("gradients", "", "", "", "")
    parts = [_script_look(program, earlier, f"_{i + 1}", i) for i in range(number)]
    parts.append(_script_look(program, inner, "", number))
    threads = finding.clause == "threads"
    before = [
        *counted,
        *([*IN_TWO_THREADS.strip().splitlines(), "", ""] if threads else ()),
        "def last_look(function, look=look):",
        *(f"    look_{i + 1}(function)" for i in range(number)),
        "    return look(function)",
        "",
        "",
        "compiled = []",
        "",
        "",
        "def target_function(*args):",
        "    if not compiled:",
        f"        compiled.append({compiled})",
        "    return compiled[0](*args)",
        "",
        "",
    ]
    looks = (f"last_look({function})", "last_look(target_function)")
    same = _script_same(one, compiler, inner)
    lines = _script_until_different(function, inner) if threads else _script_differences(one, looks, inner)
    return "\n\n\n".join([*parts, "\n".join([*before, *same, *lines])])


def _script_until_different(function: str, finding: Finding) -> list[str]:
    """The end of a script about two threads, whose turns are never the same."""
    lines = [
        f"eager = last_look({function})",
        *(['eager["alive"] = eager["alive"]()'] if finding.clause == "lifetime" else []),
        *(['eager["runs of the function"] *= 2'] if finding.clause == "once" else []),
        "sys.setswitchinterval(1e-5)",
        "for _ in range(20):  # threads never take the same turns",
        "    compiled.clear()",
        "    torch.compiler.reset()",
        "    for target in last_look(target_function, in_two_threads):",
        *(['        target["alive"] = target["alive"]()'] if finding.clause == "lifetime" else []),
        "        differences = "
        "[key for key in {**eager, **target} if not same(eager.get(key), target.get(key))]",
        "        for key in differences:",
        '            print(f"{key}\\n    eager:  {eager.get(key)}\\n    target: {target.get(key)}")',
        "        if differences:",
        '            print("eager and the target differ")',
        "            sys.exit(1)",
        'print("no difference")',
        "sys.exit(0)",
    ]
    return lines


_STANDS_FOR = {"double-backward": "gradients"}  # where there are no steps, and so nothing to differentiate


def _script_topic(program: Program, finding: Finding) -> str:
    """The key of `CHECKS` for a finding about a program of one call."""
    if finding.clause == "errors" and finding.path == "call":
        return "errors in the call"
    steps = bool(program.scenario.steps)
    if (finding.clause == "once" and finding.path != "call") or "Python attributes of" in finding.message:
        return "python state"
    if finding.clause == "lifetime":
        return "lifetime after steps" if steps else "lifetime"
    later = ".mul_(2)" in finding.message or ".requires_grad_()" in finding.message or "later" in finding.path
    if steps and (later or finding.clause in ("errors", "gradients", "double-backward")):
        return "steps"
    return "a later write" if later else _STANDS_FOR.get(finding.clause, finding.clause)


def _script_comparison(program: Program, compiler: Compiler, finding: Finding) -> list[str]:
    """The end of a script: what eager and the target gave, and where they differ."""
    topic = _script_topic(program, finding)
    counted, function, compiled = _script_counted_function(program, compiler.compiled, topic)
    # Compiled inside, because a compiler may raise.
    looks = (f"look({function})", f"look(lambda *args: ({compiled})(*args))")
    if topic.startswith("lifetime"):
        held = f"(compiled or compiled.append({compiled}) or compiled)"
        counted = ["compiled = []"]
        looks = (looks[0], f"look(lambda *args: {held}[0](*args))")
    return [
        *_script_same(program, compiler, finding),
        *counted,
        *_script_differences(program, looks, finding),
    ]


def _script_same(program: Program, compiler: Compiler, finding: Finding) -> list[str]:
    """`same`, which compares what was seen of both sides."""
    topic = _script_topic(program, finding)
    if topic in ("errors", "errors in the call"):
        same = ["return str(left).split(':')[0] == str(right).split(':')[0]"]
    else:
        apart = program.scenario.device == BOTH
        rtol, atol = ("0", "0") if compiler.exact and not apart else ("1e-3", "1e-5")
        left, right = ("left.cpu()", "right.cpu()") if apart else ("left", "right")
        same = []
        if topic in ("a later write", "steps"):
            same = [
                "if isinstance(left, str) and isinstance(right, str):  # the type of an exception",
                '    return left.split(":")[0] == right.split(":")[0]',
            ]
        same += [
            "if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):",
            "    if left.dtype != right.dtype or left.shape != right.shape:",
            "        return False",
            f"    return torch.allclose({left}.double(), {right}.double(), {rtol}, {atol}, equal_nan=True)",
            "return type(left) is type(right) and left == right",
        ]
        if _has_wrappers(program):
            same = [*_lines(SAME_WRAPPERS), *same]
    return ["def same(left, right):", *_indent(same), "", ""]


def _script_counted_function(program: Program, compiled: str, topic: str) -> tuple[list[str], str, str]:
    """The function that is called, as lines, its name, and the same compiled: one whose runs are counted for
    a finding about that, else `f`."""
    if topic != "once":
        return [], "f", compiled
    lines = ["def counted(*args):", "    global runs", "    runs += 1", "    return f(*args)"]
    if program.module is not None:
        lines = [
            *("class Counted(torch.nn.Module):", "    def forward(self, *args):", "        global runs"),
            *("        runs += 1", "        return self.f(*args)"),
            *("", "", "counted = Counted()", "counted.f = f"),
        ]
    within = compiled.replace("(f", "(counted").replace("f(*a)", "counted(*a)")
    return [*lines, "", ""], "counted", within if within != "f" else "counted"


def _script_differences(program: Program, looks: tuple[str, str], finding: Finding) -> list[str]:
    """What is seen by these looks at eager and the target, and how the script ends."""
    alive = ["gc.collect()", "for seen in (eager, target):", '    seen["alive"] = seen["alive"]()']
    return [
        f"eager = {looks[0]}",
        *([f'device = "{DEVICES[1]}"'] if program.scenario.device == BOTH else []),
        f"target = {looks[1]}",
        *(alive if _script_topic(program, finding).startswith("lifetime") else []),
        "differences = [key for key in {**eager, **target} if not same(eager.get(key), target.get(key))]",
        "for key in differences:",
        '    print(f"{key}\\n    eager:  {eager.get(key)}\\n    target: {target.get(key)}")',
        'print("eager and the target differ" if differences else "no difference")',
        "sys.exit(1 if differences else 0)",
    ]


def _script_of_dying_process(program: Program, compiled: str) -> str:
    """For a target that takes its process down or never returns: it runs in a process of its own."""
    return f"""
{_script_run(program)}


if sys.argv[1:] == ["target"]:
    try:
        run({compiled})
    except Exception as error:
        print(f"raised {{type(error).__name__}}: {{error}}")
    sys.exit(0)
run(f)
print("eager:  returned")
try:
    status = subprocess.run([sys.executable, __file__, "target"], timeout=60).returncode
except subprocess.TimeoutExpired:
    status = "none: it did not return within 60 s"
print("target:", "returned" if status == 0 else f"exit status {{status}}")
sys.exit(0 if status == 0 else 1)
""".strip()


def _script_of_growing_memory(program: Program, compiled: str) -> str:
    """For a target that leaves memory behind which no tensor of the call lies in."""
    return f"""
{_script_run(program)}


def grown(function):
    for _ in range(3):  # what is taken once is no leak
        before = torch.cuda.memory_allocated()
        run(function)
        gc.collect()
        more = torch.cuda.memory_allocated() - before
    return more


compiled = {compiled}
eager, target = grown(f), grown(compiled)
print(f"bytes that are not given back:\\n    eager:  {{eager}}\\n    target: {{target}}")
sys.exit(1 if target > eager else 0)
""".strip()


_ON_EACH = """

def run(function):
    global device
    for device in DEVICES:
        run_here(function)
"""


def _script_run(program: Program) -> str:
    """`run`, which calls a function and differentiates what comes back."""
    mode = "" if program.scenario.grad else "torch.set_grad_enabled(False)\n    "
    if program.scenario.inference:
        mode = "torch.inference_mode().__enter__()\n    "
    if program.scenario.autocast is not None:
        mode += f"{autocast(program.scenario)}.__enter__()\n    "
    both = program.scenario.device == BOTH
    return f"""
def {"run_here" if both else "run"}(function):
    args, leaves, tensors = make()
    torch.manual_seed(0)
    {mode}result = function(*args)
    stack = [result]
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor) and item.requires_grad:
            item.sum().backward(retain_graph=True)
        elif isinstance(item, (tuple, list)):
            stack += item
        elif isinstance(item, dict):
            stack += item.values()
{_ON_EACH.replace("DEVICES", repr(DEVICES)) if both else ""}""".strip()


def _chosen(program: Program) -> str:
    """Which results each backward starts from, as an expression: the wanted ones, then each alone."""
    wanted = program.scenario.differentiate
    alone = f"*([number] for number in range(min(len(roots), {MAX_SINGLE_ROOTS})))"
    if wanted is None:
        return f"(list(range(len(roots))), {alone})"
    return f"(sorted({{number % max(len(roots), 1) for number in {wanted!r}}}), {alone})"


def _script_step_list(program: Program) -> list[tuple[str, object, bool]]:
    """The steps as the script has them: what is done, with what, and whether the graph is kept."""
    where = where_names_are(program)
    return [
        (step.how, step.roots, step.retain)
        if isinstance(step, Backward)
        else ("write" if isinstance(step, Write) else "require", where[step.name], False)
        for step in program.scenario.steps
    ]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


def _script_comment(text: str) -> str:
    """Text, which may be a stranger's, as comment lines of at most 100 columns."""
    lines = [""]
    for word in one_line(" ".join(text.split())).split(" "):
        if len(lines[-1]) + len(word) > 95:
            lines.append("")
        lines[-1] += f" {word}"
    return "\n".join(f"#{line}" for line in lines)
