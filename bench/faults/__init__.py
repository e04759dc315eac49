"""The catalogue of faults: mistakes in `aot`, stage by stage, that a campaign ought to find.

None of them is a slip of the pen: each is something that a compiler of this kind may forget or mistake, and
that some programs see and most do not.
"""

from __future__ import annotations

from bench.faults import backward, capture, effects, inputs, partition, runtime
from bench.faults.fault import Fault, FaultError, make, overlap, source_of
from bench.faults.hook import Installed, install
from bench.faults.switches import Switches

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

# In the order of a call (docs/architecture.md).
STAGES = ("inputs", "capture", "effects", "backward", "partition", "runtime")

FAULTS = (
    *inputs.FAULTS,
    *capture.FAULTS,
    *effects.FAULTS,
    *backward.FAULTS,
    *partition.FAULTS,
    *runtime.FAULTS,
)
