"""Observation: call a function on fresh arguments and record everything that the contract names.

In: a function, and a function that makes its arguments. Out: an `Observation`, which is plain data.

Modules in reading order:

- `observer`: what is done in which order; `records`: the data that it leaves.
- `tensor_state`, `result_structure`, `python_state`: tensors, containers and Python objects as data.
- `gradients`, `steps`: backwards and writes after the call, by themselves or as a case asks for them.
- `ambient`, `mode_stacks`, `operation_mode`: the modes and generators around the call.
- `alias_probe`, `leaks`: which tensors overlap, and which memory is not freed.
- `exception_origin`: the function that raised; `serialization`: an observation as JSON, and back.
"""
