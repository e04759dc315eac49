"""Eager pass: run each program in eager alone under two versions of torch, and compare the results.

In: a program and two runners. Out: an `EagerCase`: equal bits, equal within the error policy, or different.
Each side first gives a digest of its observations. Only programs with different digests are sent to the other
process to be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzz.campaign.torch_pair.folder import EagerCase
from fuzz.campaign.torch_pair.remote_runner import RemoteRunner
from fuzz.campaign.workers import handlers
from fuzz.execute.call import Result
from fuzz.program.decode import Program
from oracles import Finding

SAME_BITS = "same bits"
WITHIN_POLICY = "within policy"
DIFFERS = "differs"
UNDECIDED = "undecided"
OUTCOMES = (SAME_BITS, WITHIN_POLICY, DIFFERS, UNDECIDED)
_JUDGED = {"agree": WITHIN_POLICY, "finding": DIFFERS, "poisoned": UNDECIDED}


def compare_eagers(index: int, program: Program, before: RemoteRunner, after: RemoteRunner) -> EagerCase:
    """Compare the eagers of two runners on a program.

    `before` is the side by which the other one is judged.
    """
    item = handlers.eager_digest_item(program)
    digests = before.handle(item), after.handle(item)
    if "value" in digests[0] and digests[0] == digests[1]:
        return EagerCase(index, SAME_BITS)
    if all("value" in digest for digest in digests):
        observed = after.handle(handlers.eager_item(program))
        if "value" not in observed:
            return EagerCase(index, UNDECIDED, f"after: {_failure(observed)}")
        judged = before.handle(handlers.judge_eager_item(program, observed["value"]))
        if "value" not in judged:
            return EagerCase(index, UNDECIDED, f"before: {_failure(judged)}")
        result = Result.from_json(judged["value"])
        return EagerCase(index, _JUDGED[result.outcome], result.reason, result.findings)
    said = [_failure(digest) for digest in digests]
    reason = f"before: {said[0]}; after: {said[1]}"
    # It is a difference if one process dies and the other does not. A failure of the fuzzer is none.
    if any("failed" in digest for digest in digests) or said[0] == said[1]:
        return EagerCase(index, UNDECIDED, reason)
    message = f"call: {said[0]} in eager before, {said[1]} after"
    return EagerCase(index, DIFFERS, reason, (Finding("errors", "call", said[0], said[1], message),))


def _failure(answer: Mapping[str, Any]) -> str:
    """How an item ended, in a few words."""
    if "died" in answer:
        return str(answer["died"])
    if "failed" in answer:
        return str(answer["failed"]).strip().splitlines()[-1]
    return "returns"
