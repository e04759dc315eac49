"""Operators that take functions.

They are inlined where the condition is known, else recorded with a subgraph for each function.
"""
