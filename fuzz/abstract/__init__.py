"""Abstract interpretation of eager: what eager does with a program, without running it.

In: a program. Out: metadata, aliasing, version counters, and as much of autograd as decides whether eager
raises.

- `tensor`: a tensor and a statement; `state`: all tensors of a program.
- `eager_rules`: when eager raises, now or later, or has no defined result.
- `interpret`: a whole program, statement by statement.

Invariant: nothing runs, and no module imports torch.
"""
