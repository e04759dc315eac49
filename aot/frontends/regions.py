"""Regions: what the backends of `torch.compile` have compiled, for whoever wants them explained.

Dynamo owns what a backend returns, and gives it to nobody.
"""

from __future__ import annotations

import itertools
import os
import re
import weakref

from torch import fx

from aot.frontends.function import CompiledFunction

_numbers = itertools.count()
_regions: weakref.WeakValueDictionary[int, CompiledFunction] = weakref.WeakValueDictionary()


def note_region(compiled: CompiledFunction) -> None:
    """Note what one of Dynamo's graphs is compiled to."""
    _regions[next(_numbers)] = compiled


def compiled_regions() -> tuple[CompiledFunction, ...]:
    """What the backends have compiled of Dynamo's graphs and Dynamo still has, oldest first.

    Example:
        >>> [region.fallback.calls for region in compiled_regions()]
        []
    """
    return tuple(_regions.values())


def region_name(graph: fx.Graph) -> str | None:
    """The function and the line that one of Dynamo's graphs begins in, such as ``"step at train.py:7"``."""
    traces = (node.meta.get("stack_trace") for node in graph.nodes)
    found = re.search(r'File "(.+)", line (\d+), in (\S+)', next(filter(None, traces), ""))
    return found and f"{found[3]} at {os.path.basename(found[1])}:{found[2]}"
