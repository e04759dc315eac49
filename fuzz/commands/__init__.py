"""Commands: what the subcommands of `aotfuzz` do. Each module is imported when it is needed.

campaigns      run, resume, report, diff, export, history
comparisons    compare, and resume and report of its folder
cases          replay, reduce, minify, show, repro, targets
corpora        corpus add, list, check, prune, minimize
bisections     bisect, corpus date
installation   doctor, traits
target_probes  probe
output         where text goes, and what happens if its reader is gone
"""
