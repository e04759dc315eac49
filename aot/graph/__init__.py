"""The fx graph: how it is built, the metadata of its values, and passes over finished graphs.

Modules in reading order:

- `builder`: the graph under construction.
- `value_meta`, `shape_inference`: metadata of values, and of what operations return.
- `constant_values`: values that depend on no argument.
- `layout`: values with the layout of the tensors that they stand for.
- `purity`: which nodes must not be dropped, repeated or moved.
- `node_origins`, `node_metadata`: where nodes come from, and what tools read about it.
- `effect_tokens`, `symint_inputs`: passes that make effects and symbols explicit.

Invariant: every recorded node is pure, except random draws, checks, writes to inputs and external effects.
"""
