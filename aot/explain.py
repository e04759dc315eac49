"""`explain`: the three artifacts of a compiled function, as text."""

from __future__ import annotations

from aot.api import CompiledFunction


def explain(compiled: CompiledFunction) -> str:
    """Forward graph, backward graph and generated wrapper of every specialization so far.

    Example:
        >>> compiled = aot.aot_function(lambda x: x.sin(), aot.nop)
        >>> compiled(torch.ones(2)); print(aot.explain(compiled))  # doctest: +SKIP
    """
    if not compiled.specializations:
        return f"{compiled.__name__}: not compiled yet; it is compiled when it is called\n"
    parts = []
    for number, one in enumerate(compiled.specializations, 1):
        parts.append(f"==== {compiled.__name__}: specialization {number}\n")
        parts.append(f"---- forward graph\n{one.forward.code.strip()}\n")
        if one.backward is not None:
            parts.append(f"---- backward graph\n{one.backward.code.strip()}\n")
        parts.append(f"---- wrapper\n{one.wrapper.strip()}\n")
    return "\n".join(parts)
