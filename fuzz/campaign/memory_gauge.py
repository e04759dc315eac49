"""Memory gauge: the memory of a campaign over time, of the driver and of the largest worker.

Each answer of a worker has its memory, so workers on a cluster's nodes are known too. The largest one of a
stretch of time stands for all: if it does not grow, none does.

    gauge = Gauge()
    gauge.heard(event.resident)
    sample = gauge.read(at=12.5)        # None if the last sample is not old enough
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
    """A sample of physical memory (`resident_memory`) in bytes, `at` seconds after the campaign's start.

    It is of the driver, and of the largest worker that has answered since the last sample, or 0.
    """

    at: float
    driver: int
    worker: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a process: the most bytes when warm (in the second quarter of the time) and in the last
    quarter.
    """

    process: str
    warm: int
    end: int


class Gauge:
    """Takes samples at intervals."""

    def __init__(self) -> None:
        self._next = 0.0
        self._largest = 0

    def heard(self, resident: int) -> None:
        """Record the bytes of a worker."""
        self._largest = max(self._largest, resident)

    def read(self, at: float) -> Sample | None:
        """A sample, or None if none is due."""
        if at < self._next:
            return None
        self._next = at + SAMPLE_SECONDS
        largest, self._largest = self._largest, 0
        return Sample(at, resident_memory(), largest)


def resident_memory() -> int:
    """The bytes of physical memory with data that this process has made; 0 without /proc.

    Pages of files do not count. A library's code is loaded when it is first called, exists once for all
    processes, and is dropped when memory is short. For torch that is tens of MiB over a worker's first cases.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, of_files, *_ = map(int, file.read().split())
            return (resident - of_files) * _PAGE
    except OSError:
        return 0


def memory_growth(samples: Sequence[Sample], seconds: float) -> tuple[Growth, ...]:
    """The growth of each process in a campaign of so many seconds, if enough is known of it.

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
