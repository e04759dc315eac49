"""`explain`: what is shown, and when."""

from __future__ import annotations

import gc
import linecache
import traceback
from html.parser import HTMLParser

import torch
from torch import Tensor

import aot
from tests.support.agreement import leaf, values


def squares(x: Tensor) -> Tensor:
    """Mutates, and has a backward."""
    x.add_(1)
    return x * x


def test_before_the_first_call() -> None:
    text = aot.explain(aot.aot_function(squares, aot.nop))
    assert "squares" in text
    assert "not compiled yet" in text
    assert "graph" not in text


def test_the_three_artifacts() -> None:
    compiled = aot.aot_function(squares, aot.nop)
    compiled(leaf(3) * 1)
    text = aot.explain(compiled)
    forward, *rest = text.split("---- backward graph")
    backward, wrapper = "".join(rest).split("---- wrapper")
    assert "squares: specialization 1" in forward
    assert "---- forward graph" in forward
    assert "torch.ops.aten.mul.Tensor(add" in forward
    assert "tangents_1" not in forward
    assert "tangents_1" in backward
    assert "torch.ops.aten.mul.Tensor(tangents_" in backward
    assert "def call(t0):" in wrapper
    assert "written(t0, v0" in wrapper


def recomputing(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x.mul_(len("<b>") - 1)
    return (x * w).sin().sum(), x.view(-1)


class Page(HTMLParser):
    """The tags of a document, and the text of each span by its class."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.spans: dict[str, list[str]] = {}
        self._kind = ""
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "href", "onclick"} & {name for name, _ in attributes}
        if tag != "meta":
            self.open.append(tag)
        self._kind = str(dict(attributes).get("class")) if tag == "span" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._kind = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._kind:
            self.spans.setdefault(self._kind, []).append(data)


def test_the_page() -> None:
    compiled = aot.aot_function(recomputing, aot.nop, partition_fn=aot.min_cut_rematerialization_partition)
    assert "Not compiled yet" in Page(aot.explain(compiled, html=True)).text
    for size in (2, 3):
        compiled(values(size, 3), leaf(3))[0].backward()
    document = aot.explain(compiled, html=True)
    page = Page(document)
    assert not page.open
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "prefers-color-scheme: dark" in document and "://" not in document
    for one in compiled.specializations:
        assert one.wrapper.strip() in page.text and str(one.metadata) in page.text
        assert all(guard.path in page.text for guard in one.guards.guards)
    assert "Compiled because argument 0: shape is (3, 3) and not (2, 3)." in page.text
    # The product is recomputed in the backward, from what is saved.
    spans = {kind: "\n".join(lines) for kind, lines in page.spans.items()}
    assert "aten.mul.Tensor" in spans["again"] and "aten.cos" not in spans["again"]
    assert "aten.cos.default" in spans["backward"] and "aten.sin.default" in spans["forward"]
    assert "primals_2: float32[3]" in spans["saved"] and "aten.mul.Tensor(primals_1, 2)" in spans["saved"]


def test_names_are_no_markup() -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1

    function.__name__ = "<script>&"
    page = Page(aot.explain(aot.aot_function(function, aot.nop), html=True))
    assert "script" not in page.tags and "<script>&" in page.text


def test_without_a_backward() -> None:
    compiled = aot.aot_function(squares, aot.nop)
    compiled(values(3))
    text = aot.explain(compiled)
    assert "---- forward graph" in text
    assert "---- backward graph" not in text
    assert "---- wrapper" in text


def test_every_specialization_is_shown() -> None:
    compiled = aot.aot_function(squares, aot.nop)
    for size in (2, 3, 2):
        compiled(values(size))
    text = aot.explain(compiled)
    assert text.count("==== squares: specialization") == 2
    assert text.count("def call(") == 2


def test_the_wrapper_that_is_shown_is_the_one_that_runs() -> None:
    """A traceback through the wrapper quotes its source."""
    broken = [False]

    def compiler(module: object, example_inputs: object) -> object:
        def run(*arguments: Tensor) -> list[Tensor]:
            if broken[0]:
                raise ValueError("here")
            return [arguments[0] + 1, arguments[0]]

        return run

    compiled = aot.aot_function(squares, compiler)
    compiled(values(3))
    broken[0] = True
    try:
        compiled(values(3))
    except ValueError as error:
        quoted = [f.line for f in traceback.extract_tb(error.__traceback__) if "aot wrapper" in f.filename]
    assert quoted
    assert quoted[0]
    assert quoted[0] in compiled.specializations[0].wrapper


def test_a_function_without_a_name() -> None:
    class Callable:
        def __call__(self, x: Tensor) -> Tensor:
            return x.sin()

    compiled = aot.aot_function(Callable(), aot.nop)
    assert "Callable: not compiled yet" in aot.explain(compiled)
    compiled(values(2))
    assert "aten.sin.default" in aot.explain(compiled)


def test_the_source_of_a_wrapper_goes_with_it() -> None:
    """Tracebacks find it in `linecache`, which would keep it for good."""

    def wrappers() -> set[str]:
        return {name for name in linecache.cache if name.startswith("<aot wrapper")}

    before = wrappers()
    compiled = aot.aot_function(torch.sin, aot.nop)
    compiled(torch.ones(3))
    assert len(wrappers() - before) == 1
    del compiled
    gc.collect()
    assert wrappers() <= before
