"""Run torch's autograd engine on the trace, one segment at a time.

A segment is a set of nodes that every backward of the caller runs together or not at all.
"""
