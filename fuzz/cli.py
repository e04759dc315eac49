"""CLI: the command line's options. `fuzz.commands` has what each subcommand does.

Exit status 0 means that the command ran and found nothing new. The others are:

- 1: something is new. For `run` it is a bucket that is no known issue, for `compare` something that appeared
  or changed, for `replay` and `reduce` a case that is not as its file says, for `doctor` something missing or
  wrong.
- 2: the request or the set-up was wrong.
- 3: nothing is new, and a known issue no longer reproduces.
- 130: a Ctrl-C ended it at once. In a campaign that is the second one; after the first it reports its
  findings.

With `--json` the last line of stdout is one JSON object, and everything else goes to stderr.

    aotfuzz run --target torch-aot-eager --seconds 120 --seed 0
    aotfuzz compare --python old/bin/python --python new/bin/python --target torch-aot-eager
    aotfuzz replay corpus --target aot

Invariant: nothing heavy is imported here.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz.commands.output import INTERRUPTED, WRONG, say
from fuzz.errors import FuzzError

_TARGET = "a name from `aotfuzz targets`, backend:NAME of torch.compile, or package.module:function"
_JSON = "print one JSON object as the last line of stdout"
_DEVICE = "where programs run: cpu, cuda, or cpu,cuda: on each, and compared with each other (default: cpu)"
_JOBS = "worker processes, on each node of a cluster (default: the cores; at most 8 for each GPU)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default the process's own, and return its exit status."""
    options = _command_line_parser().parse_args(arguments)
    module, _, name = options.command.partition(":")
    command: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(f"fuzz.commands.{module}"), name
    )
    try:
        return command(options)
    except FuzzError as error:
        say(f"aotfuzz: {error}", sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        say("aotfuzz: interrupted; what a campaign has stored is intact (aotfuzz resume DIR)", sys.stderr)
        return INTERRUPTED


def _command_line_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aotfuzz",
        description="Find programs for which a PyTorch compiler differs from eager in what a user can see.",
        epilog="Exit status: 0 ran, nothing new; 1 findings (compare: something appeared or changed); "
        "2 usage or set-up error; "
        "3 nothing new, and a known issue no longer reproduces.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_compare(commands)
    _add_resume(commands)
    _add_reports(commands)
    _add_replay(commands)
    _add_corpus(commands)
    _add_bisect(commands)

    reduce = _command(commands, "reduce", "cases:reduce", "make a corpus file's program smaller")
    reduce.add_argument("file", type=Path, metavar="FILE")
    reduce.add_argument("--target", required=True, metavar="T", help=_TARGET)
    reduce.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: stdout)")

    minify = _command(commands, "minify", "cases:minify", "make a function of yours smaller")
    minify.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="what gives the function and its arguments, in a tuple, when it is called without any",
    )
    minify.add_argument("--target", required=True, metavar="T", help=_TARGET)
    minify.add_argument(
        "--evaluations",
        type=_count,
        default=500,
        metavar="N",
        help="candidates to try at most (default: 500)",
    )

    show = _command(commands, "show", "cases:show", "print corpus files: source, arguments and what differs")
    show.add_argument("files", nargs="+", type=Path, metavar="FILE")

    repro = _command(commands, "repro", "cases:repro", "print a script that shows a case with torch alone")
    repro.add_argument("file", type=Path, metavar="FILE")
    repro.add_argument("--target", metavar="T", help="for another target than the one of the file")
    repro.add_argument(
        "--format",
        choices=("script", "issue"),
        default="script",
        help="issue: Markdown for PyTorch's bug template, or for the compiler's makers; it runs the case",
    )
    repro.add_argument(
        "--check", action="store_true", help="with --format issue: say which of the 13 points it has"
    )

    targets = _command(commands, "targets", "cases:targets", "list the compilers that can be tested")
    targets.add_argument("--json", action="store_true")

    traits = _command(
        commands, "traits", "installation:traits", "list what programs have, and a target may lack or decline"
    )
    traits.add_argument("--json", action="store_true", help=_JSON)

    probe = _command(
        commands, "probe", "target_probes:probe", "ask a target what it takes, one thing at a time"
    )
    probe.add_argument("--target", required=True, metavar="T", help=_TARGET)
    probe.add_argument(
        "--out", type=Path, metavar="FILE", help="the capability file (default: TARGET.toml), see `run`"
    )
    probe.add_argument("--all", action="store_true", help="each trait in a line, not one screen of them")
    _add_case_timeout(probe)
    probe.add_argument("--jobs", type=_count, metavar="J", help=_JOBS)
    probe.add_argument("--json", action="store_true", help=_JSON)

    doctor = _command(
        commands, "doctor", "installation:doctor", "say whether all works with the torch that is installed"
    )
    doctor.add_argument("--json", action="store_true", help=_JSON)
    return parser


