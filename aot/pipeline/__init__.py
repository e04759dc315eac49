"""The compiler, stage by stage: trace, analyse, differentiate, partition, plan.

In: a function and a call. Out: `Lowered`, all that can be stored before a backend sees a graph.
"""
