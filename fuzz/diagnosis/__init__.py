"""What `aotfuzz doctor` finds out: whether this project works with the torch that is installed here.

In reading order: `environment` (Python, torch, compiler, GPUs, cache, extras), `private_api` (what of torch's
private API is missing or has another signature), `sample_programs` (some programs of each profile on the
target `aot`), `diagnosis_text` (all of it for people, and as plain data).
Invariant: nothing here imports aot, which an unknown torch may keep from being imported. Processes of their
own do, and what they raise is part of the diagnosis.
"""
