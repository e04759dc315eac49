"""Corpus: recorded cases, the buckets that name bugs, and known issues.

Modules in reading order:

- `buckets`: the key of a bug; `severity`, `headline`: how bad it is, and one sentence about it.
- `case_file`: a recorded case as a JSON file; `collection`: a folder of them.
- `containment`, `recorded_cases`: which recorded case explains a finding.
- `known_issues`: differences that are no news; `dates`: what each version of torch does with a case.

Invariant: reading a file executes nothing of it.
"""
