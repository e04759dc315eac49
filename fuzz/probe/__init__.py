"""Probe: what a target takes, asked one thing at a time.

In: the name of a target. Out: an `Answer` for each trait of programs, a capability file, a table. Read
`questions` first (a small program for each trait), then `ask` (they run in workers, so that a crash or a hang
is an answer), `capability_file` (the answers as a file to edit) and `probe_table`.

Invariant: a capability file is data. Nothing that it says is run or imported.
"""
