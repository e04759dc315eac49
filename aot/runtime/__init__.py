"""The wrapper around compiled graphs.

In: `EffectSummary`, `Joint`, graphs. Out: a `Plan` (data), its Python source, the callable.
Invariant: `plan`, `saved_values`, `schedule` and `codegen` import of earlier stages data alone:
`analysis.effect_summary`, `joint.joint`, `capture.autograd.edge_targets`, `capture.memory.view_ops` and
`capture.memory.metadata_log`.
"""
