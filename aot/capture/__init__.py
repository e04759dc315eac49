"""Run the function once on fakes and record a functional graph.

In: `Arguments`. Out: `Traced`, `TraceSession`.
Invariant: the caller's tensors are not touched.
"""
