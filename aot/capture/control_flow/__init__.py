"""Operators that take functions.

Inlined where the condition is known, else recorded with a subgraph for each function.
"""
