"""Preload: what the fork server imports and warms once, so that a worker starts in milliseconds.

The import of this module has effects on purpose. It loads torch, the oracles and the fuzzer, and warms the
shipped targets that the environment names, which compiles a toy forward and backward. It does not load `aot`,
because a campaign on a changed `aot` must see the change. `WARM` tells a worker that its fork server has done
this, because that of Python 3.11 ignores an ImportError.
Invariant: one thread is left, and no accelerator is touched.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

import torch

from fuzz.campaign.workers import worker
from fuzz.targets.builtin_targets import SHIPPED

STAGES = (
    "fuzz.execute.case",
    "fuzz.generate",
    "fuzz.program.printer",
    "fuzz.generate.profiles",
    "fuzz.campaign.workers.handlers",
)


def _without_monitor_thread() -> None:
    """Keep tqdm, which Dynamo uses if it is installed, from starting a thread: a fork must not copy
    half of it.
    """
    try:
        tqdm = importlib.import_module("tqdm")
    except ImportError:
        return
    tqdm.tqdm.monitor_interval = 0


def _warm_up_fork_server() -> bool:
    torch.set_num_threads(1)
    _without_monitor_thread()
    for stage in STAGES:
        importlib.import_module(stage)
    names = os.environ.get(worker.WARM, "").split()
    if names:
        # Autograd counts the devices in the first backward of a process and starts a thread for each. There
        # is none yet; after the first fake tensor, a torch that was built for CUDA counts some without any.
        tensor = torch.ones((), requires_grad=True)
        torch.autograd.grad(tensor.neg(), tensor)
    for name in names:
        if name in SHIPPED and SHIPPED[name].available() is None:
            SHIPPED[name].warm()
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    return True


WARM = _warm_up_fork_server()
