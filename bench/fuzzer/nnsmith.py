"""NNSmith beside the fuzzer: which public reports each of them shows on torch's own compilers.

The reports are those of `tests/reports` that torch still has wrong as they say. Each search has the same
CPU time on each compiler:

- `NNSmith`: models that NNSmith (Liu et al., ASPLOS 2023) makes by its own API, as large as it makes them by
  default, judged by its own oracle: results element by element, by its `assert_allclose`. Gradients of the
  parameters for ones are compared like results, as sources of its that are not released do.
- `models of NNSmith`: the same models, with the judge of this project.
- `aotfuzz`: what a campaign runs, `aotfuzz run --seed`.

What is found shows a report if it has the signature that the report's own program has. A program of ours has
to have the traits, too, that the report is about, when it is reduced. No model of NNSmith has any of those:
it neither writes, nor changes metadata, nor shares memory, nor calls or differentiates twice.

NNSmith is in the extra `rivals`. It looks for inputs by the clock on the wall, so what a seed shows may vary.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.fuzzer.cases import OURS, SECONDS, forked, judged
from bench.report import Table
from fuzz.campaign.workers.handlers import program
from fuzz.corpus.buckets import signature
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target

TARGETS = ("torch-aot-function", "torch-aot-eager")
OPERATORS = 5  # of a model at most: NNSmith's default
MILLISECONDS = 10_000  # to make a model in: its default
PROFILE = "mixed"
_STRETCH = 20  # cases for each process: what one leaves behind, or takes down, ends with it
_DIED = "process died"


class Model(nn.Module):
    """A model of NNSmith's as a plain module: the same operators, without the book that its own class keeps
    of a run, which Dynamo does not take."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.layers = made.mlist
        self._steps = [(step, tuple(given), tuple(gives)) for step, given, gives, _ in made.instructions]
        self._inputs, self._outputs = tuple(made.input_map), tuple(made.output_map)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs."""
        values = dict(zip(self._inputs, inputs, strict=True))
        for step, given, gives in self._steps:
            results = step(*[values[name] for name in given])
            if isinstance(results, Tensor):
                results = [results]
            values.update(zip(gives, results, strict=True))
        return tuple(values[name] for name in self._outputs)


@dataclass(frozen=True, slots=True)
class Case:
    """A function of a model's parameters, buffers and inputs, and these."""

    function: Callable[..., tuple[Tensor, ...]]
    arguments: tuple[Tensor, ...]

    def make(self) -> list[Tensor]:
        """Arguments for a call, fresh ones."""
        return [one.detach().clone().requires_grad_(one.requires_grad) for one in self.arguments]


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--seconds", type=float, default=150.0, help="CPU time of each search (default: 150)")
    parser.add_argument("--seed", type=int, default=3, help="of models and programs (default: 3)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: both")


def measure(options: argparse.Namespace) -> list[Table]:
    """Make all searches on each target."""
    if importlib.util.find_spec("nnsmith") is None:
        raise SystemExit(
            "aotfuzz bench: NNSmith is not installed; install the extra: pip install -e '.[test,rivals]'"
        )
    return [_raced(find_target(name), options.seed, options.seconds) for name in options.target or TARGETS]


def _raced(target: Target, seed: int, seconds: float) -> Table:
    findings, unaided = _historical("report").findings, _historical("unaided")
    reports = unaided.searched(target.name)
    wanted = {report.name: signature(findings(report.program, target.name)) for report in reports}
    target.prepare()
    target.warm()
    _cases()  # NNSmith tries its operators once
    searches = {
        "NNSmith": Search(seed, partial(_by_nnsmith, target)),
        "models of NNSmith": Search(seed, partial(_by_judge, target)),
        OURS: Search(seed, partial(_by_campaign, target)),
    }
    for search in searches.values():
        search.run(seconds)
    rows: list[tuple[Any, ...]] = [
        ("CPU s", *(round(search.seconds) for search in searches.values())),
        ("cases", *(search.cases for search in searches.values())),
        ("that are not fit", *(search.unfit for search in searches.values())),
        ("findings", *(len(search.found) for search in searches.values())),
        ("signatures", *(len({one for _, one in search.found}) for search in searches.values())),
    ]
    for report in reports:
        shown: list[int | None] = []
        for name, search in searches.items():
            alike = [index for index, one in search.found if one == wanted[report.name]]
            if report.needs is None or (name != OURS and report.needs):
                shown.append(None)  # it makes no such program
            elif name != OURS:
                shown.append(len(alike))
            else:
                cases = (program(seed, index, PROFILE) for index in alike)
                shown.append(
                    sum(unaided.shows(one, report.needs, target.name, wanted[report.name]) for one in cases)
                )
        rows.append((report.name, *shown))
    notes = tuple(
        f"{name}: {one} {count}"
        for name, search in searches.items()
        if name != OURS
        for one, count in Counter(one for _, one in search.found).most_common()
    )
    return Table(f"{target.name}: cases that show a report", ("", *searches), tuple(rows), notes)


