"""The wrapper's Python source, written from a `Plan`. In: a `Plan`. Out: text."""
