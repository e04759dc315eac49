"""A report of one case as Markdown: for PyTorch's bug template, or to the makers of another compiler.

In: a case, its finding, a `Reproducer`, and the `Evidence` that runs of it gave. Out: text. Its headings are
those of PyTorch's template. A report of another compiler names it and its version in place of labels.
`fuzz.repro.issue_checks` says what a report must have.
Invariant: of this machine a report holds versions alone, no path and no host name.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from packaging.version import Version

from fuzz.corpus.case_file import Case
from fuzz.corpus.dates import AGREES, DIFFERS
from fuzz.corpus.headline import headline
from fuzz.ir.nodes import Program
from fuzz.program.printer import upcast
from fuzz.repro import probes
from fuzz.repro.compilers import Compiler
from fuzz.repro.realism import describe_realism
from fuzz.repro.script import compiler_for, repro_script
from fuzz.repro.short_script import ShortScript, short_script
from fuzz.safe_text import one_line
from oracles import Finding

__all__ = ["Evidence", "Reproducer", "issue_text", "reproducer_for", "versions_text"]

EXPECTED, OBSERVED, REALISTIC = "Expected:", "Observed:", "How realistic it is:"
REFERENCE, ABLATION, LABELS = "Float64 reference:", "Ablation:", "Labels:"
DUPLICATES, REPEATED, TITLE = "Duplicates:", "Repeated:", "Title:"
COMPILER = "Compiler:"
"""What the paragraphs of a report begin with."""
FALLBACK_RANDOM = "torch._inductor.config.fallback_random = True"
REFERENCE_MARK = "aotfuzz-errors:"
"""The line of the reference script that has both errors begins with it."""
_LONGEST = 200
_PATH = re.compile(r"(?:/[\w.+@-]+)+/(?=[\w.+-])")
_STAMP = re.compile(r"(?m)^[VIWE]\d{4} .*\n?")


@dataclass(frozen=True, slots=True)
class Reproducer:
    """The scripts of a report.

    Attributes:
        compiler: the compiler under test.
        text: ends with an assertion that fails while the difference is there.
        compiled: the function compiled, as its text has it.
        by_backend: the same for each of torch's backends.
        reference: prints the errors of both sides against float64; "" where rounding has no part.
        what: what is looked at, in words.
    """

    compiler: Compiler
    text: str
    compiled: str
    by_backend: Mapping[str, str]
    reference: str
    what: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What runs of the reproducer gave.

    Attributes:
        output: what it printed, and its failure.
        runs: how often it was run, each in a new process.
        failed: how often its assertion failed.
        verdicts: for each of torch's backends, "differs", "agrees" or what it did otherwise.
        errors: the largest distance from float64 of eager and of the compiled function; None if not asked.
        layer, label: the layer that follows from the backends, and its label in PyTorch's triage.
    """

    output: str
    runs: int
    failed: int
    verdicts: Mapping[str, str]
    errors: tuple[float, float] | None
    layer: str
    label: str


def reproducer_for(program: Program, target: str, finding: Finding, backends: tuple[str, ...]) -> Reproducer:
    """The scripts of a report on a finding.

    Raises:
        TargetError: there is no such target.
    """
    compiler = _plain(compiler_for(program, target))
    short = short_script(program, compiler, finding)
    if short is None:
        return _long_reproducer(program, compiler, finding, backends)
    end = [_assertion(short)]
    setup = f"import torch._inductor.config\n\n{FALLBACK_RANDOM}" if short.draws else ""
    own = "\n".join(line for line in (compiler.setup, _weak_setup(short), setup) if line)
    return Reproducer(
        compiler,
        short.text_with(short.compiled, end, own),
        short.compiled,
        {name: short.text_with(_with_backend(name), end, own) for name in backends},
        _reference_script(program, compiler, finding, short),
        short.probe.what,
    )


def _plain(compiler: Compiler) -> Compiler:
    """The compiler as users have it: what makes a campaign's runs alike is left out."""
    if compiler.name in ("torch-inductor", "torch-inductor-strict"):
        options = ', options={"numerics": "strict"}' if compiler.name.endswith("strict") else ""
        return replace(compiler, setup="", compiled=f"torch.compile(f{options})")
    return compiler


def _with_backend(name: str) -> str:
    return f'torch.compile(f, backend="{name}")'


def _weak_setup(short: ShortScript) -> str:
    return next((line for line in short.setup.splitlines() if "StorageWeakRef" in line), "")


