"""Entry points.

Each turns what the caller has (a function, a module, a Dynamo graph) into a `CompiledFunction`.
"""
