"""Diagnosis: whether this project works with the torch that is installed, for `aotfuzz doctor`.

Modules in reading order:

- `examine`: all parts of a diagnosis.
- `environment`: Python, torch, compiler, GPUs, cache, extras.
- `private_api`: names of torch's private API that are missing or have changed.
- `sample_programs`: some programs of each profile on the target `aot`.
- `diagnosis_text`: all of it as text, and as plain data.

Invariant: nothing here imports aot, because an unknown torch may make that fail. Separate processes import
it, and their errors are part of the diagnosis.
"""
