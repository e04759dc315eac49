"""CI formats: a campaign as JUnit XML and SARIF 2.1.0, for continuous integration.

In: a `Summary`. Out: text. A bucket is a failed test in JUnit, and a result in SARIF. A known issue is a
skipped test, or a suppressed result. If `only` is given, other buckets are left out; a comparison of two
campaigns gives those that only the second one has. Control characters in texts of targets are replaced,
because XML cannot represent most of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from fuzz.campaign.ledger import Bucket
from fuzz.campaign.summary import Summary
from fuzz.corpus import buckets
from fuzz.program.printer import render
from fuzz.safe_text import escape_unprintable
from oracles import CLAUSES

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def junit_text(summary: Summary, only: Sequence[Bucket] | None = None) -> str:
    """A campaign as JUnit XML: a suite for each target.

    A suite has a test for each bucket, and one for all other cases. Its last test, "campaign", is an error if
    the fuzzer itself had troubles.
    """
    shown = summary.buckets if only is None else only
    root = ElementTree.Element("testsuites", name="aotfuzz")
    for target, tally in summary.tallies.items():
        suite = ElementTree.SubElement(root, "testsuite", name=target, timestamp=summary.started.rstrip("Z"))
        suite.set("time", f"{tally.seconds:.3f}")
        for bucket in shown:
            if bucket.target == target:
                _add_bucket_test(suite, summary, bucket)
        last = ElementTree.SubElement(suite, "testcase", classname=target, name="campaign", time="0.000")
        if summary.troubles:
            error = ElementTree.SubElement(last, "error", type="trouble", message="the fuzzer had troubles")
            error.text = "\n\n".join(map(escape_unprintable, summary.troubles))
        _set_counts(suite)
    _set_counts(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_bucket_test(suite: ElementTree.Element, summary: Summary, bucket: Bucket) -> None:
    name, seconds = escape_unprintable(bucket.name), f"{bucket.example.seen.seconds:.3f}"
    test = ElementTree.SubElement(suite, "testcase", classname=bucket.target, name=name, time=seconds)
    standing = summary.standing(bucket)
    if standing is not None:
        ElementTree.SubElement(test, "skipped", message=f"known issue: {standing.issue.title}")
        return
    failure = ElementTree.SubElement(test, "failure", type=bucket.clause, message=_message(bucket))
    failure.text = f"{_message(bucket)}\n\n{_program_text(bucket)}\n{_where(summary, bucket)}"


def _set_counts(element: ElementTree.Element) -> None:
    tests = list(element.iter("testcase"))
    element.set("tests", str(len(tests)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        if element.tag == "testsuite" or tag != "skipped":  # Jenkins's schema has it for suites only
            element.set(attribute, str(sum(test.find(tag) is not None for test in tests)))


def sarif_text(summary: Summary, only: Sequence[Bucket] | None = None) -> str:
    """A campaign as one run of SARIF 2.1.0: a rule for each clause of the contract, a result for each bucket.

    The location of a result is its script. Its fingerprint is the bucket, so that it is the same result on
    the next night. A known issue is suppressed.
    """
    shown = summary.buckets if only is None else only
    troubles = [
        {"level": "error", "message": {"text": escape_unprintable(text)}} for text in summary.troubles
    ]
    driver = {
        "name": "aotfuzz",
        "version": metadata.version("aotfuzz"),
        "rules": [
            {"id": clause, "shortDescription": {"text": f"the clause {clause} of the contract"}}
            for clause in CLAUSES
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(summary, bucket) for bucket in shown],
        "invocations": [
            {
                "executionSuccessful": not summary.troubles,
                "startTimeUtc": summary.started,
                "toolExecutionNotifications": troubles,
            }
        ],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_result(summary: Summary, bucket: Bucket) -> dict[str, Any]:
    files = summary.files.get((bucket.target, bucket.name))
    standing = summary.standing(bucket)
    text = f"{bucket.target}: {_message(bucket)}"
    result: dict[str, Any] = {
        "ruleId": bucket.clause,
        "ruleIndex": CLAUSES.index(bucket.clause),
        "level": "error",
        "message": {"text": text, "markdown": f"{text}\n\n```python\n{_program_text(bucket)}```"},
        "occurrenceCount": bucket.count,
        "partialFingerprints": {"aotfuzzBucket/v1": _fingerprint(bucket)},
        "properties": {
            "bucket": escape_unprintable(bucket.name),
            "target": bucket.target,
            "state": bucket.example.state,
            "statements": bucket.example.statements,
            "firstCase": bucket.first_case,
        },
    }
    if files is not None:
        address = {"artifactLocation": {"uri": quote(Path(files[1]).as_posix())}, "region": {"startLine": 1}}
        result["locations"] = [{"physicalLocation": address}]
    if standing is not None:
        result["suppressions"] = [{"kind": "external", "justification": standing.issue.title}]
    return result


def _fingerprint(bucket: Bucket) -> str:
    return hashlib.sha256(f"{bucket.target}\n{bucket.name}".encode()).hexdigest()[:32]


def _message(bucket: Bucket) -> str:
    return escape_unprintable(str(buckets.primary_finding(bucket.example.seen.findings)))


def _program_text(bucket: Bucket) -> str:
    return render(bucket.example.program).rstrip("\n") + "\n"


def _where(summary: Summary, bucket: Bucket) -> str:
    files = summary.files.get((bucket.target, bucket.name))
    said = f"{bucket.count} cases, first case {bucket.first_case}, {bucket.example.state}"
    return said if files is None else f"{said}\nscript: {files[1]}\ncase: {files[0]}"


FORMATS: dict[str, Callable[[Summary, Sequence[Bucket] | None], str]] = {
    "junit": junit_text,
    "sarif": sarif_text,
}
