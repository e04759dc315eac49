"""Ambient state: the generators, modes and defaults around a call.

Here they are seeded and digested (generators), recorded and restored (grad mode, inference mode, autocast,
default dtype and device, deterministic algorithms). An observation takes microseconds here, so the functions
avoid the slow ways of torch and NumPy; their comments give the costs.
Invariant: `restoring_ambient` leaves the caller's generators and modes as they were.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch
from numpy.random import mtrand

from oracles.observation.records import Ambient

_AUTOCAST_DEVICES = ("cpu", "cuda")
_SPARE = [numpy.random.MT19937(0)]  # making one takes longer than a small observation's seeding


def seed_generators(seed: int) -> None:
    """Seed the default generators: torch's of the CPU and of each CUDA device, Python's and NumPy's.

    `torch.manual_seed` seeds the generators of every backend, but takes 300 microseconds, which is more than
    the rest of a small observation.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def digest_of_generators() -> str:
    """A short digest of the states of torch's default generators, and of the next draws of Python and NumPy.

    The generators of Python and NumPy advance by that draw, because to read NumPy's whole state takes a
    hundred times as long.
    """
    digest = hashlib.sha1(torch.get_rng_state().numpy().data, usedforsecurity=False)
    if torch.cuda.is_available():
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.numpy().data)
    digest.update(b"%r %r" % (random.random(), numpy.random.random_sample()))
    return digest.hexdigest()[:16]


def record_ambient() -> Ambient:
    """The ambient state of this thread, now."""
    return Ambient(
        grad_mode=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in _AUTOCAST_DEVICES
        ),
        default_dtype=torch.get_default_dtype(),
        # Four times faster than torch.get_default_device, and true for a device mode too.
        default_device=torch.empty(0).device,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def restore_ambient(wanted: Ambient, now: Ambient) -> None:
    """Put back what differs between two records, except inference mode.

    Inference mode ends with the guard that was entered last. A block that may leak it needs its own guard
    around it.
    """
    if now == wanted:
        return
    torch.set_grad_enabled(wanted.grad_mode)
    for device, enabled, dtype in wanted.autocast:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_default_dtype(wanted.default_dtype)
    if now.default_device != wanted.default_device:
        # The CPU is what torch uses without any device mode; a mode for it would only cost time.
        torch.set_default_device(None if wanted.default_device.type == "cpu" else wanted.default_device)
    if now.deterministic != wanted.deterministic:
        torch.use_deterministic_algorithms(wanted.deterministic)


@contextmanager
def restoring_ambient() -> Iterator[Ambient]:
    """Run a block that may draw random numbers and change modes, and leave no trace of either.

    Yields the ambient state at entry.
    """
    before = record_ambient()
    generator = torch.get_rng_state()
    generators = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    python = random.getstate()
    try:
        with _numpy_generator_apart():
            yield before
    finally:
        restore_ambient(before, record_ambient())
        torch.set_rng_state(generator)
        if generators:
            torch.cuda.set_rng_state_all(generators)
        random.setstate(python)


@contextmanager
def _numpy_generator_apart() -> Iterator[None]:
    """While it lasts, NumPy draws from a spare generator; to copy the user's state would take longer."""
    outside = mtrand.get_bit_generator()
    inside = _SPARE.pop() if _SPARE else numpy.random.MT19937(0)
    mtrand.set_bit_generator(inside)
    try:
        yield
    finally:
        mtrand.set_bit_generator(outside)
        _SPARE.append(inside)