def _assertion(short: ShortScript) -> str:
    """The assertion: on elements with torch's default tolerances."""
    if short.probe.kind == probes.VALUES:
        nan = ", equal_nan=True" if "equal_nan" in short.is_same else ""
        return f"torch.testing.assert_close(target, eager{nan})"
    same = (
        short.is_same.replace("eager", "TEMPORARY").replace("target", "eager").replace("TEMPORARY", "target")
    )
    return f'assert {same}, f"{{target}} instead of {{eager}}"'


def _long_reproducer(
    program: Program, compiler: Compiler, finding: Finding, backends: tuple[str, ...]
) -> Reproducer:
    """The script that looks at everything, with an assertion at its end."""
    text = repro_script(program, compiler.name, finding, long=True)
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    text = "\n".join(lines).lstrip("\n")
    end = 'print("eager and the target differ" if differences else "no difference")\n'
    text = text.replace(end + "sys.exit(1 if differences else 0)", "assert not differences, differences")
    text = text.replace(
        "sys.exit(0 if status == 0 else 1)", 'assert status == 0, f"it ends with status {status}"'
    )
    if not re.search(r"\bsys\.", text):
        text = re.sub(r"\A(.*)^import sys\n", r"\1", text, flags=re.DOTALL | re.MULTILINE)
    compiled, by_backend = compiler_for(program, compiler.name).compiled, {}
    if compiled in text and compiled != "f":
        by_backend = {name: text.replace(compiled, _with_backend(name)) for name in backends}
    what = f"what its clause, {finding.clause}, is about"
    return Reproducer(compiler, f"{text}\n", compiler.compiled, by_backend, "", what)


def _reference_script(program: Program, compiler: Compiler, finding: Finding, short: ShortScript) -> str:
    """Prints how far both sides are from the same function in float64; "" where nothing is rounded."""
    twin = upcast(program) if short.probe.kind == probes.VALUES and not program.later else None
    double = None if twin is None else short_script(twin, compiler, finding)
    if double is None:
        return ""
    return "\n".join(
        [
            short.text_with(short.compiled, [], _weak_setup(short)),
            double.definitions,
            "",
            "",
            double.run,
            "",
            "",
            "reference = run(f)",
            "if eager.is_floating_point() or eager.is_complex():",
            "    errors = [(side - reference).abs().double() for side in (eager, target)]",
            "    shown = [error.max().item() if error.numel() else 0.0 for error in errors]",
            f'    print("{REFERENCE_MARK}", *shown)',
        ]
    )


