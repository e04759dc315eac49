"""Execute: run a program in eager and on a target, on fresh arguments from one seed, and judge the result.

Modules in reading order:

- `case`: a whole case; `call`: one call of it.
- `process_state`, `garbage`: what a call may leave in the process.
- `first_compile`: a case in a fresh process; `eager_case`: eager alone, for two versions of torch.

Invariant: whatever a target does becomes a finding, a refusal or a poisoned case, never an exception here.
"""
