"""What pyproject.toml cannot say: with ``AOTFUZZ_COMPILE=1 pip install .`` the generator is compiled to C.

mypyc compiles the modules as they are, and they make the same programs, more than twice as fast. Without the
variable nothing is compiled, and no compiler is needed.
"""

from __future__ import annotations

import os
from typing import Any

from setuptools import setup

# What runs for each generated program.
GENERATOR = [
    *(
        "fuzz/generate/later_calls.py",
        "fuzz/generate/arguments.py",
        "fuzz/ir/control_flow.py",
        "fuzz/generate/program_builder.py",
        "fuzz/choices.py",
    ),
    *(
        "fuzz/generate/blocks.py",
        "fuzz/abstract/interpret.py",
        "fuzz/generate/__init__.py",
        "fuzz/ir/nodes.py",
        "fuzz/ir/argument_rules.py",
        "fuzz/generate/motifs/__init__.py",
        "fuzz/generate/motifs/gradients.py",
        "fuzz/generate/motifs/saved_tensors.py",
        "fuzz/generate/motifs/aliasing.py",
        "fuzz/generate/motifs/helpers.py",
    ),
    *(
        "fuzz/abstract/eager_rules.py",
        "fuzz/generate/steps.py",
        "fuzz/abstract/state.py",
        "fuzz/abstract/tensor.py",
    ),
    *(
        "fuzz/generate/scenes/__init__.py",
        "fuzz/generate/scenes/call_sequences.py",
        "fuzz/generate/scenes/derivatives.py",
    ),
    *("fuzz/generate/scenes/saved_values.py", "fuzz/generate/scenes/scene.py"),
    *("fuzz/operators/dtypes.py", "fuzz/operators/layout.py", "fuzz/operators/builders.py"),
    "fuzz/operators/row.py",
]


def _compiled() -> dict[str, Any]:
    if os.environ.get("AOTFUZZ_COMPILE", "0") in ("", "0"):
        return {}
    try:
        from mypyc.build import mypycify
    except ImportError:  # this is how a build is told what else it needs
        return {"setup_requires": ["mypy>=1.15"]}
    # (Where it is built, nothing that the package imports need be installed.)
    return {"ext_modules": mypycify(["--ignore-missing-imports", "--no-warn-unused-ignores", *GENERATOR])}


setup(**_compiled())
