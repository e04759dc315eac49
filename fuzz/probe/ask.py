"""Ask: run the question of each trait on a target, in workers, so that a crash or a hang is an answer.

Dtypes come first, then sizes, operators, and all other features. Refused traits are left out of later
programs. Programs for features also leave out traits that are wrong, so that each answer is about its own
trait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fuzz.campaign.investigate import run_of_event
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Failure, Job
from fuzz.corpus import buckets
from fuzz.errors import ConfigurationError
from fuzz.features.traits import DTYPE
from fuzz.generate.limits import Limits
from fuzz.probe.questions import (
    Question,
    dtype_questions,
    feature_questions,
    operator_questions,
    size_questions,
)
from fuzz.repro.script import repro_script
from fuzz.safe_text import one_line, shorten_middle
from fuzz.targets.catalog import find_target

State = Literal["supported", "wrong", "crash", "hang", "raises", "refused", "unclear"]
STATES: Mapping[State, str] = {
    "supported": "as eager",
    "wrong": "differs from eager without a word",
    "crash": "ends the process",
    "hang": "does not come to an end",
    "raises": "an exception that is no refusal which the target announces",
    "refused": "declined on purpose",
    "unclear": "the program proves nothing, or needs something else that is refused",
}
"""The possible answers, with their meanings."""

LEFT_OUT: tuple[State, ...] = ("crash", "hang", "raises", "refused")
"""The answers whose traits a campaign leaves out. Wrong traits stay in, because they are to be found."""

_LENGTH = 200  # of a message


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a target on one trait.

    Attributes:
        trait: one of `fuzz.features.traits.TRAITS`.
        state: one of `STATES`.
        message: the exception or the difference; "" if the trait is supported.
        script: a script that shows what is wrong with torch alone, or "".
    """

    trait: str
    state: State
    message: str = ""
    script: str = ""


def probe_target(
    target: str,
    *,
    jobs: int = 1,
    limit: float = 30.0,
    watch: Callable[[str, int], None] = lambda what, count: None,
) -> list[Answer]:
    """Run the questions of all traits on a target.

    Args:
        target: its name.
        jobs: the number of worker processes.
        limit: the seconds for one question.
        watch: gets the kind of the next questions, and how many they are.

    Raises:
        ConfigurationError: it supports no dtype at all, so that nothing else can be tried.
        PoolError: no worker can be started.
    """
    promised = find_target(target).promised
    with Pool(handlers.HANDLER, jobs=jobs, warm=[target]) as pool:

        def ask(what: str, questions: Sequence[Question]) -> list[Answer]:
            watch(what, len(questions))
            return _answers(pool, questions, target, limit)

        answers = ask("dtypes", dtype_questions())
        taken = [one.trait.removeprefix(DTYPE) for one in answers if one.state not in LEFT_OUT]
        if not taken:
            raise ConfigurationError(
                f"target {target!r} takes no tensor of any dtype, and nothing else can be asked for; of "
                f"{answers[0].trait!r} it says: {answers[0].state}: {answers[0].message}"
            )
        taken.sort(key=lambda dtype: dtype != "float32")
        answers += ask("sizes", size_questions(taken))
        answers += ask("operators", operator_questions(Limits.of(lacked_traits(answers))))
        lacks = tuple(one.trait for one in answers if one.state not in ("supported", "unclear"))
        if "gradients" not in promised:
            lacks = (*lacks, "autograd")
        features = ask("features", feature_questions(Limits.of(lacks)))
    known = {one.trait for one in answers}
    return [*answers, *(one for one in features if one.trait not in known)]


def lacked_traits(answers: Sequence[Answer]) -> tuple[str, ...]:
    """The traits that a campaign leaves out."""
    return tuple(one.trait for one in answers if one.state in LEFT_OUT)


def _answers(pool: Pool, questions: Sequence[Question], target: str, limit: float) -> list[Answer]:
    """The answers, in the order of the questions."""
    jobs = [Job((handlers.probe_item(one.program, target),), limit, tag=one) for one in questions]
    found: dict[str, Answer] = {}
    for event in pool.run(jobs):
        question: Question = event.job.tag
        if isinstance(event, Failure):
            text = f"the fuzzer failed on it: {event.text.strip().splitlines()[-1]}"
            found[question.trait] = Answer(question.trait, "unclear", _short(text))
        else:
            found[question.trait] = _answer_of(question, run_of_event(event), target)
    answers = [found[one.trait] for one in questions]
    return [_blamed(one, found[one.trait], found, questions) for one in questions] if answers else []


def _answer_of(question: Question, seen: RunOutcome, target: str) -> Answer:
    message = _short(seen.reason)
    match seen.outcome:
        case "agree":
            return Answer(question.trait, "supported")
        case "refused":
            return Answer(question.trait, "refused", message)
        case "finding":
            finding = buckets.primary_finding(seen.findings)
            script = repro_script(question.program, target, finding)
            if seen.kind:
                return Answer(question.trait, "hang" if seen.kind == "timeout" else "crash", message, script)
            if finding.clause == "errors" and finding.eager == "no exception":
                return Answer(question.trait, "raises", _short(finding.target))
            return Answer(question.trait, "wrong", message, script)
        case _:
            return Answer(question.trait, "unclear", message)


def _blamed(
    question: Question, answer: Answer, found: Mapping[str, Answer], questions: Sequence[Question]
) -> Answer:
    """The answer, or "unclear" if a plainer question shows that another trait of the program is left out."""
    if answer.state not in LEFT_OUT:
        return answer
    for other in questions:
        if (
            other.trait in question.needs
            and len(other.needs) < len(question.needs)
            and found[other.trait].state in LEFT_OUT
        ):
            return Answer(answer.trait, "unclear", f"its program has {other.trait!r}, too, which is left out")
    return answer


def _short(text: str) -> str:
    return shorten_middle(one_line(text), _LENGTH)
