"""Campaign: run many generated cases on targets, and investigate what differs.

In: a `Configuration`. Out: a `Summary`, and a folder with everything that was found. Modules in reading
order:

- `configuration`: what runs; `records`: the data of a case and of a finding.
- `driver`: hands cases to workers and takes their answers; `workers`: the processes.
- `ledger`: counts cases, groups findings, and chooses which are investigated.
- `triage`, `investigate`, `repro_trial`: confirm and reduce findings, and try their scripts.
- `store`: the campaign's file; `summary`, `export`: what it tells.
- `progress`, `memory_gauge`, `refusal_rate`, `known_issue_status`: what is watched.
- `replay`, `reduce_case`: corpus cases run again, or made smaller.
- `devices`: which devices and how many workers; `torch_pair`: two versions of torch.

Invariant: results depend on the cases alone, not on the number of workers or the order of answers.
"""
