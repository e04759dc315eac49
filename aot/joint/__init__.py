"""Differentiate the trace.

In: `Traced`, `EffectSummary`. Out: `Joint`: one graph with primals and tangents, cut into segments.
"""
