"""The thirteen points that a report must have: `aotfuzz repro CASE --format issue --check`.

In: the Markdown of a report. Out: a `Point` for each check, with what to do where it fails. The points follow
PyTorch's bug template for torch.compile, which has requests of its own for what a fuzzer found, and how its
triage sorts such reports. A report is only read: nothing of it runs.

    failed = [point for point in check_issue(text) if point.problem]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from fuzz.repro import issue

MAX_LINES = 45
"""Lines of code of a reproducer, without blank ones and without classes that the program needs."""
MAX_TITLE = 140
BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
# The least wrong backend, and the label that triage gives.
_LABELS = {
    "eager": "module: dynamo",
    "aot_eager": "module: pt2-dispatcher",
    "aot_eager_decomp_partition": "module: pt2-dispatcher",
    "inductor": "module: inductor",
}
_ALLOWED_IMPORTS = frozenset({"torch", "functorch", "numpy"}) | sys.stdlib_module_names
_TIES = frozenset({"argmax", "argmin", "argsort", "topk", "kthvalue", "mode", "max_pool2d_with_indices"})
_VAGUE = re.compile(r"^\[[^]]*\]\s*(bug|wrong|error|a bug|incorrect results?|difference)?\W*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Check:
    """One point: its name, what it asks for, what to do where it fails, and the test itself."""

    name: str
    asks: str
    remedy: str
    find_problem: Callable[[Report], str]


@dataclass(frozen=True, slots=True)
class Point:
    """What became of a check: the problem is "" where all is well."""

    check: Check
    problem: str


class Report:
    """A report in parts."""

    def __init__(self, text: str) -> None:
        self.text = text

    def paragraph(self, begin: str) -> str:
        """The rest of the paragraph that begins so; "" if there is none."""
        found = re.search(rf"(?m)^{re.escape(begin)}(.*(?:\n.+)*)", self.text)
        return "" if found is None else found[1].strip()

    @cached_property
    def code(self) -> str:
        found = re.search(r"```python\n(.*?)```", self.text, re.DOTALL)
        return "" if found is None else found[1]

    @cached_property
    def tree(self) -> ast.Module:
        """The reproducer, empty where there is none or where it is no Python."""
        try:
            return ast.parse(self.code)
        except SyntaxError:
            return ast.Module([], [])

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """What each backend of the table does."""
        return dict(re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", self.text))

    @cached_property
    def compiler_modules(self) -> frozenset[str]:
        """What a compiler that is not torch's needs, as the report says."""
        return frozenset(re.findall(r"`(\w+)`", self.paragraph(issue.COMPILER)))

    @property
    def compiler_imports(self) -> frozenset[str]:
        """These as `_unused` names them: an import alone may register a backend."""
        return frozenset(f"the import {name}" for name in self.compiler_modules)

    @property
    def calls(self) -> Iterator[str]:
        """The names of what the reproducer calls, without what comes before the last dot."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func).rpartition(".")[2]


def _title(report: Report) -> str:
    title = report.paragraph(issue.TITLE)
    if not title:
        return f"no line begins with {issue.TITLE!r}"
    if _VAGUE.match(title):
        return f"the title says nothing: {title!r}"
    return f"{len(title)} characters" if len(title) > MAX_TITLE else ""


def _minimal(report: Report) -> str:
    if not report.tree.body:
        return "there is no reproducer, or it is no Python"
    classes = [node for node in report.tree.body if isinstance(node, ast.ClassDef)]
    inside = {i for node in classes for i in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = [
        line
        for i, line in enumerate(report.code.splitlines(), start=1)
        if line.strip() and not line.strip().startswith("#") and i not in inside
    ]
    if len(lines) > MAX_LINES:
        return f"{len(lines)} lines of code, and at most {MAX_LINES} are wanted"
    unused = [name for name in _unused(report.tree) if name not in report.compiler_imports]
    return f"nothing uses {', '.join(unused)}" if unused else ""


def _unused(tree: ast.Module) -> Iterator[str]:
    """Names that the reproducer imports or defines at its top, and never reads."""
    read = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for node in tree.body:
        match node:
            case ast.Import(names) | ast.ImportFrom(names=names):
                for alias in names:
                    name = alias.asname or alias.name.split(".")[0]
                    if name not in read:
                        yield f"the import {name}"
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                if name not in read and not node.decorator_list:
                    yield name


def _alone(report: Report) -> str:
    found: set[str] = set()
    for node in ast.walk(report.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    strange = sorted(found - _ALLOWED_IMPORTS - report.compiler_modules)
    if "torch" not in found:
        return "it does not import torch"
    return f"it imports {', '.join(strange)}" if strange else ""


def _asserts(report: Report) -> str:
    asserts = any(isinstance(node, ast.Assert) for node in ast.walk(report.tree))
    return "" if asserts or "assert_close" in report.calls else "the reproducer has no assertion"


def _tolerances(report: Report) -> str:
    for node in ast.walk(report.tree):
        if isinstance(node, ast.Call):
            given = {keyword.arg for keyword in node.keywords} & {"rtol", "atol"}
            if given or ast.unparse(node.func) == "torch.allclose":
                return f"{ast.unparse(node.func)} has tolerances of its own"
    return ""


def _reference(report: Report) -> str:
    said = report.paragraph(issue.REFERENCE)
    if not said:
        return f"no paragraph begins with {issue.REFERENCE!r}"
    if said.startswith("none,"):
        return "" if "because" in said else "no reason why there is none"
    numbers = [float(number) for number in re.findall(r"by at most ([-+.\w]+?)[,.](?:\s|$)", said)]
    if len(numbers) != 2:
        return "not both errors are there: eager's and the compiled function's"
    return (
        "" if not numbers[1] <= numbers[0] else "the compiled function is no farther from float64 than eager"
    )


def _deterministic(report: Report) -> str:
    found = re.match(r"(\d+) of (\d+) runs", report.paragraph(issue.REPEATED))
    if found is None or found[1] != found[2] or int(found[2]) < 2:
        return "not all of at least two runs fail"
    if _draws(report.tree) and not (issue.FALLBACK_RANDOM in report.code and "manual_seed" in report.code):
        return "it draws random numbers without fallback_random or without a seed before each side"
    return ""


def _draws(tree: ast.Module) -> bool:
    """Whether something draws; a dropout that is given False is switched off."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            is_off = any(isinstance(value, ast.Constant) and value.value is False for value in given)
            if name in _DRAWING or (name.endswith("dropout") and not is_off):
                return True
    return False


