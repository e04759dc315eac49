"""Text: `explain`, which prints metadata, graphs and wrapper of each specialization."""

from __future__ import annotations

import textwrap

from torch import fx

from aot.explanation.html_page import render
from aot.frontends.function import CompiledFunction
from aot.frontends.regions import compiled_regions


def explain(compiled: CompiledFunction | None = None, *, html: bool = False) -> str:
    """Explain the specializations of a compiled function.

    For each specialization so far the text has its metadata, its forward and backward graph, its plan, its
    generated wrapper, and why it was compiled beside earlier ones. The text also says how many calls were
    refused and ran as in eager.

    Args:
        compiled: the function; None for all that `torch.compile` has compiled with the backends ``aotfuzz``
            and ``aotfuzz_inductor``.
        html: give an HTML document for light and dark screens. It shows forward and backward as one listing
            in colours, and lists the guards too. It loads nothing and runs no script.

    Example:
        >>> compiled = aot.aot_function(lambda x: x.sin(), aot.nop)
        >>> compiled(torch.ones(2)); print(aot.explain(compiled))  # doctest: +SKIP
        >>> pathlib.Path("f.html").write_text(aot.explain(compiled, html=True))  # doctest: +SKIP
    """
    explained = compiled_regions() if compiled is None else (compiled,)
    if html:
        return render(*explained)
    if not explained:
        return "nothing is compiled with the backends aotfuzz and aotfuzz_inductor\n"
    return "\n".join(map(_explain_function, explained))


def _explain_function(compiled: CompiledFunction) -> str:
    parts = []
    for reason, count in compiled.fallback.calls.items():
        parts.append(f"==== {compiled.__name__}: refused, {count} calls ran as in eager\n\n{reason}\n")
    if not parts and not compiled.specializations:
        return f"{compiled.__name__}: not compiled yet; it is compiled when it is called\n"
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
        parts.append(f"---- plan\n{one.plan or ''}")
        parts.append(f"---- wrapper\n{one.wrapper.strip()}\n")
    return "\n".join(parts)


def _code(graph: fx.GraphModule) -> str:
    """A graph as Python text, followed by the graphs that it calls."""
    inner = [(name, one) for name, one in graph.named_children() if isinstance(one, fx.GraphModule)]
    parts = [f"{name}:\n{textwrap.indent(_code(one), '    ')}" for name, one in inner]
    return "\n\n".join([graph.code.strip(), *parts])
