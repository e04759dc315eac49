"""Examine: make a diagnosis of the installation, in less than a minute."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from fuzz.diagnosis.diagnosis_text import Diagnosis
from fuzz.diagnosis.environment import (
    cpp_compiler,
    disk_cache,
    installed_torch,
    missing_packages,
    python_version,
)
from fuzz.diagnosis.private_api import compare_private_api
from fuzz.errors import FuzzError


def examine_installation() -> Diagnosis:
    """Examine this machine's Python, torch and aot. Errors are part of the diagnosis."""
    with ThreadPoolExecutor() as threads:  # each waits for a process that imports torch
        api, cache = threads.submit(compare_private_api), threads.submit(disk_cache)
        torch = installed_torch()
    programs, error = {}, torch.error or cache.result().error
    if not error:
        from fuzz.diagnosis.sample_programs import run_sample_programs

        try:
            programs = run_sample_programs()
        except FuzzError as trouble:
            error = str(trouble)
    return Diagnosis(
        python_version(),
        torch,
        cpp_compiler(),
        cache.result(),
        missing_packages(),
        api.result(),
        programs,
        error,
    )
