"""Abstract interpretation of eager.

Metadata, aliasing, version counters and as much of autograd as decides whether eager raises.
Invariant: nothing runs, and no module imports torch.
"""
