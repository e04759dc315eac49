"""Since when is a program wrong: over versions of torch, over commits of a backend, over the layers of torch.

    trial                  one run of a case or a script, and its verdict                -> Verdict
    environments           versions of torch, installed into environments of their own
    versions               a trial under several interpreters                           -> History
    corpus_dates           every case of a corpus under several interpreters
    commits                git bisect in a worktree of its own                          -> FirstCommit
    layers                 the layer of torch to blame, and the two commands            -> Blame
    layer_search           the process that drives torch's CompilerBisector
    forked_trial           one run of a script in a fork of that process                -> Ending

In: a corpus case or a script. Out: frozen dataclasses that `fuzz.commands.bisections` prints.
Invariant: nothing is left outside of the folder that the user names.
"""
