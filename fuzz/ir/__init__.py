"""A program as pure data.

Invariant: nothing here runs anything, and no module imports torch.
"""
