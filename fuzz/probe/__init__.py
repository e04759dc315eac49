"""Probe: find out what a target supports, one trait of programs at a time.

In: the name of a target. Out: an `Answer` for each trait, a capability file, a table. Modules in reading
order:

- `questions`: a small program for each trait.
- `ask`: they run in workers, so that a crash or a hang is an answer.
- `capability_file`: the answers as a file to edit; `probe_table`: the answers on a screen.

Invariant: a capability file is data. Nothing in it is run or imported.
"""
