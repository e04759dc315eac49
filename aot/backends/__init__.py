"""Compilers of graphs that ship, and the boxed calling convention."""
