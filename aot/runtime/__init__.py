"""The wrapper around compiled graphs.

In: `EffectSummary`, `Joint`, graphs. Out: a `Plan` (data), its Python source, the callable.
"""
