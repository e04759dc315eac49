"""The same campaign under two interpreters, each with its own torch, and what differs between them.

In: two interpreters and a campaign's configuration. Out: a folder that holds both campaigns and what was made
of them, which `fuzz.report.torch_comparison` reads.

campaign_probe   whether an interpreter can run a campaign
folder           what a comparison keeps on disk
transitions      what became of each case under the one torch and under the other
program_server   a process under one interpreter that runs programs for another process
remote_runner    that process seen from here, and two of them as one runner
eager_pass       each program in eager alone, under both
sessions         one session of a comparison: run, resume

Invariant: no process loads two versions of torch, and what passes between processes is JSON.
"""
