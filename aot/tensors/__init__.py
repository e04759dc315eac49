"""Tensors: what is known of single tensors, and fakes with the same relations between them.

Modules in reading order:

- `geometry`: size, strides and offset in a storage; `views`: views with any geometry.
- `version_counters`: how often a tensor was written to.
- `fake_tensors`: tensors without values, with the storages, bases and counters of a call's tensors.
- `subclasses`, `jagged_views`, `sparse_gradients`: tensors that are made of other tensors.
- `symbolic_sizes`: numbers of a call that are symbols in its trace.
- `tensor_attributes`: Python attributes; `constants`: values that a trace takes as they are.
"""