def _command(commands: Any, name: str, function: str, text: str) -> Any:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=function)
    return parser


def _add_run(commands: Any) -> None:
    run = _command(commands, "run", "campaigns:run", "run a campaign")
    run.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="T",
        help=f"{_TARGET}; may be given several times",
    )
    _add_bounds(run, "stop after that time (default: 60)", "stop after that many programs")
    _add_programs(run)
    run.add_argument(
        "--clauses",
        type=_names,
        default=(),
        metavar="NAMES",
        help="judge these clauses of docs/reference/contract.md alone, or sets of them: everything, "
        "torch.compile, training, inference, results (default: all that a target promises)",
    )
    run.add_argument(
        "--without", type=_names, default=(), metavar="NAMES", help="do not judge these clauses or sets"
    )
    run.add_argument(
        "--capabilities",
        type=Path,
        metavar="FILE",
        help="draw no program that has what this file of `aotfuzz probe` leaves out",
    )
    run.add_argument("--jobs", type=_count, metavar="J", help=_JOBS)
    _add_folder(run)
    run.add_argument(
        "--cluster",
        default="",
        metavar="WHERE",
        help="run on a Dask cluster: the address of its scheduler, or local:N for N nodes on this machine",
    )
    _add_known(run)
    run.add_argument("--json", action="store_true", help=_JSON)


def _add_compare(commands: Any) -> None:
    compare = _command(
        commands, "compare", "comparisons:compare", "run the same programs under two torches, and compare"
    )
    compare.add_argument(
        "--python",
        action="append",
        required=True,
        metavar="FILE",
        help="an interpreter with a torch of its own; given twice: before, after",
    )
    compare.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="T",
        help=f"{_TARGET}; may be given several times",
    )
    compare.add_argument(
        "--cases", type=_count, default=1000, metavar="N", help="so many programs (default: 1000)"
    )
    _add_programs(compare)
    compare.add_argument("--jobs", type=_count, metavar="J", help=_JOBS)
    _add_folder(compare)
    compare.add_argument("--json", action="store_true", help=_JSON)


def _add_programs(parser: Any) -> None:
    parser.add_argument("--seed", type=_seed, default=0, metavar="K", help="which programs (default: 0)")
    parser.add_argument(
        "--profile",
        default="mixed",
        metavar="P",
        help="which kind of programs, or package.module:NAME of a Profile of yours (default: mixed)",
    )
    parser.add_argument(
        "--operators",
        type=_names,
        default=(),
        metavar="NAMES",
        help="programs of these operators alone, of those that `aotfuzz traits` lists; * stands for anything",
    )
    parser.add_argument(
        "--without-operators", type=_names, default=(), metavar="NAMES", help="programs without these"
    )
    parser.add_argument("--device", type=_device, default="cpu", metavar="D", help=_DEVICE)


def _add_folder(parser: Any) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where results go (default: a new folder in ./campaigns)"
    )
    _add_case_timeout(parser)


def _add_case_timeout(parser: Any) -> None:
    parser.add_argument(
        "--case-timeout",
        type=_positive,
        default=30.0,
        metavar="S",
        help="seconds that one case may take (default: 30)",
    )


