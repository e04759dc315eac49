"""Metamorphic reruns: run eager again under changed arithmetic, to tell rounding from a bug.

The first four modules change how eager computes; the last changes an observation:

- `double_by_default`: the default dtype is float64, for the reference in double precision.
- `replay_rng`: the reference draws the numbers that eager drew.
- `dense_operands`: each operation gets dense operands, because ATen's loops differ by layout.
- `random_rounding`: each result is moved by its last digit, up or down at random.
- `device_neutral`: an observation of another device, as if it were of the CPU.
"""
