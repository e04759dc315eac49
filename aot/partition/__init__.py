"""Partition: cut a joint graph into a forward and a backward graph.

In: a joint graph as an `fx.GraphModule`. Out: two modules. A partitioner decides which values of the forward
are saved, and which ones the backward computes a second time.

Modules in reading order:

- `joint_graph`: the parts of a joint graph, and the two graphs that are extracted from it.
- `default`: save what eager saves.
- `min_cut`: save the fewest bytes.
- `costs`, `tensor_bytes`: what it costs to recompute or to save a value.
- `max_flow`, `knapsack`: the two solvers.
- `segment_split`: the backward graphs of single segments, and of fewer tangents.

Invariant: a partitioner never drops, repeats or moves an operation with an external effect.
"""
