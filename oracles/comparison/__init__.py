"""Comparison: what a target's observation shows otherwise than eager's.

In: two `Observation`s, perhaps with a reference in double precision. Out: findings, each with its clause.

Modules in reading order:

- `comparator`: the order of all comparisons.
- `context`: both observations side by side, and the wording of findings.
- `tensors`, `autograd`, `refusals`: one group of clauses each.
- `tolerance`: when two numbers count as equal.
- `accepted_differences`: differences that are no bugs.
"""
