"""`explain`: the three artifacts of a compiled function, and what it does besides computing."""

from __future__ import annotations

import textwrap

from torch import fx

from aot.explanation.html_page import render
from aot.frontends.function import CompiledFunction


def explain(compiled: CompiledFunction, *, html: bool = False) -> str:
    """Metadata, forward graph, backward graph and generated wrapper of every specialization so far, and why
    there is more than one.

    Args:
        html: as an HTML document, for light and dark screens, in which forward and backward are one listing
            in colours, and guards are listed as well. It loads nothing and runs no script.

    Example:
        >>> compiled = aot.aot_function(lambda x: x.sin(), aot.nop)
        >>> compiled(torch.ones(2)); print(aot.explain(compiled))  # doctest: +SKIP
        >>> pathlib.Path("f.html").write_text(aot.explain(compiled, html=True))  # doctest: +SKIP
    """
    if html:
        return render(compiled)
    if not compiled.specializations:
        return f"{compiled.__name__}: not compiled yet; it is compiled when it is called\n"
    parts = []
    for count, one in enumerate(compiled.specializations, 1):
        parts.append(f"==== {compiled.__name__}: specialization {count}\n")
        if one.why:
            parts.append(f"---- compiled because\n{one.why}\n")
        if one.sizes is not None:
            parts.append("---- answers sizes of which\n" + "\n".join(one.sizes.tests) + "\n")
        parts.append(f"---- metadata\n{one.metadata}\n")
        parts.append(f"---- forward graph\n{_code(one.forward)}\n")
        for number, backward in enumerate(one.backwards, 1):
            which = f" {number} of {len(one.backwards)}" if len(one.backwards) > 1 else ""
            parts.append(f"---- backward graph{which}\n{_code(backward)}\n")
        parts.append(f"---- wrapper\n{one.wrapper.strip()}\n")
    return "\n".join(parts)


def _code(graph: fx.GraphModule) -> str:
    """A graph as Python, and those that it calls."""
    inner = [(name, one) for name, one in graph.named_children() if isinstance(one, fx.GraphModule)]
    parts = [f"{name}:\n{textwrap.indent(_code(one), '    ')}" for name, one in inner]
    return "\n\n".join([graph.code.strip(), *parts])
