"""Features: names of what is hard about a program, which reports count and targets may lack.

Modules in reading order:

- `table`: all names with their meanings; `traits`: the words of coverage, features among them.
- `program_features`: the features of a program; `argument_features`, `calls`, `row_features`: parts of that.
- `capabilities`: names of sets of traits that a target may lack.

Invariant: features are pure functions of a program. Nothing runs.
"""
