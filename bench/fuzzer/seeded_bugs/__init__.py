"""The catalogue of faults: mistakes in `aot`, stage by stage, that a campaign ought to find.

None of them is a slip of the pen: each is something that a compiler of this kind may forget or mistake, and
that some programs see and most do not.
"""

from __future__ import annotations

from bench.fuzzer.seeded_bugs import analysis, capture, joint, partition, runtime, specialize
from bench.fuzzer.seeded_bugs.import_hook import Installed, install
from bench.fuzzer.seeded_bugs.seeded_bug import Fault, FaultError, make, overlap, source_of
from bench.fuzzer.seeded_bugs.toggles import Switches

__all__ = [
    "FAULTS",
    "STAGES",
    "Fault",
    "FaultError",
    "Installed",
    "Switches",
    "install",
    "make",
    "overlap",
    "source_of",
]

# In the order of a call (docs/explanation/overview.md).
STAGES = ("inputs", "capture", "effects", "backward", "partition", "runtime")

FAULTS = (
    *specialize.FAULTS,
    *capture.FAULTS,
    *analysis.FAULTS,
    *joint.FAULTS,
    *partition.FAULTS,
    *runtime.FAULTS,
)