def issue_text(case: Case, finding: Finding, made: Reproducer, evidence: Evidence) -> str:
    """The report, ready to paste."""
    parts = [
        f"{TITLE} {_title(case, finding, made, evidence)}",
        "### 🐛 Describe the bug",
        *_both_sides(case, finding, made),
        f"```python\n{made.text.rstrip()}\n```",
        f"{REPEATED} {evidence.failed} of {evidence.runs} runs, each in a new process, end with this failure."
        f" Each side starts from arguments of its own{_seeding(made.text)}.",
        f"{REFERENCE} {_reference_words(made, evidence)}",
        f"{ABLATION}\n\n{_ablation_table(evidence)}",
        _addressee(made, evidence),
        *_since(case),
        f"{REALISTIC} {describe_realism(case.program)}",
        f"{DUPLICATES} {_duplicates(case)}",
        "### Error logs",
        f"```text\n{clean_output(evidence.output)}\n```",
        "### Versions",
        f"```text\n{versions_text(made.compiler.distributions)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _both_sides(case: Case, finding: Finding, made: Reproducer) -> tuple[str, str]:
    """What is observed and what was expected, a sentence each."""
    eager, target = (_shorten(text) for text in (finding.eager, finding.target))
    note = _note(case, finding)
    said = f"{note[:1].upper()}{note[1:]}: "
    given = f"gives `{target}` for" if target else "gives something else than eager for"
    wanted = f"`{eager}`, as in eager" if eager else "the same as in eager"
    place = re.search(r"at element \([\d, ]*\)(?= first,)", finding.message)
    where = "" if place is None else f", {place[0]}"
    return (
        f"{OBSERVED} {said}`{made.compiled}` {given} {made.what}{where}.",
        f"{EXPECTED} {wanted}.",
    )


def _note(case: Case, finding: Finding) -> str:
    """The case in a few words: a campaign notes the finding's message, which says it less well."""
    return case.note if case.note and case.note != finding.message else headline(finding, case.program)


def _title(case: Case, finding: Finding, made: Reproducer, evidence: Evidence) -> str:
    owner = evidence.layer or ("torch.compile" if made.compiler.is_torch else made.compiler.name)
    return f"[{owner}] {_note(case, finding)}"


def _addressee(made: Reproducer, evidence: Evidence) -> str:
    """Whose fault it is: labels for PyTorch's triage, or the other compiler and what it comes in."""
    if made.compiler.is_torch or evidence.layer:
        labels = ["oncall: pt2", "topic: fuzzer", *([evidence.label] if evidence.label else [])]
        return f"{LABELS} {', '.join(f'`{label}`' for label in labels)}"
    found = [f"{name} {version}" for name, version in _versions_of(made.compiler.distributions)]
    modules = [f"`{module}`" for module in made.compiler.modules]
    words = [f"`{made.compiled}`", *([f"which needs {', '.join(modules)}"] if modules else [])]
    return f"{COMPILER} {', '.join([*words, *found])}. torch's own backends, above, do it right."


def _seeding(text: str) -> str:
    return " and from the same seed" if "manual_seed(" in text else ""


def _reference_words(made: Reproducer, evidence: Evidence) -> str:
    if evidence.errors is not None:
        eager, target = evidence.errors
        return (
            f"against the same function in float64, eager is off by at most {eager:.3g}, and "
            f"`{made.compiled}` by at most {target:.3g}."
        )
    if made.reference:
        return "none, because what differs is no floating point number; nothing is rounded."
    return "none, because what differs is not the elements of a tensor; nothing is rounded."


def _ablation_table(evidence: Evidence) -> str:
    rows = [f"| `{backend}` | {one_line(said)} |" for backend, said in evidence.verdicts.items()]
    layer = f"\n\nSo the layer is {evidence.layer}." if evidence.layer else ""
    return "\n".join(["| `torch.compile(backend=...)` | against eager |", "| --- | --- |", *rows]) + layer


def _since(case: Case) -> list[str]:
    """Under which versions of torch it was seen, where the file tells."""
    seen = case.dated.get(case.origin.target) or next(
        (states for states in case.dated.values() if DIFFERS in states.values()), {}
    )
    if not seen:
        return []
    by_state: dict[str, list[str]] = {}
    for version, state in seen.items():
        by_state.setdefault(state, []).append(version)
    said = "Since when: it " + "; ".join(
        f"{state} in torch {', '.join(versions)}" for state, versions in by_state.items()
    )
    said += "."
    if max(seen.items(), key=lambda item: Version(item[0]))[1] == AGREES:
        said += (
            " The newest of them is right, so there is nothing to report unless it is still wrong in main."
        )
    return [said]


def _duplicates(case: Case) -> str:
    if case.issue is not None:
        return f"#{case.issue} reports the same: this belongs there as a comment, and needs no new issue."
    return (
        "no upstream issue is recorded for this case. Search for its operators and its error before sending."
    )


def _shorten(text: str) -> str:
    text = clean_output(one_line(text)).replace("`", "'")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def clean_output(text: str) -> str:
    """Output without log lines and without the folders of this machine.

    >>> clean_output("/home/me/site-packages/torch/x.py fails")
    'x.py fails'
    """
    lines = [line.rstrip() for line in _STAMP.sub("", text).strip().splitlines()]
    if len(lines) > 40:
        lines = [*lines[:20], "...", *lines[-19:]]
    return _PATH.sub("", "\n".join(lines))


def _versions_of(distributions: tuple[str, ...]) -> list[tuple[str, str]]:
    """The versions of those that are installed."""
    found = []
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(name)))
    return found


def versions_text(distributions: tuple[str, ...] = ()) -> str:
    """Versions, one a line, by the names of `torch.utils.collect_env`, and no name of a machine."""
    libc = " ".join(part for part in platform.libc_ver() if part)
    return "\n".join(
        [
            f"PyTorch version: {torch.__version__}",
            f"PyTorch commit: {torch.version.git_version}",
            f"Is debug build: {torch.version.debug}",
            f"CUDA used to build PyTorch: {torch.version.cuda or 'none'}",
            f"OS: {platform.system()} ({platform.machine()})",
            f"Libc version: {libc or 'unknown'}",
            f"Python version: {platform.python_version()}",
            *(f"{name} version: {version}" for name, version in _versions_of(distributions)),
        ]
    )
