"""Process settings: settings of the process and the thread that a function may change.

Out: `SETTINGS`, each of which can be read as a value and written back. (The compiler's own settings are in
`aot.config`.)
Invariant: to read a setting changes nothing.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aot.torch_internals import ambient_state, autocast_state, autograd_state, mode_stacks


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: its name in error messages.
        read: gives its present value, which equals an earlier one if nothing has changed.
        write: sets it to a value that `read` gave.
        followed: a call may leave it changed, and the trace makes the change. Other settings are refused.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    followed: bool = False


def _attribute(path: str, owner: Any) -> Setting:
    name = path.rpartition(".")[2]
    return Setting(path, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def random_states() -> tuple[Any, ...]:
    """The states of Python's generator and, if numpy's is imported, of numpy's."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return (random.getstate(),)
    name, keys, *rest = numpy.get_state()
    return random.getstate(), name, keys.tobytes(), *rest


def set_random_states(states: tuple[Any, ...]) -> None:
    """Set the generators to states that `random_states` gave."""
    python, *rest = states
    random.setstate(python)
    if rest:
        numpy: Any = sys.modules["numpy"]
        name, keys, *more = rest
        numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *more))


# In the order in which they are set. A default device is a function mode, so it comes after these modes.
SETTINGS: tuple[Setting, ...] = (
    Setting("grad mode", torch.is_grad_enabled, autograd_state.set_grad_enabled, followed=True),
    Setting("the random generators of Python and numpy", random_states, set_random_states, followed=True),
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting(
        "deterministic mode",
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_deterministic,
    ),
    _attribute("torch.utils.deterministic.fill_uninitialized_memory", torch.utils.deterministic),
    Setting(
        "anomaly mode",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.set_anomaly_enabled(*value),
    ),
    Setting("the state of autocast", autocast_state.device_states, autocast_state.set_device_states),
    Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting(
        "the precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    *(
        _attribute(f"torch.backends.cudnn.{name}", torch.backends.cudnn)
        for name in ("enabled", "benchmark", "deterministic")
    ),
    Setting("the modes of torch functions", mode_stacks.function_modes, mode_stacks.set_function_modes),
    Setting("the dispatch modes", mode_stacks.dispatch_modes, mode_stacks.set_dispatch_modes),
    Setting("the default device", ambient_state.default_device, ambient_state.set_default_device),
    Setting(
        "the hooks on saved tensors",
        autograd_state.saved_tensor_hooks,
        autograd_state.restore_saved_tensor_hooks,
    ),
)
DISPATCH_MODES = [setting.name for setting in SETTINGS].index("the dispatch modes")


def read_settings() -> tuple[Any, ...]:
    """The values of all `SETTINGS`, in their order."""
    return tuple(setting.read() for setting in SETTINGS)


def changed_settings(before: Sequence[Any]) -> list[Setting]:
    """The settings whose value differs from that in `before`, which `read_settings` gave."""
    return [setting for setting, value in zip(SETTINGS, before, strict=True) if setting.read() != value]


def restore_process_settings(before: Sequence[Any]) -> None:
    """Set each setting back to its value in `before`.

    Example:
        >>> before = read_settings()
        >>> torch.set_default_dtype(torch.float64)
        >>> [setting.name for setting in changed_settings(before)]
        ['the default dtype']
        >>> restore_process_settings(before)
        >>> changed_settings(before)
        []
    """
    for setting, value in zip(SETTINGS, before, strict=True):
        if setting.read() != value:
            setting.write(value)
