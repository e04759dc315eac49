"""Torch pair: the same campaign under two interpreters with their own torch, and what differs.

In: two interpreters and a campaign's configuration. Out: a folder with both campaigns and their comparison,
which `fuzz.report.torch_comparison` reads. Modules in reading order:

    sessions          one session of a comparison: begin or resume
    folder            the files of a comparison
    campaign_probe    whether an interpreter can run a campaign
    program_server    a process under one interpreter that runs programs for another process
    remote_runner     the client of that process, and two of them as one runner
    eager_pass        each program in eager alone, under both
    transitions       the outcome of each case under one torch and under the other
    torch_difference  the result, read from the folder

Invariant: no process loads two versions of torch, and processes exchange JSON only.
"""
