"""A training step of one program under targets, judged by eager's, in processes of their own.

A *word* says what became of it: `as eager`; `otherwise` (numbers are right, strides or other metadata are
not); `wrong`; `raises`, where eager does not; `refused`, on purpose; `over limits` of time or memory; `died`;
`not run`, if eager raises or does something else each time.
"""

from __future__ import annotations

import importlib
import math
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.compiler.programs.program import Make, Program
from bench.fuzzer.cases import forked
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death, Job
from fuzz.targets.catalog import find_target
from fuzz.targets.dynamo_backends import warm_up_with
from fuzz.targets.target import Target
from oracles import Arguments, Backward, Observation, Outcome, judge, observe
from oracles.observation.result_structure import result_tree_nodes
from oracles.rerun.double_by_default import double_by_default

NOT_RUN = "not run"
EAGER_WORDS = ("as eager", "otherwise")
WORDS = (*EAGER_WORDS, "wrong", "raises", "refused", "over limits", "died")
# Differences that are none of numbers, nor of what else a user computes with.
_METADATA = ("strides", "identity", "aliasing", "input-metadata", "versions", "autograd-metadata", "lifetime")
_NO_MEMORY = ("can't allocate memory", "MemoryError", "not enough memory")
_SHORTEST = 1e-3  # seconds that a compile takes at least, so that there are ratios
_START = 600.0  # seconds that a worker may take to be warm
_HERE = "bench.compiler.programs.trial:handle"
_NOTHING_MORE = (Backward(roots=()),)  # the step has taken the gradients itself


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one program under one target; `seconds` of CPU time were taken to compile."""

    name: str
    target: str
    word: str
    reason: str = ""
    seconds: float = 0.0


class TrainingStep:
    """A program's call and its backward, as one function; each is of a program made anew.

    `seconds` is the CPU time of the latest one, with compiling.
    """

    def __init__(self, make: Make, compiler: Callable[..., Any], *, double: bool = False) -> None:
        self._make, self._compiler, self._double = make, compiler, double
        self._program: Program | None = None
        self.seconds = 0.0

    def arguments(self) -> Arguments:
        """What the next step is made of."""
        self._program = program = self._make(double=self._double)
        return Arguments(
            (program.arguments, dict(program.keywords)),
            leaves={name: one for name, one in program.module.named_parameters() if one.requires_grad},
            tensors=dict(program.module.named_buffers()),
        )

    def __call__(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """The results, and the gradients of all leaves by path."""
        program, self._program = self._program, None
        assert program is not None
        given = (arguments, dict(keywords), dict(program.module.named_parameters()))
        leaves = {path: one for path, one in _tensors(given) if one.requires_grad and one.is_leaf}
        start = time.process_time()
        result = self._compiler(program.module)(*arguments, **keywords)
        roots = list({id(one): one for _, one in _tensors(result) if one.grad_fn is not None}.values())
        gradients: Sequence[Tensor | None] = ()
        if roots and leaves:
            tangents = [_tangent(one) for one in roots]
            gradients = torch.autograd.grad(roots, list(leaves.values()), tangents, allow_unused=True)
        self.seconds = time.process_time() - start
        return result, dict(zip(leaves, gradients, strict=False))

    def observe(self, **options: Any) -> Observation:
        """All that can be seen of a step."""
        return observe(self, self.arguments, steps=_NOTHING_MORE, **options)


def _tensors(tree: Any) -> list[tuple[str, Tensor]]:
    return [(node.path, node.tensor) for node in result_tree_nodes(tree, "") if node.tensor is not None]


def _tangent(root: Tensor) -> Tensor:
    return torch.linspace(0.5, 1, root.numel(), dtype=torch.float64).to(root.dtype).view(root.shape)


def run_program(name: str, make: Make, targets: Sequence[Target]) -> list[Result]:
    """Run one program under targets, in this process."""
    eagerly = TrainingStep(make, lambda module: module)
    try:
        eager = eagerly.observe()
    except Exception as error:
        return _not_run(name, targets, f"cannot be made: {_in_short(error)}")
    if eager.raised is not None:
        return _not_run(name, targets, f"eager raises: {eager.raised.type}: {eager.raised.message}")
    eager_seconds = eagerly.seconds

    def reference() -> Observation | None:
        twin = TrainingStep(make, lambda module: module, double=True)
        try:
            with double_by_default():
                seen = twin.observe()
        except Exception:
            return None
        return None if seen.raised is not None else seen

    found = []
    # The first of those that use Dynamo pays for what Dynamo keeps of a program's source: each in turn.
    for target in random.Random(name).sample(targets, len(targets)):
        step = TrainingStep(make, target.compile)
        try:
            seen = step.observe(refusal=target.refusal)
        finally:
            target.reset()
        word, reason = _judge(eager, seen, reference, eagerly.observe)
        found.append(Result(name, target.name, word, reason, max(step.seconds - eager_seconds, _SHORTEST)))
    return found


def _judge(
    eager: Observation,
    seen: Observation,
    reference: Callable[[], Observation | None],
    control: Callable[[], Observation],
) -> tuple[str, str]:
    if seen.refused is not None:
        raised = seen.raised
        return "refused", f"{seen.refused}: {raised.message if raised else 'in the backward'}"
    if seen.raised is not None:
        said = f"{seen.raised.type}: {seen.raised.message}"
        return ("over limits" if _lacks_memory(said) else "raises"), said
    verdict = judge(eager, seen, reference, control)
    if verdict.outcome is Outcome.AGREE:
        return "as eager", ""
    if verdict.outcome is Outcome.POISONED:
        return NOT_RUN, verdict.reason
    clauses = {finding.clause for finding in verdict.findings}
    return ("otherwise" if clauses.issubset(_METADATA) else "wrong"), verdict.reason


def _not_run(name: str, targets: Sequence[Target], reason: str) -> list[Result]:
    return [Result(name, target.name, NOT_RUN, reason) for target in targets]


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


# ---- processes


@dataclass(frozen=True, slots=True)
class Work:
    """A program to be run: the module that loads it, its folder, its name, and what else `load` takes."""

    collection: str
    folder: str
    name: str
    seed: int
    training: bool


def run_all(
    work: Sequence[Work], targets: Sequence[str], jobs: int, seconds: float, memory: int
) -> Iterator[list[Result]]:
    """The results of each program, as they come; a target may take so many seconds, a process so many bytes.

    Workers fork a process for each program, which runs it under all targets. If that dies, eager is run
    alone, and then each target in a process of its own.
    """
    items = [{**asdict(one), "targets": list(targets), "seconds": seconds} for one in work]
    most = _START + seconds * (3 * len(targets) + 3)
    with Pool(_HERE, jobs=jobs, memory=memory, warm=targets) as pool:
        for event in pool.run([Job((item,), most) for item in items]):
            if isinstance(event, Answer):
                yield [Result(**one) for one in event.value]
                continue
            name = event.job.items[0]["name"]
            why = event.cause if isinstance(event, Death) else event.text.strip().splitlines()[-1]
            word = "over limits" if isinstance(event, Death) and event.kind == "timeout" else "died"
            yield [Result(name, target, word, why) for target in targets]


def handle(item: dict[str, Any]) -> list[dict[str, Any]]:
    """A worker's side: one program under some targets."""
    names, seconds = item.pop("targets"), item.pop("seconds")
    work = Work(**item)
    warm_up(tuple(names))
    importlib.import_module(work.collection).warm_up()
    answer, reason = _forked(work, names, seconds)
    if answer is not None:
        return answer
    _, reason = _forked(work, (), seconds)
    if reason:
        return [asdict(Result(work.name, name, NOT_RUN, f"eager alone: {reason}")) for name in names]
    results = []
    for name in names:
        answer, reason = _forked(work, (name,), seconds)
        word = "over limits" if signal.SIGALRM.name in reason or _lacks_memory(reason) else "died"
        results += answer or [asdict(Result(work.name, name, word, reason))]
    return results