def _add_resume(commands: Any) -> None:
    resume = _command(
        commands,
        "resume",
        "campaigns:resume",
        "go on with a campaign or a comparison that was ended, killed or is too short",
    )
    resume.add_argument("folder", type=Path, metavar="DIR")
    _add_bounds(resume, "run until that time, all sessions together", "run until that many programs")
    resume.add_argument("--jobs", type=_count, metavar="J", help=_JOBS)
    _add_known(resume)
    resume.add_argument("--json", action="store_true", help=_JSON)


def _add_bounds(parser: Any, seconds: str, cases: str) -> None:
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--seconds", type=_positive, metavar="S", help=seconds)
    bound.add_argument("--cases", type=_count, metavar="N", help=cases)


def _add_known(parser: Any) -> None:
    parser.add_argument(
        "--known",
        metavar="FILE",
        help="the known issues (default: ./corpus/known.toml, if there is one; none: all is news)",
    )


def _add_reports(commands: Any) -> None:
    report = _command(
        commands,
        "report",
        "campaigns:report",
        "print a campaign or a comparison and write it as an HTML page",
    )
    report.add_argument("folder", type=Path, metavar="DIR")
    report.add_argument(
        "--all", action="store_true", help="every difference, program and reason, not one screen of them"
    )
    report.add_argument("--out", type=Path, metavar="FILE", help="the page (default: DIR/report.html)")
    _add_ci_formats(report, "every bucket")
    _add_import_profile(report)
    report.add_argument("--json", action="store_true", help=_JSON)

    diff = _command(commands, "diff", "campaigns:diff", "compare two campaigns")
    diff.add_argument("before", type=Path, metavar="DIR1")
    diff.add_argument("after", type=Path, metavar="DIR2")
    _add_ci_formats(diff, "each bucket that only DIR2 has")
    _add_import_profile(diff)
    diff.add_argument("--json", action="store_true", help=_JSON)

    history = _command(
        commands, "history", "campaigns:history", "campaigns of many nights as one table and one HTML page"
    )
    history.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    history.add_argument(
        "--out",
        type=Path,
        default=Path("history.html"),
        metavar="FILE",
        help="the page (default: history.html)",
    )
    _add_import_profile(history)
    history.add_argument("--json", action="store_true", help=_JSON)

    export = _command(commands, "export", "campaigns:export", "print a campaign as JSON lines")
    export.add_argument("folder", type=Path, metavar="DIR")
    export.add_argument("--out", type=Path, metavar="FILE", help="where to (default: stdout)")
    _add_import_profile(export)


def _add_import_profile(parser: Any) -> None:
    parser.add_argument(
        "--import-profile",
        action="store_true",
        help="import the module of the campaign's profile, which runs its code: for campaigns of yours",
    )


def _add_ci_formats(parser: Any, what: str) -> None:
    parser.add_argument("--junit", type=Path, metavar="FILE", help=f"write {what} as JUnit XML")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help=f"write {what} as SARIF 2.1.0")


def _add_replay(commands: Any) -> None:
    replay = _command(commands, "replay", "cases:replay", "run recorded cases again")
    replay.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="corpus files or folders (default: ./corpus)"
    )
    replay.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="T",
        help="run on this target (default: on those that each file has an expectation for)",
    )
    replay.add_argument("--jobs", type=_count, metavar="J", help=_JOBS)
    replay.add_argument("--json", action="store_true", help=_JSON)


