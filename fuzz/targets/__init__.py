"""The compilers under test: how each compiles, what it lacks, what it refuses on purpose.

Invariant: no other package of `fuzz` imports `aot`.
"""
