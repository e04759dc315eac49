"""HTML page: the document of `explain(compiled, html=True)`. It needs no network and no script.

Forward and backward are one listing, like the joint graph that they were cut from. Colours show four kinds of
nodes: those of the forward, saved values, nodes that the backward recomputes, and those of the backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from torch import fx

from aot.frontends.function import CompiledFunction, Specialization
from aot.graph.graph_text import node_text
from aot.partition.joint_graph import is_tangent

_STYLE = """
:root { color-scheme: light dark; --text: #1d1d1f; --page: #fff; --box: #f5f5f7; --line: #d0d0d5;
  --forward: #0b57d0; --saved: #a04a00; --backward: #8e24aa; --again: #00695c; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e9; --page: #161618; --box: #222226; --line: #3c3c42;
  --forward: #8ab4f8; --saved: #ffb26b; --backward: #d7a3ff; --again: #7fd6c6; } }
body { color: var(--text); background: var(--page); font: 15px/1.5 system-ui, sans-serif;
  max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
pre { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: .7rem 1rem;
  overflow-x: auto; font: 13px/1.45 ui-monospace, monospace; }
h2 { border-top: 1px solid var(--line); padding-top: 1.2rem; }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0; }
.forward { color: var(--forward); } .saved { color: var(--saved); font-weight: 600; }
.backward { color: var(--backward); } .again { color: var(--again); }
"""

_LEGEND = (
    ("forward", "runs in the forward"),
    ("saved", "is saved for the backward"),
    ("again", "is computed once more in the backward"),
    ("backward", "runs in the backward"),
)


def render(*compiled: CompiledFunction) -> str:
    """The HTML document about compiled functions, with a section for each specialization so far."""
    title = escape(", ".join(one.__name__ for one in compiled)) or "nothing"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{title}, compiled</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(map(_html_function, compiled))}</body></html>\n"
    )


def _html_function(compiled: CompiledFunction) -> str:
    made = compiled.specializations
    refused = "".join(
        f"<p>Refused, so that {count} calls ran as in eager: {escape(reason)}</p>\n"
        for reason, count in compiled.fallback.calls.items()
    )
    sections = "".join(_html_section(number, one) for number, one in enumerate(made, 1))
    if not (made or refused):
        sections = "<p>Not compiled yet; it is compiled when it is called.</p>"
    return f"<h1>{escape(compiled.__name__)}</h1>\n{refused}{sections}"


def _html_section(number: int, one: Specialization) -> str:
    parts = [f"<h2>Specialization {number}</h2>\n"]
    if one.why:
        parts.append(f"<p>Compiled because {escape(one.why)}.</p>\n")
    if one.sizes is not None:
        parts.append(_text("Answers sizes of which", "\n".join(one.sizes.tests)))
    guards = "\n".join(guard.path for guard in one.guards.guards) or "nothing"
    parts.append(_text("Metadata: what a call does", str(one.metadata), shown=True))
    parts.append(_folded("Graphs", _legend() + _block(list(_joint_graph_html(one))), shown=True))
    parts.append(_text("Plan: what a call does besides running graphs", str(one.plan or "")))
    parts.append(_text("Wrapper: what a call runs", one.wrapper.strip(), shown=True))
    parts.append(_text("Guards: what it reads besides its arguments, and is compared at each call", guards))
    return "".join(parts)


def _joint_graph_html(one: Specialization) -> Iterator[str]:
    """The lines of the graphs with their colours, first the forward's, then the backward's."""
    backward = [node for module in one.backwards for node in module.graph.nodes]
    taken = {n.name for n in backward if n.op == "placeholder" and not is_tangent(n)}
    early = {n.name for n in one.forward.graph.nodes if n.op == "call_function"}
    for node in one.forward.graph.nodes:
        yield from _lines(one.forward, node, "saved" if node.name in taken else "forward")
    for number, module in enumerate(one.backwards, 1):
        which = f" {number} of {len(one.backwards)}" if len(one.backwards) > 1 else ""
        yield f'<span class="backward"># backward{which}</span>'
        for node in module.graph.nodes:
            kind = "again" if node.op == "call_function" and node.name in early else "backward"
            yield from _lines(module, node, "saved" if node.name in taken else kind)


def _lines(module: fx.GraphModule, node: fx.Node, kind: str, indent: str = "") -> Iterator[str]:
    """The line of a node; for a graph that an operator takes, also the lines of its nodes."""
    yield _html_line(node, kind, indent)
    inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
    if isinstance(inner, fx.GraphModule):
        for one in inner.graph.nodes:
            yield from _lines(inner, one, kind, indent + "    ")


def _html_line(node: fx.Node, kind: str, indent: str) -> str:
    return f'<span class="{kind}">{escape(indent + node_text(node))}</span>'


def _legend() -> str:
    items = (f'<span class="{kind}">■ {escape(text)}</span>' for kind, text in _LEGEND)
    return f"<p>{' &nbsp; '.join(items)}</p>\n"


def _block(lines: Sequence[str]) -> str:
    return "<pre>" + "\n".join(lines) + "</pre>\n"


def _text(title: str, text: str, shown: bool = False) -> str:
    return _folded(title, _block([escape(text)]), shown)


def _folded(title: str, body: str, shown: bool = False) -> str:
    return f"<details{' open' if shown else ''}><summary>{escape(title)}</summary>\n{body}</details>\n"
