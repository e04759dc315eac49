"""The command line: `aotfuzz run`, `replay`, `reduce`, `show`, `repro` and `targets`.

Exit status 0 means that it ran and nothing is new, 1 that there are findings (for `replay` and `reduce`: that
something is not as its file says), 2 that the request or the set-up was wrong. With `--json` the last line of
stdout is one JSON object and everything else goes to stderr. torch is imported by the subcommands, not here.

    aotfuzz run --target torch-aot-eager --seconds 120 --seed 0
    aotfuzz replay corpus --target aot
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fuzz.errors import ConfigurationError, CorpusError, FuzzError

if TYPE_CHECKING:
    from fuzz.campaign.driver import Configuration
    from fuzz.corpus import Case

NOTHING_NEW = 0
FINDINGS = 1
WRONG = 2
DEFAULT_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default the process's own) and give its exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except FuzzError as error:
        print(f"aotfuzz: {error}", file=sys.stderr)
        return WRONG
    except BrokenPipeError:
        # Whoever read our output has left; there is no one to tell.
        sys.stderr.close()
        return WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aotfuzz",
        description="Find programs for which a PyTorch compiler differs from eager in what a user can see.",
        epilog="Exit status: 0 ran, nothing new; 1 findings; 2 usage or set-up error.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_replay(commands)
    target_help = "a name from `aotfuzz targets`, or package.module:function"

    reduce = commands.add_parser("reduce", help="make a corpus file's program smaller")
    reduce.add_argument("file", type=Path, metavar="FILE")
    reduce.add_argument("--target", required=True, metavar="T", help=target_help)
    reduce.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: stdout)")
    reduce.set_defaults(command=_reduce)

    show = commands.add_parser("show", help="print a corpus file's source, arguments and what differs")
    show.add_argument("file", type=Path, metavar="FILE")
    show.set_defaults(command=_show)

    repro = commands.add_parser("repro", help="print a script that shows the difference with torch alone")
    repro.add_argument("file", type=Path, metavar="FILE")
    repro.add_argument("--target", metavar="T", help="for another target than the one of the file")
    repro.set_defaults(command=_repro)

    targets = commands.add_parser("targets", help="list the compilers that can be tested")
    targets.add_argument("--json", action="store_true")
    targets.set_defaults(command=_targets)
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser("run", help="run a campaign")
    run.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="T",
        help="a name from `aotfuzz targets`, or package.module:function; may be given several times",
    )
    bound = run.add_mutually_exclusive_group()
    bound.add_argument(
        "--seconds", type=_positive, metavar="S", help=f"stop after that time (default: {DEFAULT_SECONDS:g})"
    )
    bound.add_argument("--cases", type=_count, metavar="N", help="stop after that many programs")
    run.add_argument("--seed", type=_seed, default=0, metavar="K", help="which programs (default: 0)")
    run.add_argument("--jobs", type=_count, metavar="J", help="worker processes (default: the cores)")
    run.add_argument(
        "--profile", default="mixed", metavar="P", help="which kind of programs (default: mixed)"
    )
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="where results go (default: a new folder in ./campaigns)"
    )
    run.add_argument(
        "--case-timeout",
        type=_positive,
        default=30.0,
        metavar="S",
        help="seconds that one case may take (default: 30)",
    )
    run.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    run.set_defaults(command=_run)


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser("replay", help="run recorded cases again")
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
    replay.add_argument("--jobs", type=_count, metavar="J", help="worker processes (default: the cores)")
    replay.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line of stdout"
    )
    replay.set_defaults(command=_replay)


def _run(options: argparse.Namespace) -> int:
    from fuzz import report
    from fuzz.campaign.driver import Campaign
    from fuzz.campaign.live import watching
    from fuzz.campaign.store import Store

    stream = _stream(options)
    configuration = _configuration(options)
    folder = options.out or _new_folder(configuration.seed)
    store = Store(folder, _described(configuration))
    try:
        print(f"Results go to {folder}", file=sys.stderr, flush=True)
        with watching(configuration, sys.stderr) as watch:
            summary = Campaign(configuration, store, watch).run()
        print(report.campaign(summary), file=stream)
        if options.json:
            print(json.dumps(report.as_json(summary)))
    finally:
        store.close()
    if summary.troubles:
        return WRONG
    return FINDINGS if summary.total("findings") else NOTHING_NEW


def _configuration(options: argparse.Namespace) -> Configuration:
    """The campaign that the options ask for; FuzzError if it cannot be had here."""
    import torch

    from fuzz.campaign.driver import Configuration, workers
    from fuzz.profiles import PROFILES
    from fuzz.targets import usable

    if options.profile not in PROFILES:
        raise ConfigurationError(f"no profile named {options.profile!r}; there are {', '.join(PROFILES)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("--device cuda: torch sees no CUDA device here")
    seconds = options.seconds
    if seconds is None and options.cases is None:
        seconds = DEFAULT_SECONDS
    return Configuration(
        targets=tuple(target.name for target in usable(options.target)),
        seed=options.seed,
        profile=options.profile,
        device=options.device,
        jobs=options.jobs or workers(),
        seconds=seconds,
        cases=options.cases,
        limit=options.case_timeout,
    )


def _described(configuration: Configuration) -> dict[str, Any]:
    """What the store keeps of a campaign's set-up."""
    import platform

    import torch

    return {
        "targets": configuration.targets,
        "seed": configuration.seed,
        "profile": configuration.profile,
        "device": configuration.device,
        "jobs": configuration.jobs,
        "seconds": configuration.seconds,
        "cases": configuration.cases,
        "limit": configuration.limit,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _new_folder(seed: int) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    parent = Path("campaigns")
    names = (f"{stamp}-seed{seed}{suffix}" for suffix in ("", *(f"-{count}" for count in range(2, 100))))
    return next(folder for name in names if not (folder := parent / name).exists())


def _replay(options: argparse.Namespace) -> int:
    from fuzz import report
    from fuzz.campaign.driver import workers
    from fuzz.campaign.replay import replay
    from fuzz.corpus import files, read
    from fuzz.targets import usable

    stream = _stream(options)
    targets = [target.name for target in usable(options.target)]
    cases: list[tuple[Path, Case]] = []
    errors: list[CorpusError] = []
    for file in files(options.paths or [Path("corpus")]):
        try:
            cases.append((file, read(file)))
        except CorpusError as error:
            errors.append(error)
            print(f"aotfuzz: {error}", file=sys.stderr)
    rows = replay(cases, targets, jobs_at_once=options.jobs or workers()) if cases else []
    if rows:
        print(report.replay(rows), file=stream)
    unexpected = sum(not row.as_expected for row in rows)
    print(f"{len(rows)} replayed, {unexpected} not as expected, {len(errors)} unreadable", file=sys.stderr)
    if options.json:
        print(json.dumps(report.replay_as_json(rows, errors)))
    if errors:
        return WRONG
    return FINDINGS if unexpected else NOTHING_NEW


def _reduce(options: argparse.Namespace) -> int:
    from fuzz import corpus
    from fuzz.campaign.reduction import reduce_case
    from fuzz.targets import usable

    case = corpus.read(options.file)
    (target,) = usable([options.target])
    reduced = reduce_case(case, target.name)
    if reduced.case is None:
        print(f"aotfuzz: {options.file}: {reduced.said}", file=sys.stderr)
        return FINDINGS
    print(reduced.said, file=sys.stderr)
    if options.out is None:
        sys.stdout.write(corpus.dumps(reduced.case))
    else:
        try:
            corpus.write(options.out, reduced.case)
        except OSError as error:
            raise ConfigurationError(f"cannot write {options.out}: {error.strerror or error}") from error
    return NOTHING_NEW if reduced.as_recorded else FINDINGS


def _show(options: argparse.Namespace) -> int:
    from fuzz import corpus, report

    print(report.case(options.file, corpus.read(options.file)))
    return NOTHING_NEW


def _repro(options: argparse.Namespace) -> int:
    from fuzz import corpus, repro
    from fuzz.targets import find

    case = corpus.read(options.file)
    target = options.target or case.origin.target
    if options.target:
        find(target)
    sys.stdout.write(repro.script(case.program, target, repro.main_finding(case)))
    return NOTHING_NEW


def _targets(options: argparse.Namespace) -> int:
    from fuzz.targets import SHIPPED

    rows = [(target.name, target.description, target.available()) for target in SHIPPED.values()]
    if options.json:
        keys = ("name", "description", "unavailable")
        print(json.dumps({"targets": [dict(zip(keys, row, strict=True)) for row in rows]}))
        return NOTHING_NEW
    for name, description, reason in rows:
        print(f"{name:20} {description}" + (f" (unavailable: {reason})" if reason else ""))
    print("package.module:function   anybody's: function(f) returns f compiled")
    return NOTHING_NEW


def _stream(options: argparse.Namespace) -> TextIO:
    """Where text for people goes."""
    return sys.stderr if options.json else sys.stdout


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


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not in 0..2**63-1")
    return value


if __name__ == "__main__":
    sys.exit(main())