def _add_corpus(commands: Any) -> None:
    parser = commands.add_parser("corpus", help="keep a folder of recorded cases")
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    add = _command(actions, "add", "corpora:add", "record cases that are not there yet")
    add.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="corpus files, or folders (a campaign's, too)"
    )
    add.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="T",
        help="run them on this target as well, and record what it does",
    )
    add.add_argument("--issue", type=_count, metavar="N", help="the issue's number in pytorch/pytorch")
    add.add_argument("--note", metavar="TEXT", help="one line for people")
    add.add_argument("--jobs", type=_count, metavar="J", help=_JOBS)
    _add_corpus_folder(add)

    listing = _command(actions, "list", "corpora:listing", "list the recorded cases")
    form = listing.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=_JSON)
    form.add_argument("--markdown", action="store_true", help="print what differs as a table for a page")
    _add_corpus_folder(listing)

    check = _command(actions, "check", "corpora:check", "find mistakes in the files, without running them")
    check.add_argument("--fix", action="store_true", help="rewrite files that are not in today's form")
    _add_corpus_folder(check)

    prune = _command(actions, "prune", "corpora:prune", "remove cases that another one makes superfluous")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    _add_corpus_folder(prune)

    minimize = _command(actions, "minimize", "corpora:minimize", "reduce every case on its own target")
    minimize.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="only these files (default: the whole folder)"
    )
    minimize.add_argument("--target", metavar="T", help="on this target instead")
    _add_corpus_folder(minimize)

    date = _command(
        actions, "date", "bisections:date", "record what versions of torch make of each case, and its layer"
    )
    date.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="only these files (default: the whole folder)"
    )
    _add_interpreters(date)
    date.add_argument("--jobs", type=_count, metavar="J", help=_JOBS)
    date.add_argument("--json", action="store_true", help=_JSON)
    _add_corpus_folder(date)


def _add_bisect(commands: Any) -> None:
    bisect = _command(
        commands,
        "bisect",
        "bisections:bisect",
        "find since when a case is wrong, and in which layer of torch",
    )
    bisect.add_argument(
        "what",
        type=Path,
        metavar="CASE|SCRIPT",
        help="a corpus file (.json), or a Python script: status 0 is right, 125 cannot tell, others wrong",
    )
    bisect.add_argument(
        "--script-args", default="", metavar="TEXT", help="arguments of the script, in one text"
    )
    bisect.add_argument("--target", metavar="T", help=f"for a corpus file: {_TARGET} (default: its own)")
    _add_interpreters(bisect)
    bisect.add_argument(
        "--git",
        type=Path,
        metavar="REPO",
        help="over the commits of a repository instead, from --good to --bad",
    )
    bisect.add_argument("--good", metavar="A", help="a commit that is right")
    bisect.add_argument("--bad", metavar="B", help="a later commit that is wrong")
    bisect.add_argument(
        "--build", metavar="COMMAND", help="run by sh in a worktree of each commit, before the case or script"
    )
    bisect.add_argument(
        "--limit",
        type=_positive,
        default=120.0,
        metavar="S",
        help="seconds that one run may take (default: 120)",
    )
    bisect.add_argument("--json", action="store_true", help=_JSON)


def _add_interpreters(parser: Any) -> None:
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PYTHON",
        help="an interpreter with a torch of its own; may be given several times (default: this one)",
    )
    parser.add_argument(
        "--torch",
        action="append",
        default=[],
        metavar="VERSION",
        help="a version that is installed into DIR first, which takes 1 to 5 GB; may be given several times",
    )
    parser.add_argument(
        "--pip-args", default="", metavar="TEXT", help="more arguments for pip install, in one text"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bisection"),
        metavar="DIR",
        help="files go here (default: ./bisection)",
    )


def _add_corpus_folder(parser: Any) -> None:
    parser.add_argument(
        "--corpus", type=Path, default=Path("corpus"), metavar="DIR", help="the folder (default: ./corpus)"
    )


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _names(text: str) -> tuple[str, ...]:
    """Names that commas separate."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("there is no name in it")
    return names


def _device(text: str) -> str:
    names = {"cpu": "cpu", "cuda": "cuda", "cpu,cuda": "both", "both": "both"}  # the names of fuzz.ir.nodes
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is none of cpu, cuda and cpu,cuda")
    return names[text]


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not in 0..2**63-1")
    return value


if __name__ == "__main__":
    sys.exit(main())