@cache
def warm_up(targets: Sequence[str]) -> None:
    """Compile toys: what a process pays for once is no compile time of a program."""
    toy = nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(3, 3))
    for target in map(find_target, targets):
        target.prepare()
        warm_up_with(target.compile)
        TrainingStep(lambda double=False: Program(toy, (torch.ones(2, 2, 3),)), target.compile).observe()
        target.reset()


def _forked(work: Work, targets: Sequence[str], seconds: float) -> tuple[list[dict[str, Any]] | None, str]:
    """The results of a program in a process of its own; None if it died, and why it did."""
    limit = math.ceil(seconds * (len(targets) + 1))

    def run(_: Any) -> list[dict[str, Any]]:
        signal.alarm(limit)
        return [asdict(one) for one in _load_and_run(work, [find_target(name) for name in targets])]

    answer, died, _ = forked(run)
    return answer, died.strip().splitlines()[-1] if died else ""


def _load_and_run(work: Work, targets: Sequence[Target]) -> list[Result]:
    collection = importlib.import_module(work.collection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            make = collection.load(Path(work.folder), work.name, seed=work.seed, training=work.training)
        except Exception as error:
            return _not_run(work.name, targets, f"cannot be loaded: {_in_short(error)}")
        return run_program(work.name, make, targets)


def _lacks_memory(said: str) -> bool:
    return any(words in said for words in _NO_MEMORY)