def _historical(module: str) -> Any:
    """A module of the reports, which are among the tests."""
    root = str(Path(__file__).parents[2])
    if root not in sys.path:
        sys.path.append(root)
    return importlib.import_module(f"tests.reports.{module}")


class Search:
    """Cases of a seed that are looked into, one after the other: which of them are findings.

    `found` has the number and the signature of each; `unfit` counts those of which nothing can be said.
    """

    def __init__(self, seed: int, look: Callable[[int, int], str | None]) -> None:
        self.seconds, self.cases, self.unfit = 0.0, 0, 0
        self.found: list[tuple[int, str]] = []
        self._seed, self._look = seed, look

    def run(self, seconds: float) -> None:
        """Go on until that much CPU time has been spent."""
        while self.seconds < seconds:
            said, _, spent = forked(self._stretch, self.cases)
            for number, one in enumerate(said if said is not None else [_DIED] + [""] * (_STRETCH - 1)):
                self.unfit += one is None
                if one:
                    self.found.append((self.cases + number, one))
            self.cases += _STRETCH
            self.seconds += spent

    def _stretch(self, first: int) -> list[str | None]:
        said = []
        for index in range(first, first + _STRETCH):
            signal.alarm(SECONDS)
            said.append(self._look(self._seed, index))
        return said


def _by_campaign(target: Target, seed: int, index: int) -> str | None:
    said = judged(program(seed, index, PROFILE), target)
    return None if said.outcome == "poisoned" else said.signature


def _by_judge(target: Target, seed: int, index: int) -> str | None:
    case = _case(seed, index)
    return None if case is None else _judged(case, target)


def _by_nnsmith(target: Target, seed: int, index: int) -> str | None:
    case = _case(seed, index)
    if case is None:
        return None
    return _judged(case, target) or "none for our judge" if _noticed(case, target) else ""


def _judged(case: Case, target: Target) -> str | None:
    """The signature of what this project's judge finds; "" if that is nothing, None if eager differs from
    itself."""
    report = _historical("report")
    try:
        found = report.findings(report.Program(case.function, case.make), target.name)
    except AssertionError:
        return None
    return signature(found) if found else ""


def _noticed(case: Case, target: Target) -> bool:
    """Whether NNSmith's oracle reports the target."""
    from nnsmith.difftest import assert_allclose

    eager = _results(case, case.function)
    try:
        seen = _results(case, target.compile(case.function))
        both = eager.keys() & seen.keys()  # a gradient that one side has none of is not compared
        sides = [{name: side[name].numpy() for name in both} for side in (seen, eager)]
        assert_allclose(*sides, target.name, "eager", equal_nan=True)
    except Exception:
        return True
    finally:
        target.reset()
    return False


def _results(case: Case, function: Callable[..., tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """The outputs, and the gradients of the parameters for ones."""
    arguments = case.make()
    outputs = function(*arguments)
    roots = [one for one in outputs if one.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(one) for one in roots])
    named = {f"output {i}": one.detach().resolve_conj().resolve_neg() for i, one in enumerate(outputs)}
    gradients = {f"gradient {i}": one.grad for i, one in enumerate(arguments) if one.grad is not None}
    return named | gradients


def _case(seed: int, index: int) -> Case | None:
    return _cases()(seed, index)


@cache
def _cases() -> Callable[[int, int], Case | None]:
    """NNSmith, ready: how it makes a case of a seed and a number. None where it fails to."""
    logging.disable(logging.ERROR)  # it tells each model
    with warnings.catch_warnings(action="ignore"):  # and recommends other packages
        from nnsmith.abstract.extension import activate_ext
        from nnsmith.graph_gen import model_gen
        from nnsmith.materialize import Model as Factory
        from nnsmith.narrow_spec import auto_opset

        factory = Factory.init("torch", "cpu")
        factory.add_seed_setter()
        operators = auto_opset(factory)
        activate_ext(opset=operators)

    def case(seed: int, index: int) -> Case | None:
        try:
            made = model_gen(
                opset=operators,
                method="symbolic-cinit",
                seed=seed * 1_000_000 + index,
                max_nodes=OPERATORS,
                timeout_ms=MILLISECONDS,
            )
            theirs = factory.from_gir(made.make_concrete())
            theirs.refine_weights()
            inputs = theirs.make_oracle().input
        except Exception:
            return None
        model = Model(theirs.native_model).eval()
        state = dict(model.named_parameters()) | dict(model.named_buffers())

        def function(*values: Tensor) -> Any:
            named = dict(zip(state, values[: len(state)], strict=True))
            return torch.func.functional_call(model, named, values[len(state) :])

        return Case(
            function, (*state.values(), *(torch.from_numpy(inputs[name]) for name in theirs.input_like))
        )

    return case
