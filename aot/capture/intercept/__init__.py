"""Things a function does that are no operations.

It registers hooks, uses streams, asks where tensors lie, and formats sizes.
"""
