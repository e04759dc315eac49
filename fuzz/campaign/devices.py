"""Devices: the GPUs of this machine, and how many workers they and the cores can take."""

from __future__ import annotations

import os

from fuzz.errors import DeviceError

# Each worker needs half a gigabyte of a GPU's memory before its first tensor.
PER_GPU = 8


def gpu_names(device: str) -> tuple[str, ...]:
    """The GPUs of this machine, as `CUDA_VISIBLE_DEVICES` names them; none for a campaign on the CPU."""
    if device == "cpu":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        return tuple(visible.split(","))
    import torch

    return tuple(str(number) for number in range(torch.cuda.device_count()))


def workers(device: str = "cpu") -> int:
    """The default number of workers: one for each core that this process may use, at most PER_GPU for each
    GPU.
    """
    cores = len(os.sched_getaffinity(0))
    return cores if device == "cpu" else max(1, min(cores, PER_GPU * len(gpu_names(device))))


def require_device(device: str) -> None:
    """Check that programs of this `device` (`cpu`, `cuda`, or one name for both) can run here.

    Raises:
        DeviceError: they cannot.
    """
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        raise DeviceError(f"device {device}: torch sees no CUDA device here")


def has(device: str) -> bool:
    """Whether programs of this device can run here."""
    try:
        require_device(device)
    except DeviceError:
        return False
    return True
