"""Guards: what a function reads besides its arguments, and a generated test that it has not changed.

In: a function. Out: `Guards` (the test) and `SideEffects` (what the function changes of its surroundings).
A change is undone after the trace, and made again at each call.

Modules in reading order:

- `guard`: one place that is read, and the test for all of them.
- `collect`: the walk from a function to all places that its Python may read.
- `bytecode`, `computed_attributes`: which names a code object reads and writes.
- `introspection`, `containers`, `opaque_state`, `classes`: how the walk looks into objects.
- `tracker`: what is found only while the function runs; `call_tracing`: its calls.
- `variables`, `side_effects`, `scalar_updates`: state that a function changes.
- `reachable`: where a function may have stored a tensor.
- `function_modes`, `legacy_types`, `dynamic_code`, `process_settings`, `module_attributes`: special cases.

Invariant: after a refusal every object that the walk has reached is as it was before the call.
"""
