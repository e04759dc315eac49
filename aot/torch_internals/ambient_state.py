"""Process and thread state that a trace depends on: dtype, device, grad mode, deterministic mode."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from aot.torch_internals import autocast_state, dispatcher, mode_stacks

__all__ = [
    "are_kernels_deterministic",
    "backward_key",
    "compile_key_test",
    "current_key",
    "default_device",
    "default_dtype_replaced",
    "process_key",
    "set_default_device",
    "snapshot",
]


@contextlib.contextmanager
def default_dtype_replaced(dtype: torch.dtype) -> Iterator[None]:
    """While this lasts, the default dtype is this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _default_device_name() -> str:
    """`torch.get_default_device`, which imports what it needs at each call."""
    context = _GLOBAL_DEVICE.__dict__.get("device_context")
    if context is None and not mode_stacks.function_mode_count():
        return "cpu"
    return str(torch.get_default_device())


def current_key() -> tuple[object, ...]:
    """Everything outside the arguments that changes what a trace records."""
    autocast = torch._C._is_any_autocast_enabled()
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        _default_device_name(),
        (autocast_state.device_states(), torch.is_autocast_cache_enabled()) if autocast else None,
        torch.is_inference_mode_enabled(),
        torch._C._is_torch_function_enabled(),
        torch._C._is_torch_function_all_disabled(),
    )


def compile_key_test(tensors: Sequence[Tensor]) -> tuple[str, dict[str, Any]]:
    """An expression that is true only where `current_key` gives what it gives now, where
    `function_transforms.are_tensors_transformed` and `dispatcher.is_below_autograd` are false, and the names
    in it. It is asked when `tensor_impl.compile_tensor_test` of these has passed, and costs a third of all of
    these.
    """
    key, own = current_key(), _GLOBAL_DEVICE
    names: dict[str, Any] = {"peek": torch._C._functorch.peek_interpreter_stack, "levels": forward_ad}
    tests = ["levels._current_level < 0", "peek() is None"]
    if torch.is_inference_mode_enabled() or all(tensor.is_inference() for tensor in tensors):
        tests += ["not below()", f"inference() is {torch.is_inference_mode_enabled()}"]
        names.update(below=dispatcher.is_below_autograd, inference=torch.is_inference_mode_enabled)
    # (Else the dispatch keys, as a thread changes them, have told both.)
    plain = torch._C._is_torch_function_enabled()
    if own.__dict__ or mode_stacks.function_mode_count() or torch._C._is_any_autocast_enabled() or not plain:
        tests += ["ambient() == here", "not modes()"]
        names.update(ambient=current_key, here=key, modes=mode_stacks.is_user_function_mode_on)
        return " and ".join(tests), names
    tests += [
        f"grad() is {key[0]}",
        "dtype() is default",
        f"deterministic() is {key[2]}",
        "not autocast()",
        "not modes()",
        "functions()",
        "not own.__dict__",
    ]
    names.update(
        grad=torch.is_grad_enabled,
        dtype=torch.get_default_dtype,
        default=key[1],
        deterministic=are_kernels_deterministic,
        autocast=autocast_state.is_autocast_enabled,
        modes=mode_stacks.function_mode_count,
        functions=torch._C._is_torch_function_enabled,
        own=own,
    )
    return " and ".join(tests), names


_GLOBAL_DEVICE = torch._GLOBAL_DEVICE_CONTEXT  # what a thread has set, where it has


def snapshot() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What sets all that `current_key` looks at to what it is now, for as long as it lasts; inference mode
    aside."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    device = _default_device_name()
    autocast = [
        (d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d))
        for d in autocast_state.AUTOCAST_DEVICES
    ]

    within, cached = autocast_state.cast_cache_key()

    @contextlib.contextmanager
    def ambient() -> Iterator[None]:
        before = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
        with contextlib.ExitStack() as stack:
            if within:
                torch.autocast_increment_nesting()
                stack.callback(_leave_autocast_region)
            stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
            torch.set_autocast_cache_enabled(cached)
            for kind, enabled, of in autocast:
                if (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) != (enabled, of):
                    stack.enter_context(torch.autocast(kind, of, enabled))
            if _default_device_name() != device:
                stack.enter_context(torch.device(device))
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.callback(_set_defaults, *before)
            _set_defaults(dtype, deterministic)
            yield

    return ambient


def _leave_autocast_region() -> None:
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


def _set_defaults(dtype: torch.dtype, deterministic: bool) -> None:
    torch.set_default_dtype(dtype)
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)


def backward_key() -> tuple[object, ...]:
    """What of the ambient state changes what the formulas of a backward record."""
    autocast = tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in autocast_state.AUTOCAST_DEVICES
    )
    deterministic = torch.are_deterministic_algorithms_enabled()
    return (autocast if torch._C._is_any_autocast_enabled() else None, deterministic)


are_kernels_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms


def process_key(devices: Iterable[str]) -> tuple[object, ...]:
    """What a trace depends on of this process and its machine, for tensors on these devices: versions, and
    switches that choose kernels, of which results have other strides or other operations are recorded."""
    backends = torch.backends
    found: list[object] = [
        str(torch.__version__),
        torch.version.git_version,
        sys.version,
        platform.machine(),
        backends.cpu.get_cpu_capability(),
        torch._C._has_mkldnn and torch._C._get_mkldnn_enabled(),
        torch._C._get_nnpack_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.__future__.get_overwrite_module_params_on_conversion(),
    ]
    found += [backends.opt_einsum.enabled, backends.opt_einsum.strategy]
    found += [getattr(backends.cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math")]
    kinds = {torch.device(device).type for device in devices} - {"cpu", "meta"}
    if kinds:
        found += [torch.version.cuda, backends.cudnn.version()]  # type: ignore[no-untyped-call]
        found += [backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic]
        found += [str(torch.get_device_module(kind).get_device_properties()) for kind in sorted(kinds)]
    return tuple(found)


def default_device() -> DeviceContext | None:
    """What `torch.set_default_device` has set in this thread."""
    context: DeviceContext | None = _GLOBAL_DEVICE.__dict__.get("device_context")
    return context


def set_default_device(context: DeviceContext | None) -> None:
    """Let it be this, which is or is not among the modes of functions already."""
    if context is None:
        _GLOBAL_DEVICE.__dict__.pop("device_context", None)
    else:
        _GLOBAL_DEVICE.device_context = context