_DRAWING = frozenset(
    {"rand", "randn", "randint", "rand_like", "randn_like", "bernoulli", "uniform_", "normal_", "multinomial"}
)


def _versions(report: Report) -> str:
    place = report.text.partition("### Versions")[2]
    missing = [name for name in ("PyTorch version:", "Python version:", "OS:") if name not in place]
    if missing:
        return f"missing: {', '.join(missing)}"
    private = re.search(r"/(?:home|root|Users|work|tmp)/\S*", report.text)
    return f"a path of this machine: {private[0]}" if private else ""


def _ablation(report: Report) -> str:
    missing = [name for name in BACKENDS if name not in report.verdicts]
    if missing:
        return f"not run: {', '.join(missing)}"
    least = next((name for name in BACKENDS if report.verdicts[name].startswith("differs")), None)
    if report.paragraph(issue.COMPILER):
        return f"torch's own backend {least} differs as well" if least is not None else ""
    labels = re.findall(r"`(module: [^`]+)`", report.paragraph(issue.LABELS))
    if least is None and "aot_function" in report.code:
        least = "aot_eager"  # AOTAutograd without Dynamo
    if least is None:
        return "no backend shows it"
    return "" if labels == [_LABELS[least]] else f"{least} is the least that differs: {_LABELS[least]!r}"


def _both_sides(report: Report) -> str:
    missing = [begin for begin in (issue.OBSERVED, issue.EXPECTED) if not report.paragraph(begin)]
    return f"no paragraph begins with {', '.join(missing)}" if missing else ""


def _ties(report: Report) -> str:
    if "assert_close" not in report.calls:
        return ""
    indices = [node.attr for node in ast.walk(report.tree) if isinstance(node, ast.Attribute)]
    found = sorted(_TIES & {*report.calls, *indices})
    return f"it compares what {', '.join(found)} makes, in which ties count" if found else ""


def _realistic(report: Report) -> str:
    return "" if report.paragraph(issue.REALISTIC) else f"no paragraph begins with {issue.REALISTIC!r}"


def _duplicates(report: Report) -> str:
    said = report.paragraph(issue.DUPLICATES)
    if re.match(r"#\d+ reports the same", said) or said.startswith("no upstream issue"):
        return ""
    return f"no paragraph begins with {issue.DUPLICATES!r} and names an issue, or says that none is known"


CHECKS = (
    Check("title", "says what is wrong, and in which layer", "give the case a note", _title),
    Check(
        "minimal",
        f"at most {MAX_LINES} lines of code, nothing unused",
        "reduce the case: aotfuzz reduce, aotfuzz corpus minimize",
        _minimal,
    ),
    Check(
        "torch alone",
        "needs torch alone, or the compiler that it names",
        "choose a target that ships with torch or with aotfuzz",
        _alone,
    ),
    Check("asserts", "the reproducer ends with an assertion that fails", "add one", _asserts),
    Check(
        "default tolerances",
        "no rtol or atol",
        "what the default allows is no report; scale the program so that it shows more",
        _tolerances,
    ),
    Check(
        "float64 reference",
        "how far eager and the compiled function are from float64",
        "what is no farther from it than eager is no fault",
        _reference,
    ),
    Check(
        "deterministic",
        "every run fails; fallback_random and a seed where the program draws",
        "run it again; a difference that comes and goes needs a cause first",
        _deterministic,
    ),
    Check("versions", "PyTorch, Python and OS, no private path", "take what collect_env prints", _versions),
    Check(
        "ablation",
        "which backends differ, and the label of the least one",
        "run all four; what no backend shows is not torch.compile's",
        _ablation,
    ),
    Check("both sides", "what is observed, and what was expected", "say both", _both_sides),
    Check("no ties", "compares no index of a maximum", "compare the values instead", _ties),
    Check("realistic", "what real code does the like", "add a pattern to realism.py", _realistic),
    Check(
        "duplicates",
        "names the issue that reports the same, or says that none is known",
        "search, and record the number: aotfuzz corpus add --issue, or the field of the file",
        _duplicates,
    ),
)
"""All thirteen, in the order of a report."""


def check_issue(text: str) -> list[Point]:
    """The points of a report, in order.

    >>> [point.check.name for point in check_issue("Title: [Inductor] erf of small numbers is 0")][:1]
    ['title']
    """
    report = Report(text)
    return [Point(check, check.find_problem(report)) for check in CHECKS]
