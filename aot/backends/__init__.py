"""Backends: the graph compilers that come with `aot`, and the boxed calling convention.

Modules in reading order:

- `compilers`: `nop`, boxed callables, and how a graph is handed to a compiler.
- `straight_line`: a graph as a Python function that only calls its operations.
- `graph_names`: names of the graphs that are being compiled.

Invariant: nothing here changes the operations of a graph; compilers get it as the partition made it.
"""
