"""How much memory a campaign takes, over time: the driver, and the largest of its workers.

A worker says with each answer how much it has, so that the same is known of the workers of a cluster's nodes.
The largest one of a stretch of time stands for all of them: where it does not grow, none does.

    gauge = Gauge()
    gauge.heard(event.resident)
    sample = gauge.read(at=12.5)        # None as long as the last one is not old enough
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
SAMPLE_SECONDS = 2.0
_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes of physical memory (`resident_memory`), `at` seconds after the campaign's start: of the driver,
    and of the largest worker that has answered since the sample before (0 if none has)."""

    at: float
    driver: int
    worker: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The most bytes that a process had when the campaign was warm and at its end: in the second and in the
    last quarter of its time."""

    process: str
    warm: int
    end: int


class Gauge:
    """Samples at intervals."""

    def __init__(self) -> None:
        self._next = 0.0
        self._largest = 0

    def heard(self, resident: int) -> None:
        """A worker has so many bytes."""
        self._largest = max(self._largest, resident)

    def read(self, at: float) -> Sample | None:
        """A sample, if one is due."""
        if at < self._next:
            return None
        self._next = at + SAMPLE_SECONDS
        largest, self._largest = self._largest, 0
        return Sample(at, resident_memory(), largest)


def resident_memory() -> int:
    """Bytes of physical memory that hold what this process has made; 0 where there is no /proc to say it.

    Pages of files are left out: a library's code comes to memory when it is first called, is there once for
    all processes, and goes when the memory is wanted. (Tens of MiB of torch's, over a worker's first cases.)
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, of_files, *_ = map(int, file.read().split())
            return (resident - of_files) * _PAGE
    except OSError:
        return 0


def memory_growth(samples: Sequence[Sample], seconds: float) -> tuple[Growth, ...]:
    """How the memory of a campaign of so many seconds has grown, of what there is enough known.

    >>> memory_growth([Sample(float(at), 100 + at, 50) for at in range(9)], 8.0)
    (Growth(process='driver', warm=104, end=108), Growth(process='largest worker', warm=50, end=50))
    """
    warm = [sample for sample in samples if 0.25 * seconds <= sample.at <= 0.5 * seconds]
    end = [sample for sample in samples if sample.at >= 0.75 * seconds]
    found = (
        Growth("driver", *(max((one.driver for one in part), default=0) for part in (warm, end))),
        Growth("largest worker", *(max((one.worker for one in part), default=0) for part in (warm, end))),
    )
    return tuple(one for one in found if one.warm and one.end)
