"""What the subcommands of `aotfuzz` do; each is imported when it is asked for.

campaigns    run, resume, report, diff, export
comparisons  compare, and resume and report of its folder
cases        replay, reduce, minify, show, repro, targets
corpora      corpus add, list, check, prune, minimize
installation doctor
output       where text goes, and what happens when nobody reads it
"""
