"""Explanation: the artifacts of a compiled function as text (`text`) and as one HTML page (`html_page`).

In: a `CompiledFunction`. Out: text. Nothing is compiled or run here.
"""
