"""What the pool's tests do in workers: answer, or die in every way that a process can."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fuzz
from fuzz.campaign.workers.scratch import scratch_folder
from fuzz.campaign.workers.worker import Last


class Unpicklable(Exception):
    """Its constructor needs two arguments, so that unpickling it fails."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("cannot be made again")


def handle(item: Any) -> Any:
    """Answer an item with itself and this process, unless it names a way to fail."""
    match item:
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "exit":
            os._exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(1000)
        case "hang with the interpreter lock":
            re.match("(a+)+$", "a" * 64 + "b")
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "close the pipe":
            os.closerange(3, 256)
            time.sleep(1000)
        case "allocate":
            return len(bytearray(64 << 30))
        case "unpicklable":
            raise Unpicklable(1, 2)
        case "kernels":
            folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            was_there = folder.exists()
            folder.mkdir(exist_ok=True)
            (folder / "half.so").write_bytes(b"")
            return [str(folder), was_there]
        case "last":
            return Last([item, os.getpid()])
        case "exit politely":
            sys.exit(3)
        case "print":
            print("noise " * 1000)
        case "where":
            return fuzz.__file__
        case "server":
            server = os.getppid()
            return [len(os.listdir(f"/proc/{server}/task")), os.environ["CUDA_VISIBLE_DEVICES"]]
        case "backward":
            tensor = torch.ones(2, requires_grad=True)
            tensor.sin().sum().backward()
            return tensor.grad.tolist()
        case "gpu":
            return [torch.cuda.is_initialized(), os.environ.get("CUDA_VISIBLE_DEVICES")]
        case ["child", file]:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            Path(file).write_text(str(child.pid))
            os._exit(1)
        case _:
            pass
    return [item, os.getpid()]


_kept: list[Any] = []


def keep_a_lock(item: Any) -> bool:
    """Make a lock of multiprocessing's and a temporary script, as targets and trials of scripts do."""
    _kept.append(multiprocessing.RLock())
    _kept.append(tempfile.mkstemp(suffix=".py", dir=scratch_folder()))
    return True
