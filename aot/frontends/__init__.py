"""Entry points: each makes a `CompiledFunction` of what the caller has.

That is a function, a module, or a graph of Dynamo's.
"""
