"""Bisection: since when a program is wrong, over versions of torch, commits of a backend, and layers.

    trial                  one run of a case or a script, and its verdict                -> Verdict
    environments           versions of torch, installed into environments of their own
    versions               a trial under several interpreters                           -> History
    corpus_dates           every case of a corpus under several interpreters            -> Dated
    commits                git bisect in a worktree of its own                          -> FirstCommit
    layers                 the layer of torch to blame, and the two commands            -> Blame
    layer_search           the process that drives torch's CompilerBisector             -> Found
    forked_trial           one run of a script in a fork of that process                -> Ending
    ablation               a reproducer under each of torch's backends
    issue_evidence         the runs for a report to PyTorch

In: a corpus case or a script. Out: frozen dataclasses that `fuzz.commands.bisections` prints.
Invariant: nothing is left outside of the folder that the user names.
"""
