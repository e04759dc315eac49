"""The wrapper's Python source, written from a `Plan`.

In: a `Plan`. Out: text, and the objects that it names.
"""
